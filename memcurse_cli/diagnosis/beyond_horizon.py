"""Where a finite horizon cuts the sensitivity of a memory off, and by how much.

κ(λ) of every eigenvalue of a layer, and the theory's curves to draw behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.schema.prediction import Prediction, PredictionRow
from memcurse_cli.schema.report import SensitivityCurve, finite
from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.moments.moments import moments

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


@dataclass(frozen=True)
class BeyondHorizon:
    """Eigenvalues whose time constants are beyond the horizon.

    Attributes:
        count: how many there are.
        time_constant: τ of the longest, in steps.
        factor: E|dh/dλ|² of the longest on an infinite sequence over that at the horizon; None
            where either is not finite, or nothing changes within it.
    """

    count: int
    time_constant: float
    factor: float | None


def beyond_horizon(prediction: Prediction, rows: Sequence[PredictionRow]) -> BeyondHorizon | None:
    """Those among rows of one input; None where the horizon is infinite or reaches past all."""
    horizon = prediction.horizon
    if horizon is None:
        return None
    longer = [row for row in rows if row.time_constant and row.time_constant > horizon]
    if not longer:
        return None
    longest = max(longer, key=lambda row: row.time_constant or 0.0)
    assert longest.time_constant is not None
    log = np.array([complex(-1 / longest.time_constant, longest.angle)])
    endless = float(moments(log, _input_of(prediction, longest)).sensitivity[0])
    cut = longest.sensitivity
    known = cut is not None and 0 < cut < endless < np.inf
    return BeyondHorizon(
        len({row.time_constant for row in longer}),
        longest.time_constant,
        endless / cut if cut is not None and known else None,
    )


def _input_of(prediction: Prediction, row: PredictionRow) -> Autocorrelation:
    if row.rho is not None:
        return Autocorrelation.from_rho(row.rho)
    return Autocorrelation.from_components(prediction.autocorrelation or WHITE)
