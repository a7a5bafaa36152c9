"""What states make of an estimated autocorrelation, and of the mixture that was fitted to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.empirical_moments import empirical_moments
from memcurse_cli.theory.moments import moments

TIME_CONSTANTS = (1.0, 10.0, 100.0, 1000.0)
"""Of the states that the mixture is tried on, in steps."""
FORGOTTEN = 10.0
"""Time constants after which what is left of an input, e^-10, no longer counts."""


@dataclass(frozen=True)
class StateCheck:
    """What a state makes of the estimate itself, and what it makes of the mixture.

    Attributes:
        time_constant: τ = -1/log λ of a real λ, in steps.
        second_moment: E h² from R̂, lag by lag.
        fitted_second_moment: E h² from the mixture.
        sensitivity: E (dh/dλ)² from R̂.
        fitted_sensitivity: E (dh/dλ)² from the mixture.
    """

    time_constant: float
    second_moment: float
    fitted_second_moment: float
    sensitivity: float
    fitted_sensitivity: float


def check_states(values: NDArray[np.float64], mixture: Autocorrelation) -> tuple[StateCheck, ...]:
    """Of the time constants of which the lags hold `FORGOTTEN` or more.

    Args:
        values: (K+1,) R̂, unbiased.
        mixture: what was fitted to it.
    """
    checks = []
    for time_constant in TIME_CONSTANTS:
        if FORGOTTEN * time_constant > values.size - 1:
            break
        log = -1 / time_constant
        direct, fitted = empirical_moments(log, values), moments(np.array([log]), mixture)
        checks.append(
            StateCheck(
                time_constant,
                direct.second_moment,
                float(fitted.second_moment[0]),
                direct.sensitivity,
                float(fitted.sensitivity[0]),
            )
        )
    return tuple(checks)
