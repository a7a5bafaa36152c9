"""Gates of a trapezoidal step, and their moments in one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gates.laws import HeavyTail, RatedStep, Softplus
from memcurse_cli.theory.gates.moments import GatedMoments
from memcurse_cli.theory.gates.quadrature import Preactivation
from memcurse_cli.theory.gates.trapezoid_moments import BIAS
from memcurse_cli.theory.gates.trapezoid_nodes import TrapezoidGates
from memcurse_cli.theory.gates.two_gate_bands import TwoPreactivations

Floats = NDArray[np.float64]

FLOOR = float(np.log(1e-4))
LAWS = {
    "heavy tail": RatedStep(HeavyTail(), FLOOR),
    "softplus": RatedStep(Softplus(), FLOOR),
    "high floor": RatedStep(HeavyTail(), float(np.log(0.4))),
}


def gates_of(
    biases: Any,
    spreads: Sequence[float],
    correlations: Sequence[float] = (0.0, 0.0, 0.0),
    angles: Sequence[float] = (),
    turning: float = 0.5,
    weight: float = 0.0,
) -> TrapezoidGates:
    """Spreads of step, rate and weight; correlations step-rate, weight-step, weight-rate."""
    biases = np.atleast_1d(np.asarray(biases, dtype=float))
    ones = np.ones_like(biases)
    step, rate, third = (spread * ones for spread in spreads)
    rated, with_step, with_rate = (each * ones for each in correlations)
    return TrapezoidGates(
        TwoPreactivations(Preactivation(biases, step), Preactivation(0 * ones, rate), rated),
        Preactivation(weight * ones, third),
        with_step,
        with_rate,
        np.asarray(angles, dtype=float),
        turning if angles else 0.0,
    )


def flat(found: GatedMoments) -> Floats:
    """(3, n) E h², E hs and E s²."""
    return np.array([found.second_moment, found.cross_moments[BIAS], found.sensitivities[BIAS]])
