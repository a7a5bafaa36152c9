"""The mean field of GRUs and LSTMs (Gilboa et al. 2019): what both kinds have in common.

With many units whose weights are independent and drawn anew at every step ("untied"), the
pre-activation of gate k in unit i is Gaussian around the unit's own bias,

    u ~ N( b_ki + N mean W_k E h,  σ_k² E h² + ν_k² R(0) )
    σ_k² = N var W_k,   ν_k² = inputs · mean U_k²

independent of other gates, other units and the past. The paper draws biases from one Gaussian and
counts their variance with that of u; a bias that stays gives every unit a mean of its own, and
units with a large one hold what they have, so that the layer's own biases are kept here.

A perturbation of the state has second moments p_i = E δh_i² that one step maps linearly: what a
unit keeps, ``D_i p_i``, and what it takes from the others through the weights, ``c_i mean(p)``.
The growth χ is the largest eigenvalue of that map. Where all units are alike it is m₁, the mean
squared singular value of the Jacobian (lemma 1 of the paper); units that differ set the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gated_network import GateStatistics

Floats = NDArray[np.float64]

REACH = 6.5  # standard deviations that are integrated over: the rest is below 1e-10
SETTLED = 1e-7
STEPS = 1000
HALVINGS = 60


@dataclass(frozen=True)
class GateLevel:
    """How far a gate is open, over the units and in time.

    Attributes:
        mean: E σ(u).
        spread: its standard deviation.
    """

    mean: float
    spread: float


@dataclass(frozen=True)
class GatedMeanField:
    """Where a wide layer with random weights works, and how it treats a small change of its state.

    Attributes:
        second_moment: E h² of a unit.
        growth: χ, what one step makes of the second moment of a perturbation.
        gates: how far each gate is open.
        mean_squared_singular_value: m₁ of the Jacobian dh'/dh; None for an LSTM, whose state has
            two parts.
        singular_value_variance: m₂ - m₁², the variance of the squared singular values; None also
            where the reset gate acts before the matrix, whose Jacobian has products of weights.
    """

    second_moment: float
    growth: float
    gates: Mapping[str, GateLevel]
    mean_squared_singular_value: float | None = None
    singular_value_variance: float | None = None


@dataclass(frozen=True)
class Gaussian:
    """A pre-activation: one mean for every unit, one standard deviation for all.

    Attributes:
        mean: (H,).
        deviation: of what is drawn at every step.
    """

    mean: Floats
    deviation: float

    @classmethod
    def of(
        cls, gate: GateStatistics, first: float, second: float, input_variance: float
    ) -> Gaussian:
        """That of a gate, from E h and E h² of what its hidden weights see."""
        variance = gate.hidden_variance * second + gate.input_variance * input_variance
        return cls(gate.bias + gate.hidden_mean * first, math.sqrt(variance))

    def average(self, function: Callable[[Floats], Floats], nodes: int = 61) -> Floats:
        """(H,) E f(u) of every unit, by the trapezoid rule."""
        z, weight = standard_nodes(nodes)
        return np.asarray(function(self.mean[:, None] + self.deviation * z) @ weight)


def standard_nodes(nodes: int) -> tuple[Floats, Floats]:
    """Points of a standard normal variable and their weights, which add up to 1."""
    z = np.linspace(-REACH, REACH, nodes)
    weight = np.exp(-0.5 * z**2)
    return z, weight / weight.sum()


def sigmoid(u: Floats) -> Floats:
    """1 / (1 + e⁻ᵘ)."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -u)))


def level(gate: Gaussian) -> GateLevel:
    """How far a gate is open."""
    mean = float(gate.average(sigmoid).mean())
    square = float(gate.average(lambda u: sigmoid(u) ** 2).mean())
    return GateLevel(mean, math.sqrt(max(square - mean**2, 0.0)))


def settle(step: Callable[[Floats], Floats], start: Floats) -> Floats | None:
    """The fixed point that the iteration of a map reaches, or None where it does not settle."""
    point = start
    for _ in range(STEPS):
        after = step(point)
        if not np.isfinite(after).all():
            return None
        if np.abs(after - point).max() <= SETTLED * np.abs(after).max():
            return after
        point = after
    return None


def largest_root(excess: Callable[[float], float], lowest: float) -> float:
    """Where a decreasing function passes through 0 above ``lowest``; that, where it starts below.

    Args:
        excess: of χ; below 0 for large χ.
        lowest: what χ cannot fall below, where the function may be infinite.
    """
    if excess(max(lowest * (1 + 1e-12), 1e-200)) <= 0:
        return lowest
    width = 1.0
    while excess(lowest + width) > 0:
        width *= 2
    below, above = 0.0, width
    for _ in range(HALVINGS):
        middle = 0.5 * (below + above)
        if excess(lowest + middle) > 0:
            below = middle
        else:
            above = middle
    return lowest + above
