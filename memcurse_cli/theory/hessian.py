"""The Hessian of the squared error at a perfect fit, over the parameters of a diagonal layer."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.devices import arrays_on_device, beside, contiguous, fetched
from memcurse_cli.theory.diagonality import FactoredBlock, inverse_root, largest
from memcurse_cli.theory.linalg import (
    Array,
    Complexes,
    Factor,
    Floats,
    Integers,
    array_namespace,
    partial_cholesky,
)
from memcurse_cli.theory.moments import (
    PairMoments,
    Readout,
    lags_within,
    pair_moments,
    responses,
)
from memcurse_cli.theory.sensitivity import ParameterJacobian, ProjectionJacobian

ASSEMBLED = 2**20  # matrix elements that are held as complex numbers at once
BATCH_ELEMENTS = 2**22  # matrix elements of the blocks that are computed together
FACTOR_ELEMENTS = 2**25  # of each of the two factors: 256 MB
HIGHEST_RANK = 1024
MOST_SAMPLES = 2048  # of the outputs' responses to all innovations, whose Gram matrix is formed
PRECISION = 1e-3  # of the largest eigenvalues: a smaller error is not worth more columns
# The second of a pair, as each of `tables` takes it.
TURNS: tuple[Callable[[Array], Array], ...] = (lambda z: z, lambda z: z.conj())


class Factors(NamedTuple):
    """What k units of one pattern move: each adds κ Re[w z left · rightᵀ], z an s or an h."""

    states: Integers  # (f,) z: the s of every eigenvalue of the unit, and then every h
    left: Integers  # (f,) the vector over the outputs
    right: Integers  # (f,) the vector over the inputs
    scalars: Integers  # (f,) whose share it is
    weight: Array  # (k, f) w

    def some(self, chosen: Integers) -> Factors:
        """Some of them."""
        states, left, right, scalars = (one[chosen] for one in self[:4])
        return Factors(states, left, right, scalars, self.weight[:, chosen])


def assemble(
    pairs: PairMoments, weights: tuple[Array, Array], rows: Factors, columns: Factors
) -> Floats:
    """(k, N, n) the real part of the moments of two states, weighted, by the scalars of both.

    The weights are the scalar products of the vectors over outputs, and of those over inputs. What
    two tables leave of each other, they do to the last digit only if each is summed before.
    """
    table = _joint(pairs)
    blocks, size, width = len(table), rows.states.size, columns.states.size
    matrix = np.empty((blocks, size, width))
    step = max(1, ASSEMBLED // max(1, blocks * width))
    for start in range(0, size, step):
        some = rows.some(np.arange(start, min(start + step, size)))
        found = weights[0][:, some.left[:, None], columns.left]
        found *= weights[1][:, some.right[:, None], columns.right]
        found *= table[:, some.states[:, None], columns.states]
        found *= columns.weight[:, None, :]
        found *= some.weight[:, :, None]
        matrix[:, start : start + step] = fetched(found.real)
    return sum_ties(sum_ties(matrix, columns.scalars, 2), rows.scalars, 1)


def _joint(pairs: PairMoments) -> Array:
    """(..., 2m, 2m) the moments of every s, then of every h."""
    xp = array_namespace(pairs.ss)
    rows = (pairs.ss, pairs.sh), (pairs.hs, pairs.hh)
    return xp.concat([xp.concat(row, axis=-1) for row in rows], axis=-2)


def sum_ties(matrix: Floats, scalars: Integers, axis: int) -> Floats:
    """Sum what each scalar moves along an axis."""
    count = int(scalars.max()) + 1
    if count == scalars.size and np.array_equal(scalars, np.arange(count)):
        return matrix
    order = np.argsort(scalars, kind="stable")
    starts = np.searchsorted(scalars[order], np.arange(count))
    return np.add.reduceat(np.take(matrix, order, axis=axis), starts, axis=axis)


class Entries(Struct, frozen=True):
    """What every scalar does: the entries of all groups, scalars numbered throughout."""

    size: int  # the number of scalars
    scalar: Integers  # (e,) each entry's scalar
    channel: Integers  # (e,) the channel whose output it moves
    eigenvalue: Integers  # (e,) the eigenvalue whose state it passes through; n is the input itself
    output: Integers  # (e,) the output whose unit vector is ``left``, or -1 for the column of C
    input: Integers  # (e,) the input whose unit vector is ``right``, or -1 for the row of γB
    derivative: Complexes  # (e,) λ', the weight of s
    rate: Complexes  # (e,) η, the weight of h


class Unit(Struct, frozen=True):
    """One channel: the eigenvalues that meet in its outputs, and the entries that move them."""

    eigenvalues: Integers  # (m,) which
    entries: Integers  # (e,) which
    places: Integers  # (e,) each entry's eigenvalue within the unit; m is the input itself
    # (e,) each entry's vector over the outputs: below m a column of C, from m on a unit
    left: Integers
    right: Integers  # (e,) its vector over the inputs: below m a row of γB, from m on a unit
    scalars: Integers  # (e,) each entry's scalar within the unit
    numbers: Integers  # (N,) the scalars of the unit, ascending

    @property
    def states(self) -> int:
        """How many states it has: an m+1st where an entry is of the input itself."""
        return max(self.eigenvalues.size, int(self.places.max()) + 1)

    @property
    def pattern(self) -> tuple[bytes, ...]:
        """Units of equal pattern are computed together."""
        count = np.array(self.eigenvalues.size)
        found = (count, self.places, self.left, self.right, self.scalars)
        return tuple(one.tobytes() for one in found)


def units(entries: Entries, channels: Integers) -> Iterator[Unit]:
    """The units that have any entry, by channel."""
    order = np.argsort(channels, kind="stable")
    entry_order = np.argsort(entries.channel, kind="stable")
    sorted_channels, sorted_entries = channels[order], entries.channel[entry_order]
    place = np.full(channels.size + 1, -1)
    for label in range(int(channels.max(initial=-1)) + 1):
        ends = [label, label + 1]
        eigenvalues = order[slice(*np.searchsorted(sorted_channels, ends))]
        chosen = entry_order[slice(*np.searchsorted(sorted_entries, ends))]
        if chosen.size == 0:
            continue
        count = eigenvalues.size
        place[eigenvalues] = np.arange(count)
        place[-1] = count
        places = place[entries.eigenvalue[chosen]]
        output, given = entries.output[chosen], entries.input[chosen]
        numbers, scalars = np.unique(entries.scalar[chosen], return_inverse=True)
        yield Unit(
            eigenvalues,
            chosen,
            places,
            np.where(output < 0, places, count + output),
            np.where(given < 0, places, count + given),
            scalars,
            numbers,
        )


def components(found: Sequence[Unit], size: int) -> list[list[Unit]]:
    """Units that share a scalar, directly or through others, together; in the units' order."""
    first = np.full(size, len(found))
    shared = False
    for index, unit in enumerate(found):
        shared |= bool(np.any(first[unit.numbers] < len(found)))
        first[unit.numbers] = np.minimum(first[unit.numbers], index)
    if not shared:
        return [[unit] for unit in found]
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows = np.concatenate([np.full(unit.numbers.size, i) for i, unit in enumerate(found)])
    columns = np.concatenate([first[unit.numbers] for unit in found])
    graph = coo_array((np.ones(rows.size), (rows, columns)), shape=(len(found), len(found)))
    labels = connected_components(graph, directed=False)[1]
    together: dict[int, list[Unit]] = defaultdict(list)
    for unit, label in zip(found, labels.tolist(), strict=True):
        together[label].append(unit)
    return list(together.values())


class HessianBlocks(Struct, frozen=True):
    """Diagonal blocks of one shape; everything outside the blocks is zero."""

    hessians: Floats  # (blocks, N, N) real
    scalars: Integers  # (blocks, N) the scalars of each block, numbered in the order of the groups
    output_second_moments: Floats  # (blocks,) E|Re[C h]|², the outputs of each block summed


class LayerHessian(Struct, frozen=True, dict=True):
    """The Hessian H of ½ E|y - y*|² at y = y*, ``y = κ Re[Σ_i c_i h_i] + D x`` with κ 1 or 2.

    A parameter of λ_i or γ_i moves ``dh_i/dω = γ (λ' s + η h)``, η = d log γ/dω; one of B, C or D
    moves h or x alone, with a unit vector in the place of a row of B or of a column of C:

        H_ab = ½κ² Re[ W_ab M_ab(λ_i, λ_j) + V_ab M_ab(λ_i, λ̄_j) ]
        M_ab = λ'_a λ'_b S + λ'_a η_b ∂αf + η_a λ'_b ∂βf + η_a η_b f

    where W = (l_a·l_b)(r_a·r_b) of the vectors over outputs and inputs, CᵀC ∘ BBᵀ for two
    parameters of λ, and V likewise with the second ones conjugated, as the second derivatives are
    beside it (Zucchet & Orvieto 2024, eq. 119 and 128-131, corrected). The inputs are isotropic. A
    layer of single-input channels (S4) has a block per set of channels that share a parameter.
    Scalars are numbered in the order of the groups, those of λ and γ first.
    Raises ValueError: an infinite sequence and |λ| >= 1.
    """

    log_eigenvalues: Complexes  # (n,) log λ
    log_gain: Complexes  # (n,) log γ
    jacobians: Sequence[ParameterJacobian]  # what each group of recurrent parameters moves
    readin: Complexes  # (n, inputs) B without γ
    readout: Complexes  # (outputs, n) C
    projections: Sequence[ProjectionJacobian] = ()  # what each part of B, C and D moves
    channel: Integers | None = None  # (n,) the channel of each eigenvalue, or None for one block
    conjugate_pairs: bool = False  # whether ``y = 2 Re[C h]`` rather than ``Re[C h]``
    autocorrelation: Autocorrelation = WHITE  # R(Δ) of each input
    horizon: int | None = None  # T, exact for every λ; None for an infinite sequence
    read_at: Readout = "every"  # the loss is the mean over the steps, or that at the last

    def __post_init__(self) -> None:
        if self.horizon is None and bool(np.any(self.log_eigenvalues.real >= 0)):
            raise ValueError("the Hessian of an infinite sequence needs |λ| < 1")

    @property
    def factor(self) -> float:
        """½κ²."""
        return 2.0 if self.conjugate_pairs else 0.5

    @cached_property
    def entries(self) -> Entries:
        """What every scalar does; a column of D names the input of all, or of a channel alone."""
        parts: list[tuple[NDArray[Any], ...]] = []
        channels, size = self.channels, 0
        groups: list[ParameterJacobian | ProjectionJacobian] = [*self.jacobians, *self.projections]
        for one in groups:
            count = one.scalar.size
            absent, still = np.full(count, -1), np.zeros(count, np.complex128)
            output, given, derivative = absent, absent, still
            if isinstance(one, ParameterJacobian):
                moved, derivative, rate = one.eigenvalue, one.eigenvalue_derivative, still
                if one.log_gain_derivative is not None:
                    rate = one.log_gain_derivative
                channel = channels[moved]
            elif one.matrix == "B":
                moved, given = one.row, one.column
                rate = one.derivative * np.exp(self.log_gain[moved])
                channel = channels[moved]
            elif one.matrix == "C":
                moved, output, rate = one.column, one.row, one.derivative
                channel = channels[moved]
            else:
                moved, output = np.full(count, channels.size), one.row
                rate = one.derivative / (2.0 if self.conjugate_pairs else 1.0)
                channel, given = np.zeros_like(one.column), one.column
                if self.channel is not None:
                    channel, given = given, channel
            parts.append((one.scalar + size, channel, moved, output, given, derivative, rate))
            size += one.size
        return Entries(size, *(np.concatenate(column) for column in zip(*parts, strict=True)))

    @cached_property
    def components(self) -> list[list[Unit]]:
        """The units of each block."""
        return components(list(units(self.entries, self.channels)), self.entries.size)

    @property
    def channels(self) -> Integers:
        """(n,) the channel of each eigenvalue, 0 throughout where all mix."""
        count = self.log_eigenvalues.size
        return np.zeros(count, np.intp) if self.channel is None else self.channel

    def blocks(self, largest: int | None = None) -> Iterator[HessianBlocks]:
        """Every diagonal block up to an order, those of one pattern together."""
        alone: list[Unit] = []
        for found in self.components:
            if largest is not None and _numbers(found).size > largest:
                continue
            if len(found) == 1:
                alone += found
            else:
                yield self._sum(found)
        for batch in _batches(alone):
            matrices, outputs = self._matrices(batch)
            yield HessianBlocks(matrices, np.stack([unit.numbers for unit in batch]), outputs)

    def large_blocks(self, largest: int) -> Iterator[LargeBlock]:
        """The blocks that `blocks` leaves out."""
        for found in self.components:
            if _numbers(found).size > largest:
                yield LargeBlock(self, found)

    def _sum(self, found: Sequence[Unit]) -> HessianBlocks:
        """One block of units that share scalars, whose Hessians add."""
        numbers = _numbers(found)
        whole = np.zeros((numbers.size, numbers.size))
        output = 0.0
        for batch in _batches(found):
            matrices, outputs = self._matrices(batch)
            output += float(outputs.sum())
            for unit, matrix in zip(batch, matrices, strict=True):
                where = np.searchsorted(numbers, unit.numbers)
                whole[np.ix_(where, where)] += matrix
        return HessianBlocks(whole[None], numbers[None], np.array([output]))

    def _matrices(self, batch: Sequence[Unit]) -> tuple[Floats, Floats]:
        """(k, N, N) the Hessians of units of one pattern, and (k,) their E|Re[C h]|²."""
        count = batch[0].eigenvalues.size
        (left, right), factors = self.vectors(batch), self.factors(batch)
        hessians, output = np.zeros(()), np.zeros(())
        own = (slice(None), slice(0, count), slice(0, count))
        for table, turn in zip(self.tables(self.logs(batch)), TURNS, strict=True):
            weights = _gram(left, turn(left)), _gram(right, turn(right))
            columns = factors._replace(weight=turn(factors.weight))
            hessians = hessians + assemble(table, weights, factors, columns)
            seen = weights[0][own] * weights[1][own] * table.hh[own]
            output = output + seen.real.sum(axis=(1, 2))
        return 0.5 * self.factor * (hessians + np.swapaxes(hessians, 1, 2)), self.factor * output

    def logs(self, batch: Sequence[Unit]) -> Complexes:
        """(k, m or m+1) log λ of each unit; the input itself is the state of λ = 0."""
        unit = batch[0]
        logs = self.log_eigenvalues[np.stack([one.eigenvalues for one in batch])]
        if unit.states > unit.eigenvalues.size:
            nothing = np.full((len(batch), 1), complex(-np.inf))
            logs = np.concatenate([logs, nothing], axis=1)
        return logs

    def tables(
        self, logs: Array, columns: Integers | None = None
    ) -> tuple[PairMoments, PairMoments]:
        """E[z_i z_j] and E[z_i z̄_j] of every pair of a unit's eigenvalues, or of some columns."""
        return pair_moments(logs, self.autocorrelation, self.horizon, self.read_at, columns)

    def vectors(self, batch: Sequence[Unit]) -> tuple[Complexes, Complexes]:
        """(k, m+outputs, outputs) the columns of C and the unit vectors; those of γB likewise."""
        chosen = np.stack([one.eigenvalues for one in batch])
        left = np.moveaxis(self.readout[:, chosen], 0, 2)
        right = np.exp(self.log_gain[chosen])[..., None] * self.readin[chosen]
        return _with_units(left), _with_units(right)

    def factors(self, batch: Sequence[Unit]) -> Factors:
        """What units of one pattern move, by s first."""
        unit, entry = batch[0], np.stack([one.entries for one in batch])
        derivative, rate = self.entries.derivative[entry], self.entries.rate[entry]
        by_rate = rate.any(axis=0)
        moving = np.flatnonzero(derivative.any(axis=0) | ~by_rate), np.flatnonzero(by_rate)
        both = np.concatenate(moving)
        return Factors(
            np.concatenate([unit.places[moving[0]], unit.states + unit.places[moving[1]]]),
            unit.left[both],
            unit.right[both],
            unit.scalars[both],
            np.concatenate([derivative[:, moving[0]], rate[:, moving[1]]], axis=1),
        )


class LargeBlock(Struct, frozen=True, dict=True):
    """A block of a layer's Hessian by its diagonal, its columns and its responses."""

    hessian: LayerHessian  # the layer's
    units: Sequence[Unit]  # the channels of the block

    @cached_property
    def scalars(self) -> Integers:
        """(N,) its scalars, ascending."""
        return _numbers(self.units)

    def factorise(self) -> FactoredBlock:
        """Exactly by impulse responses where these have few samples, else by some columns."""
        diagonal = self.diagonal()
        inverse = inverse_root(diagonal)
        if not np.isfinite(np.sum(diagonal**2)):
            raise OverflowError("the squares of a Hessian's elements have no finite sum")
        if self.is_exact:
            plain = Factor(self.responses, np.zeros_like(diagonal))
            return FactoredBlock(self.scalars, diagonal, plain, plain.scaled(inverse))
        rank = max(1, min(HIGHEST_RANK, FACTOR_ELEMENTS // max(1, diagonal.size)))

        def scaled_columns(chosen: Integers) -> Floats:
            return inverse[:, None] * self.columns(chosen) * inverse[chosen]

        # The largest eigenvalue is no smaller than the largest element of the diagonal.
        enough = PRECISION * float(diagonal.max(initial=0))
        plain = partial_cholesky(diagonal, self.columns, rank=rank, enough=enough)
        reduced = plain.scaled(inverse).gram
        sharpest = 1.0  # the least that a scaled Hessian has
        if reduced.size:
            sharpest = max(sharpest, float(largest(reduced, 1)[0][0]))
        unit = (diagonal > 0).astype(np.float64)
        scaled = partial_cholesky(unit, scaled_columns, rank=rank, enough=PRECISION * sharpest)
        return FactoredBlock(self.scalars, diagonal, plain, scaled)

    @property
    def is_exact(self) -> bool:
        """Whether its factors leave nothing."""
        return self.samples <= MOST_SAMPLES

    @cached_property
    def samples(self) -> int:
        """How many the outputs' responses to all innovations of the inputs have."""
        layer = self.hessian
        channels: int = layer.readin.shape[1] * len(layer.readout)
        echoes = sum(len(part.quadratures(np.zeros(1))) for part in layer.autocorrelation.parts)
        return len(self.units) * channels * echoes * self.lags

    @cached_property
    def lags(self) -> int:
        """Steps after which no response is left, or T."""
        layer = self.hessian
        return lags_within(layer.log_eigenvalues, layer.autocorrelation, self.steps)

    @property
    def steps(self) -> int:
        """T, or more than any memory."""
        return sys.maxsize if self.hessian.horizon is None else self.hessian.horizon

    def responses(self, rows: slice) -> Iterator[Array]:
        """(…, samples) F of ``H = F Fᵀ``: how much some scalars move the outputs' responses.

        ``F_a(k) = κ √w_k Re[l_a (λ'_a s(k) + η_a h(k)) r_a]``, w the variances of innovations.
        """
        layer = self.hessian
        units = [
            (unit, layer.factors([unit]), layer.logs([unit])[0], *layer.vectors([unit]))
            for unit in self.units
        ]
        moving = sum(factors.scalars.size for _, factors, *_ in units) / self.scalars.size
        step = max(1, int(BATCH_ELEMENTS / (moving * self.samples)))
        for start in range(rows.start, rows.stop, step):
            numbers = self.scalars[start : min(start + step, rows.stop)]
            parts = [self._moved(numbers, *unit) for unit in units]
            yield array_namespace(parts[0]).concat(parts, axis=1)

    def _moved(
        self,
        numbers: Integers,
        unit: Unit,
        factors: Factors,
        logs: Complexes,
        left: Complexes,
        right: Complexes,
    ) -> Array:
        """(b, …) what some scalars, ascending, move of the outputs of one unit."""
        factors = factors.some(np.flatnonzero(np.isin(unit.numbers[factors.scalars], numbers)))
        scalars = np.searchsorted(numbers, unit.numbers[factors.scalars])
        kind, place = np.divmod(factors.states, unit.states)
        places, place = np.unique(place, return_inverse=True)
        states = kind * places.size + place
        vectors = left[0, factors.left][:, :, None] * right[0, factors.right][:, None, :]
        vectors = vectors.reshape(scalars.size, left.shape[2] * right.shape[2])
        vectors *= factors.weight[0][:, None]
        there, vectors = arrays_on_device(numbers.size * self.samples, logs[places], vectors)
        xp = array_namespace(there)
        # One thing after the other that moves the same scalar.
        order = np.argsort(scalars, kind="stable")
        turn = np.arange(order.size) - np.searchsorted(scalars[order], scalars[order])
        turns = np.split(order[np.argsort(turn, kind="stable")], np.cumsum(np.bincount(turn))[:-1])
        parts = []
        for found in self._weighted_states(there):
            response = contiguous(found.T)
            real, imag = response[: len(response) // 2], response[len(response) // 2 :]
            shape = (numbers.size, response.shape[1], vectors.shape[1])
            moved = xp.zeros(shape, dtype=xp.float64, device=there.device)
            for some in turns:
                by_real = vectors[some].real[:, None, :] * real[states[some]][:, :, None]
                by_imag = vectors[some].imag[:, None, :] * imag[states[some]][:, :, None]
                moved[scalars[some]] += by_real - by_imag
            parts.append(moved.reshape(numbers.size, -1))
        return xp.concat(parts, axis=1)

    def _weighted_states(self, logs: Array) -> Iterator[Array]:
        """(lags, 4m) κ √w times the states of `moments.responses`, all lags of an echo at once."""
        layer, lags = self.hessian, self.lags
        found = responses(logs, layer.autocorrelation, self.steps, layer.read_at, lags)
        for share, states in found:
            yield states * beside(np.sqrt(2 * layer.factor * share)[:, None], states)

    def output_second_moment(self) -> float:
        """E|Re[C h]|² of the block, by the outputs' responses themselves; nan where they are many.

        It is a sum over every pair of eigenvalues otherwise.
        """
        if not self.is_exact:
            return math.nan
        layer, total = self.hessian, 0.0
        count = max(1, BATCH_ELEMENTS // (4 * self.lags))
        for unit in self.units:
            (left, right), shown = layer.vectors([unit]), np.zeros(())
            for start in range(0, unit.eigenvalues.size, count):
                some = unit.eigenvalues[start : start + count]
                rows = slice(start, start + some.size)
                across = left[0, rows][:, :, None] * right[0, rows][:, None, :]
                across = across.reshape(some.size, left.shape[2] * right.shape[2])
                parts = []
                for found in self._weighted_states(layer.log_eigenvalues[some]):
                    _, real, _, imag = np.split(found, 4, axis=1)
                    parts.append(real @ across.real - imag @ across.imag)
                shown = shown + np.concatenate(parts)
            total += float(np.sum(shown**2))
        return total

    def diagonal(self) -> Floats:
        """(N,) H_aa, each from its own entries."""
        entries, found = self.hessian.entries, np.zeros(self.scalars.size)
        several: list[Integers] = []
        for unit in self.units:
            values = self.hessian.factor * self._squares(unit)
            counts = np.bincount(unit.scalars)
            crossing = counts[unit.scalars] > 1  # pairs of entries of one scalar
            single = entries.scalar[unit.entries[~crossing]]
            np.add.at(found, np.searchsorted(self.scalars, single), values[~crossing])
            several.append(unit.numbers[counts > 1])
        tied = np.searchsorted(self.scalars, np.unique(np.concatenate(several)))
        for start in range(0, tied.size, 64):
            chosen = tied[start : start + 64]
            found[chosen] = self.columns(chosen)[chosen, np.arange(chosen.size)]
        return found

    def _squares(self, unit: Unit) -> Floats:
        """(e,) the square of each entry alone, without the factor."""
        layer, entry = self.hessian, unit.entries
        logs = np.moveaxis(layer.logs([unit]), 0, 1)  # every eigenvalue a unit of its own
        left, right = (vectors[0] for vectors in layer.vectors([unit]))
        weight = np.stack([layer.entries.derivative[entry], layer.entries.rate[entry]], axis=1)
        total = np.zeros(entry.size)
        for pairs, turn in zip(layer.tables(logs), TURNS, strict=True):
            by_left, by_right = (np.sum(one * turn(one), axis=1) for one in (left, right))
            table = _joint(pairs)[unit.places]
            moments = np.einsum("ea,eab,eb->e", weight, table, turn(weight))
            total += (by_left[unit.left] * by_right[unit.right] * moments).real
        return total

    def columns(self, chosen: Integers) -> Floats:
        """(N, b) some columns of the block, by their place in it."""
        layer, found = self.hessian, np.zeros((self.scalars.size, chosen.size))
        numbers = self.scalars[chosen]
        for unit in self.units:
            wanted = np.flatnonzero(np.isin(numbers, unit.numbers))
            if wanted.size == 0:
                continue
            order = np.full(unit.numbers.size, -1)
            order[np.searchsorted(unit.numbers, numbers[wanted])] = np.arange(wanted.size)
            rows, (left, right) = layer.factors([unit]), layer.vectors([unit])
            columns = rows.some(np.flatnonzero(order[rows.scalars] >= 0))
            # Of all states and vectors there may be too many to meet each other.
            kind, place = np.divmod(columns.states, unit.states)
            (places, place), (lefts, in_left), (rights, in_right) = (
                np.unique(one, return_inverse=True) for one in (place, columns.left, columns.right)
            )
            columns = columns._replace(
                states=kind * places.size + place,
                left=in_left,
                right=in_right,
                scalars=order[columns.scalars],
            )
            logs, left, right, *weighted = arrays_on_device(
                rows.states.size * columns.states.size,
                layer.logs([unit]),
                left,
                right,
                rows.weight,
                columns.weight,
            )
            rows, columns = (
                one._replace(weight=weight)
                for one, weight in zip((rows, columns), weighted, strict=True)
            )
            summed = np.zeros(())
            for pairs, turn in zip(layer.tables(logs, places), TURNS, strict=True):
                weights = _gram(left, turn(left[:, lefts])), _gram(right, turn(right[:, rights]))
                turned = columns._replace(weight=turn(columns.weight))
                summed = summed + assemble(pairs, weights, rows, turned)[0]
            rows_found = np.searchsorted(self.scalars, unit.numbers)
            found[np.ix_(rows_found, wanted)] += layer.factor * summed
        return found


def _numbers(found: Sequence[Unit]) -> Integers:
    """(N,) the scalars of a component, ascending."""
    numbers = np.sort(np.concatenate([unit.numbers for unit in found]))
    return numbers[np.diff(numbers, prepend=-1) > 0]  # np.unique would import numpy.ma


def _batches(found: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
    """Units of one pattern, as many at once as `BATCH_ELEMENTS` allows."""
    patterns: dict[tuple[bytes, ...], list[Unit]] = defaultdict(list)
    for unit in found:
        patterns[unit.pattern].append(unit)
    for same in patterns.values():
        elements = max(4 * same[0].eigenvalues.size ** 2, same[0].entries.size ** 2)
        step = max(1, BATCH_ELEMENTS // elements)
        for start in range(0, len(same), step):
            yield same[start : start + step]


def _with_units(vectors: Complexes) -> Complexes:
    """(k, m, d) → (k, m+d, d): the unit vectors below."""
    count, _, width = vectors.shape
    identity = np.broadcast_to(np.eye(width, dtype=np.complex128), (count, width, width))
    return np.concatenate([vectors, identity], axis=1)


def _gram(first: Array, second: Array) -> Array:
    return first @ second.mT
