"""From one recurrence to the report on its Hessian over λ, γ, B, C and D."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.hessian.picture import evenly_chosen, picture, picture_of_some
from memcurse_cli.diagnosis.hessian.scores import LARGEST_BLOCK, hessian_reason, layer_hessian
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.reading import eigenvalues_of, time_constants
from memcurse_cli.families.recurrence import Complexes, ParameterGroup, ProjectionGroup, Recurrence
from memcurse_cli.schema.figures import quantiles
from memcurse_cli.schema.hessian import (
    BlockPair,
    Conditioning,
    Coordinate,
    HessianGroup,
    HessianPicture,
    HessianScores,
    HessianSpectrum,
    LayerHessianReport,
    Seat,
    TopEigenvector,
)
from memcurse_cli.schema.report import finite
from memcurse_cli.theory.hessian.diagonality import (
    DiagonalityScores,
    DiagonalityTally,
    Eigenpair,
    correlations,
)
from memcurse_cli.theory.hessian.hessian import HessianBlocks, LargeBlock, LayerHessian

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]
Group = ParameterGroup | ProjectionGroup

SHOWN_EIGENVALUES = 512
SEATS = 3
LEAST_WEIGHT = 0.01  # a seat with less of an eigenvector is not named
EXPLODES = "it leaves the range of a float: the state explodes within the horizon"


def diagnose_hessian(recurrence: Recurrence, settings: Settings) -> LayerHessianReport:
    """Every figure of one layer's Hessian, or the reason why there are none."""
    name, family, count = recurrence.name, recurrence.family, recurrence.size
    reason = hessian_reason(recurrence, settings)
    if reason is not None:
        return LayerHessianReport(name, family, count, reason)
    hessian = layer_hessian(recurrence, settings, projections=recurrence.projections)
    groups: list[Group] = [*recurrence.parameters, *recurrence.projections]
    tally = _Tally(recurrence, hessian, groups)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            for blocks in hessian.blocks(LARGEST_BLOCK):
                tally.add(blocks)
            for large in hessian.large_blocks(LARGEST_BLOCK):
                tally.add_factored(large)
    except OverflowError:
        return LayerHessianReport(name, family, count, EXPLODES)
    return tally.report(recurrence)


class _Tally:
    """The figures of blocks that are seen one after the other and not kept."""

    def __init__(
        self, recurrence: Recurrence, hessian: LayerHessian, groups: Sequence[Group]
    ) -> None:
        self.groups = groups
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
        self.seats = _Seats(recurrence, hessian)

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
        present, first = np.unique(group, return_index=True)
        ends = [*first[1:].tolist(), found.scalars.size]
        runs = [slice(start, end) for start, end in zip(first.tolist(), ends, strict=True)]
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
        present, first = np.unique(group, return_index=True)
        cells = np.ix_(present, present)
        related = np.abs(correlations(hessians))
        each = np.arange(group.size)
        related[:, each, each] = 0
        for table, values in ((self.squares, hessians**2), (self.correlation, related)):
            rows = np.add.reduceat(values.sum(axis=0), first, axis=0)
            table[cells] += np.add.reduceat(rows, first, axis=1)
        sizes = np.diff([*first, group.size])
        self.meetings[cells] += len(hessians) * (np.outer(sizes, sizes) - np.diag(sizes))
        for index, start, size in zip(present, first, sizes, strict=True):
            run = slice(start, start + size)
            self.own[index].add(hessians[:, run, run])

    def report(self, recurrence: Recurrence) -> LayerHessianReport:
        """What the blocks come to."""
        scores = summarise(self.whole.scores())
        if scores is None:
            reason = "it is zero: no parameter changes the output"
            return LayerHessianReport(recurrence.name, recurrence.family, recurrence.size, reason)
        spectrum, conditioning = summarise_spectrum(self.whole, self.largest)
        return LayerHessianReport(
            name=recurrence.name,
            family=recurrence.family,
            eigenvalues=recurrence.size,
            left_out=_left_out(recurrence),
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
                    summarise(tally.scores()),
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
        squares = pair.shares
        weights = np.bincount(self.group_of(pair.scalars), squares, len(self.groups))
        return TopEigenvector(
            eigenvalue=pair.value,
            concentration=pair.concentration,
            weights=tuple(weights.tolist()),
            seats=self.seats.of(pair),
            coordinates=tuple(
                self._coordinate(int(pair.scalars[place]), float(squares[place]))
                for place in np.argsort(-squares, kind="stable")[:SEATS]
                if squares[place] >= LEAST_WEIGHT
            ),
        )

    def _coordinate(self, scalar: int, weight: float) -> Coordinate:
        group = int(self.group_of(np.array(scalar)))
        return Coordinate(self.groups[group].name, scalar - int(self.offsets[group]), weight)

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
        top = [pair for pair in self.whole.top if pair.scalars is not None]
        vectors = np.array([_at(pair, scalars) for pair in top])
        values = np.array([pair.value for pair in top])
        return picture_of_some(title, matrix, group, names, values, vectors)


def _at(pair: Eigenpair, scalars: Integers) -> Floats:
    """An eigenvector at some scalars; 0 at those of other blocks."""
    assert pair.scalars is not None
    place = np.minimum(np.searchsorted(pair.scalars, scalars), pair.scalars.size - 1)
    return np.where(pair.scalars[place] == scalars, pair.vector[place], 0.0)


class _Seats:
    """Which eigenvalue of the recurrence each scalar belongs to, where it is one alone."""

    def __init__(self, recurrence: Recurrence, hessian: LayerHessian) -> None:
        entries = hessian.entries
        self.log_eigenvalues = recurrence.log_eigenvalues
        self.place = np.full(entries.size, -1)
        self.place[entries.scalar] = entries.eigenvalue
        several = np.bincount(entries.scalar, minlength=entries.size) > 1
        self.place[several | (self.place == recurrence.size)] = -1

    def of(self, pair: Eigenpair) -> tuple[Seat, ...]:
        """The eigenvalues that carry an eigenvector, the heaviest first."""
        assert pair.scalars is not None
        place = self.place[pair.scalars]
        seated = place >= 0
        indices, local = np.unique(place[seated], return_inverse=True)
        weights = np.bincount(local, pair.shares[seated])
        heaviest = np.argsort(-weights, kind="stable")[:SEATS]
        return tuple(
            seat(self.log_eigenvalues, int(indices[index]), float(weights[index]))
            for index in heaviest
            if weights[index] >= LEAST_WEIGHT
        )


def seat(log_eigenvalues: Complexes, index: int, weight: float) -> Seat:
    """One eigenvalue, and how much of an eigenvector it carries."""
    log = log_eigenvalues[index : index + 1]
    return Seat(
        index,
        modulus=float(np.abs(eigenvalues_of(log))[0]),
        time_constant=finite(time_constants(log.real)[0]),
        angle=float(np.remainder(log[0].imag + np.pi, 2 * np.pi) - np.pi),
        weight=weight,
    )


def summarise(scores: DiagonalityScores | None) -> HessianScores | None:
    """The scores as the report has them."""
    if scores is None:
        return None
    return HessianScores(
        order=scores.order,
        trace=scores.trace,
        diagonality=scores.diagonality,
        sharpness=scores.sharpness,
        max_stable_lr=2 / (scores.sharpness + scores.sharpness_error),
        adam_residual=scores.adam_residual,
        concentration=scores.concentration,
        sharpness_error=scores.sharpness_error,
        adam_residual_error=scores.adam_residual_error,
    )


def summarise_spectrum(
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
    return (
        HessianSpectrum(
            values.size,
            rank,
            quantiles(np.maximum(values, 0.0)),
            tuple(values[:SHOWN_EIGENVALUES].tolist()),
        ),
        Conditioning(before, after),
    )


def _left_out(recurrence: Recurrence) -> str | None:
    """What a Hessian over every parameter would have too."""
    covered = {group.matrix for group in recurrence.projections}
    missing = [matrix for matrix in ("B", "C") if matrix not in covered]
    if not missing:
        return None
    return f"no parameter of {' or '.join(missing)} was found"
