"""Moments averaged over eigenvalues that were drawn from a ring, as an LRU is initialised."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import WHITE
from memcurse_cli.theory.moments.moments import Readout, moments

Complexes = NDArray[np.complex128]
Floats = NDArray[np.float64]

LogGain = Callable[[Complexes], Complexes]
"""log γ of eigenvalues, which must depend on |λ| alone."""
SLOW = 1.0
"""-log|λ|² below which the decay is the variable, as |λ|² no longer tells it from 0."""


class RingMoments(NamedTuple):
    """Averages over the ring.

    Attributes:
        second_moment: E|h|²; inf where it leaves the range of a float.
        sensitivity: E|dh/dλ|², the same.
    """

    second_moment: float
    sensitivity: float


def ring_moments(
    log_inner: float,
    log_outer: float,
    variance: float = 1.0,
    horizon: int | None = None,
    readout: Readout = "last",
    log_gain: LogGain = np.zeros_like,
) -> RingMoments:
    """E|h|² and E|dh/dλ|² over λ uniform by area on a ring, its phase uniform on the circle.

    The mean over the phase leaves of ``E|h|² = |γ|² Σ_nm λ^n λ̄^m R(n-m)`` the terms with n = m, so
    that any input of variance R(0) counts as white noise of that variance; |λ|² is uniform on
    [r_min², r_max²]. Without a gain and a horizon that is

        E|h|²     = R(0) log((1-r_min²) / (1-r_max²)) / (r_max²-r_min²)
        E|dh/dλ|² = R(0) (1 - r_min² r_max²) / ((1-r_min²)² (1-r_max²)²)

    the first of which is Orvieto et al. 2023, proposition 3, for any stationary input.

    Args:
        log_inner: log r_min; -inf for a disk.
        log_outer: log r_max ≥ log r_min; below 0 without a horizon.
        variance: R(0) of the input.
        horizon: T in steps since h = 0; None for infinitely many.
        readout: ``last`` or ``every`` of them.
        log_gain: log γ of eigenvalues; γ = 1 by default.
    """

    def at(log_modulus: float) -> Floats:
        logs = np.array([complex(log_modulus)])
        gain = np.exp(2 * log_gain(logs).real)
        there = moments(logs, WHITE, horizon, readout)
        return variance * np.concatenate(
            (gain * np.asarray(there.second_moment), gain * np.asarray(there.sensitivity))
        )

    with np.errstate(over="ignore", invalid="ignore"):
        outermost = at(log_outer)
        scale = np.maximum(outermost, variance)
        if not np.isfinite(scale).all():
            return RingMoments(math.inf, math.inf)
        if log_inner == log_outer:
            return RingMoments(*outermost.tolist())
        total = np.zeros(2)
        lower, slow = math.exp(2 * log_inner), math.exp(-SLOW)
        if lower < slow:
            upper = min(slow, math.exp(2 * log_outer))
            total += _integral(lambda square: at(0.5 * _log(square)) / scale, lower, upper)
        if -2 * log_outer < SLOW:
            decays = -2 * log_outer, min(SLOW, -2 * log_inner)
            total += _integral(lambda decay: math.exp(-decay) * at(-0.5 * decay) / scale, *decays)
        area = math.exp(2 * log_outer) * -math.expm1(2 * (log_inner - log_outer))
        return RingMoments(*(scale * total / area).tolist())


def _log(square: float) -> float:
    return math.log(square) if square > 0 else -math.inf


def _integral(function: Callable[[float], Floats], lower: float, upper: float) -> Floats:
    from scipy.integrate import quad_vec  # slow to import, and only rings need it

    return np.asarray(quad_vec(function, lower, upper, epsrel=1e-11, epsabs=0, norm="max")[0])
