"""How far a Hessian is from diagonal, and what that leaves for an optimizer to suffer from."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TOP = 10  # eigenvectors that `concentration` is averaged over
DENSE_ORDER = 600  # above it, a few eigenvalues cost less by Lanczos than by a full solve


@dataclass(frozen=True)
class DiagonalityScores:
    """Scores of a positive semi-definite matrix H of order N (Zucchet & Orvieto 2024, fig. 4).

    Attributes:
        order: N.
        trace: tr H.
        diagonality: Σ H_aa² / Σ H_ab², in [1/N, 1].
        sharpness: λ_max(H); gradient descent is stable below a step of 2 / sharpness.
        adam_residual: λ_max(D^-½ H D^-½) with D = diag H, over the parameters with H_aa > 0: the
            curvature that an ideal diagonal preconditioner leaves, in [1, N].
        concentration: the number of coordinates that carry a top eigenvector, 1 / Σ v_a⁴ for unit
            v, averaged over the 10 largest eigenvalues. Where eigenvalues coincide their
            eigenvectors are one choice among many, and so is this.
    """

    order: int
    trace: float
    diagonality: float
    sharpness: float
    adam_residual: float
    concentration: float


def diagonality_scores(blocks: Iterable[Floats]) -> DiagonalityScores | None:
    """The scores of a block-diagonal H, one block after the other.

    Args:
        blocks: arrays of (blocks, N, N) symmetric positive semi-definite matrices; each array may
            have its own N. One dense H is one array (1, N, N).

    Returns:
        The scores, or None where H is zero or empty.
    """
    order, trace, on_diagonal, everywhere, residual = 0, 0.0, 0.0, 0.0, 0.0
    top: list[tuple[float, float]] = []
    for hessians in blocks:
        diagonal = np.diagonal(hessians, axis1=1, axis2=2)
        order += diagonal.size
        trace += float(diagonal.sum())
        on_diagonal += float(np.sum(diagonal**2))
        everywhere += float(np.sum(hessians**2))
        inverse_root = np.divide(
            1.0, np.sqrt(np.maximum(diagonal, 0)), out=np.zeros_like(diagonal), where=diagonal > 0
        )
        scaled = inverse_root[:, :, None] * hessians * inverse_root[:, None, :]
        residual = max(residual, max(_largest(block, 1)[0][0] for block in scaled))
        for block in hessians:
            values, vectors = _largest(block, TOP)
            carried = 1 / np.sum(vectors**4, axis=0)
            top = heapq.nlargest(TOP, [*top, *zip(values.tolist(), carried.tolist(), strict=True)])
    if everywhere == 0 or not top:
        return None
    return DiagonalityScores(
        order=order,
        trace=trace,
        diagonality=on_diagonal / everywhere,
        sharpness=top[0][0],
        adam_residual=residual,
        concentration=float(np.mean([carried for _, carried in top])),
    )


def _largest(matrix: Floats, count: int) -> tuple[Floats, Floats]:
    """The largest eigenvalues of a symmetric matrix, descending, and their eigenvectors."""
    count = min(count, matrix.shape[0])
    if matrix.shape[0] <= DENSE_ORDER:
        values, vectors = np.linalg.eigh(matrix)
    else:
        from scipy.sparse.linalg import eigsh

        # A fixed start makes the report the same every time.
        start = np.ones(matrix.shape[0])
        values, vectors = eigsh(matrix, k=count, which="LA", v0=start)
    return values[::-1][:count], vectors[:, ::-1][:, :count]
