"""Moments of a state under an autocorrelation that is given lag by lag, without a fit."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class EmpiricalMoments(NamedTuple):
    """Of a state with γ = 1.

    Attributes:
        second_moment: E h².
        sensitivity: E (dh/dλ)².
    """

    second_moment: float
    sensitivity: float


def empirical_moments(log_eigenvalue: float, values: Floats) -> EmpiricalMoments:
    """E h² and E (dh/dλ)² of a real λ in (0, 1), with R taken as 0 beyond the last lag.

    With ``N = R(0) + 2 Σ λ^Δ R(Δ)``, ``D = Σ Δ λ^(Δ-1) R(Δ)`` over 1 ≤ Δ ≤ K, and u = 1 - λ²:

        E h²        = N / u
        E (dh/dλ)²  = (N + 2 λ D) / u² + 2 λ² N / u³

    which is f(α, β) and ∂α∂β f at α = β = λ (Zucchet & Orvieto 2024, eq. 6 and 35). An estimated R
    need not be an autocorrelation, so that either may come out negative.

    Args:
        log_eigenvalue: log λ < 0.
        values: (K+1,) R(0..K).

    Raises:
        ValueError: λ is not in (0, 1).
    """
    if not -math.inf < log_eigenvalue < 0:
        raise ValueError("λ is not between 0 and 1")
    lags = np.arange(1, values.size, dtype=np.float64)
    terms = np.exp(lags * log_eigenvalue) * values[1:]
    whole = float(values[0] + 2 * np.sum(terms))
    moved = float(np.sum(lags * terms))  # λ D
    below = -math.expm1(2 * log_eigenvalue)
    squared = math.exp(2 * log_eigenvalue)
    return EmpiricalMoments(
        whole / below, (whole + 2 * moved) / below**2 + 2 * squared * whole / below**3
    )
