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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.hessian.jacobian import ParameterJacobian, ProjectionJacobian
from memcurse_cli.theory.moments.pairs import PairMoments

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Integers = NDArray[np.intp]

ASSEMBLED = 2**20  # matrix elements that are held as complex numbers at once


class Factors(NamedTuple):
    """Entries of k units of one pattern: their place in the tables and their two weights.

    Attributes:
        places: (e,) the eigenvalue within the unit.
        left: (e,) the vector over the outputs.
        right: (e,) the vector over the inputs.
        derivative: (k, e) λ'.
        rate: (k, e) η.
    """

    places: Integers
    left: Integers
    right: Integers
    derivative: Complexes
    rate: Complexes

    @property
    def on_eigenvalues(self) -> bool:
        """Whether every vector is that of the entry's own eigenvalue."""
        return np.array_equal(self.places, self.left) and np.array_equal(self.places, self.right)

    def conjugate(self) -> Factors:
        """The same with both weights conjugated."""
        return self._replace(derivative=self.derivative.conj(), rate=self.rate.conj())


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
    own = rows.on_eigenvalues and columns.on_eigenvalues
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
                _add(found, chosen, active, product)
        if not own:
            found *= weights[0][:, rows.left[part, None], columns.left]
            found *= weights[1][:, rows.right[part, None], columns.right]
        matrix[:, part] = found.real
    return matrix


def _active(weights: Complexes) -> Integers:
    """The entries that have a weight in any of the units."""
    return np.flatnonzero(weights.any(axis=0))


def _add(found: Complexes, rows: Integers, columns: Integers, product: Complexes) -> None:
    """Add to some rows and columns; all of them without an index."""
    if rows.size == found.shape[1] and columns.size == found.shape[2]:
        found += product
    else:
        found[:, rows[:, None], columns] += product


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
    """The entries of all groups, scalars numbered throughout in the order of the groups.

    Attributes:
        size: the number of scalars.
        scalar: (e,) each entry's scalar.
        channel: (e,) the channel whose output it moves.
        eigenvalue: (e,) the eigenvalue whose state it passes through; n is the input itself.
        output: (e,) the output whose unit vector is ``left``, or -1 for the column of C.
        input: (e,) the input whose unit vector is ``right``, or -1 for the row of γB.
        derivative: (e,) λ', the weight of s.
        rate: (e,) η, the weight of h.
    """

    size: int
    scalar: Integers
    channel: Integers
    eigenvalue: Integers
    output: Integers
    input: Integers
    derivative: Complexes
    rate: Complexes

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

        Args:
            jacobians: the groups of λ and γ.
            projections: the groups of B, C and D.
            channels: (n,) the channel of each eigenvalue.
            gain: (n,) γ.
            amplitude: κ.
            single_input: every channel has one input of its own, which a column of D names.
        """
        sizes = [*(one.size for one in jacobians), *(one.size for one in projections)]
        offsets = np.cumsum([0, *sizes]).tolist()
        parts = [
            _recurrent(one, offset, channels)
            for one, offset in zip(jacobians, offsets, strict=False)
        ]
        for one, offset in zip(projections, offsets[len(jacobians) :], strict=False):
            parts.append(_projection(one, offset, channels, gain, amplitude, single_input))
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(offsets[-1], *columns)


_Columns = tuple[Integers, Integers, Integers, Integers, Integers, Complexes, Complexes]


def _recurrent(jacobian: ParameterJacobian, offset: int, channels: Integers) -> _Columns:
    rate = jacobian.log_gain_derivative
    absent = np.full(jacobian.scalar.size, -1)
    return (
        jacobian.scalar + offset,
        channels[jacobian.eigenvalue],
        jacobian.eigenvalue,
        absent,
        absent,
        jacobian.eigenvalue_derivative,
        np.zeros(jacobian.scalar.size, np.complex128) if rate is None else rate,
    )


def _projection(
    jacobian: ProjectionJacobian,
    offset: int,
    channels: Integers,
    gain: Complexes,
    amplitude: float,
    single_input: bool,
) -> _Columns:
    row, column, rate = jacobian.row, jacobian.column, jacobian.derivative
    absent = np.full(row.size, -1)
    if jacobian.matrix == "B":
        channel, eigenvalue, output, given = channels[row], row, absent, column
        rate = rate * gain[row]
    elif jacobian.matrix == "C":
        channel, eigenvalue, output, given = channels[column], column, row, absent
    else:
        own = column if single_input else np.zeros_like(column)
        given = np.zeros_like(column) if single_input else column
        channel, eigenvalue, output = own, np.full(row.size, channels.size), row
        rate = rate / amplitude
    still = np.zeros(row.size, np.complex128)
    return jacobian.scalar + offset, channel, eigenvalue, output, given, still, rate


@dataclass(frozen=True)
class Unit:
    """One channel: the eigenvalues that meet in its outputs, and the entries that move them.

    Attributes:
        eigenvalues: (m,) which.
        entries: (e,) which.
        places: (e,) each entry's eigenvalue within the unit; m is the input itself.
        left: (e,) each entry's vector over the outputs: below m a column of C, from m on a unit.
        right: (e,) its vector over the inputs: below m a row of γB, from m on a unit.
        scalars: (e,) each entry's scalar within the unit.
        numbers: (N,) the scalars of the unit, ascending.
    """

    eigenvalues: Integers
    entries: Integers
    places: Integers
    left: Integers
    right: Integers
    scalars: Integers
    numbers: Integers

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
        eigenvalues = order[_run(sorted_channels, label)]
        chosen = entry_order[_run(sorted_entries, label)]
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


def _run(labels: Integers, label: int) -> slice:
    return slice(*np.searchsorted(labels, [label, label + 1]))
