"""What every scalar of a diagonal layer does to its output, in one list.

With ``y = κ Re[C h] + D x`` each entry of a Jacobian adds to dy/dω

    κ Re[ left · rightᵀ (λ' s_i + η h_i) ]

where ``left`` is a vector over the outputs and ``right`` one over the inputs: C_i and γ_i B_i for
a parameter of λ_i or γ_i, a unit vector in place of ``right`` for one of B, in place of ``left``
for one of C, and two of them for one of D, whose state is the input itself.

The sum of moments that an element of a Hessian is, for every pair of Jacobian entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.moments import PairMoments
from memcurse_cli.theory.sensitivity import ParameterJacobian

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Integers = NDArray[np.intp]

ASSEMBLED = 2**20  # matrix elements that are held as complex numbers at once


class ProjectionJacobian(Protocol):
    """What the scalars of a part of B, C or D move.

    Entry ``e`` says that one unit of scalar ``scalar[e]`` changes the matrix at row ``row[e]`` and
    column ``column[e]`` by ``derivative[e]``: 1 for a real part, i for an imaginary one. B has a
    row per eigenvalue, C a column per eigenvalue; D has rows of outputs and columns of inputs, or
    of channels where each channel has an input of its own.
    """

    @property
    def matrix(self) -> Literal["B", "C", "D"]:
        """Which matrix."""

    @property
    def size(self) -> int:
        """The number of scalars."""

    @property
    def scalar(self) -> Integers:
        """(entries,) which."""

    @property
    def row(self) -> Integers:
        """(entries,) of the matrix."""

    @property
    def column(self) -> Integers:
        """(entries,) of the matrix."""

    @property
    def derivative(self) -> Complexes:
        """(entries,) what one unit of the scalar adds there."""


class Factors(NamedTuple):
    """Entries of k units of one pattern: their place in the tables and their two weights."""

    places: Integers  # (e,) the eigenvalue within the unit
    left: Integers  # (e,) the vector over the outputs
    right: Integers  # (e,) the vector over the inputs
    derivative: Complexes  # (k, e) λ'
    rate: Complexes  # (k, e) η

    def seen(self, turn: Callable[[Complexes], Complexes]) -> Factors:
        """The same with both weights conjugated, or as they are."""
        return self._replace(derivative=turn(self.derivative), rate=turn(self.rate))


def assemble(
    pairs: PairMoments, weights: tuple[Complexes, Complexes], rows: Factors, columns: Factors
) -> Floats:
    """(k, rows, columns) the real part of the four moments' weighted sum, for pairs of entries.

    Args:
        pairs: (k, m, m') each.
        weights: the scalar products of the vectors over outputs, and of those over inputs.
        rows: the entries along the rows.
        columns: those along the columns, with weights conjugated where the tables are.
    """
    ss, sh, hs, hh = pairs
    # Every vector is that of the entry's own eigenvalue.
    own = all(
        np.array_equal(one.places, one.left) and np.array_equal(one.places, one.right)
        for one in (rows, columns)
    )
    if own:
        size, width = ss.shape[1:]
        weight = weights[0][:, :size, :width] * weights[1][:, :size, :width]
        ss, sh, hs, hh = (weight * table for table in pairs)
    blocks, size = rows.derivative.shape
    width = columns.places.size
    sides = ((columns.derivative, ss, hs), (columns.rate, sh, hh))
    matrix = np.empty((blocks, size, width))
    step = max(1, ASSEMBLED // max(1, blocks * width))
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        found = np.zeros((blocks, part.stop - part.start, width), np.complex128)
        for right, by_derivative, by_rate in sides:
            active = _active(right)
            for left, table in ((rows.derivative, by_derivative), (rows.rate, by_rate)):
                chosen = _active(left[:, part])
                if chosen.size == 0 or active.size == 0:
                    continue
                places = rows.places[part][chosen, None], columns.places[active]
                product = table[:, *places] * right[:, None, active]
                product *= left[:, part][:, chosen, None]
                if (chosen.size, active.size) == found.shape[1:]:
                    found += product
                else:
                    found[:, chosen[:, None], active] += product
        if not own:
            found *= weights[0][:, rows.left[part, None], columns.left]
            found *= weights[1][:, rows.right[part, None], columns.right]
        matrix[:, part] = found.real
    return matrix


def _active(weights: Complexes) -> Integers:
    """The entries that have a weight in any of the units."""
    return np.flatnonzero(weights.any(axis=0))


def sum_ties(matrix: Floats, scalars: Integers, axis: int) -> Floats:
    """Sum the entries of each scalar along an axis."""
    count = int(scalars.max()) + 1
    if count == scalars.size and np.array_equal(scalars, np.arange(count)):
        return matrix
    order = np.argsort(scalars, kind="stable")
    starts = np.searchsorted(scalars[order], np.arange(count))
    return np.add.reduceat(np.take(matrix, order, axis=axis), starts, axis=axis)


@dataclass(frozen=True)
class Entries:
    """The entries of all groups, scalars numbered throughout in the order of the groups."""

    size: int  # the number of scalars
    scalar: Integers  # (e,) each entry's scalar
    channel: Integers  # (e,) the channel whose output it moves
    eigenvalue: Integers  # (e,) the eigenvalue whose state it passes through; n is the input itself
    output: Integers  # (e,) the output whose unit vector is ``left``, or -1 for the column of C
    input: Integers  # (e,) the input whose unit vector is ``right``, or -1 for the row of γB
    derivative: Complexes  # (e,) λ', the weight of s
    rate: Complexes  # (e,) η, the weight of h

    @classmethod
    def of(
        cls,
        jacobians: Sequence[ParameterJacobian],
        projections: Sequence[ProjectionJacobian],
        channels: Integers,
        gain: Complexes,
        amplitude: float,
        *,
        single_input: bool,
    ) -> Entries:
        """Collect them.

        Channels are those of each eigenvalue, and ``single_input`` says that each of them has one
        input of its own, which a column of D names; the gain is γ, and the amplitude κ.
        """
        parts: list[tuple[NDArray[Any], ...]] = []
        size = 0
        for one in jacobians:
            absent, rate = np.full(one.scalar.size, -1), one.log_gain_derivative
            if rate is None:
                rate = np.zeros(one.scalar.size, np.complex128)
            moved, derivative = one.eigenvalue, one.eigenvalue_derivative
            scalar = one.scalar + size
            parts.append((scalar, channels[moved], moved, absent, absent, derivative, rate))
            size += one.size
        for group in projections:
            row, column, rate = group.row, group.column, group.derivative
            absent, still = np.full(row.size, -1), np.zeros(row.size, np.complex128)
            if group.matrix == "B":
                channel, moved, output, given = channels[row], row, absent, column
                rate = rate * gain[row]
            elif group.matrix == "C":
                channel, moved, output, given = channels[column], column, row, absent
            else:
                channel, given = np.zeros_like(column), column
                if single_input:
                    channel, given = given, channel
                moved, output = np.full(row.size, channels.size), row
                rate = rate / amplitude
            parts.append((group.scalar + size, channel, moved, output, given, still, rate))
            size += group.size
        return cls(size, *(np.concatenate(column) for column in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Unit:
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
