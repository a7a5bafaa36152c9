"""The sum of moments that an element of a Hessian is, for every pair of Jacobian entries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.pair_moments import PairMoments

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
