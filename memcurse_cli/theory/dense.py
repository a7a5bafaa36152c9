"""How sensitive the state of a dense linear recurrence is to the entries of its matrix.

``h[t+1] = A h[t] + B x[t+1]`` with real A, ``A = P diag(λ) P⁻¹``, and isotropic inputs of
autocorrelation R(Δ) = Σ w ρ^|Δ|. An entry moves every eigenvalue and every eigenvector, and

    dh[t]/dA_ij = Σ_m A^m e_i h_j[t-1-m]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.dense_horizon import finite_dense_sensitivity
from memcurse_cli.theory.eigenbasis import Eigenbasis
from memcurse_cli.theory.moments import bilinear, one_minus_exp

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

EIGENBASIS_CONDITION = 1e8  # beyond it the eigenbasis has lost half of float64's digits
LAG_FLOPS = 2e11  # what a sum over lags may cost: seconds on two cores
FORGOTTEN = 45.0  # e^-45 is below the rounding of 1


@dataclass(frozen=True)
class DenseSensitivity:
    """The state and its sensitivity to a dense matrix.

    Attributes:
        second_moment: (n,) E h_i²; inf where it diverges, None where not computed.
        total: E‖dh/dA‖²_F = Σ_ij E‖dh/dA_ij‖²; inf where it diverges, None where not computed.
        per_entry: (n, n) E‖dh/dA_ij‖², or None where only the total is computed.
        reason: why something is None.
    """

    second_moment: Floats | None
    total: float | None
    per_entry: Floats | None
    reason: str | None = None

    @property
    def relative(self) -> float | None:
        """E‖dh/dA‖²_F / E‖h‖²; inf where it diverges, None where not computed."""
        if self.total is None or self.second_moment is None or not math.isfinite(self.total):
            return self.total
        state = float(self.second_moment.sum())
        return self.total / state if state > 0 else 0.0


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
) -> DenseSensitivity:
    """E h_i² and E‖dh/dA_ij‖², exactly.

    Args:
        matrix: (n, n) real A, row = target.
        basis: its eigenbasis.
        readin: (n, inputs) real B, or None for a drive of unit variance on every state.
        autocorrelation: R(Δ) of each input.
        horizon: T for the last of T steps from h = 0, which is exact for every A; None for an
            infinite sequence, which diverges where |λ| >= 1.
    """
    drive = np.eye(matrix.shape[0]) if readin is None else readin @ readin.T
    decay = -float(np.max(basis.log_eigenvalues.real, initial=-np.inf))
    if horizon is not None and not horizon * decay > FORGOTTEN + math.log(basis.condition):
        return DenseSensitivity(
            *finite_dense_sensitivity(
                matrix,
                basis if basis.condition < EIGENBASIS_CONDITION else None,
                drive,
                autocorrelation,
                horizon,
            )
        )
    if decay <= 0:
        return DenseSensitivity(np.full(matrix.shape[0], np.inf), math.inf, None)
    if basis.condition < EIGENBASIS_CONDITION:
        return _by_eigenbasis(basis, drive, autocorrelation)
    return _by_lags(matrix, drive, autocorrelation, decay, basis.condition)


def _by_eigenbasis(
    basis: Eigenbasis, drive: Floats, autocorrelation: Autocorrelation
) -> DenseSensitivity:
    """Closed form in the eigenbasis: a handful of n×n products.

    With ``G = AᵀGA + I``, Σ = E[h hᵀ], Q = BBᵀ, ``Y = Q (I - ρAᵀ)⁻¹`` and R(d) the covariance of
    h at lag d,

        R(d) = A^d Σ + Σ_{k=1..d} ρ^k A^(d-k) Y
        E‖dh/dA_ij‖² = G_ii Σ_jj + 2 Σ_{d>=1} (G A^d)_ii R(d)_jj

    and every power of A is a power of λ. A is real, so its eigenvalues come in conjugate pairs
    and the sum over one side of the spectrum takes one of each, with its weight.
    """
    half, weight = basis.half, basis.half_weight
    vectors, inverse, logs = basis.vectors, basis.inverse, basis.log_eigenvalues
    modal_drive = inverse[half] @ (drive @ inverse.conj().T)  # rows of P⁻¹ Q P⁻ᴴ
    covariance = np.zeros_like(modal_drive)
    lagged: list[tuple[float, float, Complexes]] = []
    for share, rho in autocorrelation:
        covariance += share * bilinear(logs[half, None], logs.conj()[None, :], rho).value
        if rho > 0:
            lagged.append((share, rho, modal_drive / _one_minus(rho, logs.conj())[None, :]))
    covariance *= modal_drive
    right = _diagonal_of_powers(vectors[:, half], covariance @ vectors.conj().T)  # (n, half)
    second_moment = (right.real * weight).sum(axis=1)

    gram = vectors.conj().T @ vectors[:, half]
    gram /= one_minus_exp(logs.conj()[:, None] + logs[None, half])
    left = (inverse.conj().T @ gram) * inverse[half].T  # (G A^d)_ii = Σ_k left_ik λ_k^d
    observability = (left.real * weight).sum(axis=1)

    # K_kl = λ_k λ_l / (1 - λ_k λ_l), and the other member of each pair l beside it.
    entry = np.outer(observability, second_moment)
    left *= weight
    for conjugate in (False, True):
        other = logs[half].conj() if conjugate else logs[half]
        rest = one_minus_exp(logs[half, None] + other[None, :])
        kernel = np.exp(logs[half, None] + other[None, :]) / rest
        terms = [(kernel, right)]
        for share, rho, modal in lagged:
            powers = rho * np.exp(logs[half]) / _one_minus(rho, logs[half])
            lag = _diagonal_of_powers(vectors[:, half], modal @ vectors.conj().T)
            terms.append((share * powers[:, None] / rest, lag))
        for table, diagonal in terms:
            diagonal = (diagonal.conj() if conjugate else diagonal) * (weight / 2)
            entry += 2 * _real_product(left @ table, diagonal.T)
    return DenseSensitivity(second_moment, float(entry.sum()), entry)


def _diagonal_of_powers(vectors: Complexes, modal: Complexes) -> Complexes:
    """(n, k) V with (A^d M)_jj = Σ_l V_jl λ_l^d, from P and the rows of P⁻¹M."""
    return np.asarray(vectors * modal.T)


def _one_minus(rho: float, logs: Complexes) -> Complexes:
    """1 - ρλ without cancellation near ρλ = 1."""
    return np.asarray((1 - rho) + rho * one_minus_exp(logs))


def _real_product(left: Complexes, right: Complexes) -> Floats:
    """Re(left @ right) at half the cost of the complex product."""
    return left.real @ right.real - left.imag @ right.imag


def _by_lags(
    matrix: Floats,
    drive: Floats,
    autocorrelation: Autocorrelation,
    decay: float,
    condition: float,
) -> DenseSensitivity:
    """The same sum lag by lag, from Stein equations: for matrices without a usable eigenbasis."""
    from scipy.linalg import solve_discrete_lyapunov

    size = matrix.shape[0]
    identity = np.eye(size)
    covariance = np.zeros((size, size))
    colours: list[tuple[float, float, Floats]] = []
    for share, rho in autocorrelation:
        carried = np.asarray(
            np.linalg.solve(identity - rho * matrix, rho * drive), np.float64
        )  # E[h x'ᵀ]Bᵀ, x' the next
        source = matrix @ carried
        covariance += share * solve_discrete_lyapunov(matrix, drive + source + source.T)
        if rho > 0:
            colours.append((share, rho, carried.T / rho))  # Y
    second_moment = np.diag(covariance).copy()
    lags = (FORGOTTEN + math.log(min(condition, 1e300))) / decay
    if 4 * size**3 * lags > LAG_FLOPS:
        return DenseSensitivity(
            second_moment,
            None,
            None,
            "its eigenvectors are too ill-conditioned and its memory too long for a sum over lags",
        )
    observability = solve_discrete_lyapunov(matrix.T, identity)
    entry = np.outer(np.diag(observability), np.diag(covariance))
    left, right = observability, covariance
    for lag in range(1, math.ceil(lags) + 1):
        left = left @ matrix
        right = matrix @ right
        for share, rho, carried in colours:
            right = right + share * rho**lag * carried
        entry += 2 * np.outer(np.diag(left), np.diag(right))
    return DenseSensitivity(second_moment, float(entry.sum()), entry)
