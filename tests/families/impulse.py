"""The impulse response that a recurrence's λ, γ, B and C give."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.families.recurrence import Recurrence


def impulse_response(
    recurrence: Recurrence, steps: int, readout: NDArray | None = None
) -> NDArray[np.float64]:
    """``y[l] = Re Σ_i C_i γ_i B_i λ_i^l`` for every output and input, twice that for half pairs.

    Returns:
        (outputs, inputs, steps), or (outputs, channels, steps) where each channel has an input of
        its own.
    """
    readout = recurrence.readout if readout is None else readout
    lags = np.exp(np.outer(recurrence.log_eigenvalues, np.arange(steps)))
    driven = np.exp(recurrence.log_gain)[:, None] * recurrence.readin
    if recurrence.channel is not None:
        alone = recurrence.channel[:, None] == np.arange(recurrence.channel.max() + 1)
        driven = driven * alone
    factor = 2 if recurrence.conjugate_pairs else 1
    return factor * np.einsum("oi,iu,il->oul", readout, driven, lags).real


def output_of(
    recurrence: Recurrence, inputs: NDArray[np.float64], direct: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(steps, outputs) of a sequence (steps, inputs): its convolution with the response, plus D."""
    response = impulse_response(recurrence, len(inputs))
    output = inputs * direct
    for lag in range(len(inputs)):
        output[lag:] += inputs[: len(inputs) - lag] @ response[..., lag].T
    return output
