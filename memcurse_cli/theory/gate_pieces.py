"""Units of a gated layer in pieces that are quick to integrate and fit into memory.

Units that share a pre-activation, as the states of a channel of Mamba do, share its nodes; units of
about the same spread go together, since the widest of a piece decides how many nodes all have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gate_laws import GateLaw
from memcurse_cli.theory.gaussian_gates import Preactivation, normal_nodes

CHUNK = 1 << 17
"""Nodes times units that are held at once; a few such arrays fit into a cache."""


class Piece(NamedTuple):
    """Some of the units, as rows of those that share a pre-activation.

    Attributes:
        units: (rows, shared) their indices.
        law: theirs, with parameters of that shape.
        gate: (rows, 1) z.
        write_gate: (rows, 1) that of a further factor of γ, or None.
    """

    units: NDArray[np.intp]
    law: GateLaw
    gate: Preactivation
    write_gate: Preactivation | None


def pieces(law: GateLaw, gate: Preactivation, write_gate: Preactivation | None) -> Iterator[Piece]:
    """Every unit once; those of the widest gates first.

    Args:
        law: λ and γ as functions of z.
        gate: z of every unit, in NumPy arrays.
        write_gate: that of a further factor of γ, or None.
    """
    alike = [gate.mean, gate.spread]
    if write_gate is not None:
        alike += [write_gate.mean, write_gate.spread]
    rows = np.arange(gate.mean.size).reshape(-1, shared_by(*alike))
    rows = rows[np.argsort(-gate.spread[rows[:, 0]], kind="stable")]
    farthest = np.max(np.abs(gate.mean), keepdims=True, initial=0.0)
    start = 0
    while start < len(rows):
        # No unit of the piece takes more nodes than its first, were that the farthest off.
        nodes, _ = normal_nodes(farthest, gate.spread[rows[start, :1]], law.smooth)
        count = nodes.size
        width = min(rows.shape[1], max(CHUNK // count, 1))
        stop = start + max(CHUNK // (count * width), 1)
        for left in range(0, rows.shape[1], width):
            units = rows[start:stop, left : left + width]
            first = units[:, :1]
            second = None if write_gate is None else write_gate.take(first)
            yield Piece(units, law.take(units), gate.take(first), second)
        start = stop


def shared_by(*arrays: NDArray[np.float64]) -> int:
    """The largest k for which the first k entries are alike, the next k, and so on to the last.

    Args:
        arrays: each (n,); entries are alike where they are in every array.
    """
    differs = np.zeros(max(arrays[0].size - 1, 0), dtype=bool)
    for array in arrays:
        differs |= array[1:] != array[:-1]
    return max(int(np.gcd.reduce(np.flatnonzero(differs) + 1, initial=arrays[0].size)), 1)
