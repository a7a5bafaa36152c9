"""Second moments of a recurrence whose λ and γ two correlated pre-activations move at every step.

The moments are those of `gated_moments`, with expectations over both Gaussians.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.gates.laws import GateValues, Motion
from memcurse_cli.theory.gates.moments import (
    Expectations,
    GatedMoments,
    expectations_of,
    gathered,
    moments_of,
)
from memcurse_cli.theory.gates.quadrature import CHUNK
from memcurse_cli.theory.gates.two_gate_bands import TwoPreactivations
from memcurse_cli.theory.namespace import array_namespace, may_be_traced

Array = Any
Floats = NDArray[np.float64]

STRIP = math.pi
"""Half the width in which λ and γ are analytic, of either pre-activation and their difference."""
DIGITS = 30.0
"""-log of the error of the rule that is allowed, but for poles, of which E s² has several."""
WIDE = 4.0
"""Pre-activations that are wider take more nodes, and one digit of each three fewer."""
WIDE_DIGITS = 22.0
TAIL = 6.5
"""Standard deviations beyond which a Gaussian is below 1e-9."""
REACH = 20.0
"""How far beyond |b| λ and γ may still change exponentially."""
MOST_TERMS = 1 << 27
"""Of units times nodes that a layer may take: half a minute."""
FOLLOWING = 1 << 11
"""Units that are looked at for it."""

Values = Callable[[Array, Array], GateValues]


def two_gate_moments(
    values: Values, gates: TwoPreactivations, autocorrelation: Autocorrelation = WHITE
) -> GatedMoments:
    """E h², E[h s] and E s² with λ and γ of two pre-activations drawn anew at every step.

    ``z₁ = b₁ + σ₁u`` and ``z₂ = b₂ + σ₂(ρu + √(1-ρ²) v)`` with independent normal u and v. The rule
    is the product of two trapezoidal ones, with steps for a strip in which the imaginary parts of
    z₁, z₂ and z₁ - z₂ stay below π: 1 + e^-z₁ + 1 + e^-z₂ = 0, a pole of f/(f+i), needs three
    numbers that no half plane holds. The error is 1e-11 of E h² and 1e-9 of E s² up to σ = 4,
    beyond it 1e-8 and 2e-6, for any ρ.

    Args:
        values: λ and γ of the n units, analytic in that strip.
        gates: their pre-activations, for no more than `MOST_TERMS` of `terms_of`.
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


def terms_of(gates: TwoPreactivations) -> float:
    """Units times nodes that the moments take; inf where a spread is."""
    return sum(units.size * _size(gates.take(units)) for units in _pieces(gates))


def _pieces(gates: TwoPreactivations) -> Iterator[NDArray[np.intp]]:
    """Every unit once; those of the widest gates first."""
    order = np.argsort(-np.maximum(gates.first.spread, gates.second.spread), kind="stable")
    start = 0
    while start < order.size:
        # The widest of those that follow decides how many nodes all have.
        nodes = _size(gates.take(order[start : start + FOLLOWING]))
        units = order[start : start + int(min(max(CHUNK // nodes, 1), FOLLOWING))]
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
    rules = []
    for step, count in _steps(gates):
        nodes: Floats = step * np.arange(-count, count + 1, dtype=np.float64)
        weights = np.exp(-(nodes**2) / 2)
        rules.append((nodes, weights / math.fsum(weights)))
    (along, of_along), (across, of_across) = rules
    return along, across, np.outer(of_along, of_across).ravel()


def _size(gates: TwoPreactivations) -> float:
    """How many pairs of nodes there are."""
    (_, along), (_, across) = _steps(gates)
    return (2 * along + 1) * (2 * across + 1)


def _steps(gates: TwoPreactivations) -> tuple[tuple[float, float], tuple[float, float]]:
    """The step of u and of v, and the number of nodes on either side."""
    first, second = np.asarray(gates.first.spread), np.asarray(gates.second.spread)
    with np.errstate(invalid="ignore"):  # of spreads that are infinite
        shared = np.asarray(gates.correlation) * second
        widths = np.maximum(np.maximum(first, np.abs(shared)), np.abs(first - shared))
        across = second * np.asarray(_free(gates))
    farthest = math.inf
    if not may_be_traced(gates.first.mean):
        means = (np.asarray(gate.mean) for gate in (gates.first, gates.second))
        farthest = max(float(np.max(np.abs(mean), initial=0.0)) for mean in means)
    narrow = max(float(np.max(spread, initial=0.0)) for spread in (first, second)) <= WIDE
    digits = DIGITS if narrow else WIDE_DIGITS
    return _step(widths, farthest, digits), _step(across, farthest, digits)


def _step(widths: Floats, farthest: float, digits: float) -> tuple[float, float]:
    """The step for a function of width·u that is analytic in the strip, and how many of them.

    As `normal_nodes` has it: the error is e^(η²/2 - 2πη/h) with any η ≤ strip / width, and products
    that fall as e^(-2z) have their weight up to two widths off the centre.
    """
    widest = float(np.max(widths, initial=0.0))
    if widest == 0:
        return 0.0, 0.0
    if not widest < math.inf:
        return 0.0, math.inf
    shift = min(STRIP / widest, math.sqrt(2 * digits))
    step = 2 * math.pi * shift / (digits + shift**2 / 2)
    reach = TAIL + min(2 * widest, (farthest + REACH) / widest)
    return step, float(np.ceil(reach / step))


def _free(gates: TwoPreactivations) -> Floats:
    """√(1-ρ²)."""
    return np.sqrt(np.maximum((1 - gates.correlation) * (1 + gates.correlation), 0.0))
