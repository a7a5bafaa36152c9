"""Arrays of any library, eigendecompositions, and what products and columns alone tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.theory.devices import beside, fetched, matrix_on_device
from memcurse_cli.theory.threads import use_threads_for

Array = Any
Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Integers = NDArray[np.intp]

EXPLICIT_ORDER = 256  # up to here the matrix itself costs less than an iteration on it
TOLERANCE = 1e-8  # residual ‖Hv - μv‖ / μ where vectors are asked for
RESIDUAL = 1e-6  # the same where only the value is, whose error is of second order in it
SURE = 4  # residuals by which a value below a level stays below it
NOTHING = 1e-12  # share of the largest eigenvalue below which one is rounding
WIDER = 4  # how many times the basis may be doubled before the iteration is given up
CHECKED = 8  # steps between two looks at the residual

CANDIDATES = 64  # columns that a factorisation asks for at once
GREED = 0.5  # a candidate stays while its pivot is above this share of the best one outside
ROUNDING = 1e-14  # a residual below this share of the diagonal is none


def array_namespace(array: Any) -> Any:
    """The module with the Array API functions for an array: NumPy itself, or a wrapped library.

    The compatibility layer takes as long to import as NumPy: only other libraries need it.
    """
    if isinstance(array, np.ndarray | np.generic):
        return np
    import array_api_compat

    return array_api_compat.array_namespace(array)


def may_be_traced(array: Any) -> bool:
    """Whether an array may stand for values that are not known yet, as under `jax.jit`."""
    if isinstance(array, np.ndarray | np.generic):
        return False
    import array_api_compat

    return bool(array_api_compat.is_jax_array(array))


def eigendecompose(matrix: NDArray[Any]) -> tuple[Complexes, Complexes]:
    """λ and P of ``A = P diag(λ) P⁻¹``, columns of norm 1, of a finite (..., n, n) matrix.

    Where `matrix_on_device` puts it; in double precision on a GPU.
    """
    use_threads_for(matrix.shape[-1])
    given = matrix_on_device(matrix)
    values, vectors = map(fetched, array_namespace(given).linalg.eig(given))
    return values.astype(np.complex128, copy=False), vectors.astype(np.complex128, copy=False)


def eigenvalues(matrix: NDArray[Any]) -> Complexes:
    """Those of `eigendecompose` alone, at half the cost."""
    use_threads_for(matrix.shape[-1])
    given = matrix_on_device(matrix)
    found = fetched(array_namespace(given).linalg.eigvals(given))
    return found.astype(np.complex128, copy=False)


def eigenvalue_conditions(matrix: Floats) -> Floats:
    """(n,) ``‖q‖‖p‖/|q* p|`` of each eigenvalue of a finite real A, from its own eigenvectors.

    No inverse takes part: an eigenvalue apart keeps its digits. What is beyond 1/ε is inf.
    """
    import scipy.linalg

    if len(matrix) == 0:
        return np.zeros(0)
    _, left, right = scipy.linalg.eig(matrix, left=True, check_finite=False)
    aligned = np.abs(np.sum(left.conj() * right, axis=0))  # both of norm 1
    found = np.full(len(matrix), np.inf)
    told = aligned > len(matrix) * np.finfo(np.float64).eps
    found[told] = np.maximum(1 / aligned[told], 1.0)
    return found


def bisected(is_beyond: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """The upper end of an interval where a condition begins to hold, halved so often."""
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if is_beyond(middle) else (middle, high)
    return high


def largest_eigenpairs(
    apply: Callable[[Floats], Floats], order: int, count: int
) -> tuple[Floats, Floats]:
    """The largest eigenvalues of a positive semi-definite H, descending, with unit eigenvectors.

    One start meets an eigenspace in one direction: others search beside the eigenvectors found.
    Raises ArithmeticError: the iteration has not converged.
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


def largest_eigenvalue(
    apply: Callable[[Floats], Floats], order: int, level: float | None = None
) -> float:
    """By Lanczos, for semi-definite v → H v: about 10 digits, or the side of a level."""
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
            residual = beside[-1] * abs(vectors[-1, -1])
            apart = level is not None and (value >= level or value + SURE * residual < level)
            if apart or residual <= RESIDUAL * value:
                break
        previous, vector = vector, image / beside[-1]
    return value


class Factor(Struct, frozen=True, dict=True):
    """``H ≈ F Fᵀ``, where H - F Fᵀ is positive semi-definite.

    F may be too large to be held: its rows come in parts.
    """

    parts: Callable[[slice], Iterator[Array]]  # (…, r) the rows of F of a slice, in their order
    residual: Floats  # (N,) the diagonal of H - F Fᵀ, non-negative

    @cached_property
    def gram(self) -> Floats:
        """(r, r) FᵀF, whose eigenvalues are those of F Fᵀ."""
        total = None
        for part in self.parts(slice(0, self.residual.size)):
            total = part.T @ part if total is None else total + part.T @ part
        return fetched(total)

    @property
    def error(self) -> float:
        """tr(H - F Fᵀ): ``λ_k(F Fᵀ) ≤ λ_k(H) ≤ λ_k(F Fᵀ) + tr(H - F Fᵀ)``."""
        return float(self.residual.sum())

    def times(self, vectors: Floats) -> Floats:
        """(N, k) F v of (r, k) vectors."""
        parts = self.parts(slice(0, self.residual.size))
        return np.concatenate([fetched(part @ beside(vectors, part)) for part in parts])

    def of(self, rows: slice) -> Factor:
        """That of a principal submatrix."""
        first = rows.start

        def parts(some: slice) -> Iterator[Array]:
            return self.parts(slice(first + some.start, first + some.stop))

        return Factor(parts, self.residual[rows])

    def scaled(self, by: Floats) -> Factor:
        """That of D H D for (N,) the elements of a diagonal D."""

        def parts(rows: slice) -> Iterator[Array]:
            start = rows.start
            for part in self.parts(rows):
                yield part * beside(by[start : start + len(part), None], part)
                start += len(part)

        return Factor(parts, by**2 * self.residual)


def partial_cholesky(
    diagonal: Floats,
    columns: Callable[[Integers], Floats],
    *,
    rank: int,
    enough: float,
    candidates: int = CANDIDATES,
) -> Factor:
    """Factorise H by the largest pivots, until the rank is reached or ``enough`` of tr H is left.

    ``columns`` gives (b,) indices → (N, b), of the candidates with the largest residuals together;
    among them pivots are chosen one by one, and those that earlier ones explain are left.
    """
    from scipy.linalg import solve_triangular
    from scipy.linalg.lapack import dpstrf

    order = diagonal.size
    rank = min(rank, order)
    factor = np.empty((order, rank), order="F")
    residual = np.maximum(diagonal, 0.0)
    found = 0
    while found < rank and residual.sum() > enough:
        count = min(candidates, rank - found, order)
        best = np.argpartition(-residual, count - 1)[:count]
        outside = residual.copy()
        outside[best] = 0
        best = best[residual[best] > 0]
        done = factor[:, :found]
        left = columns(best) - done @ done[best].T
        # A candidate below a share of the best one outside has to wait.
        least = max(GREED * outside.max(), ROUNDING * np.diag(left[best]).max(initial=0))
        lower, pivots, count, _ = dpstrf(left[best], least, lower=1)
        if count == 0:
            break
        chosen = pivots[:count] - 1
        lower = lower[:count, :count]
        new = solve_triangular(lower, left[:, chosen].T, lower=True, check_finite=False).T
        factor[:, found : found + chosen.size] = new
        residual -= np.einsum("ij,ij->i", new, new)
        residual[residual < ROUNDING * diagonal] = 0
        residual[best[chosen]] = 0
        found += chosen.size
    known = factor[:, :found]
    return Factor(lambda rows: iter((known[rows],)), residual)
