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
    Memory,
    remembered_lags,
    sensitivity_by_eigenbasis,
)
from memcurse_cli.theory.dense_without_eigenbasis import GROWN, sensitivity_without_eigenbasis
from memcurse_cli.theory.eigenbasis import Eigenbasis
from memcurse_cli.theory.moments import Readout
from memcurse_cli.theory.schur import (
    TOO_UNCERTAIN,
    UNCERTAIN,
    are_powers_lost,
    radius_within_rounding,
    uncertainty,
)

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

EIGENBASIS_CONDITION = 1e8  # beyond it the eigenbasis has lost half of float64's digits
ON_CIRCLE = 1e-4  # log |λ| up to which a defective eigenvalue of 1 is computed above it
FORGOTTEN = 45.0  # e^-45 is below the rounding of 1


def henrici_departure(matrix: Floats, eigenvalues: Complexes) -> float:
    """√(‖A‖_F² - Σ|λ|²) / ‖A‖_F: 0 for a normal matrix, 1 for a nilpotent one (Henrici 1962)."""
    largest = float(np.abs(matrix).max(initial=0))
    if largest == 0:
        return 0.0
    # Divided by the largest entry no square leaves the range of a float.
    norm = float(np.sum((matrix / largest) ** 2))
    spectrum = float(np.sum(np.abs(eigenvalues / largest) ** 2))
    return math.sqrt(max(norm - spectrum, 0.0) / norm)


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
    memory = Memory(math.inf, math.inf)
    if usable and decay > 0:
        # 1: what A = 0 remembers
        memory = Memory(1 + (FORGOTTEN + math.log(basis.condition)) / decay, basis.condition)
    elif decay > 0:
        memory = remembered_lags(matrix)
    remembered = memory.lags
    if not usable and (horizon is None or horizon > remembered) and is_undetermined(matrix, basis):
        return DenseSensitivity(None, None, None, TOO_UNCERTAIN)
    if horizon is not None and horizon <= remembered:
        if not usable and memory.growth > GROWN and are_powers_lost(matrix, horizon):
            return DenseSensitivity(None, None, None, TOO_UNCERTAIN)
        return finite_dense_sensitivity(
            matrix, basis if usable else None, readin, autocorrelation, horizon, read_at
        )
    if decay <= 0:
        return DenseSensitivity(np.full(matrix.shape[0], np.inf), math.inf, None)
    if usable:
        limit = sensitivity_by_eigenbasis(basis, readin, autocorrelation)
    else:
        limit = sensitivity_without_eigenbasis(matrix, readin, autocorrelation, memory, decay)
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


def is_undetermined(matrix: Floats, basis: Eigenbasis) -> bool:
    """Whether rounding A in float64 can change by more than 1 % what it does in infinitely long.

    Args:
        matrix: (n, n) real A.
        basis: its eigenbasis; one with κ(P) < 1e8 determines it.
    """
    if basis.condition < EIGENBASIS_CONDITION:
        return False
    growth = float(np.max(basis.log_eigenvalues.real, initial=-np.inf))
    if 0 <= growth < ON_CIRCLE:  # an eigenvalue of 1 that is stored as such
        return False
    return not uncertainty(matrix) < UNCERTAIN


def within_rounding(matrix: Floats, basis: Eigenbasis) -> float | None:
    """The largest |λ| of any matrix within rounding of A; None where κ(P) < 1e8 determines it."""
    if basis.condition < EIGENBASIS_CONDITION:
        return None
    radius = math.exp(float(np.max(basis.log_eigenvalues.real, initial=-np.inf)))
    return radius_within_rounding(matrix, radius)
