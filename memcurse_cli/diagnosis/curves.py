"""κ(λ) of every eigenvalue of a layer, and the theory's curves to draw behind them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.finite import finite
from memcurse_cli.diagnosis.report import SensitivityCurve
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.theory.moments import moments

POINTS_PER_DECADE = 8
DECADES = (-1, 6)  # of the time constant in steps


def relative_sensitivities(
    log_eigenvalues: NDArray[np.complex128], settings: Settings
) -> tuple[float | None, ...]:
    """κ(λ) = E|dh/dλ|² / E|h|² of each eigenvalue; None where it diverges.

    Zucchet & Orvieto 2024, eq. 6, with γ held. λ = 0 holds nothing but the last input: κ = 1.
    """
    moment = moments(
        log_eigenvalues, settings.autocorrelation, settings.horizon, settings.state_readout
    )
    with np.errstate(invalid="ignore", over="ignore"):
        kappa = np.asarray(moment.sensitivity / moment.second_moment)
    return tuple(map(finite, kappa.tolist()))


def sensitivity_curves(settings: Settings) -> tuple[SensitivityCurve, ...]:
    """The curve at the horizon, and the one of an infinite sequence."""
    count = (DECADES[1] - DECADES[0]) * POINTS_PER_DECADE + 1
    time_constant = np.logspace(*DECADES, count)
    logs = (-1 / time_constant).astype(np.complex128)
    endless = replace(settings, horizon=None, readout=None)
    return tuple(
        SensitivityCurve(
            under.horizon, tuple(time_constant.tolist()), relative_sensitivities(logs, under)
        )
        for under in ([endless] if settings.horizon is None else [settings, endless])
    )
