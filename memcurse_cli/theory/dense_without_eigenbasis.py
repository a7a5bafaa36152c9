"""The sensitivity of a stable dense recurrence whose eigenvectors are no basis to compute in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.dense_frequencies import (
    FEWEST,
    PER_DECAY,
    cost_of_frequencies,
    sensitivity_by_frequencies,
)
from memcurse_cli.theory.dense_result import DenseSensitivity
from memcurse_cli.theory.dense_stationary import (
    Memory,
    cost_of_lags,
    remembered_lags,
    sensitivity_by_lags,
)

Floats = NDArray[np.float64]

GROWN = 100.0  # ‖A^d‖_F beyond which squares of A lose more than four digits


def sensitivity_without_eigenbasis(
    matrix: Floats,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    memory: Memory,
    decay: float,
    readout: Floats | None = None,
) -> DenseSensitivity:
    """By lags where no power of A is large, else by frequencies.

    A sum over squares of A loses ``ε ‖A^d‖²``; one over frequencies loses nothing, at a higher
    price for a matrix that is large.

    Args:
        matrix: (n, n) A, all |λ| < 1.
        readin: (n, inputs) B, or None for the identity.
        autocorrelation: R(Δ) of each input.
        memory: of A.
        decay: -log of the largest |λ|.
        readout: (outputs, n) C, or None for the identity.
    """
    if memory.growth > GROWN:
        return sensitivity_by_frequencies(matrix, readin, autocorrelation, decay, readout)
    return sensitivity_by_lags(matrix, readin, autocorrelation, memory.lags, readout)


def cost_without_eigenbasis(matrix: Floats, decay: float) -> float:
    """How many floating-point operations `sensitivity_without_eigenbasis` takes.

    Args:
        matrix: (n, n) A, all |λ| < 1.
        decay: -log of the largest |λ|.
    """
    memory = remembered_lags(matrix)
    if memory.growth > GROWN:
        return cost_of_frequencies(len(matrix), 4 * max(FEWEST, PER_DECAY / decay))
    return cost_of_lags(len(matrix), memory.lags)
