"""The moments as the sums that define them, from impulse responses."""

from __future__ import annotations

import cmath

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from memcurse_cli.theory.autocorrelation import Autocorrelation

Complexes = NDArray[np.complex128]
MIXTURE = Autocorrelation((0.332, 0.044, 0.2), (0.0, 0.997, 0.3))
COSINES = Autocorrelation((0.7, 0.5, 0.3), (0.8, 0.95, 0.0), (2.1, np.pi, 0.0))


def impulse_responses(eigenvalue: complex, steps: int) -> tuple[Complexes, Complexes]:
    """λ^n and n λ^(n-1), by repeated multiplication."""
    h = np.cumprod(np.r_[1.0, np.full(steps - 1, complex(eigenvalue))])
    s = np.arange(steps) * np.r_[0.0, h[:-1]]
    return h, s


def expectation(first: Complexes, second: Complexes, autocorrelation: Autocorrelation) -> complex:
    """Σ_nm first[n] conj(second[m]) R(n-m): recursive filters run both ways."""
    total = 0j
    for weight, rho, frequency in autocorrelation.parts:
        for turn in (frequency, -frequency):
            recursion = [1.0, -rho * cmath.exp(1j * turn)]
            coloured = lfilter([1.0], recursion, first)
            backwards = lfilter([1.0], recursion, first[::-1])[::-1]
            total += weight / 2 * np.sum((coloured + backwards - first) * second.conj())
    return complex(total)


def moments(
    eigenvalue: complex, autocorrelation: Autocorrelation, steps: int
) -> tuple[float, complex, float]:
    """E|h|², E[s h̄] and E|s|² after some steps."""
    h, s = impulse_responses(eigenvalue, steps)
    hh, sh, ss = (expectation(a, b, autocorrelation) for a, b in ((h, h), (s, h), (s, s)))
    return hh.real, sh, ss.real
