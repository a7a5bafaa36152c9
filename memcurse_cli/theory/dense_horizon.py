"""The sensitivity of a dense recurrence after T steps from zero, exact for every matrix.

With h_0 = 0 and C(t, t') the covariance of the state at two times,

    E‖dh_T/dA_ij‖² = Σ_{a,b < T} (A^aᵀA^b)_ii C(T-1-a, T-1-b)_jj

The input starts stationary: a first innovation of variance 1, then innovations of variance
1-ρ², each answered by ``Z_k = Σ_{l<=k} ρ^l A^(k-l) B``, so that C is a sum of products of Z.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.eigenbasis import Eigenbasis

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

ENTRY_ELEMENTS = 3e7  # n T² and T n² up to which every entry is computed
TOTAL_ELEMENTS = 2e7  # T² up to which the total is


def finite_dense_sensitivity(
    matrix: Floats,
    basis: Eigenbasis | None,
    drive: Floats,
    autocorrelation: Autocorrelation,
    horizon: int,
) -> tuple[Floats | None, float | None, Floats | None, str | None]:
    """E h_i² at the last step, E‖dh/dA‖²_F, each entry's share, and why one is missing.

    Args:
        matrix: (n, n) real A.
        basis: its eigenbasis, or None where that is not to be used.
        drive: (n, n) Q = BBᵀ.
        autocorrelation: R(Δ) of each input.
        horizon: T ≥ 1.
    """
    size = matrix.shape[0]
    with np.errstate(over="ignore", invalid="ignore"):
        if size * horizon * max(size, horizon) <= ENTRY_ELEMENTS:
            return _by_entry(matrix, drive, autocorrelation, horizon)
        if basis is None or horizon**2 > TOTAL_ELEMENTS:
            reason = (
                f"{horizon} steps are too many for a matrix of this size"
                if basis is not None
                else "its eigenvectors are too ill-conditioned for a matrix of this size"
            )
            return None, None, None, reason
        return _total(basis, drive, autocorrelation, horizon)


def _by_entry(
    matrix: Floats, drive: Floats, autocorrelation: Autocorrelation, horizon: int
) -> tuple[Floats, float | None, Floats | None, str | None]:
    """Every entry, from explicit powers of A: no eigenbasis takes part."""
    size = matrix.shape[0]
    powers = _responses(matrix, np.eye(size), 0.0, horizon)  # (T, n, n)
    root = _square_root(drive)
    state = np.zeros((size, horizon + 1, horizon + 1))  # C(t, t')_jj
    for weight, rho in autocorrelation:
        answer = _responses(matrix, root, rho, horizon)  # (T, n, inputs)
        products = np.matmul(answer.transpose(1, 0, 2), answer.transpose(1, 2, 0))
        state[:, 1:, 1:] += weight * _accumulate(products, rho)
    second_moment = state[:, horizon, horizon].copy()
    past = state[:, horizon - 1 :: -1, horizon - 1 :: -1]
    columns = powers.transpose(2, 0, 1)  # (n, T, n): column i of every power
    gram = np.matmul(columns, columns.transpose(0, 2, 1))  # (A^aᵀA^b)_ii
    entry = gram.reshape(size, -1) @ past.reshape(size, -1).T
    return _finite(second_moment), _sum(entry), np.where(np.isfinite(entry), entry, np.inf), None


def _total(
    basis: Eigenbasis, drive: Floats, autocorrelation: Autocorrelation, horizon: int
) -> tuple[Floats, float | None, Floats | None, str | None]:
    """The total alone, in the eigenbasis, where every power is a power of λ."""
    vectors, inverse = basis.vectors, basis.inverse
    gram = vectors.conj().T @ vectors
    modal_drive = inverse @ drive @ inverse.conj().T
    eigenvalues = np.exp(basis.log_eigenvalues)
    powers = np.power(eigenvalues, np.arange(horizon)[:, None], dtype=np.complex128)  # (T, n)
    products = _modal_products(powers, gram * (inverse @ inverse.conj().T).T)
    state = np.zeros((horizon + 1, horizon + 1))
    second_moment = np.zeros(vectors.shape[0])
    for weight, rho in autocorrelation:
        answer = _modal_responses(powers, rho)
        share = _innovations(horizon, rho)[:, None]
        covariance = ((answer * share).T @ answer.conj()) * modal_drive
        second_moment += weight * np.sum((vectors @ covariance) * vectors.conj(), axis=1).real
        traces = _modal_products(answer, gram * modal_drive.T)
        state[1:, 1:] += weight * _accumulate(traces[None], rho)[0]
    past = state[horizon - 1 :: -1, horizon - 1 :: -1]
    total = float(np.sum(products * past))
    return (
        _finite(second_moment),
        total if math.isfinite(total) else math.inf,
        None,
        "the sensitivity of each entry costs too much at this size and horizon",
    )


def _responses(matrix: Floats, root: Floats, rho: float, horizon: int) -> Floats:
    """(T, n, inputs) Z_k, the answer to an innovation k steps ago."""
    answer = np.empty((horizon, *root.shape))
    answer[0] = root
    for lag in range(1, horizon):
        answer[lag] = matrix @ answer[lag - 1] + rho**lag * root
    return answer


def _modal_responses(powers: Complexes, rho: float) -> Complexes:
    """(T, n) Σ_{l<=k} ρ^l λ^(k-l)."""
    if rho == 0:
        return powers
    answer = np.empty_like(powers)
    answer[0] = 1
    eigenvalues = powers[1] if len(powers) > 1 else powers[0]
    for lag in range(1, len(powers)):
        answer[lag] = eigenvalues * answer[lag - 1] + rho**lag
    return answer


def _modal_products(answer: Complexes, weight: Complexes) -> Floats:
    """(T, T) Re Σ_kl conj(z_a,k) W_kl z_b,l."""
    return np.asarray(((answer.conj() @ weight) @ answer.T).real)


def _innovations(horizon: int, rho: float) -> Floats:
    """(T,) the variance of the innovation k steps before the last; the first has variance 1."""
    variance = np.full(horizon, (1 - rho) * (1 + rho))
    variance[-1] = 1.0
    return variance


def _accumulate(products: Floats, rho: float) -> Floats:
    """C(t, t') = v₁ P[t-1, t'-1] + (1-ρ²) Σ_{k >= 1} P[t-1-k, t'-1-k], from P[a, b] = Z_a·Z_b.

    The first innovation, of variance 1, is as old as the shorter of the two times allows.
    """
    horizon = products.shape[-1]
    variance = (1 - rho) * (1 + rho)
    covariance = np.empty_like(products)
    running = np.zeros_like(products)
    # The innovation at step r is k = t - r and k' = t' - r steps old: sum along diagonals.
    running[:, 0, :] = products[:, 0, :]
    running[:, :, 0] = products[:, :, 0]
    for row in range(1, horizon):
        running[:, row, 1:] = running[:, row - 1, :-1] + products[:, row, 1:]
    covariance[...] = variance * running + (1 - variance) * products
    return covariance


def _square_root(drive: Floats) -> Floats:
    """S with S Sᵀ = Q, for Q ≥ 0 that may be singular."""
    values, vectors = np.linalg.eigh(drive)
    kept = values > 0
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.inf)


def _sum(entry: Floats) -> float:
    total = float(entry.sum())
    return total if math.isfinite(total) else math.inf
