"""Second moments of a recurrence whose λ and γ two correlated pre-activations move at every step.

The moments are those of `gated_moments`, with expectations over both Gaussians.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.gate_expectations import Expectations, expectations_of
from memcurse_cli.theory.gate_laws import GateValues, Motion
from memcurse_cli.theory.gate_pieces import CHUNK
from memcurse_cli.theory.gated_moments import GatedMoments, gathered, moments_of
from memcurse_cli.theory.gaussian_gates import normal_nodes
from memcurse_cli.theory.namespace import array_namespace
from memcurse_cli.theory.two_gate_bands import TwoPreactivations

Array = Any
Floats = NDArray[np.float64]

WIDEST = 4.0
"""Of pre-activations whose moments are computed; their nodes grow with the square of it."""
OUTERMOST = 2.5
"""Standard deviations that `normal_nodes` goes too far for an error of 1e-9."""
FOLLOWING = 1 << 11
"""Units that are looked at for it."""

Values = Callable[[Array, Array], GateValues]


def two_gate_moments(
    values: Values, gates: TwoPreactivations, autocorrelation: Autocorrelation = WHITE
) -> GatedMoments:
    """E h², E[h s] and E s² with λ and γ of two pre-activations drawn anew at every step.

    ``z₁ = b₁ + σ₁u`` and ``z₂ = b₂ + σ₂(ρu + √(1-ρ²) v)`` with independent normal u and v. The rule
    is the product of two trapezoidal ones of twice the step of `normal_nodes`, whose error is the
    root of theirs: 1e-10, or 1e-5 of E s² where ρ = -1.

    Args:
        values: λ and γ of the n units, analytic where both imaginary parts are below π/2.
        gates: their pre-activations, no wider than `WIDEST`.
        autocorrelation: R(Δ) of the drive x.
    """
    if not isinstance(gates.first.mean, np.ndarray):
        return moments_of(_expectations(values, gates), autocorrelation)
    return gathered(
        gates.first.mean.size,
        (
            (units, moments_of(_expectations(values, gates.take(units)), autocorrelation))
            for units in _pieces(gates)
        ),
    )


def _pieces(gates: TwoPreactivations) -> Iterator[NDArray[np.intp]]:
    """Every unit once; those of the widest gates first."""
    order = np.argsort(-np.maximum(gates.first.spread, gates.second.spread), kind="stable")
    start = 0
    while start < order.size:
        # The widest of those that follow decides how many nodes all have.
        nodes = _nodes(gates.take(order[start : start + FOLLOWING]))[2].size
        units = order[start : start + min(max(CHUNK // nodes, 1), FOLLOWING)]
        yield units
        start += units.size


def _expectations(values: Values, gates: TwoPreactivations) -> Expectations:
    first, second = gates.first, gates.second
    xp = array_namespace(first.mean)
    along, across, weights = _nodes(gates)
    u, v = xp.asarray(along)[:, None, None], xp.asarray(across)[:, None]
    moved = gates.correlation * u + _free(gates) * v
    # (u, 1, n) and (u, v, n): what z₁ alone decides is computed once for every v.
    found = values(first.mean + first.spread * u, second.mean + second.spread * moved)

    def flat(each: Array) -> Array:
        return xp.reshape(xp.broadcast_to(each, moved.shape), (weights.size, -1))

    motions = {name: Motion(*map(flat, motion)) for name, motion in found.motions.items()}
    eigenvalue, complement, gain = map(flat, found[:3])
    return expectations_of(GateValues(eigenvalue, complement, gain, motions), xp.asarray(weights))


def _nodes(gates: TwoPreactivations) -> tuple[Floats, Floats, Floats]:
    """u and v, and the weights of their pairs, flat."""
    first, second = gates.first, gates.second
    shared = np.abs(gates.correlation) * np.asarray(second.spread)
    along, of_along = _fewer(first.mean, np.maximum(np.asarray(first.spread), shared))
    across, of_across = _fewer(second.mean, np.asarray(second.spread) * _free(gates))
    return along, across, np.outer(of_along, of_across).ravel()


def _free(gates: TwoPreactivations) -> Floats:
    """√(1-ρ²)."""
    return np.sqrt(np.maximum((1 - gates.correlation) * (1 + gates.correlation), 0.0))


def _fewer(mean: Array, spread: Floats) -> tuple[Floats, Floats]:
    """Every second node of `normal_nodes`, and none of the outermost."""
    nodes, weights = normal_nodes(mean, spread)
    kept = np.abs(nodes) <= max(nodes[-1] - OUTERMOST, 0.0)
    nodes, weights = nodes[kept][::2], weights[kept][::2]
    return nodes, weights / weights.sum()
