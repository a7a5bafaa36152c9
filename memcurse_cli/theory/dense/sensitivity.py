"""How sensitive the state of a dense linear recurrence is to the entries of its matrix.

``h[t+1] = A h[t] + B x[t+1]`` with real A, ``A = P diag(λ) P⁻¹``, and isotropic inputs of
autocorrelation R(Δ) = Σ w ρ^|Δ|. An entry moves every eigenvalue and every eigenvector, and

    dh[t]/dA_ij = Σ_m A^m e_i h_j[t-1-m]

How much of the sensitivity to a dense matrix goes through its eigenvalues.

A change dA of ``A = P diag(λ) P⁻¹`` has two parts that add up to it, ``E = P⁻¹ dA P``:

    dA_λ = P diag(E) P⁻¹            moves the eigenvalues and leaves the eigenvectors as they are
    dA_P = P (E - diag(E)) P⁻¹      turns the eigenvectors and leaves the eigenvalues as they are

to first order: ``dλ_k = E_kk`` and ``dP = P M`` with ``M_kl = E_kl / (λ_l - λ_k)``, whatever norms
the eigenvectors are given. The state moves by ``dh = dh_λ + dh_P``, and summed over all entries

    E‖dh‖² = E‖dh_λ‖² + E‖dh_P‖² + 2 E<dh_λ, dh_P>

The last term vanishes for a normal matrix. Otherwise both parts are oblique: they can each be
larger than their sum, and undo each other in the last term. With rows q_k of P⁻¹ and columns p_k
of P,

    E‖dh_λ‖² = Σ_kl (p_kᵀp̄_l)² (q_k q̄_lᵀ) (q_k BBᵀ q̄_lᵀ) E[s_k s̄_l]
    E<dh_λ, dh> = Σ_mkl (p̄_mᵀp_k)(q̄_m q_kᵀ) (p̄_mᵀp_l)(q̄_m BBᵀ q_lᵀ) E[s̄_m (h_k - h_l)]/(λ_k - λ_l)

of states h_k with the eigenvalue λ_k and their derivatives s_k, all under the same input. The
claim that the eigenvalues dominate is that of Zucchet & Orvieto 2024, section A.2.3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.dense.eigenbasis import Eigenbasis
from memcurse_cli.theory.dense.horizon import finite_dense_sensitivity
from memcurse_cli.theory.dense.result import DenseSensitivity, mean_of_rise_and_limit
from memcurse_cli.theory.dense.schur import (
    TOO_UNCERTAIN,
    UNCERTAIN,
    are_powers_lost,
    radius_within_rounding,
    uncertainty,
)
from memcurse_cli.theory.dense.stationary import (
    GROWN,
    Memory,
    remembered_lags,
    sensitivity_by_eigenbasis,
    sensitivity_without_eigenbasis,
)
from memcurse_cli.theory.moments.moments import Readout
from memcurse_cli.theory.moments.pairs import finite_pairs, stationary_pairs

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

CLOSE = 1e-5  # times the distance from the unit circle: λ so close share one derivative


class SensitivitySplit(NamedTuple):
    """The parts of E‖dh/dA‖²_F, which is their sum.

    Attributes:
        eigenvalues: Σ_ij E‖dh_λ‖².
        eigenvectors: Σ_ij E‖dh_P‖².
        cross: 2 Σ_ij E<dh_λ, dh_P>, of either sign.
    """

    eigenvalues: float
    eigenvectors: float
    cross: float


def sensitivity_split(
    basis: Eigenbasis,
    total: float,
    readin: Floats | None = None,
    autocorrelation: Autocorrelation = WHITE,
    horizon: int | None = None,
    read_at: Readout = "last",
) -> SensitivitySplit:
    """The share of the eigenvalues, that of the eigenvectors and what they have in common.

    Args:
        basis: the eigenbasis of a real A, with κ(P) far below 1/ε.
        total: E‖dh/dA‖²_F under the same input.
        readin: (n, inputs) real B, or None for the identity.
        autocorrelation: R(Δ) of each input.
        horizon: T for T steps from h = 0; None for an infinite sequence, which needs |λ| < 1.
        read_at: at the last step, or the mean over every one.
    """
    logs = basis.log_eigenvalues
    if horizon is None:
        pairs = stationary_pairs(logs, autocorrelation, conjugate=True)
    else:
        _, pairs = finite_pairs(logs, autocorrelation, horizon, read_at)
    vectors = basis.vectors
    inverse = np.linalg.inv(vectors)
    drive = inverse if readin is None else inverse @ readin
    columns = vectors.conj().T @ vectors  # p̄_mᵀ p_k
    rows = (inverse @ inverse.conj().T).conj()  # q̄_m q_kᵀ
    driven = (drive @ drive.conj().T).conj()
    moved, answered = pairs.ss.conj(), pairs.sh.conj()  # E[s̄_m s_k], E[s̄_m h_k]
    eigenvalue_part = float(np.sum(columns**2 * rows * driven * moved).real)

    left, right = columns * rows, columns * driven
    eigenvalues = np.exp(logs)
    apart = eigenvalues[:, None] - eigenvalues[None, :]
    to_circle = np.maximum(-np.expm1(logs.real), np.finfo(float).eps)
    close = np.abs(apart) < CLOSE * np.minimum(to_circle[:, None], to_circle[None, :])
    quotient = np.divide(1, apart, out=np.zeros_like(apart), where=~close)
    shared = np.sum(((left * answered) @ quotient) * right)
    shared -= np.sum((left @ quotient) * (right * answered))
    # Where λ_k = λ_l the quotient is a derivative; between close ones it is their mean.
    near = 0.5 * close
    shared += np.sum(((left * moved) @ near) * right) + np.sum((left @ near) * (right * moved))
    with_all = float(shared.real)
    cross = 2 * (with_all - eigenvalue_part)
    return SensitivitySplit(eigenvalue_part, total - eigenvalue_part - cross, cross)


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
