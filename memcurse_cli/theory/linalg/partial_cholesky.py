"""A pivoted partial Cholesky factorisation of a matrix that is known by its columns.

Of a positive semi-definite H of order N it needs the diagonal and r columns: ``H ≈ L Lᵀ`` with
L of (N, r), where ``H - L Lᵀ`` is positive semi-definite again. Its trace therefore bounds the
error of every eigenvalue: ``λ_k(L Lᵀ) ≤ λ_k(H) ≤ λ_k(L Lᵀ) + tr(H - L Lᵀ)`` (Harbrecht, Peters &
Schneider 2012). Columns are asked for in groups, since many of them cost little more than one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

CANDIDATES = 64  # columns that are asked for at once
GREED = 0.5  # a candidate stays while its pivot is above this share of the best one outside
ROUNDING = 1e-14  # a residual below this share of the diagonal is none


@dataclass(frozen=True)
class PartialCholesky:
    """What was found.

    Attributes:
        factor: (N, r) L.
        residual: (N,) the diagonal of H - L Lᵀ, non-negative.
        pivots: (r,) the columns of the whole that L was made from.
    """

    factor: Floats
    residual: Floats
    pivots: Integers

    def of(self, rows: slice) -> PartialCholesky:
        """The same of a principal submatrix."""
        return PartialCholesky(self.factor[rows], self.residual[rows], self.pivots)

    @property
    def error(self) -> float:
        """tr(H - L Lᵀ): no eigenvalue of H is further above that of L Lᵀ."""
        return float(self.residual.sum())


def partial_cholesky(
    diagonal: Floats,
    columns: Callable[[Integers], Floats],
    *,
    rank: int,
    enough: float = 0.0,
    candidates: int = CANDIDATES,
) -> PartialCholesky:
    """Factorise by the largest pivots until little enough is left or the rank is reached.

    The candidates with the largest residuals are taken together. Among them the pivots are chosen
    one by one, and those that the earlier ones explain are left for another round, so that the
    choice is nearly that of one column at a time.

    Args:
        diagonal: (N,) the diagonal of H.
        columns: (b,) indices → (N, b) these columns of H.
        rank: the most columns of L.
        enough: how much of tr H may be left.
        candidates: columns that are asked for at once.
    """
    from scipy.linalg import solve_triangular

    order = diagonal.size
    rank = min(rank, order)
    factor = np.empty((order, rank), order="F")
    residual = np.maximum(diagonal, 0.0)
    pivots: list[int] = []
    while len(pivots) < rank and residual.sum() > enough:
        count = min(candidates, rank - len(pivots), order)
        best = np.argpartition(-residual, count - 1)[:count]
        outside = residual.copy()
        outside[best] = 0
        best = best[residual[best] > 0]
        done = factor[:, : len(pivots)]
        left = columns(best) - done @ done[best].T
        lower, chosen = _pivot(left[best], GREED * float(outside.max()))
        if chosen.size == 0:
            break
        new = solve_triangular(lower, left[:, chosen].T, lower=True, check_finite=False).T
        factor[:, len(pivots) : len(pivots) + chosen.size] = new
        residual -= np.einsum("ij,ij->i", new, new)
        residual[residual < ROUNDING * diagonal] = 0
        residual[best[chosen]] = 0
        pivots.extend(best[chosen].tolist())
    return PartialCholesky(factor[:, : len(pivots)], residual, np.array(pivots, np.intp))


def _pivot(matrix: Floats, least: float) -> tuple[Floats, Integers]:
    """Pivoted Cholesky of the candidates among themselves, down to a least pivot.

    Returns:
        (p, p) the lower factor in the order of the pivots, and (p,) which candidates they are.
    """
    size = len(matrix)
    lower = np.zeros((size, size))
    left = np.diag(matrix).copy()
    smallest = ROUNDING * float(left.max(initial=0))
    chosen: list[int] = []
    for step in range(size):
        pivot = int(np.argmax(left))
        if left[pivot] <= smallest or (chosen and left[pivot] < least):
            break
        root = np.sqrt(left[pivot])
        column = (matrix[:, pivot] - lower[:, :step] @ lower[pivot, :step]) / root
        lower[:, step] = column
        left -= column**2
        left[pivot] = -np.inf
        chosen.append(pivot)
    kept = np.array(chosen, np.intp)
    return np.tril(lower[kept, : kept.size]), kept
