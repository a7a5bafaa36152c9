"""The largest eigenvalues of a symmetric operator that is known by its products alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EXPLICIT_ORDER = 256  # up to here the matrix itself costs less than an iteration on it
TOLERANCE = 1e-8  # residual ‖Hv - μv‖ / μ where vectors are asked for
RESIDUAL = 1e-6  # the same where only the value is, whose error is of second order in it
NOTHING = 1e-12  # share of the largest eigenvalue below which one is rounding
WIDER = 4  # how many times the basis may be doubled before the iteration is given up
CHECKED = 8  # steps between two looks at the residual


def largest_eigenpairs(
    apply: Callable[[Floats], Floats], order: int, count: int
) -> tuple[Floats, Floats]:
    """The largest eigenvalues of a positive semi-definite H, descending, with eigenvectors.

    By the implicitly restarted Lanczos iteration (Lehoucq, Sorensen & Yang 1998) from fixed
    starts, so that the same operator gives the same digits. One start meets an eigenspace in one
    direction: what H is beside the eigenvectors found is searched from another start, until
    nothing larger is left there.

    Args:
        apply: v → H v, both (order,).
        order: N.
        count: how many eigenpairs.

    Returns:
        (count,) eigenvalues and (N, count) unit eigenvectors; fewer where N is smaller.

    Raises:
        ArithmeticError: the iteration has not converged.
    """
    count = min(count, order)
    if order <= EXPLICIT_ORDER:
        matrix = np.stack([apply(row) for row in np.eye(order)])
        values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
        return values[::-1][:count], vectors[:, ::-1][:, :count]
    values, vectors = _from_one_start(apply, order, count, seed=0)
    seed = 1

    def deflated(vector: Floats) -> Floats:
        return apply(vector) - vectors @ (values * (vectors.T @ vector))

    while count < order:
        largest, _ = _from_one_start(deflated, order, 1, seed)
        if not largest[0] > max(values[-1] * (1 + RESIDUAL), NOTHING * values[0]):
            break
        more, beside = _from_one_start(deflated, order, count, seed)
        joined, both = np.r_[values, more], np.hstack([vectors, beside])
        descending = np.argsort(-joined, kind="stable")[:count]
        values, vectors = joined[descending], both[:, descending]
        seed += 1
    return values, vectors


def _from_one_start(
    apply: Callable[[Floats], Floats], order: int, count: int, seed: int
) -> tuple[Floats, Floats]:
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    operator = LinearOperator((order, order), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(seed).normal(size=order)
    basis = max(2 * count + 10, 20)
    for _ in range(WIDER + 1):
        try:
            values, vectors = eigsh(
                operator, k=count, which="LA", v0=start, ncv=min(basis, order), tol=TOLERANCE
            )
        except ArpackNoConvergence:
            basis *= 2
            continue
        descending = np.argsort(values)[::-1]
        return values[descending], vectors[:, descending]
    raise ArithmeticError("the Lanczos iteration has not converged")


def largest_eigenvalue(apply: Callable[[Floats], Floats], order: int) -> float:
    """The largest eigenvalue of a positive semi-definite H, to about 10 digits.

    By the Lanczos iteration without its basis: lost orthogonality only repeats eigenvalues that
    have converged, so no vector is kept.

    Args:
        apply: v → H v, both (order,).
        order: N ≥ 1.
    """
    vector = np.random.default_rng(0).normal(size=order)  # the same report every time
    vector /= np.linalg.norm(vector)
    previous = np.zeros(order)
    diagonal: list[float] = []
    beside: list[float] = [0.0]
    value = 0.0
    for step in range(1, order + 1):
        image = apply(vector) - beside[-1] * previous
        diagonal.append(float(vector @ image))
        image -= diagonal[-1] * vector
        beside.append(float(np.linalg.norm(image)))
        if step % CHECKED == 0 or step == order or beside[-1] == 0:
            tridiagonal = np.diag(diagonal) + np.diag(beside[1:-1], -1)
            values, vectors = np.linalg.eigh(tridiagonal)
            value = float(values[-1])
            if beside[-1] * abs(vectors[-1, -1]) <= RESIDUAL * value:
                break
        previous, vector = vector, image / beside[-1]
    return value
