"""The Hessian of the squared error at a perfect fit, over the parameters of a diagonal layer.

The output is ``y = Re[Σ_i c_i h_i] + D x``, or twice the first part where one of each conjugate
pair is stored. At a perfect fit the Hessian of ½ E|y - y*|² is ``H_ab = E[J_a J_b]`` with
``J_a = dy/dω_a``. A parameter of λ_i or γ_i moves ``dh_i/dω = γ (λ' s + η h)``, with
η = d log γ/dω; one of B, C or D moves h or x alone, with a unit vector in the place of a row of B
or of a column of C. In every case

    H_ab = ½ Re[ W_ab M_ab(λ_i, λ_j) + V_ab M_ab(λ_i, λ̄_j) ]
    M_ab = λ'_a λ'_b S + λ'_a η_b ∂αf + η_a λ'_b ∂βf + η_a η_b f

where W = (l_a·l_b)(r_a·r_b) of the vectors over outputs and inputs, CᵀC ∘ BBᵀ for two parameters
of λ, and V likewise with the second ones conjugated; the second derivatives stand conjugated
beside V (Zucchet & Orvieto 2024, eq. 119 and 128-131, corrected). The inputs are isotropic, each
with the autocorrelation R.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.hessian_assembly import Factors, assemble, sum_ties
from memcurse_cli.theory.hessian_columns import LargeBlock
from memcurse_cli.theory.hessian_entries import Entries, Unit, components, units
from memcurse_cli.theory.jacobian import ParameterJacobian, ProjectionJacobian
from memcurse_cli.theory.moments import Readout
from memcurse_cli.theory.pair_moments import PairMoments, finite_pairs, stationary_pairs

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Integers = NDArray[np.intp]

BATCH_ELEMENTS = 2**22  # matrix elements of the blocks that are computed together


@dataclass(frozen=True)
class HessianBlocks:
    """Diagonal blocks of one shape; everything outside the blocks is zero.

    Attributes:
        hessians: (blocks, N, N) real.
        scalars: (blocks, N) the scalars of each block, numbered in the order of the groups.
        output_second_moments: (blocks,) E|Re[C h]|², the outputs of each block summed.
    """

    hessians: Floats
    scalars: Integers
    output_second_moments: Floats


@dataclass(frozen=True)
class LayerHessian:
    """The Hessian of one diagonal layer, which comes as its diagonal blocks.

    A layer that mixes its inputs is one block. A layer of single-input channels (S4) has a block
    per channel, or per set of channels that share a parameter. Scalars are numbered in the order
    of the groups, those of λ and γ first.

    Attributes:
        log_eigenvalues: (n,) log λ.
        log_gain: (n,) log γ.
        jacobians: what each group of recurrent parameters moves.
        readin: (n, inputs) B without γ.
        readout: (outputs, n) C.
        projections: what each part of B, C and D moves; none for recurrent parameters alone.
        channel: (n,) the channel of each eigenvalue, or None for one block.
        conjugate_pairs: whether ``y = 2 Re[C h]`` rather than ``Re[C h]``.
        autocorrelation: R(Δ) of each input.
        horizon: T for sequences of T steps, which is exact for every λ; None for an infinite
            sequence, which needs |λ| < 1.
        read_at: ``every`` for a loss that is the mean over the steps, ``last`` for one at step T.

    Raises:
        ValueError: an infinite sequence and |λ| >= 1.
    """

    log_eigenvalues: Complexes
    log_gain: Complexes
    jacobians: Sequence[ParameterJacobian]
    readin: Complexes
    readout: Complexes
    projections: Sequence[ProjectionJacobian] = ()
    channel: Integers | None = None
    conjugate_pairs: bool = False
    autocorrelation: Autocorrelation = WHITE
    horizon: int | None = None
    read_at: Readout = "every"

    def __post_init__(self) -> None:
        if self.horizon is None and bool(np.any(self.log_eigenvalues.real >= 0)):
            raise ValueError("the Hessian of an infinite sequence needs |λ| < 1")

    @property
    def size(self) -> int:
        """The number of scalars of all groups."""
        return self.entries.size

    @property
    def factor(self) -> float:
        """½, times the square of the output's own factor of 1 or 2."""
        return 2.0 if self.conjugate_pairs else 0.5

    @cached_property
    def entries(self) -> Entries:
        """What every scalar does."""
        return Entries.of(
            self.jacobians,
            self.projections,
            self._channels,
            np.exp(self.log_gain),
            2.0 if self.conjugate_pairs else 1.0,
            single_input=self.channel is not None,
        )

    @cached_property
    def components(self) -> list[list[Unit]]:
        """The units of each block."""
        return components(list(units(self.entries, self._channels)), self.size)

    @property
    def _channels(self) -> Integers:
        count = self.log_eigenvalues.size
        return np.zeros(count, np.intp) if self.channel is None else self.channel

    def blocks(self, largest: int | None = None) -> Iterator[HessianBlocks]:
        """Every diagonal block up to an order, those of one pattern together."""
        patterns: dict[tuple[bytes, ...], list[Unit]] = defaultdict(list)
        for found in self.components:
            if largest is not None and _order(found) > largest:
                continue
            if len(found) == 1:
                patterns[found[0].pattern].append(found[0])
            else:
                yield self._sum(found)
        for same in patterns.values():
            for batch in _batches(same):
                matrices, outputs = self._matrices(batch)
                yield HessianBlocks(matrices, np.stack([unit.numbers for unit in batch]), outputs)

    def large_blocks(self, largest: int) -> Iterator[LargeBlock]:
        """The blocks that `blocks` leaves out."""
        for found in self.components:
            if _order(found) > largest:
                yield LargeBlock(self, found)

    def _sum(self, found: Sequence[Unit]) -> HessianBlocks:
        """One block of units that share scalars, whose Hessians add."""
        numbers = np.unique(np.concatenate([unit.numbers for unit in found]))
        whole = np.zeros((numbers.size, numbers.size))
        output = 0.0
        patterns: dict[tuple[bytes, ...], list[Unit]] = defaultdict(list)
        for unit in found:
            patterns[unit.pattern].append(unit)
        for same in patterns.values():
            for batch in _batches(same):
                matrices, outputs = self._matrices(batch)
                output += float(outputs.sum())
                for unit, matrix in zip(batch, matrices, strict=True):
                    where = np.searchsorted(numbers, unit.numbers)
                    whole[np.ix_(where, where)] += matrix
        return HessianBlocks(whole[None], numbers[None], np.array([output]))

    def _matrices(self, batch: Sequence[Unit]) -> tuple[Floats, Floats]:
        """(k, N, N) the Hessians of units of one pattern, and (k,) their E|Re[C h]|²."""
        unit = batch[0]
        count = unit.eigenvalues.size
        plain, conjugated = self.tables(batch)
        left, right = self.vectors(batch)
        weights = _gram(left, left), _gram(right, right)
        weights_conjugated = _gram(left, left.conj()), _gram(right, right.conj())
        factors = self.factors(batch)
        matrix = assemble(plain, weights, factors, factors)
        matrix += assemble(conjugated, weights_conjugated, factors, factors.conjugate())
        hessians = self.factor * sum_ties(sum_ties(matrix, unit.scalars, 1), unit.scalars, 2)
        own = (slice(None), slice(0, count), slice(0, count))
        output = weights[0][own] * weights[1][own] * plain.hh[own]
        output += weights_conjugated[0][own] * weights_conjugated[1][own] * conjugated.hh[own]
        return (
            0.5 * (hessians + np.swapaxes(hessians, 1, 2)),
            self.factor * output.real.sum(axis=(1, 2)),
        )

    def logs(self, batch: Sequence[Unit]) -> Complexes:
        """(k, m or m+1) log λ of each unit; the input itself is the state of λ = 0."""
        unit = batch[0]
        logs = self.log_eigenvalues[np.stack([one.eigenvalues for one in batch])]
        if np.any(unit.places == unit.eigenvalues.size):
            nothing = np.full((len(batch), 1), complex(-np.inf))
            logs = np.concatenate([logs, nothing], axis=1)
        return logs

    def tables(self, batch: Sequence[Unit]) -> tuple[PairMoments, PairMoments]:
        """E[z_i z_j] and E[z_i z̄_j] of every pair of a unit's eigenvalues."""
        logs = self.logs(batch)
        if self.horizon is not None:
            return finite_pairs(logs, self.autocorrelation, self.horizon, self.read_at)
        plain = stationary_pairs(logs, self.autocorrelation, conjugate=False)
        return plain, stationary_pairs(logs, self.autocorrelation, conjugate=True)

    def vectors(self, batch: Sequence[Unit]) -> tuple[Complexes, Complexes]:
        """(k, m+outputs, outputs) the columns of C and the unit vectors; those of γB likewise."""
        chosen = np.stack([one.eigenvalues for one in batch])
        left = np.moveaxis(self.readout[:, chosen], 0, 2)
        right = np.exp(self.log_gain[chosen])[..., None] * self.readin[chosen]
        return _with_units(left), _with_units(right)

    def factors(self, batch: Sequence[Unit]) -> Factors:
        """The entries of units of one pattern."""
        entry = np.stack([one.entries for one in batch])
        unit = batch[0]
        return Factors(
            unit.places,
            unit.left,
            unit.right,
            self.entries.derivative[entry],
            self.entries.rate[entry],
        )


def _order(found: Sequence[Unit]) -> int:
    """The number of scalars of a component."""
    if len(found) == 1:
        return found[0].numbers.size
    return np.unique(np.concatenate([unit.numbers for unit in found])).size


def _batches(same: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
    """Units of one pattern, as many at once as `BATCH_ELEMENTS` allows."""
    elements = max(4 * same[0].eigenvalues.size ** 2, same[0].entries.size ** 2)
    step = max(1, BATCH_ELEMENTS // elements)
    for start in range(0, len(same), step):
        yield same[start : start + step]


def _with_units(vectors: Complexes) -> Complexes:
    """(k, m, d) → (k, m+d, d): the unit vectors below."""
    count, _, width = vectors.shape
    identity = np.broadcast_to(np.eye(width, dtype=np.complex128), (count, width, width))
    return np.concatenate([vectors, identity], axis=1)


def _gram(first: Complexes, second: Complexes) -> Complexes:
    return first @ np.swapaxes(second, -1, -2)
