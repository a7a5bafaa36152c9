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

    Raises:
        OverflowError: an element or its square is not finite.
    """
    order, trace, on_diagonal, everywhere, residual = 0, 0.0, 0.0, 0.0, 0.0
    top: list[tuple[float, float]] = []
    for hessians in blocks:
        diagonal = np.diagonal(hessians, axis1=1, axis2=2)
        norms = _norms(hessians)
        order += diagonal.size
        trace += float(diagonal.sum())
        on_diagonal += float(np.sum(diagonal**2))
        everywhere += float(np.sum(norms**2))
        if not np.isfinite(everywhere):
            raise OverflowError("the squares of a Hessian's elements have no finite sum")
        root = np.sqrt(np.maximum(diagonal, 0))
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)
        scaled = inverse[:, :, None] * hessians * inverse[:, None, :]
        # A norm bounds an eigenvalue: most blocks need none of their own.
        bounds = _norms(scaled)
        for index in np.argsort(-bounds).tolist():
            if bounds[index] <= residual:
                break
            residual = max(residual, float(_largest(scaled[index], 1)[0][0]))
        for index in np.argsort(-norms).tolist():
            if len(top) == TOP and norms[index] <= top[-1][0]:
                break
            values, vectors = _largest(hessians[index], TOP)
            carried = 1 / np.sum(vectors**4, axis=0)
            top = heapq.nlargest(TOP, [*top, *zip(values.tolist(), carried.tolist(), strict=True)])
    if everywhere == 0:
        return None
    return DiagonalityScores(
        order=order,
        trace=trace,
        diagonality=on_diagonal / everywhere,
        sharpness=top[0][0],
        adam_residual=residual,
        concentration=float(np.mean([carried for _, carried in top])),
    )


def _norms(matrices: Floats) -> Floats:
    """(blocks,) Frobenius norms."""
    return np.asarray(np.sqrt(np.einsum("kij,kij->k", matrices, matrices)))


def _largest(matrix: Floats, count: int) -> tuple[Floats, Floats]:
    """The largest eigenvalues of a symmetric matrix, descending, and their eigenvectors."""
    size = matrix.shape[0]
    count = min(count, size)
    if size <= DENSE_ORDER:
        values, vectors = np.linalg.eigh(matrix)
    else:
        import scipy.linalg
        from scipy.sparse.linalg import ArpackNoConvergence, eigsh

        start = np.random.default_rng(0).normal(size=size)  # the same report every time
        try:
            values, vectors = eigsh(matrix, k=count, which="LA", v0=start)
        except ArpackNoConvergence:
            values, vectors = scipy.linalg.eigh(matrix, subset_by_index=[size - count, size - 1])
    return values[::-1][:count], vectors[:, ::-1][:, :count]
