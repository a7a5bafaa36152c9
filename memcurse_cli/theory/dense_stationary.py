"""The sensitivity of a stable dense recurrence on an infinite sequence.

With Q = BBᵀ, ``G = AᵀGA + I``, Σ = E[h hᵀ], ``Y = Q (I - ρAᵀ)⁻¹`` and R(d) the covariance of h at
lag d,

    R(d) = A^d Σ + Σ_{k=1..d} ρ^k A^(d-k) Y
    E‖dh/dA_ij‖² = G_ii Σ_jj + 2 Σ_{d>=1} (G A^d)_ii R(d)_jj

summed over i and j at ρ = 0 to ``tr G tr Σ + 2 Σ_d tr(G A^d) tr(A^d Σ)``. Of an output ``y = C h``
in place of h, CᵀC stands for I in G, and the entries are the diagonal of the Hessian.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.dense_result import DenseSensitivity
from memcurse_cli.theory.eigenbasis import Eigenbasis, PairTables
from memcurse_cli.theory.moments import one_minus_exp

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

LAG_FLOPS = 2e11  # what a sum over lags may cost: seconds on two cores
SETTLED = 1e-17  # a doubling that adds less has added nothing
HALVINGS = 55  # lags are summed until A^d has halved so often, and is below rounding


def sensitivity_by_eigenbasis(
    basis: Eigenbasis,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    readout: Floats | None = None,
) -> DenseSensitivity:
    """In closed form, from a handful of n×n products.

    Every power of A is a power of λ: ``(G A^d)_ii = Σ_k L_ik λ_k^d`` and
    ``(A^d Σ)_jj = Σ_l C_jl λ_l^d`` give ``Σ_d = L K Cᵀ`` with ``K_kl = λ_k λ_l / (1 - λ_k λ_l)``.
    """
    logs = basis.logs
    eigenvalues = np.exp(logs)
    rest = PairTables(
        one_minus_exp(logs[:, None] + logs.conj()[None, :]),
        one_minus_exp(logs[:, None] + logs[None, :]),
    )
    drive = basis.row_products(readin)
    factor = PairTables(np.zeros_like(rest.conjugated), np.zeros_like(rest.plain))
    coloured: list[tuple[Complexes, Complexes]] = []
    for share, rho in autocorrelation:
        p = (1 - rho) + rho * one_minus_exp(logs)  # 1 - ρλ without cancellation
        innovation = (1 - rho) * (1 + rho)
        for table, u, q in zip(factor, rest, (p.conj(), p), strict=True):
            table += share * (innovation / u + rho**2) / np.outer(p, q)
        if rho > 0:
            lagged = PairTables(drive.conjugated / p.conj(), drive.plain / p)
            carried = basis.columns.T * basis.combine_vectors(lagged)
            coloured.append((share * rho * eigenvalues / p, carried))
    covariance = PairTables(factor.conjugated * drive.conjugated, factor.plain * drive.plain)
    right = basis.columns.T * basis.combine_vectors(covariance)  # (h, n) Cᵀ
    second_moment = basis.weight @ right.real

    gram = basis.vector_products(readout)
    observed = PairTables(gram.conjugated / rest.conjugated, gram.plain / rest.plain)
    left = basis.rows * basis.combine_rows(observed)  # (h, n) Lᵀ
    observability = basis.weight @ left.real

    weight = basis.weight[:, None]
    kernel = PairTables(
        np.outer(eigenvalues, eigenvalues.conj()) / rest.conjugated,
        np.outer(eigenvalues, eigenvalues) / rest.plain,
    )
    answered = _apply(kernel, weight * right)
    for powers, carried in coloured:
        kernel = PairTables(powers[:, None] / rest.conjugated, powers[:, None] / rest.plain)
        answered += _apply(kernel, weight * carried)
    entries = np.outer(observability, second_moment)
    entries += _stacked(weight * left).T @ answered
    return DenseSensitivity.of_entries(second_moment, entries)


def _apply(kernel: PairTables, right: Complexes) -> Floats:
    """(2h, n) X with ``Re Lᵀ (K C + K̃ C̄) = [Re L, Im L]ᵀ X``, as one real product."""
    plain, conjugated = kernel.plain, kernel.conjugated
    stacked = np.block(
        [
            [conjugated.real + plain.real, conjugated.imag - plain.imag],
            [-conjugated.imag - plain.imag, conjugated.real - plain.real],
        ]
    )
    return np.asarray(stacked @ _stacked(right))


def _stacked(array: Complexes) -> Floats:
    return np.vstack([array.real, array.imag])


def sensitivity_by_lags(
    matrix: Floats,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    lags: float,
    readout: Floats | None = None,
) -> DenseSensitivity:
    """The sum lag by lag: for matrices without a usable eigenbasis.

    Args:
        matrix: (n, n) A.
        readin: (n, inputs) B, or None for the identity.
        autocorrelation: R(Δ) of each input.
        lags: after how many lags A^d is negligible; inf where summing them costs too much.
        readout: (outputs, n) C, or None for the identity.
    """
    size = matrix.shape[0]
    identity = np.eye(size)
    drive = identity if readin is None else readin @ readin.T
    covariance = np.zeros((size, size))
    carried: list[tuple[float, Floats]] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for share, rho in autocorrelation:
            answer = np.asarray(np.linalg.solve(identity - rho * matrix, drive))  # Yᵀ
            source = rho * (matrix @ answer)
            covariance += share * _summed_powers(matrix, drive + source + source.T)
            if rho > 0:
                carried.append((rho, share * answer.T))
        if math.isinf(lags):
            reason = "its eigenvectors are too ill-conditioned and its memory is too long"
            return DenseSensitivity.of_state(np.diag(covariance), reason)
        seen = identity if readout is None else readout.T @ readout
        left, right = _summed_powers(matrix.T, seen), covariance
        entries = np.outer(np.diag(left), np.diag(right))
        for lag in range(1, math.ceil(lags) + 1):
            left = left @ matrix
            right = matrix @ right
            for rho, answer in carried:
                right = right + rho**lag * answer
            entries += 2 * np.outer(np.diag(left), np.diag(right))
    return DenseSensitivity.of_entries(np.diag(covariance), entries)


def remembered_lags(matrix: Floats) -> float:
    """After how many lags A^d is negligible, or inf where summing so many costs too much."""
    period, power = 1, matrix
    with np.errstate(over="ignore", invalid="ignore"):
        while not float(np.sum(power**2)) <= 0.25:
            period, power = 2 * period, power @ power
            if 4 * matrix.shape[0] ** 3 * HALVINGS * period > LAG_FLOPS:
                return math.inf
    return HALVINGS * period


def _summed_powers(matrix: Floats, source: Floats) -> Floats:
    """X = A X Aᵀ + Q as Σ_k A^k Q A^kᵀ, by doubling: no cancellation, however ill-conditioned."""
    total, power = source, matrix
    while True:
        added = power @ total @ power.T
        total = total + added
        if not float(np.abs(added).max(initial=0)) > SETTLED * float(np.abs(total).max(initial=0)):
            return total
        power = power @ power
