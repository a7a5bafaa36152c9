"""Means over a Gaussian pre-activation, by the trapezoidal rule on the real line.

Some of a layer's units, evenly taken, where running all would take long.

Units of a gated layer in pieces that are quick to integrate and fit into memory.

Units that share a pre-activation, as the states of a channel of Mamba do, share its nodes; units of
about the same spread go together, since the widest of a piece decides how many nodes all have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gates.laws import GateLaw
from memcurse_cli.theory.namespace import array_namespace, may_be_traced

UNITS = 256
"""At most so many stand for a layer."""


def evenly_taken(size: int) -> NDArray[np.intp]:
    """Their indices, ascending; all where there are no more than `UNITS`."""
    return np.unique(np.linspace(0, size - 1, UNITS).astype(np.intp))


Array = Any
Floats = NDArray[np.float64]

LARGEST_STEP = 0.35
"""Standard deviations between nodes: e^(-2π²/h²) of a Gaussian is then far below an ulp."""
STRIP = math.pi / 2
"""Every smooth law is analytic for |Im z| < π/2, and bounded there."""
DIGITS = 40.0
"""-log of the error of the rule that is allowed."""
KINKED_STEP = 0.01
"""For laws with corners, whose error falls with h² only."""
TAIL = 9.0
"""Standard deviations beyond which a Gaussian is below an ulp."""
REACH = 20.0
"""How far beyond |b| a law may still grow exponentially, as softplus does below 0."""
MOST_NODES = 5000
"""On either side."""


@dataclass(frozen=True)
class Preactivation:
    """z ~ N(b, σ²) of n units.

    Attributes:
        mean: (n,) b.
        spread: (n,) σ ≥ 0.
    """

    mean: Array
    spread: Array

    def take(self, units: slice | NDArray[np.intp]) -> Preactivation:
        """Those of some of the units."""
        return Preactivation(self.mean[units], self.spread[units])


def normal_nodes(mean: Array, spread: Array, smooth: bool = True) -> tuple[Floats, Floats]:
    """Nodes u and weights w with ``E f(z) = Σ w f(b + σ u)`` for every unit at once.

    The trapezoidal rule on the real line. For an f that is analytic in a strip of half width a its
    error is e^(η²/2 - 2πη/h) with any η ≤ a/σ, where η²/2 is what the Gaussian grows by: 800 nodes
    do for σ = 5, where the error of a Gauss-Hermite rule falls with the root of its order only.

    Args:
        mean: (n,) b.
        spread: (n,) σ; the largest decides.
        smooth: whether f is analytic for |Im z| < π/2; otherwise a fine step is taken.
    """
    widest = float(np.max(np.asarray(spread), initial=0.0))
    if widest == 0:
        return np.zeros(1), np.ones(1)
    step = KINKED_STEP
    if smooth:
        shift = min(STRIP / widest, math.sqrt(2 * DIGITS))
        step = min(LARGEST_STEP, 2 * math.pi * shift / (DIGITS + shift**2 / 2))
    # Products of two laws can fall as e^(-2z): their weight sits up to 2σ off the centre, though
    # no further than where the laws level out.
    reach = TAIL + 2 * widest
    if not may_be_traced(mean):
        farthest = float(np.max(np.abs(np.asarray(mean)), initial=0.0)) + REACH
        reach = TAIL + min(2 * widest, farthest / widest)
    # A gate that is so wide is a switch; what is between its two ends hardly counts.
    step = max(step, reach / MOST_NODES)
    count = math.ceil(reach / step)
    nodes: Floats = step * np.arange(-count, count + 1, dtype=np.float64)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, weights / math.fsum(weights)


def mean_of(function: Callable[[Array], Array], gate: Preactivation, smooth: bool = True) -> Array:
    """E f(z) of every unit, for a function f of pre-activations (nodes, n)."""
    xp = array_namespace(gate.mean)
    nodes, weights = normal_nodes(gate.mean, gate.spread, smooth)
    return xp.asarray(weights) @ function(at_nodes(gate, nodes))


def at_nodes(gate: Preactivation, nodes: Floats) -> Array:
    """z = b + σu of every unit at every node, which is a first axis before those of the units."""
    column = array_namespace(gate.mean).asarray(nodes.reshape(-1, *(1,) * gate.mean.ndim))
    return gate.mean + gate.spread * column


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
