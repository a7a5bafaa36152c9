"""The moments as the sums that define them, from impulse responses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Complexes = NDArray[np.complex128]


def impulse_responses(eigenvalue: complex, steps: int) -> tuple[Complexes, Complexes]:
    """λ^n and n λ^(n-1), by repeated multiplication."""
    h = np.cumprod(np.r_[1.0, np.full(steps - 1, complex(eigenvalue))])
    s = np.arange(steps) * np.r_[0.0, h[:-1]]
    return h, s


def expectation(first: Complexes, second: Complexes, rho: float) -> complex:
    """Σ_nm first[n] conj(second[m]) ρ^|n-m|: a recursive filter run both ways."""
    coloured = lfilter([1.0], [1.0, -rho], first)
    backwards = lfilter([1.0], [1.0, -rho], first[::-1])[::-1]
    return complex(np.sum((coloured + backwards - first) * second.conj()))


def moments(eigenvalue: complex, rho: float, steps: int) -> tuple[float, complex, float]:
    """E|h|², E[s h̄] and E|s|² after some steps."""
    h, s = impulse_responses(eigenvalue, steps)
    return expectation(h, h, rho).real, expectation(s, h, rho), expectation(s, s, rho).real
