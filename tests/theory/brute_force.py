"""The moments as the sums that define them, from impulse responses."""

from __future__ import annotations

import cmath
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.moments import Moments

Complexes = NDArray[np.complex128]
Floats = NDArray[np.float64]
MIXTURE = Autocorrelation((0.332, 0.044, 0.2), (0.0, 0.997, 0.3))
LARGEST = mpmath.mpf(np.finfo(float).max)
COSINES = Autocorrelation((0.7, 0.5, 0.3), (0.8, 0.95, 0.0), (2.1, np.pi, 0.0))


def impulse_responses(eigenvalues: complex | Complexes, steps: int) -> tuple[Complexes, Complexes]:
    """(..., steps) λ^n and n λ^(n-1), by repeated multiplication."""
    factors = np.repeat(np.asarray(eigenvalues, complex)[..., None], steps, axis=-1)
    factors[..., 0] = 1
    h = np.cumprod(factors, axis=-1)
    return h, np.arange(steps) * np.insert(h[..., :-1], 0, 0, axis=-1)


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


def covariance(autocorrelation: Autocorrelation, steps: int, *, every: bool = False) -> Floats:
    """(steps, steps) E x[t-k] x[t-l] at the last step of a sequence, or as the mean over every one.

    Inputs k and l steps back are seen together by the T - max(k, l) steps that are old enough.
    """
    lags = np.arange(float(steps))
    seen = 1 - np.maximum.outer(lags, lags) / steps if every else 1.0
    return autocorrelation.at(np.abs(np.subtract.outer(lags, lags))) * seen


def moments(
    eigenvalue: complex, autocorrelation: Autocorrelation, steps: int
) -> tuple[float, complex, float]:
    """E|h|², E[s h̄] and E|s|² after some steps."""
    h, s = impulse_responses(eigenvalue, steps)
    hh, sh, ss = (expectation(a, b, autocorrelation) for a, b in ((h, h), (s, h), (s, s)))
    return hh.real, sh, ss.real


def closed_form(
    log_alpha: complex, log_beta: complex, rho: complex, digits: int = 80
) -> tuple[mpmath.mpc, ...]:
    """f, ∂α f, ∂β f and ∂α∂β f by the formulas of section 2 of the theory."""
    with mpmath.workdps(digits):
        a, b, r = (mpmath.mpmathify(x) for x in (mpmath.exp(log_alpha), mpmath.exp(log_beta), rho))
        s = a * b
        u, p, q = 1 - s, 1 - r * a, 1 - r * b
        f = (1 - r**2 * s) / (u * p * q)
        alpha = b * (1 - r**2) / (u**2 * p * q) + r * (1 - r**2 * s) / (u * p**2 * q)
        beta = a * (1 - r**2) / (u**2 * p * q) + r * (1 - r**2 * s) / (u * p * q**2)
        mixed = (1 - r**2) * (u * (1 - r**2 * s**2) + 2 * s * p * q) + r**2 * u**3
        return f, alpha, beta, mixed / (u**3 * p**2 * q**2)


def assert_close(found: Moments, expected: tuple[Any, Any, Any], tolerance: float) -> None:
    """As numbers of 64 bits, or as inf where there is none."""
    f, c, s = (complex(value[0]) for value in found)
    for value, right in ((f, expected[0]), (s, expected[2])):
        if right > LARGEST:
            assert np.isposinf(value.real)
        else:
            assert abs(value - right) <= tolerance * right
    # E[s h̄] may pass through zero; Cauchy-Schwarz gives the scale that matters.
    if np.isfinite(s):
        assert abs(c - expected[1]) <= tolerance * mpmath.sqrt(expected[0] * expected[2])
    else:
        assert c == 0
