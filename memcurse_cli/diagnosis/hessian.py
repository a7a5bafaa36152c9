"""The Hessian of a layer at a perfect fit: its scores, every figure, or why it has none.

Over λ, γ, B, C and D of a diagonal layer, or over the entries of a dense matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.operating_point import linearised_at_work
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.reading import eigenvalues_of, time_constants
from memcurse_cli.families.recurrence import (
    DenseDynamics,
    ParameterGroup,
    ProjectionGroup,
    Recurrence,
)
from memcurse_cli.schema.figures import HessianPicture, HessianSummary, quantiles
from memcurse_cli.schema.hessian import (
    BlockPair,
    Conditioning,
    Coordinate,
    EigenvalueWeight,
    HessianGroup,
    HessianScores,
    HessianSpectrum,
    LayerHessianReport,
    Method,
    TopEigenvector,
)
from memcurse_cli.schema.report import finite
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
from memcurse_cli.theory.linalg import Complexes, Floats, Integers
from memcurse_cli.theory.moments import MOST_LAGS, lags_within

if TYPE_CHECKING:
    from memcurse_cli.theory.dense.bases import Eigenbasis
    from memcurse_cli.theory.dense.hessian import DenseHessian

Scores = TypeVar("Scores", HessianSummary, HessianScores)
Taken = TypeVar("Taken")

LARGEST_BLOCK = 6000  # parameters in a block that is formed: 288 MB
FORMED = 32  # units of a dense layer whose Hessian is formed
LARGEST = 512  # units of a dense layer; its Hessian has an order of 262,144
BUDGET = 6e10  # floating-point operations that a report may spend on it: a second or two
PRODUCTS = 30  # with H, until its largest eigenvalue has converged
PRODUCTS_OF_TEN = 100  # until ten have, and nothing larger is left beside them
MOST_OPERATIONS = 1e14  # that anyone may wait for
PER_PAIR = 100  # for each unit, in the sum over pairs of steps, where memory is what it waits for
RESOLVENT_PRODUCTS = 4  # in a complex inverse

EXPLODES = "it leaves the range of a float: the state explodes within the horizon"

SHOWN_EIGENVALUES = 512
NAMED = 3  # eigenvalues and coordinates of an eigenvector
LEAST_WEIGHT = 0.01  # what carries less of an eigenvector is not named
LINE = 1e-12  # share of a squared norm below which a plane is one

# Rows and columns of A whose entries are in the picture: a product with H for each pair.
PICTURED_SIDE, FEWEST_PICTURED = 16, 8
PICTURED_CHEAPLY = 256  # units up to which that takes no longer than the figures
CELLS = 480  # a heat map has no more rows than about so many
CHOSEN = 240  # scalars of a block that was not formed whose rows and columns are in a heat map
OF_EVERY_GROUP = 8

LEFT_OUT = "B, C and D: it is over the entries of the matrix"
OF_HEADS = (
    ", and what it shares with those of the other heads, whose outputs add to this one's: over all"
    " heads it is less diagonal than said"
)


def summarise_hessian(
    recurrence: Recurrence, settings: Settings
) -> tuple[HessianSummary | None, str | None]:
    """Scores of the Hessian at optimality over the recurrent parameters, or why there are none."""
    return taken(_summary, recurrence, settings)


def diagnose_hessian(recurrence: Recurrence, settings: Settings) -> LayerHessianReport:
    """Every figure of one layer's Hessian, or the reason why there are none."""
    take = _of_diagonal if recurrence.dense is None else _of_dense
    found, reason = taken(take, recurrence, settings)
    return found or LayerHessianReport(recurrence.name, recurrence.family, recurrence.size, reason)


def taken(
    take: Callable[[Recurrence, Settings], Taken | None], recurrence: Recurrence, settings: Settings
) -> tuple[Taken | None, str | None]:
    """What is taken of a Hessian, or why it has no figures, which an ArithmeticError says too."""
    reason = hessian_reason(recurrence, settings)
    if reason is not None:
        return None, reason
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            found = take(recurrence, settings)
    except OverflowError:
        return None, EXPLODES
    except ArithmeticError as error:
        return None, str(error)
    if found is not None:
        return found, None
    moved = "parameter" if recurrence.dense is None else "entry of the matrix"
    return None, f"it is zero: no {moved} changes the output"


def _summary(recurrence: Recurrence, settings: Settings) -> HessianSummary | None:
    scores, output = None, 0.0
    if recurrence.dense is not None:
        from memcurse_cli.theory.dense.hessian import dense_hessian_scores

        _require_cheap(recurrence, recurrence.dense, settings)
        dense = dense_layer_hessian(recurrence, recurrence.dense, settings)
        output = dense.output_second_moment
        if found := dense_hessian_scores(dense):
            scores, _ = found
    else:
        hessian, tally = layer_hessian(recurrence, settings), DiagonalityTally()
        for blocks in hessian.blocks(LARGEST_BLOCK):
            output += float(blocks.output_second_moments.sum())
            tally.add(blocks.hessians)
        for large in hessian.large_blocks(LARGEST_BLOCK):
            output += large.output_second_moment()
            tally.add_factored(large.factorise())
        scores = tally.scores()
    effect = None
    if scores is not None and output > 0:
        effect = settings.rate * math.sqrt(scores.trace / output)
    return _scores(HessianSummary, scores, output_step_effect=effect)


def _scores(kind: type[Scores], found: DiagonalityScores | None, **others: Any) -> Scores | None:
    """The scores as a class of the report has them, under the same names."""
    if found is None:
        return None
    same = {name: getattr(found, name) for name in kind.__struct_fields__ if hasattr(found, name)}
    return kind(max_stable_lr=2 / (found.sharpness + found.sharpness_error), **same, **others)


def layer_hessian(
    recurrence: Recurrence, settings: Settings, projections: Sequence[ProjectionGroup] = ()
) -> LayerHessian:
    """The Hessian of a layer that `hessian_reason` says nothing against."""
    assert recurrence.readin is not None
    assert recurrence.readout is not None
    return LayerHessian(
        recurrence.log_eigenvalues,
        recurrence.log_gain,
        recurrence.parameters,
        recurrence.readin,
        recurrence.readout,
        projections,
        recurrence.channel,
        recurrence.conjugate_pairs,
        *settings.of_loss,
    )


def hessian_reason(recurrence: Recurrence, settings: Settings) -> str | None:
    """Why a layer has no Hessian at a perfect fit, or None where it has one."""
    dense, logs, horizon = recurrence.dense, recurrence.log_eigenvalues, settings.horizon
    if dense is None and not recurrence.parameters:
        return "no recurrent parameter is stored"
    known = recurrence.readin is not None, recurrence.readout is not None
    if not all(known):
        if dense is None and recurrence.input_dependent:
            return "B and C depend on the input"
        # Those of another basis than its eigenvectors' are unknown too.
        missing = {(False, False): "neither B nor C", (False, True): "no B", (True, False): "no C"}
        return f"{missing[known]} is known for it"
    if dense is not None:
        from memcurse_cli.theory.dense.bases import TOO_UNCERTAIN, is_undetermined

        _, _, withheld = linearised_at_work(recurrence, settings)
        if withheld is not None:
            return withheld
        if horizon is None and is_undetermined(dense.matrix, recurrence.eigenbasis):
            return TOO_UNCERTAIN
    if horizon is None and bool(np.any(logs.real >= 0)):
        return "it diverges: an eigenvalue has |λ| >= 1 and the horizon is infinite"
    if dense is not None and recurrence.size > LARGEST:
        return f"its order of {recurrence.size}² is beyond the {LARGEST}² that it is taken up to"
    if horizon is None:
        return None
    if dense is None:
        too_long = lags_within(logs, settings.autocorrelation, horizon) > MOST_LAGS
    else:
        too_long = _pairs_cost(recurrence.size, horizon) > MOST_OPERATIONS
    return f"{horizon:,} steps are too many to sum with a memory this long" if too_long else None


def dense_layer_hessian(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> DenseHessian:
    """The Hessian of a layer that `hessian_reason` lets through; errors as `dense_hessian`."""
    from memcurse_cli.theory.dense.hessian import dense_hessian
    from memcurse_cli.theory.dense.sensitivity import DenseSystem

    assert recurrence.readin is not None
    assert recurrence.readout is not None
    system = DenseSystem(
        dynamics.matrix,
        recurrence.eigenbasis,
        recurrence.readin.real,
        recurrence.readout.real,
        *settings.of_loss,
    )
    return dense_hessian(system, dynamics.slope * dynamics.scale)


def _pairs_cost(size: int, horizon: int) -> float:
    """What the diagonal of a dense Hessian costs: a sum over pairs of steps."""
    return float(horizon) ** 2 * size * max(size, PER_PAIR)


def _require_cheap(recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings) -> None:
    """Raise ArithmeticError where a report does not wait for the scores."""
    from memcurse_cli.theory.dense.bases import ANGLES
    from memcurse_cli.theory.dense.hessian import GRAM_ORDER, HESSIAN_CONDITION, STEIN_PRODUCTS
    from memcurse_cli.theory.dense.sensitivity import cost_without_eigenbasis

    assert recurrence.readin is not None
    assert recurrence.readout is not None
    size, horizon = recurrence.size, settings.horizon
    channels = (recurrence.readin.shape[1], len(recurrence.readout))
    if horizon is not None:
        products = PRODUCTS
        if math.prod(channels) * horizon > GRAM_ORDER:
            products += PRODUCTS_OF_TEN
        cost = 4.0 * products * horizon * min(channels) * size**2 + _pairs_cost(size, horizon)
    else:
        cost = (PRODUCTS + PRODUCTS_OF_TEN) * STEIN_PRODUCTS * 2.0 * size**3
        if recurrence.eigenbasis.condition >= HESSIAN_CONDITION:
            decay = -float(recurrence.log_eigenvalues.real.max())
            cost += ANGLES * RESOLVENT_PRODUCTS * 2.0 * size**3
            cost += cost_without_eigenbasis(dynamics.matrix, decay)
    if cost > BUDGET:
        over = "" if horizon is None else f" over {horizon:,} steps"
        what = f"it takes long for a matrix of this size{over}; `memcurse hessian` takes that time"
        raise ArithmeticError(what)


def _of_diagonal(recurrence: Recurrence, settings: Settings) -> LayerHessianReport | None:
    """Block by block; None where no parameter changes the output."""
    hessian = layer_hessian(recurrence, settings, recurrence.projections)
    tally = _Tally(recurrence, hessian)
    for blocks in hessian.blocks(LARGEST_BLOCK):
        tally.add(blocks)
    for large in hessian.large_blocks(LARGEST_BLOCK):
        tally.add_factored(large)
    return tally.report()


class _Tally:
    """The figures of blocks that are seen one after the other and not kept."""

    def __init__(self, recurrence: Recurrence, hessian: LayerHessian) -> None:
        groups: list[ParameterGroup | ProjectionGroup] = list(recurrence.parameters)
        self.recurrence, self.groups = recurrence, [*groups, *recurrence.projections]
        self.offsets = np.cumsum([0, *(group.size for group in self.groups)])
        self.whole = DiagonalityTally(spectra=True)
        self.own = [DiagonalityTally() for _ in self.groups]
        self.squares = np.zeros((len(self.groups), len(self.groups)))
        self.correlation = np.zeros_like(self.squares)
        self.meetings = np.zeros_like(self.squares)
        self.output = 0.0
        self.blocks, self.largest = 0, 0
        self.method: Method = "whole"
        # The sharpest block so far, its scalars, and of how many these are some (or 0).
        self.sharpest: tuple[Floats, Integers, int] | None = None
        # The eigenvalue that each scalar belongs to, where it is one alone.
        entries = hessian.entries
        self.eigenvalue = np.full(entries.size, -1)
        self.eigenvalue[entries.scalar] = entries.eigenvalue
        several = np.bincount(entries.scalar, minlength=entries.size) > 1
        self.eigenvalue[several | (self.eigenvalue == recurrence.size)] = -1

    def add(self, found: HessianBlocks) -> None:
        self.blocks += len(found.hessians)
        self.largest = max(self.largest, found.hessians.shape[1])
        self.output += float(found.output_second_moments.sum())
        self.whole.add(found.hessians, found.scalars)
        for index in np.flatnonzero(self._has_top(found.scalars)):
            self.sharpest = found.hessians[index].copy(), found.scalars[index], 0
        groups = self.group_of(found.scalars)
        for group in np.unique(groups, axis=0):
            hessians = found.hessians[np.all(groups == group, axis=1)]
            related = np.abs(correlations(hessians))
            each = np.arange(group.size)
            related[:, each, each] = 0
            members = (group == np.arange(len(self.groups))[:, None]).astype(np.float64)
            self.squares += members @ np.sum(hessians**2, axis=0) @ members.T
            self.correlation += members @ related.sum(axis=0) @ members.T
            sizes = members.sum(axis=1)
            self.meetings += len(hessians) * (np.outer(sizes, sizes) - np.diag(sizes))
            for place, run in _runs(group):
                self.own[place].add(hessians[:, run, run])

    def add_factored(self, large: LargeBlock) -> None:
        found = large.factorise()
        self.blocks += 1
        if self.method != "partial Cholesky":
            self.method = "impulse responses" if large.is_exact else "partial Cholesky"
        self.largest = max(self.largest, found.scalars.size)
        self.output += large.output_second_moment()
        self.whole.add_factored(found)
        group = self.group_of(found.scalars)
        if self._has_top(found.scalars):
            chosen = evenly_chosen(group)
            some = large.columns(chosen)[chosen]
            self.sharpest = some, found.scalars[chosen], found.scalars.size
        grams = np.zeros((len(self.groups), found.plain.gram.size))
        for index, run in _runs(group):
            part = found.of(run)
            self.own[index].add_factored(part)
            grams[index] = part.plain.gram.ravel()
        self.squares += grams @ grams.T

    def _has_top(self, scalars: Integers) -> NDArray[np.bool_]:
        """Whether blocks of (..., N) scalars have the largest eigenvalue; they share no scalar."""
        top = [pair.scalars[0] for pair in self.whole.top[:1] if pair.scalars is not None]
        return np.isin(scalars[..., 0], top)

    def group_of(self, scalars: Integers) -> Integers:
        return np.searchsorted(self.offsets, scalars, side="right") - 1

    def report(self) -> LayerHessianReport | None:
        recurrence, scores = self.recurrence, _scores(HessianScores, self.whole.scores())
        if scores is None:
            return None
        covered = {group.matrix for group in recurrence.projections}
        missing = " or ".join(matrix for matrix in ("B", "C") if matrix not in covered)
        spectrum, conditioning = _spectrum(
            scores.order, self.whole.top, self.whole.spectra(), self.largest
        )
        return LayerHessianReport(
            name=recurrence.name,
            family=recurrence.family,
            eigenvalues=recurrence.size,
            left_out=f"no parameter of {missing} was found" if missing else None,
            blocks=self.blocks,
            largest_block=self.largest,
            method=self.method,
            output_second_moment=finite(self.output),
            scores=scores,
            groups=tuple(
                HessianGroup(
                    group.name,
                    group.tensor,
                    group.matrix if isinstance(group, ProjectionGroup) else "recurrent",
                    group.size,
                    _scores(HessianScores, tally.scores()),
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
        whole, pairs = self.squares.sum(), []
        for first, second in itertools.combinations_with_replacement(range(len(self.groups)), 2):
            both = 1 if first == second else 2
            share = both * float(self.squares[first, second] / whole)
            meetings = self.meetings[first, second]
            mean = float(self.correlation[first, second] / meetings) if meetings else None
            pairs.append(BlockPair(self.groups[first].name, self.groups[second].name, share, mean))
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
        matrix, scalars, chosen_of = self.sharpest
        title, top = f"{len(scalars):,} parameters", None
        if chosen_of:
            title = f"{len(scalars):,} of {chosen_of:,} parameters, evenly taken"
            values = np.array([pair.value for pair in self.whole.top])
            top = values, np.array([_at(pair, scalars) for pair in self.whole.top])
        if self.blocks > 1:
            title += f", the sharpest of {self.blocks:,} blocks"
        names = [group.name for group in self.groups]
        return picture(title, matrix, self.group_of(scalars), names, top)


def _runs(group: Integers) -> list[tuple[int, slice]]:
    """Each group of ascending scalars, and where its scalars are."""
    present, first = np.unique(group, return_index=True)
    ends = [*first[1:].tolist(), group.size]
    return list(zip(present.tolist(), map(slice, first.tolist(), ends), strict=True))


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
    figures = (
        indices[chosen].tolist(),
        np.abs(eigenvalues_of(logs)).tolist(),
        map(finite, time_constants(logs.real)),
        angles.tolist(),
        weights[chosen].tolist(),
    )
    return tuple(map(EigenvalueWeight, *figures))


def _spectrum(
    order: int, top: Sequence[Eigenpair], spectra: tuple[Floats, Floats] | None, largest_block: int
) -> tuple[HessianSpectrum, Conditioning | None]:
    """Every eigenvalue where all were kept, else the largest ones."""
    if spectra is None:
        return HessianSpectrum(order, None, None, tuple(pair.value for pair in top)), None
    values, scaled = spectra
    smallest = largest_block * np.finfo(np.float64).eps
    rank = int(np.count_nonzero(scaled > smallest * scaled[0]))
    before, after = (
        float(one[0] / max(np.median(one[:rank]), smallest * one[0])) for one in (values, scaled)
    )
    shown = quantiles(np.maximum(values, 0.0)), tuple(values[:SHOWN_EIGENVALUES].tolist())
    return HessianSpectrum(values.size, rank, *shown), Conditioning(before, after)


def _of_dense(recurrence: Recurrence, settings: Settings) -> LayerHessianReport | None:
    """Up to `FORMED` units H is formed; beyond, its top eigenpairs come from products with it."""
    from memcurse_cli.theory.dense.hessian import dense_hessian_scores

    dynamics, matrix, spectra = recurrence.dense, None, None
    assert dynamics is not None
    hessian = dense_layer_hessian(recurrence, dynamics, settings)
    if recurrence.size <= FORMED:
        matrix, tally = hessian.to_matrix(), DiagonalityTally(spectra=True)
        tally.add(matrix[None])
        scores, top, spectra = tally.scores(), tally.top, tally.spectra()
    else:
        scores, top = dense_hessian_scores(hessian) or (None, [])
    if scores is None:
        return None
    spectrum, conditioning = _spectrum(hessian.order, top, spectra, hessian.order)
    name, size = dynamics.tensor.rpartition(".")[2], recurrence.size
    summary, basis = _scores(HessianScores, scores), recurrence.eigenbasis

    def carried(pair: Eigenpair) -> tuple[EigenvalueWeight, ...]:
        # Of an eigenspace no vector stands out, nor what it would move.
        if pair.dimension > 1 or not basis.is_usable:
            return ()
        weights = _moved(basis, pair.vector.reshape(size, size))
        return _named(recurrence.log_eigenvalues, basis.half, weights)

    return LayerHessianReport(
        name=recurrence.name,
        family=recurrence.family,
        eigenvalues=size,
        left_out=LEFT_OUT if dynamics.heads == 1 else LEFT_OUT + OF_HEADS,
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
    for entry in itertools.product(taken, taken):
        change = np.zeros((size, size))
        change[entry] = 1.0
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

    Of (N, N) the rows and columns of these scalars and (N,) their groups, ascending. ``top`` are
    the (k,) eigenvalues of a block not formed, descending, and (k, N) eigenvectors at the scalars.
    """
    order = len(matrix)
    runs = _runs(group)
    # No cell holds scalars of two groups.
    cells = [np.arange(run.start, run.stop, -(-order // CELLS)) for _, run in runs]
    starts = np.concatenate(cells)
    if top is not None:
        values, vectors = top
    elif order <= SPECTRUM_ORDER:
        values, columns = np.linalg.eigh(matrix)
        values, vectors = values[::-1], columns[:, ::-1].T
    else:
        values, columns = largest(matrix, TOP)
        vectors = columns.T

    def shrunk(values: Floats, axis: int) -> Floats:
        return np.maximum.reduceat(values, starts, axis) if starts.size < order else values

    def cells_of(values: Floats) -> Floats:
        return shrunk(shrunk(np.abs(values), 0), 1)

    return HessianPicture(
        title=title,
        order=order,
        magnitude=cells_of(matrix),
        correlation=cells_of(correlations(matrix[None])[0]),
        groups=tuple(names[index] for index, _ in runs),
        boundaries=tuple(np.cumsum([0, *map(len, cells)]).tolist()),
        eigenvalues=values,
        eigenvectors=shrunk(np.abs(vectors[:TOP]), 1),
    )


def evenly_chosen(group: Integers) -> Integers:
    """Places of some scalars, evenly over all, and at least a few of every group."""
    every = np.linspace(0, group.size - 1, min(CHOSEN, group.size))
    chosen = [np.rint(every).astype(np.intp)]
    for _, run in _runs(group):
        few = np.linspace(run.start, run.stop - 1, min(OF_EVERY_GROUP, run.stop - run.start))
        chosen.append(np.rint(few).astype(np.intp))
    return np.unique(np.concatenate(chosen))
