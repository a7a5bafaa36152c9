"""How sensitive the state of a dense linear recurrence is to the entries of its matrix.

``h[t+1] = A h[t] + B x[t+1]`` with real A, ``A = P diag(λ) P⁻¹``, and isotropic inputs of
autocorrelation R(Δ) = Σ w ρ^|Δ|. An entry moves every eigenvalue and every eigenvector, and

    dh[t]/dA_ij = Σ_m A^m e_i h_j[t-1-m]
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.dense_horizon import finite_dense_sensitivity
from memcurse_cli.theory.dense_result import DenseSensitivity, mean_of_rise_and_limit
from memcurse_cli.theory.dense_stationary import (
    remembered_lags,
    sensitivity_by_eigenbasis,
    sensitivity_by_lags,
)
from memcurse_cli.theory.eigenbasis import Eigenbasis
from memcurse_cli.theory.moments import Readout

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

EIGENBASIS_CONDITION = 1e8  # beyond it the eigenbasis has lost half of float64's digits
FORGOTTEN = 45.0  # e^-45 is below the rounding of 1


def henrici_departure(matrix: Floats, eigenvalues: Complexes) -> float:
    """√(‖A‖_F² - Σ|λ|²) / ‖A‖_F: 0 for a normal matrix, 1 for a nilpotent one (Henrici 1962)."""
    norm = float(np.sum(matrix**2))
    if norm == 0:
        return 0.0
    return math.sqrt(max(norm - float(np.sum(np.abs(eigenvalues) ** 2)), 0.0) / norm)


def dense_sensitivity(
    matrix: Floats,
    basis: Eigenbasis,
    readin: Floats | None = None,
    autocorrelation: Autocorrelation = WHITE,
    horizon: int | None = None,
    read_at: Readout = "last",
) -> DenseSensitivity:
    """E h_i² and E‖dh/dA_ij‖², exactly.

    Args:
        matrix: (n, n) real A, row = target.
        basis: its eigenbasis.
        readin: (n, inputs) real B, or None for a drive of unit variance on every state.
        autocorrelation: R(Δ) of each input.
        horizon: T for T steps from h = 0, which is exact for every A; None for an infinite
            sequence, which diverges where |λ| >= 1.
        read_at: ``last`` for the state at step T, ``every`` for the mean over all T.
    """
    decay = -float(np.max(basis.log_eigenvalues.real, initial=-np.inf))
    usable = basis.condition < EIGENBASIS_CONDITION
    remembered = math.inf
    if usable and decay > 0:
        remembered = 1 + (FORGOTTEN + math.log(basis.condition)) / decay  # 1: what A = 0 remembers
    elif decay > 0:
        remembered = remembered_lags(matrix)
    if horizon is not None and horizon <= remembered:
        return finite_dense_sensitivity(
            matrix, basis if usable else None, readin, autocorrelation, horizon, read_at
        )
    if decay <= 0:
        return DenseSensitivity(np.full(matrix.shape[0], np.inf), math.inf, None)
    if usable:
        limit = sensitivity_by_eigenbasis(basis, readin, autocorrelation)
    else:
        limit = sensitivity_by_lags(matrix, readin, autocorrelation, remembered)
    if horizon is None or read_at == "last":
        return limit
    # From the lag on at which all is forgotten, every step of the sequence is in that limit.
    rise = math.ceil(remembered)
    return mean_of_rise_and_limit(
        finite_dense_sensitivity(
            matrix, basis if usable else None, readin, autocorrelation, rise, "every"
        ),
        limit,
        rise / horizon,
    )
