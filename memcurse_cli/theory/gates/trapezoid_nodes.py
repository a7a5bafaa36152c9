"""Nodes for the gates of a trapezoidal step: a step, a rate with corners, a weight and angles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gates.laws import RatedStep
from memcurse_cli.theory.gates.quadrature import CHUNK, Preactivation
from memcurse_cli.theory.gates.two_gate_bands import TwoPreactivations

Floats = NDArray[np.float64]

DIGITS = 25.0
"""-log of the error of the trapezoidal rules, but for poles."""
TAIL = 6.5
"""Standard deviations beyond which a Gaussian is below 1e-9."""
REACH = 20.0
"""How far beyond |b| a gate may still fall exponentially."""
PANEL_NODES = 10
"""Of a Gauss-Legendre rule on each panel of z₂, which has corners."""
PANEL = 1.0
"""Half the width of a panel, in units of what the gates change over."""
WIDEST = 1e4
"""Spreads beyond which terms are not counted."""
SMALLEST_SPREAD = 1e-12


@dataclass(frozen=True)
class TrapezoidGates:
    """The pre-activations of n heads, Gaussian together but for those of the angles.

    Attributes:
        rated: z₁ of the step and z₂ of the rate.
        weight: z₃ of the trapezoid.
        with_step: (n,) the correlation of z₃ and z₁.
        with_rate: (n,) of z₃ and z₂.
        angles: (K,) the standard deviations of z₄, of mean 0 and independent of the others.
        turning: the share of the states that turn, an equal part by each angle.
    """

    rated: TwoPreactivations
    weight: Preactivation
    with_step: Floats
    with_rate: Floats
    angles: Floats
    turning: float

    @property
    def still(self) -> TrapezoidGates:
        """All held at their means."""
        return TrapezoidGates(
            self.rated.still,
            Preactivation(self.weight.mean, np.zeros_like(self.weight.mean)),
            self.with_step,
            self.with_rate,
            np.zeros(0),
            0.0,
        )

    def take(self, heads: NDArray[np.intp]) -> TrapezoidGates:
        """Those of some of the heads."""
        return TrapezoidGates(
            self.rated.take(heads),
            self.weight.take(heads),
            self.with_step[heads],
            self.with_rate[heads],
            self.angles,
            self.turning,
        )

    @property
    def weight_parts(self) -> tuple[Floats, Floats, Floats]:
        """What z₃ has of z₂, of the part of z₁ that is independent of z₂, and of neither."""
        rho = self.rated.correlation
        free = np.sqrt((1 - rho) * (1 + rho))
        left = np.sqrt(np.maximum(1 - self.with_rate**2, 0.0))
        apart = (self.with_step - rho * self.with_rate) / np.where(free > 1e-6, free, np.inf)
        apart = np.clip(apart, -left, left)
        alone = np.sqrt(np.maximum(left**2 - apart**2, 0.0))
        spread = self.weight.spread
        return spread * self.with_rate, spread * apart, spread * alone


def angle_count(gates: TrapezoidGates) -> int:
    """Nodes of θ for the largest step that is met: the order beyond which J_2k(πΔ) is 1e-10."""
    first = gates.rated.first
    reach = TAIL + np.minimum(2 * first.spread, REACH)
    largest = float(np.max(np.logaddexp(0, first.mean + reach * first.spread), initial=0.0))
    order = math.pi * largest
    return math.ceil(order / 2 + 4 * math.cbrt(order)) + 8


def terms_of(law: RatedStep, gates: TrapezoidGates, *, white: bool) -> float:
    """Heads times nodes that the expectations take; inf where a spread is beyond counting."""
    spreads = (gates.rated.first.spread, gates.rated.second.spread, gates.weight.spread)
    if any(not np.all(spread <= WIDEST) for spread in spreads):
        return math.inf
    inner = 1 if white or gates.angles.size == 0 else 4 * angle_count(gates)
    return sum(
        heads.size * _size(law, some) * (weight_rule(some)[1] + inner)
        for heads, some in pieces(law, gates)
    )


def pieces(
    law: RatedStep, gates: TrapezoidGates
) -> Iterator[tuple[NDArray[np.intp], TrapezoidGates]]:
    """Every head once, with its gates; the widest first."""
    widths = np.maximum(gates.rated.first.spread, gates.rated.second.spread)
    order = np.argsort(-widths, kind="stable")
    start = 0
    while start < order.size:
        size = _size(law, gates.take(order[start:]))
        heads = order[start : start + int(max(CHUNK // size, 1))]
        yield heads, gates.take(heads)
        start += heads.size


def _size(law: RatedStep, gates: TrapezoidGates) -> float:
    """Nodes of z₁ and z₂ together."""
    return (2 * step_rule(gates)[1] + 1) * PANEL_NODES * max(sum(_panels(law, gates)[1]), 1)


def _corners(law: RatedStep, gates: TrapezoidGates) -> list[Floats]:
    """Where v ends, and where a(z₂) has its floor and its corner at 0."""
    second = gates.rated.second
    reach = _reach(np.maximum(second.spread, gates.rated.first.spread), gates)
    spread = np.maximum(second.spread, SMALLEST_SPREAD)
    floor = float(law.rate.at_log(np.asarray(law.log_floor)))
    inner = [np.clip((at - second.mean) / spread, -reach, reach) for at in (floor, 0.0)]
    ends = np.full(second.mean.shape, reach)
    return [-ends, *inner, ends]


def _panels(law: RatedStep, gates: TrapezoidGates) -> tuple[list[Floats], list[int]]:
    """The corners, and the number of panels between each two that are neighbours."""
    rated = gates.rated
    by_rate = np.abs(gates.weight_parts[0])
    along = np.abs(rated.correlation) * rated.first.spread
    if not np.any(rated.second.spread + along + by_rate):
        return [], []
    widest = float(np.max(np.maximum(rated.second.spread, np.maximum(along, by_rate) / 1.5)))
    corners = _corners(law, gates)
    length = 2 * PANEL * min(1.3, 1 / widest)
    counts = [math.ceil(float(np.max(right - left)) / length) for left, right in pairwise(corners)]
    return corners, counts


def rate_rule(law: RatedStep, gates: TrapezoidGates) -> tuple[Floats, Floats]:
    """(V, n) v of z₂, and the weights."""
    corners, counts = _panels(law, gates)
    if not counts:
        still = np.zeros((1, gates.rated.correlation.size))
        return still, np.ones_like(still)
    on_panel, of_panel = np.polynomial.legendre.leggauss(PANEL_NODES)
    nodes, weights = [], []
    for (left, right), count in zip(pairwise(corners), counts, strict=True):
        half = (right - left) / (2 * max(count, 1))
        for panel in range(count):
            nodes.append(left + half * (2 * panel + 1 + on_panel[:, None]))
            weights.append(half * of_panel[:, None])
    v = np.concatenate(nodes)
    normal = np.concatenate(weights) * np.exp(-(v**2) / 2)
    return v, normal / normal.sum(axis=0)


def step_rule(gates: TrapezoidGates) -> tuple[float, int]:
    """The step of the part of z₁ that is independent of z₂, and its nodes on either side."""
    rho = gates.rated.correlation
    widths = gates.rated.first.spread * np.sqrt((1 - rho) * (1 + rho))
    # e^(-aΔ) is bounded for |Im z₁| < π/2; σ has its poles at ±iπ.
    widths = np.maximum(widths, np.abs(gates.weight_parts[1]) / 2)
    return _trapezoidal(widths, math.pi / 2, _reach(gates.rated.first.spread, gates))


def weight_rule(gates: TrapezoidGates) -> tuple[float, int]:
    """The step of the part of z₃ that is independent of both, and the number of nodes."""
    step, count = _trapezoidal(gates.weight_parts[2], math.pi, TAIL)
    return step, 2 * count + 1


def _trapezoidal(widths: Floats, strip: float, reach: float) -> tuple[float, int]:
    """As `normal_nodes`: the step for a function of width·u, analytic in a strip, and its count."""
    widest = float(np.max(widths, initial=0.0))
    if widest == 0:
        return 0.0, 0
    shift = min(strip / widest, math.sqrt(2 * DIGITS))
    step = 2 * math.pi * shift / (DIGITS + shift**2 / 2)
    return step, math.ceil(reach / step)


def _reach(spreads: Floats, gates: TrapezoidGates) -> float:
    """Squares of what falls as e^z have their weight up to two spreads off the centre."""
    widest = float(np.max(spreads, initial=0.0))
    if widest == 0:
        return TAIL
    farthest = float(np.max(np.abs(gates.rated.first.mean), initial=0.0)) + REACH
    return TAIL + min(2 * widest, farthest / widest)
