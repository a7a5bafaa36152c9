"""How far a Hessian is from diagonal, and what that leaves for an optimizer to suffer from."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.theory.linalg import Factor, Floats, Integers

TOP = 10  # eigenvectors that `concentration` is averaged over
SPECTRUM_ORDER = 1500  # the largest block whose every eigenvalue is taken where asked for
FLAT = 1e-13  # an eigenvalue below this share of the largest one has no direction of its own
CLOSE = 1e-5  # eigenvalues that are relatively nearer share one eigenspace
DENSE_ORDER = 600  # above it, a few eigenvalues cost less by Lanczos than by a full solve


class DiagonalityScores(Struct, frozen=True):
    """Scores of a positive semi-definite matrix H of order N (Zucchet & Orvieto 2024, fig. 4)."""

    order: int  # N
    trace: float  # tr H
    diagonality: float  # Σ H_aa² / Σ H_ab², in [1/N, 1]
    sharpness: float  # λ_max(H); gradient descent is stable below a step of 2 / sharpness
    # λ_max(D^-½ H D^-½) with D = diag H, over the parameters with H_aa > 0: the curvature that an
    # ideal diagonal preconditioner leaves, in [1, N]
    adam_residual: float
    # an `Eigenpair`'s, the mean of the 10 largest; None where an eigenspace is not found whole
    concentration: float | None
    sharpness_error: float = 0.0  # how much larger the sharpness may be; 0 where H was formed
    adam_residual_error: float = 0.0  # how much larger the residual may be
    # the standard error of the diagonality, or how much smaller it may be; 0 where it is exact
    diagonality_error: float = 0.0


class Eigenpair(Struct, frozen=True):
    """An eigenvalue of one block with its eigenvector.

    Where eigenvalues coincide, eigenvectors are one choice among many; the projector P onto the
    d-dimensional space that they span is not. With the shares ``m_a = P_aa / d``, v_a² where d = 1,
    their concentration is ``d / Σ P_aa² = 1 / (d Σ m_a²)``, 1 for a multiple of the identity.
    """

    value: float  # the eigenvalue
    vector: Floats  # (N,) of unit norm
    shares: Floats  # (N,) m, which adds up to 1
    dimension: int  # d
    scalars: Integers | None = None  # (N,) what its coordinates are, where the block came with it

    @property
    def concentration(self) -> float:
        """d / Σ P_aa²: the number of coordinates that carry it."""
        return float(1 / (self.dimension * np.sum(self.shares**2)))


class FactoredBlock(Struct, frozen=True):
    """A large block by its factorisations, plain and scaled by its own diagonal."""

    scalars: Integers  # (N,) its scalars, ascending
    diagonal: Floats  # (N,) its exact diagonal
    plain: Factor  # of H
    scaled: Factor  # of D^-½ H D^-½, D = diag H; rows of H_aa = 0 are zero

    def of(self, rows: slice) -> FactoredBlock:
        """The same of a principal submatrix."""
        parts = self.plain.of(rows), self.scaled.of(rows)
        return FactoredBlock(self.scalars[rows], self.diagonal[rows], *parts)


class DiagonalityTally:
    """The scores of a block-diagonal H whose blocks are seen one after the other.

    With ``spectra`` it keeps every eigenvalue, plain and scaled, of blocks up to `SPECTRUM_ORDER`.
    """

    def __init__(self, *, spectra: bool = False) -> None:
        self.top: list[Eigenpair] = []  # of the 10 largest eigenvalues so far, descending
        self.order = 0
        self.trace = 0.0
        self.complete = spectra
        self._on_diagonal, self._everywhere, self._residual = 0.0, 0.0, 0.0
        self._everywhere_possible = 0.0
        self._sharpest_possible, self._residual_possible = 0.0, 0.0
        self._spectra: list[Floats] = []
        self._scaled_spectra: list[Floats] = []

    def add(self, hessians: Floats, scalars: Integers | None = None) -> None:
        """(blocks, N, N) semi-definite; OverflowError: an element or its square is not finite."""
        diagonal = np.diagonal(hessians, axis1=1, axis2=2)
        norms = np.linalg.norm(hessians, axis=(1, 2))
        self.order += diagonal.size
        self.trace += float(diagonal.sum())
        self._on_diagonal += float(np.sum(diagonal**2))
        squares = float(np.sum(norms**2))
        self._everywhere += squares
        self._everywhere_possible += squares
        if not np.isfinite(self._everywhere):
            raise OverflowError("the squares of a Hessian's elements have no finite sum")
        scaled = correlations(hessians)
        if self.complete and hessians.shape[1] <= SPECTRUM_ORDER:
            scaled_values = np.asarray(np.linalg.eigvalsh(scaled), np.float64)
            self._scaled_spectra.append(scaled_values.ravel())
            self._residual = max(self._residual, float(scaled_values.max(initial=0)))
            values, vectors = (np.asarray(part, np.float64) for part in np.linalg.eigh(hessians))
            self._spectra.append(values.ravel())

            def solve(index: int, count: int) -> tuple[Floats, Floats]:
                return values[index, ::-1], vectors[index, :, ::-1]

        else:
            self.complete = False
            # A norm bounds an eigenvalue: most blocks need none of their own.
            bounds = np.linalg.norm(scaled, axis=(1, 2))
            for index in np.argsort(-bounds).tolist():
                if bounds[index] <= self._residual:
                    break
                self._residual = max(self._residual, float(largest(scaled[index], 1)[0][0]))

            def solve(index: int, count: int) -> tuple[Floats, Floats]:
                return largest(hessians[index], count)

        for index in np.argsort(-norms).tolist():
            if len(self.top) == TOP and norms[index] <= self.top[-1].value:
                break
            pairs = top_eigenpairs(partial(solve, index), hessians.shape[1])
            self._take(pairs, None if scalars is None else scalars[index])

    def add_factored(self, block: FactoredBlock) -> None:
        """A block not formed: lower bounds, with errors from what is left of the traces."""
        diagonal, plain, scaled = block.diagonal, block.plain, block.scaled
        self.complete = False
        self.order += diagonal.size
        self.trace += float(diagonal.sum())
        self._on_diagonal += float(np.sum(diagonal**2))
        gram = plain.gram
        off = np.sum(gram**2) - np.sum((diagonal - plain.residual) ** 2)
        self._everywhere += float(np.sum(diagonal**2) + max(off, 0.0))
        # ‖H‖ ≤ ‖L Lᵀ‖ + tr(H - L Lᵀ) in the Frobenius norm.
        self._everywhere_possible += float(np.sqrt(np.sum(gram**2)) + plain.error) ** 2
        sharpest = 0.0
        if gram.size:

            def spanned(count: int) -> tuple[Floats, Floats]:
                values, inner = largest(gram, count)
                known = values > FLAT * values[0]
                vectors = plain.times(inner[:, known])
                return values[known], vectors / np.linalg.norm(vectors, axis=0)

            pairs = top_eigenpairs(spanned, len(gram), plain.error)
            sharpest = pairs[0].value if pairs else 0.0
            self._take(pairs, block.scalars)
        self._sharpest_possible = max(self._sharpest_possible, sharpest + plain.error)
        steepest = int(np.argmax(diagonal))
        if diagonal[steepest] > sharpest:  # no eigenvalue is below what one coordinate has
            alone = np.zeros(diagonal.size)
            alone[steepest] = 1
            pair = Eigenpair(float(diagonal[steepest]), alone, shares=alone, dimension=1)
            self._take([pair], block.scalars)
        # Any one coordinate has the curvature 1.
        value = 1.0 if np.any(diagonal > 0) else 0.0
        if scaled.gram.size:
            value = max(value, float(largest(scaled.gram, 1)[0][0]))
        self._residual = max(self._residual, value)
        self._residual_possible = max(self._residual_possible, value + scaled.error)

    def spectra(self) -> tuple[Floats, Floats] | None:
        """Every eigenvalue of H and of D^-½ H D^-½, descending, or None where not all were kept."""
        if not (self.complete and self._spectra):
            return None
        whole, scaled = np.concatenate(self._spectra), np.concatenate(self._scaled_spectra)
        return np.sort(whole)[::-1], np.sort(scaled)[::-1]

    def scores(self) -> DiagonalityScores | None:
        """The scores so far, or None where H is empty, or zero to rounding."""
        sharpest = self.top[0].value if self.top else 0.0
        if not min(sharpest, self.trace, self._everywhere) > 0:
            return None
        diagonality = self._on_diagonal / self._everywhere
        least = self._on_diagonal / self._everywhere_possible
        return DiagonalityScores(
            order=self.order,
            trace=self.trace,
            diagonality=diagonality,
            sharpness=sharpest,
            adam_residual=self._residual,
            concentration=mean_concentration(self.top),
            sharpness_error=max(0.0, self._sharpest_possible - sharpest),
            adam_residual_error=max(0.0, self._residual_possible - self._residual),
            diagonality_error=max(0.0, diagonality - least),
        )

    def _take(self, pairs: list[Eigenpair], scalars: Integers | None) -> None:
        found = [replace(pair, scalars=scalars) for pair in pairs]
        self.top = heapq.nlargest(TOP, [*self.top, *found], key=lambda pair: pair.value)


def diagonality_scores(blocks: Iterable[Floats]) -> DiagonalityScores | None:
    """The scores of a block-diagonal H; one dense H is one (1, N, N) array of blocks."""
    tally = DiagonalityTally()
    for hessians in blocks:
        tally.add(hessians)
    return tally.scores()


def top_eigenpairs(
    solve: Callable[[int], tuple[Floats, Floats]],
    order: int,
    error: float = 0.0,
    most: int | None = None,
) -> list[Eigenpair]:
    """The `TOP` largest of ``order`` eigenvalues, each with the shares of its whole eigenspace.

    ``solve`` takes how many → that many or more (k,) eigenvalues, descending, and (N, k) unit
    vectors, fewer where there are no more, at most ``most``: an eigenspace of more has shares of
    nan. Those nearer than their error are taken to coincide.
    """
    count = min(TOP + 1, order)
    while True:
        values, vectors = solve(count)
        if not values.size:
            return []
        gaps = values[:-1] - values[1:]
        tolerance = np.maximum(CLOSE * values[:-1], 10 * FLAT * values[0]) + error
        space = np.r_[0, np.cumsum(gaps > tolerance)]
        taken = min(TOP, len(values))
        whole = len(values) < count or len(values) >= order or space[-1] > space[taken - 1]
        if whole or count == most:
            break
        count = min(2 * count, order, most or order)
    pairs = []
    for place in range(taken):
        mates = space == space[place]
        shares = np.mean(vectors[:, mates] ** 2, axis=1)
        if not whole and mates[-1]:
            shares = np.full_like(shares, np.nan)
        pair = Eigenpair(float(values[place]), vectors[:, place].copy(), shares, int(mates.sum()))
        pairs.append(pair)
    return pairs


def mean_concentration(pairs: Sequence[Eigenpair]) -> float | None:
    """Over eigenvalues with a direction of their own; None where an eigenspace is not known."""
    mean = np.mean([one.concentration for one in pairs if one.value > FLAT * pairs[0].value])
    return float(mean) if np.isfinite(mean) else None


def inverse_root(diagonal: Floats) -> Floats:
    """H_aa^-½, and 0 where that is not positive."""
    root = np.sqrt(np.maximum(diagonal, 0))
    return np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)


def correlations(hessians: Floats) -> Floats:
    """(blocks, N, N) D^-½ H D^-½; rows and columns of H_aa = 0 are zero."""
    inverse = inverse_root(np.diagonal(hessians, axis1=1, axis2=2))
    return inverse[:, :, None] * hessians * inverse[:, None, :]


def largest(matrix: Floats, count: int) -> tuple[Floats, Floats]:
    """The largest eigenvalues of a symmetric matrix, descending, and their eigenvectors."""
    size = matrix.shape[0]
    count = min(count, size)
    if size <= max(DENSE_ORDER, 4 * count):
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
