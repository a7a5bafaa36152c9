"""Where a finite horizon cuts the sensitivity of a memory off, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memcurse_cli.diagnosis.prediction import Prediction, PredictionRow
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.moments import moments


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
