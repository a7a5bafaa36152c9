"""The Hessian of the squared error at a perfect fit, over the parameters of λ and γ.

The output is ``y = Re[Σ_i c_i h_i]``, or twice that where one of each conjugate pair is stored.
At a perfect fit the Hessian of ½ E|y - y*|² is ``H_ab = E[J_a J_b]`` with ``J_a = Re[g_a]`` and
``g_a = Σ_i c_i dh_i/dω_a``. For ``dh_i/dω = γ (λ' s + η h)``, with η = d log γ/dω,

    H_ab = ½ Re[ W_ij M_ab(λ_i, λ_j) + V_ij M_ab(λ_i, λ̄_j) ]
    M_ab = λ'_a λ'_b S + λ'_a η_b ∂αf + η_a λ'_b ∂βf + η_a η_b f

where W = (CᵀC) ∘ (BBᵀ) and V = (CᵀC̄) ∘ (BB†), both times the gains, and the second derivatives
stand conjugated beside V (Zucchet & Orvieto 2024, eq. 119 and 128-131, corrected). The inputs are
isotropic, each with the autocorrelation R.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.jacobian import ParameterJacobian
from memcurse_cli.theory.moments import Readout
from memcurse_cli.theory.pair_moments import PairMoments, finite_pairs, stationary_pairs

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Integers = NDArray[np.intp]

BATCH_ELEMENTS = 2**22  # matrix elements of the blocks that are computed together
ASSEMBLED = 2**20  # of these, how many are held as complex numbers at once


@dataclass(frozen=True)
class HessianBlocks:
    """Diagonal blocks of one shape; everything outside the blocks is zero.

    Attributes:
        hessians: (blocks, N, N) real.
        output_second_moments: (blocks,) E y², the outputs of each block summed.
    """

    hessians: Floats
    output_second_moments: Floats


@dataclass(frozen=True)
class _Block:
    """Eigenvalues that meet in an output or under a parameter, and the scalars that move them."""

    eigenvalues: Integers  # (m,)
    channels: Integers  # (m,) the channel of each
    entries: Integers  # (e,) into the concatenated Jacobian entries
    places: Integers  # (e,) each entry's eigenvalue, within the block
    scalars: Integers  # (e,) each entry's scalar, within the block

    @property
    def pattern(self) -> tuple[bytes, ...]:
        """Blocks of equal pattern are computed together."""
        local = np.unique(self.channels, return_inverse=True)[1]
        return (local.tobytes(), self.places.tobytes(), self.scalars.tobytes())


def recurrent_hessian(
    log_eigenvalues: Complexes,
    log_gain: Complexes,
    jacobians: Sequence[ParameterJacobian],
    readin: Complexes,
    readout: Complexes,
    *,
    channel: Integers | None = None,
    conjugate_pairs: bool = False,
    autocorrelation: Autocorrelation = WHITE,
    horizon: int | None = None,
    read_at: Readout = "every",
) -> Iterator[HessianBlocks]:
    """The Hessian over every recurrent parameter, as its diagonal blocks.

    A layer that mixes its inputs is one block, with the scalars in the groups' order. A layer of
    single-input channels (S4) has a block per channel, or per set of channels that share a
    parameter.

    Args:
        log_eigenvalues: (n,) log λ.
        log_gain: (n,) log γ.
        jacobians: what each parameter group moves.
        readin: (n, inputs) B without γ.
        readout: (outputs, n) C.
        channel: (n,) the channel of each eigenvalue, or None for one block.
        conjugate_pairs: whether ``y = 2 Re[C h]`` rather than ``Re[C h]``.
        autocorrelation: R(Δ) of each input.
        horizon: T for sequences of T steps, which is exact for every λ; None for an infinite
            sequence, which needs |λ| < 1.
        read_at: ``every`` for a loss that is the mean over the steps, ``last`` for one at step T.

    Raises:
        ValueError: an infinite sequence and |λ| >= 1.
    """
    if horizon is None and bool(np.any(log_eigenvalues.real >= 0)):
        raise ValueError("the Hessian of an infinite sequence needs |λ| < 1")
    entries = _Entries(jacobians)
    factor = 2.0 if conjugate_pairs else 0.5
    patterns: dict[tuple[bytes, ...], list[_Block]] = defaultdict(list)
    for block in _blocks(log_eigenvalues.size, entries, channel):
        patterns[block.pattern].append(block)
    for blocks in patterns.values():
        elements = max(4 * blocks[0].eigenvalues.size ** 2, blocks[0].entries.size ** 2)
        step = max(1, BATCH_ELEMENTS // elements)
        for start in range(0, len(blocks), step):
            batch = blocks[start : start + step]
            yield _batch(
                batch,
                log_eigenvalues,
                log_gain,
                entries,
                readin,
                readout,
                factor,
                autocorrelation,
                horizon,
                read_at,
            )


class _Entries:
    """The Jacobian entries of all groups in one list, with scalars numbered throughout."""

    def __init__(self, jacobians: Sequence[ParameterJacobian]) -> None:
        offsets = np.cumsum([0, *(jacobian.size for jacobian in jacobians)])
        self.size = int(offsets[-1])
        self.scalar = np.concatenate(
            [jacobian.scalar + offset for jacobian, offset in zip(jacobians, offsets, strict=False)]
        )
        self.eigenvalue = np.concatenate([jacobian.eigenvalue for jacobian in jacobians])
        self.eigenvalue_derivative = np.concatenate(
            [jacobian.eigenvalue_derivative for jacobian in jacobians]
        )
        self.log_gain_derivative = np.concatenate(
            [
                np.zeros(jacobian.scalar.size, np.complex128)
                if jacobian.log_gain_derivative is None
                else jacobian.log_gain_derivative
                for jacobian in jacobians
            ]
        )


def _blocks(size: int, entries: _Entries, channel: Integers | None) -> Iterator[_Block]:
    """The sets of eigenvalues that no output and no scalar connects to any other."""
    channels = np.zeros(size, np.intp) if channel is None else channel
    component = _components(channels, entries)[channels]
    order = np.argsort(component, kind="stable")
    entry_component = component[entries.eigenvalue]
    entry_order = np.argsort(entry_component, kind="stable")
    place = np.empty(size, np.intp)
    for label in range(int(component.max(initial=-1)) + 1):
        eigenvalues = order[_run(component[order], label)]
        chosen = entry_order[_run(entry_component[entry_order], label)]
        if chosen.size == 0:
            continue
        place[eigenvalues] = np.arange(eigenvalues.size)
        scalars = np.unique(entries.scalar[chosen], return_inverse=True)[1]
        yield _Block(
            eigenvalues, channels[eigenvalues], chosen, place[entries.eigenvalue[chosen]], scalars
        )


def _run(labels: Integers, label: int) -> slice:
    return slice(*np.searchsorted(labels, [label, label + 1]))


def _components(channels: Integers, entries: _Entries) -> Integers:
    """(channels,) the component of each channel, channels sharing a scalar being connected."""
    count = int(channels.max(initial=-1)) + 1
    if count <= 1:
        return np.zeros(count, np.intp)
    moved = channels[entries.eigenvalue]
    first = np.full(entries.size, count, np.intp)
    np.minimum.at(first, entries.scalar, moved)
    if np.array_equal(first[entries.scalar], moved):
        return np.arange(count, dtype=np.intp)
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(moved.size)
    graph = coo_array((ones, (moved, first[entries.scalar])), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], np.intp)


def _batch(
    blocks: Sequence[_Block],
    log_eigenvalues: Complexes,
    log_gain: Complexes,
    entries: _Entries,
    readin: Complexes,
    readout: Complexes,
    factor: float,
    autocorrelation: Autocorrelation,
    horizon: int | None,
    read_at: Readout,
) -> HessianBlocks:
    """Blocks of one pattern at once."""
    chosen = np.stack([block.eigenvalues for block in blocks])  # (k, m)
    entry = np.stack([block.entries for block in blocks])  # (k, e)
    block = blocks[0]
    logs = log_eigenvalues[chosen]
    if horizon is None:
        plain = stationary_pairs(logs, autocorrelation, conjugate=False)
        conjugated = stationary_pairs(logs, autocorrelation, conjugate=True)
    else:
        plain, conjugated = finite_pairs(logs, autocorrelation, horizon, read_at)

    b = np.exp(log_gain[chosen])[..., None] * readin[chosen]  # (k, m, inputs)
    c = np.moveaxis(readout[:, chosen], 0, 1)  # (k, outputs, m)
    together = block.channels[:, None] == block.channels[None, :]
    c_transposed, b_transposed = np.swapaxes(c, 1, 2), np.swapaxes(b, 1, 2)
    weight = together * (c_transposed @ c) * (b @ b_transposed)
    weight_conjugated = together * (c_transposed @ c.conj()) * (b @ b_transposed.conj())

    derivative = entries.eigenvalue_derivative[entry]
    rate = entries.log_gain_derivative[entry]
    matrix = _assemble(plain, weight, (derivative, rate), (derivative, rate), block.places)
    matrix += _assemble(
        conjugated,
        weight_conjugated,
        (derivative, rate),
        (derivative.conj(), rate.conj()),
        block.places,
    )
    hessians = factor * _sum_ties(matrix, block.scalars)
    output = weight * plain.hh + weight_conjugated * conjugated.hh
    return HessianBlocks(
        0.5 * (hessians + np.swapaxes(hessians, 1, 2)), factor * output.real.sum(axis=(1, 2))
    )


def _assemble(
    pairs: PairMoments,
    weight: Complexes,
    left: tuple[Complexes, Complexes],
    right: tuple[Complexes, Complexes],
    places: Integers,
) -> Floats:
    """(k, e, e) the real part of the four moments' weighted sum, for every pair of entries.

    Args:
        pairs: (k, m, m) each.
        weight: (k, m, m).
        left: (k, e) λ' and η of the entries along the rows.
        right: the same along the columns.
        places: (e,) each entry's eigenvalue.
    """
    ss, sh, hs, hh = (weight * table for table in pairs)
    (derivative, rate), (derivative_right, rate_right) = left, right
    coupled = bool(np.any(rate))
    blocks, size = derivative.shape
    matrix = np.empty((blocks, size, size))
    step = max(1, ASSEMBLED // max(1, blocks * size))
    for start in range(0, size, step):
        rows = slice(start, start + step)
        cells = np.ix_(np.arange(blocks), places[rows], places)
        s_right = ss[cells] * derivative_right[:, None, :]
        if coupled:
            s_right += sh[cells] * rate_right[:, None, :]
        part = derivative[:, rows, None] * s_right
        if coupled:
            h_right = hs[cells] * derivative_right[:, None, :]
            h_right += hh[cells] * rate_right[:, None, :]
            part += rate[:, rows, None] * h_right
        matrix[:, rows] = part.real
    return matrix


def _sum_ties(matrix: Floats, scalars: Integers) -> Floats:
    """(k, e, e) over entries → (k, N, N) over scalars."""
    count = int(scalars.max()) + 1
    if count == scalars.size and np.array_equal(scalars, np.arange(count)):
        return matrix
    order = np.argsort(scalars, kind="stable")
    starts = np.searchsorted(scalars[order], np.arange(count))
    rows = np.add.reduceat(matrix[:, order], starts, axis=1)
    return np.add.reduceat(rows[:, :, order], starts, axis=2)
