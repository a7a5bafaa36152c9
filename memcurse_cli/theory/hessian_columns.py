"""A diagonal block of a Hessian that is too large to be formed: its diagonal and its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.spectra.partial_cholesky import PartialCholesky, partial_cholesky
from memcurse_cli.theory.diagonality import largest
from memcurse_cli.theory.hessian_assembly import assemble, sum_ties
from memcurse_cli.theory.hessian_entries import Unit
from memcurse_cli.theory.pair_moments import PairMoments, finite_pairs, stationary_pairs

if TYPE_CHECKING:
    from memcurse_cli.theory.hessian import LayerHessian

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Integers = NDArray[np.intp]

FACTOR_ELEMENTS = 2**25  # of each of the two factors: 256 MB
HIGHEST_RANK = 1024
PRECISION = 1e-3  # of the largest eigenvalues: a smaller error is not worth more columns


@dataclass(frozen=True)
class FactoredBlock:
    """A large block by partial Cholesky factorisations, plain and scaled by its own diagonal.

    Attributes:
        scalars: (N,) its scalars, ascending.
        diagonal: (N,) its exact diagonal.
        plain: of H.
        scaled: of D^-½ H D^-½, D = diag H; rows of H_aa = 0 are zero.
    """

    scalars: Integers
    diagonal: Floats
    plain: PartialCholesky
    scaled: PartialCholesky


@dataclass(frozen=True)
class LargeBlock:
    """A block of a layer's Hessian by its diagonal and its columns.

    Attributes:
        hessian: the layer's.
        units: the channels of the block.
    """

    hessian: LayerHessian
    units: Sequence[Unit]

    @cached_property
    def scalars(self) -> Integers:
        """(N,) its scalars, ascending."""
        return np.unique(np.concatenate([unit.numbers for unit in self.units]))

    def factorise(self) -> FactoredBlock:
        """Both factorisations, of a rank that fits into memory."""
        diagonal = self.diagonal()
        root = np.sqrt(np.maximum(diagonal, 0))
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)
        rank = max(1, min(HIGHEST_RANK, FACTOR_ELEMENTS // max(1, diagonal.size)))
        if not np.isfinite(np.sum(diagonal**2)):
            raise OverflowError("the squares of a Hessian's elements have no finite sum")

        def scaled_columns(chosen: Integers) -> Floats:
            return inverse[:, None] * self.columns(chosen) * inverse[chosen]

        # The largest eigenvalue is no smaller than the largest element of the diagonal.
        enough = PRECISION * float(diagonal.max(initial=0))
        plain = partial_cholesky(diagonal, self.columns, rank=rank, enough=enough)
        sharpest = _largest(inverse[:, None] * plain.factor)
        unit = (root > 0).astype(np.float64)
        scaled = partial_cholesky(unit, scaled_columns, rank=rank, enough=PRECISION * sharpest)
        return FactoredBlock(self.scalars, diagonal, plain, scaled)

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
        batch = [unit]
        logs = np.moveaxis(self.hessian.logs(batch), 0, 1)  # every eigenvalue a unit of its own
        left, right = (vectors[0] for vectors in self.hessian.vectors(batch))
        factors = self.hessian.factors(batch)
        derivative, rate = factors.derivative[0], factors.rate[0]
        total = np.zeros(unit.entries.size)
        for conjugate, table in enumerate(self._tables(logs, None)):
            ss, sh, hs, hh = (part[unit.places, 0, 0] for part in table)
            first, second = (left, right), (left, right)
            other, other_rate = derivative, rate
            if conjugate:
                second = left.conj(), right.conj()
                other, other_rate = derivative.conj(), rate.conj()
            weights = [np.sum(one * two, axis=1) for one, two in zip(first, second, strict=True)]
            moments = derivative * (other * ss + other_rate * sh)
            moments += rate * (other * hs + other_rate * hh)
            total += (weights[0][unit.left] * weights[1][unit.right] * moments).real
        return total

    def columns(self, chosen: Integers) -> Floats:
        """(N, b) some columns of the block, by their place in it."""
        found = np.zeros((self.scalars.size, chosen.size))
        numbers = self.scalars[chosen]
        for unit in self.units:
            wanted = np.flatnonzero(np.isin(numbers, unit.numbers))
            if wanted.size == 0:
                continue
            local = np.searchsorted(unit.numbers, numbers[wanted])
            order = np.full(unit.numbers.size, -1)
            order[local] = np.arange(local.size)
            entries = np.flatnonzero(order[unit.scalars] >= 0)
            places, place = np.unique(unit.places[entries], return_inverse=True)
            batch = [unit]
            tables = self._tables(self.hessian.logs(batch), places)
            left, right = self.hessian.vectors(batch)
            lefts, left_place = np.unique(unit.left[entries], return_inverse=True)
            rights, right_place = np.unique(unit.right[entries], return_inverse=True)
            rows = self.hessian.factors(batch)
            columns = rows._replace(
                places=place,
                left=left_place,
                right=right_place,
                derivative=rows.derivative[:, entries],
                rate=rows.rate[:, entries],
            )
            matrix = np.zeros((1, unit.entries.size, entries.size))
            for conjugate, table in enumerate(tables):
                second = (left[:, lefts], right[:, rights])
                if conjugate:
                    second, columns = (second[0].conj(), second[1].conj()), columns.conjugate()
                weights = (
                    left @ np.swapaxes(second[0], 1, 2),
                    right @ np.swapaxes(second[1], 1, 2),
                )
                matrix += assemble(table, weights, rows, columns)
            summed = sum_ties(sum_ties(matrix, unit.scalars, 1), order[unit.scalars[entries]], 2)
            rows_found = np.searchsorted(self.scalars, unit.numbers)
            found[np.ix_(rows_found, wanted)] += self.hessian.factor * summed[0]
        return found

    def _tables(self, logs: Complexes, columns: Integers | None) -> tuple[PairMoments, PairMoments]:
        hessian = self.hessian
        if hessian.horizon is not None:
            return finite_pairs(
                logs, hessian.autocorrelation, hessian.horizon, hessian.read_at, columns
            )
        return (
            stationary_pairs(logs, hessian.autocorrelation, conjugate=False, columns=columns),
            stationary_pairs(logs, hessian.autocorrelation, conjugate=True, columns=columns),
        )


def _largest(factor: Floats) -> float:
    """The largest eigenvalue of L Lᵀ, or 1 where that is more: the least of a scaled Hessian."""
    if factor.shape[1] == 0:
        return 1.0
    return max(1.0, float(largest(factor.T @ factor, 1)[0][0]))
