"""Gaussian sequences with a known autocorrelation, and what chance does to their estimates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz
from scipy.signal import lfilter

from memcurse_cli.theory.autocorrelation import Autocorrelation

Floats = NDArray[np.float64]
PAPER = Autocorrelation((0.332, 0.044), (0.0, 0.997))


def gaussian(autocorrelation: Autocorrelation, shape: tuple[int, int, int], seed: int) -> Floats:
    """(N, T, F) independent stationary sequences."""
    random = np.random.default_rng(seed)
    total = np.zeros(shape)
    for weight, rho in autocorrelation:
        noise = random.standard_normal(shape)
        noise[:, 1:] *= np.sqrt(1 - rho**2)
        total += np.sqrt(weight) * lfilter([1.0], [1.0, -rho], noise, axis=1)
    return total


def estimate_covariance(autocorrelation: Autocorrelation, steps: int, lags: int) -> Floats:
    """(K+1, K+1) Cov R̂(Δ), R̂(Δ') = 2 tr(B_Δ Σ B_Δ' Σ) of one Gaussian sequence.

    R̂(Δ) = xᵀ B_Δ x for the symmetric matrix B_Δ that has 1/(2(T-Δ)) on its diagonals ±Δ.
    """
    covariance = toeplitz(autocorrelation.at(np.arange(float(steps))))
    forms = np.empty((lags + 1, steps, steps))
    for lag in range(lags + 1):
        shift = np.eye(steps, k=lag)
        forms[lag] = (shift + shift.T) / (2 * (steps - lag)) @ covariance
    flat = forms.reshape(lags + 1, -1)
    return 2 * flat @ forms.transpose(0, 2, 1).reshape(lags + 1, -1).T
