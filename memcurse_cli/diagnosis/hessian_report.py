"""From one recurrence to the report on its Hessian: over λ, γ, B, C and D, or a dense matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.hessian import (
    EXPLODES,
    LARGEST_BLOCK,
    NO_ENTRY,
    NO_PARAMETER,
    dense_layer_hessian,
    hessian_reason,
    layer_hessian,
    scores_as,
)
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.reading import eigenvalues_of, time_constants
from memcurse_cli.families.recurrence import (
    Complexes,
    DenseDynamics,
    ParameterGroup,
    ProjectionGroup,
    Recurrence,
)
from memcurse_cli.schema.figures import quantiles
from memcurse_cli.schema.hessian import (
    BlockPair,
    Conditioning,
    Coordinate,
    EigenvalueWeight,
    HessianGroup,
    HessianPicture,
    HessianScores,
    HessianSpectrum,
    LayerHessianReport,
    TopEigenvector,
)
from memcurse_cli.schema.report import finite
from memcurse_cli.theory.dense.bases import Eigenbasis
from memcurse_cli.theory.dense.hessian import FORMED_ORDER, DenseHessian, dense_hessian_scores
from memcurse_cli.theory.diagonality import (
    SPECTRUM_ORDER,
    TOP,
    DiagonalityScores,
    DiagonalityTally,
    Eigenpair,
    correlations,
    largest,
)
from memcurse_cli.theory.hessian import HessianBlocks, LargeBlock, LayerHessian

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]
Group = ParameterGroup | ProjectionGroup

SHOWN_EIGENVALUES = 512
NAMED = 3  # eigenvalues and coordinates of an eigenvector
LEAST_WEIGHT = 0.01  # what carries less of an eigenvector is not named
LINE = 1e-12  # share of a squared norm below which a plane is one

PICTURED_SIDE, FEWEST_PICTURED = 16, 8
"""Rows and columns of A whose entries are in the picture: a product with H for each pair."""
PICTURED_CHEAPLY = 256
"""Units up to which that takes no longer than the figures."""

CELLS = 480
"""A heat map has no more rows than about so many."""
CHOSEN = 240
"""Scalars of a block that was not formed, whose rows and columns are taken for a heat map."""
OF_EVERY_GROUP = 8

_LEFT_OUT = "B, C and D: it is over the entries of the matrix"
_OF_HEADS = (
    ", and what it shares with those of the other heads, whose outputs add to this one's: over all"
    " heads it is less diagonal than said"
)


def diagnose_hessian(recurrence: Recurrence, settings: Settings) -> LayerHessianReport:
    """Every figure of one layer's Hessian, or the reason why there are none."""
    dense = recurrence.dense
    reason = hessian_reason(recurrence, settings)
    if reason is None:
        try:
            if dense is None:
                found, reason = _of_diagonal(recurrence, settings), NO_PARAMETER
            else:
                found, reason = _of_dense(recurrence, dense, settings), NO_ENTRY
            if found is not None:
                return found
        except OverflowError:
            reason = EXPLODES
        except ArithmeticError as error:
            reason = str(error)
    return LayerHessianReport(recurrence.name, recurrence.family, recurrence.size, reason)


def _of_diagonal(recurrence: Recurrence, settings: Settings) -> LayerHessianReport | None:
    """Block by block; None where no parameter changes the output."""
    hessian = layer_hessian(recurrence, settings, recurrence.projections)
    tally = _Tally(recurrence, hessian)
    with np.errstate(over="ignore", invalid="ignore"):
        for blocks in hessian.blocks(LARGEST_BLOCK):
            tally.add(blocks)
        for large in hessian.large_blocks(LARGEST_BLOCK):
            tally.add_factored(large)
    return tally.report()


class _Tally:
    """The figures of blocks that are seen one after the other and not kept."""

    def __init__(self, recurrence: Recurrence, hessian: LayerHessian) -> None:
        groups: list[Group] = [*recurrence.parameters, *recurrence.projections]
        self.recurrence, self.groups = recurrence, groups
        self.offsets = np.cumsum([0, *(group.size for group in groups)])
        self.whole = DiagonalityTally(spectra=True)
        self.own = [DiagonalityTally() for _ in groups]
        self.squares = np.zeros((len(groups), len(groups)))
        self.correlation = np.zeros_like(self.squares)
        self.meetings = np.zeros_like(self.squares)
        self.output = 0.0
        self.blocks, self.largest = 0, 0
        self.factored = False
        self.sharpest: tuple[Floats, Integers] | None = None
        self.chosen_of = 0  # the size of that block, where these are some of it
        # The eigenvalue that each scalar belongs to, where it is one alone.
        entries = hessian.entries
        self.eigenvalue = np.full(entries.size, -1)
        self.eigenvalue[entries.scalar] = entries.eigenvalue
        several = np.bincount(entries.scalar, minlength=entries.size) > 1
        self.eigenvalue[several | (self.eigenvalue == recurrence.size)] = -1

    def add(self, found: HessianBlocks) -> None:
        """Blocks of one shape."""
        self.blocks += len(found.hessians)
        self.largest = max(self.largest, found.hessians.shape[1])
        self.output += float(found.output_second_moments.sum())
        before = self.whole.top[0].value if self.whole.top else -1.0
        self.whole.add(found.hessians, found.scalars)
        if self.whole.top[0].value > before:
            own = self.whole.top[0].scalars
            index = int(np.flatnonzero(np.all(found.scalars == own, axis=1))[0])
            self.sharpest = found.hessians[index].copy(), found.scalars[index]
            self.chosen_of = 0
        group = self.group_of(found.scalars)
        if np.all(group == group[0]):
            self._split(found.hessians, group[0])
        else:
            for hessian, own_group in zip(found.hessians, group, strict=True):
                self._split(hessian[None], own_group)

    def add_factored(self, large: LargeBlock) -> None:
        """A block that is not formed."""
        found = large.factorise()
        self.blocks += 1
        self.factored = True
        self.largest = max(self.largest, found.scalars.size)
        before = self.whole.top[0].value if self.whole.top else -1.0
        self.whole.add_factored(found.diagonal, found.plain, found.scaled, found.scalars)
        group = self.group_of(found.scalars)
        if self.whole.top[0].value > before:
            chosen = evenly_chosen(group)
            self.sharpest = large.columns(chosen)[chosen], found.scalars[chosen]
            self.chosen_of = found.scalars.size
        present, runs = _runs(group)
        factors = [found.plain.factor[run] for run in runs]
        grams = [factor.T @ factor for factor in factors]
        for index, run, gram in zip(present, runs, grams, strict=True):
            own = found.diagonal[run], found.plain.of(run), found.scaled.of(run)
            self.own[index].add_factored(*own)
            for other, another in zip(present, grams, strict=True):
                self.squares[index, other] += float(np.sum(gram * another))

    def group_of(self, scalars: Integers) -> Integers:
        """The group of each scalar."""
        return np.searchsorted(self.offsets, scalars, side="right") - 1

    def _split(self, hessians: Floats, group: Integers) -> None:
        """Blocks whose scalars belong to the same groups."""
        present, runs = _runs(group)
        cells, first = np.ix_(present, present), [run.start for run in runs]
        related = np.abs(correlations(hessians))
        each = np.arange(group.size)
        related[:, each, each] = 0
        for table, values in ((self.squares, hessians**2), (self.correlation, related)):
            rows = np.add.reduceat(values.sum(axis=0), first, axis=0)
            table[cells] += np.add.reduceat(rows, first, axis=1)
        sizes = np.diff([*first, group.size])
        self.meetings[cells] += len(hessians) * (np.outer(sizes, sizes) - np.diag(sizes))
        for index, run in zip(present, runs, strict=True):
            self.own[index].add(hessians[:, run, run])

    def report(self) -> LayerHessianReport | None:
        """What the blocks come to."""
        recurrence, scores = self.recurrence, _scores(self.whole.scores())
        if scores is None:
            return None
        covered = {group.matrix for group in recurrence.projections}
        missing = " or ".join(matrix for matrix in ("B", "C") if matrix not in covered)
        spectrum, conditioning = _spectrum(self.whole, self.largest)
        return LayerHessianReport(
            name=recurrence.name,
            family=recurrence.family,
            eigenvalues=recurrence.size,
            left_out=f"no parameter of {missing} was found" if missing else None,
            blocks=self.blocks,
            largest_block=self.largest,
            method="partial Cholesky" if self.factored else "whole",
            output_second_moment=None if self.factored else self.output,
            scores=scores,
            groups=tuple(
                HessianGroup(
                    group.name,
                    group.tensor,
                    group.matrix if isinstance(group, ProjectionGroup) else "recurrent",
                    group.size,
                    _scores(tally.scores()),
                )
                for group, tally in zip(self.groups, self.own, strict=True)
            ),
            pairs=self._pairs(),
            spectrum=spectrum,
            eigenvectors=tuple(map(self._eigenvector, self.whole.top)),
            conditioning=conditioning,
            picture=self._picture(),
        )

    def _pairs(self) -> tuple[BlockPair, ...]:
        whole = self.squares.sum()
        pairs = []
        for first, one in enumerate(self.groups):
            for second in range(first, len(self.groups)):
                both = 1 if first == second else 2
                meetings = self.meetings[first, second]
                pairs.append(
                    BlockPair(
                        one.name,
                        self.groups[second].name,
                        both * float(self.squares[first, second] / whole),
                        float(self.correlation[first, second] / meetings) if meetings else None,
                    )
                )
        return tuple(sorted(pairs, key=lambda pair: -pair.norm_share))

    def _eigenvector(self, pair: Eigenpair) -> TopEigenvector:
        assert pair.scalars is not None
        shares, group = pair.shares, self.group_of(pair.scalars)
        # The eigenvalues that carry it, where a scalar belongs to one alone.
        eigenvalue = self.eigenvalue[pair.scalars]
        known = eigenvalue >= 0
        indices, local = np.unique(eigenvalue[known], return_inverse=True)
        carried = np.bincount(local, shares[known]).astype(np.float64)
        return TopEigenvector(
            eigenvalue=pair.value,
            concentration=pair.concentration,
            weights=tuple(np.bincount(group, shares, len(self.groups)).tolist()),
            seats=_named(self.recurrence.log_eigenvalues, indices, carried),
            coordinates=tuple(
                Coordinate(
                    self.groups[group[place]].name,
                    int(pair.scalars[place] - self.offsets[group[place]]),
                    float(shares[place]),
                )
                for place in _heaviest(shares)
            ),
        )

    def _picture(self) -> HessianPicture | None:
        if self.sharpest is None:
            return None
        matrix, scalars = self.sharpest
        title = f"{len(scalars):,} parameters"
        if self.chosen_of:
            title = f"{len(scalars):,} of {self.chosen_of:,} parameters, evenly taken"
        if self.blocks > 1:
            title += f", the sharpest of {self.blocks:,} blocks"
        names = [group.name for group in self.groups]
        group = self.group_of(scalars)
        if not self.chosen_of:
            return picture(title, matrix, group, names)
        values = np.array([pair.value for pair in self.whole.top])
        vectors = np.array([_at(pair, scalars) for pair in self.whole.top])
        return picture(title, matrix, group, names, (values, vectors))


def _runs(group: Integers) -> tuple[Integers, list[slice]]:
    """The groups of ascending scalars, and where the scalars of each are."""
    present, first = np.unique(group, return_index=True)
    ends = [*first[1:].tolist(), group.size]
    return present, list(map(slice, first.tolist(), ends))


def _at(pair: Eigenpair, scalars: Integers) -> Floats:
    """An eigenvector at some scalars; 0 at those of other blocks."""
    assert pair.scalars is not None
    place = np.minimum(np.searchsorted(pair.scalars, scalars), pair.scalars.size - 1)
    return np.where(pair.scalars[place] == scalars, pair.vector[place], 0.0)


def _heaviest(weights: Floats) -> list[int]:
    """The places of the heaviest few that are worth a name."""
    places = np.argsort(-weights, kind="stable")[:NAMED].tolist()
    return [place for place in places if weights[place] >= LEAST_WEIGHT]


def _named(
    log_eigenvalues: Complexes, indices: Integers, weights: Floats
) -> tuple[EigenvalueWeight, ...]:
    """The heaviest of some eigenvalues, and how much of an eigenvector each carries."""
    chosen = _heaviest(weights)
    logs = log_eigenvalues[indices[chosen]]
    angles = np.remainder(logs.imag + np.pi, 2 * np.pi) - np.pi
    return tuple(
        EigenvalueWeight(
            int(indices[place]),
            modulus=float(modulus),
            time_constant=finite(time_constant),
            angle=float(angle),
            weight=float(weights[place]),
        )
        for place, modulus, time_constant, angle in zip(
            chosen, np.abs(eigenvalues_of(logs)), time_constants(logs.real), angles, strict=True
        )
    )


def _scores(found: DiagonalityScores | None) -> HessianScores | None:
    return None if found is None else scores_as(HessianScores, found)


def _spectrum(
    tally: DiagonalityTally, largest_block: int
) -> tuple[HessianSpectrum, Conditioning | None]:
    """Every eigenvalue where all were kept, else the largest ones."""
    spectra = tally.spectra()
    if spectra is None:
        largest = tuple(pair.value for pair in tally.top)
        return HessianSpectrum(tally.order, None, None, largest), None
    values, scaled = spectra
    smallest = largest_block * np.finfo(np.float64).eps
    rank = int(np.count_nonzero(scaled > smallest * scaled[0]))
    before, after = (
        float(one[0] / max(np.median(one[:rank]), smallest * one[0])) for one in (values, scaled)
    )
    shown = quantiles(np.maximum(values, 0.0)), tuple(values[:SHOWN_EIGENVALUES].tolist())
    return HessianSpectrum(values.size, rank, *shown), Conditioning(before, after)


def _of_dense(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> LayerHessianReport | None:
    """Up to 32 units H is formed; beyond them its top eigenpairs come from products with it."""
    matrix: Floats | None = None
    conditioning: Conditioning | None = None
    hessian = dense_layer_hessian(recurrence, dynamics, settings)
    if hessian.order <= FORMED_ORDER:
        matrix = hessian.to_matrix()
        tally = DiagonalityTally(spectra=True)
        tally.add(matrix[None])
        scores, top = tally.scores(), tally.top
        if scores is None:
            return None
        spectrum, conditioning = _spectrum(tally, hessian.order)
    else:
        found = dense_hessian_scores(hessian)
        if found is None:
            return None
        scores, top = found
        spectrum = HessianSpectrum(hessian.order, None, None, tuple(pair.value for pair in top))
    name = dynamics.tensor.rpartition(".")[2]
    summary, logs, size = _scores(scores), recurrence.log_eigenvalues, recurrence.size
    basis = recurrence.eigenbasis

    def carried(pair: Eigenpair) -> tuple[EigenvalueWeight, ...]:
        # Of an eigenspace no vector stands out, nor what it would move.
        if pair.dimension > 1 or not basis.is_usable:
            return ()
        return _named(logs, basis.half, _moved(basis, pair.vector.reshape(size, size)))

    return LayerHessianReport(
        name=recurrence.name,
        family=recurrence.family,
        eigenvalues=size,
        left_out=_LEFT_OUT if dynamics.heads == 1 else _LEFT_OUT + _OF_HEADS,
        blocks=1,
        largest_block=hessian.order,
        method="Lanczos" if matrix is None else "whole",
        output_second_moment=hessian.output_second_moment,
        scores=summary,
        groups=(HessianGroup(name, dynamics.tensor, "recurrent", hessian.order, summary),),
        pairs=(BlockPair(name, name, 1.0, None),),
        spectrum=spectrum,
        eigenvectors=tuple(
            TopEigenvector(pair.value, finite(pair.concentration), (1.0,), carried(pair))
            for pair in top
        ),
        conditioning=conditioning,
        picture=_dense_picture(hessian, matrix, top, name),
    )


def _dense_picture(
    hessian: DenseHessian, matrix: Floats | None, top: Sequence[Eigenpair], name: str
) -> HessianPicture:
    """H itself, or its rows and columns for every entry where some rows and columns of A meet."""
    if matrix is not None:
        group = np.zeros(len(matrix), np.intp)
        return picture(f"{len(matrix):,} parameters", matrix, group, [name])
    size = len(hessian.diagonal)
    side = min(PICTURED_SIDE if size <= PICTURED_CHEAPLY else FEWEST_PICTURED, size)
    taken = np.rint(np.linspace(0, size - 1, side)).astype(np.intp)
    grid = np.ix_(taken, taken)
    columns = []
    for row in taken:
        for column in taken:
            change = np.zeros((size, size))
            change[row, column] = 1.0
            columns.append(hessian.apply(change)[grid].ravel())
    some = np.array(columns)
    title = (
        f"{len(some):,} of {hessian.order:,} parameters, where {side} rows and columns of the"
        " matrix, evenly taken, meet"
    )
    values = np.array([pair.value for pair in top])
    vectors = np.array([pair.vector.reshape(size, size)[grid].ravel() for pair in top])
    group = np.zeros(len(some), np.intp)
    return picture(title, (some + some.T) / 2, group, [name], (values, vectors))


def _moved(basis: Eigenbasis, change: Floats) -> Floats:
    """(h,) the share of a unit change of A that lies along the gradient of each eigenvalue.

    ``dλ_k = q_k dA p_k``, so that the real directions that move λ_k are spanned by the real and
    the imaginary part of q_kᵀp_kᵀ: the squared norm of the projection onto that plane, or line.
    """
    rows, columns = basis.rows, basis.columns
    moved = np.sum((rows @ change) * columns.T, axis=1)
    # With g = q pᵀ: |g|² is the sum, and g·g the difference, of the parts' squared norms.
    size = np.sum(np.abs(rows) ** 2, axis=1) * np.sum(np.abs(columns) ** 2, axis=0)
    square = np.sum(rows**2, axis=1) * np.sum(columns**2, axis=0)
    plane = size**2 - np.abs(square) ** 2
    pair = plane > LINE * size**2
    inside = 2 * (np.abs(moved) ** 2 * size - (moved.conj() ** 2 * square).real)
    weights = np.abs(moved) ** 2 / size
    weights[pair] = inside[pair] / plane[pair]
    return np.asarray(weights)


def picture(
    title: str,
    matrix: Floats,
    group: Integers,
    names: Sequence[str],
    top: tuple[Floats, Floats] | None = None,
) -> HessianPicture:
    """Prepare a block, or what some scalars have of one that was not formed.

    Of (N, N) the rows and columns of these scalars and (N,) their groups, ascending. Of a block
    that was not formed ``top`` has (k,) its known eigenvalues, descending, and (k, N) their
    eigenvectors at these scalars.
    """
    order = len(matrix)
    present, runs = _runs(group)
    # No cell holds scalars of two groups.
    cells = [np.arange(run.start, run.stop, -(-order // CELLS)) for run in runs]
    starts = np.concatenate(cells)
    if top is not None:
        values, vectors = top
    elif order <= SPECTRUM_ORDER:
        values, columns = np.linalg.eigh(matrix)
        values, vectors = values[::-1], columns[:, ::-1].T
    else:
        values, columns = largest(matrix, TOP)
        vectors = columns.T
    return HessianPicture(
        title=title,
        order=order,
        magnitude=_shrink(_shrink(np.abs(matrix), starts, 0), starts, 1),
        correlation=_shrink(_shrink(np.abs(correlations(matrix[None])[0]), starts, 0), starts, 1),
        groups=tuple(names[index] for index in present.tolist()),
        boundaries=tuple(np.cumsum([0, *map(len, cells)]).tolist()),
        eigenvalues=values,
        eigenvectors=_shrink(np.abs(vectors[:TOP]), starts, 1),
    )


def evenly_chosen(group: Integers) -> Integers:
    """Places of some scalars, evenly over all, and at least a few of every group."""
    every = np.linspace(0, group.size - 1, min(CHOSEN, group.size))
    chosen = [np.rint(every).astype(np.intp)]
    for run in _runs(group)[1]:
        few = np.linspace(run.start, run.stop - 1, min(OF_EVERY_GROUP, run.stop - run.start))
        chosen.append(np.rint(few).astype(np.intp))
    return np.unique(np.concatenate(chosen))


def _shrink(values: Floats, starts: Integers, axis: int) -> Floats:
    return (
        values if starts.size == values.shape[axis] else np.maximum.reduceat(values, starts, axis)
    )
