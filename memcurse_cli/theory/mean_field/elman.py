"""The operating point of an Elman network in mean field theory (Gilboa et al. 2019, section 2).

``h[t+1] = φ(W h[t] + U x[t+1] + b)`` with many units, whose pre-activations are then Gaussian,
u ~ N(μ, V) with

    V = σ_w² E φ(u)² + ν² R(0) + var b,    μ = mean b + N mean W E φ(u)
    σ_w² = N var W,    ν² = inputs · mean U²

The slope that the Jacobian ``diag(φ'(u)) W`` sees is √E φ'(u)²: it scales the spectrum of W, whose
radius is σ_w for independent entries, to ``√χ`` with ``χ = σ_w² E φ'(u)²``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gates.network import GateStatistics

Floats = NDArray[np.float64]

NODES, REACH = 4001, 9.0  # a ReLU has a corner; beyond the reach is less than 1e-18
SETTLED, STEPS = 1e-12, 10_000
LARGEST = 1e12  # a moment that the activation does not bound


@dataclass(frozen=True)
class OperatingPoint:
    """Where the units of an Elman network work.

    Attributes:
        mean: E u.
        variance: var u.
        second_moment: E φ(u)².
        slope: √E φ'(u)².
    """

    mean: float
    variance: float
    second_moment: float
    slope: float


@dataclass(frozen=True)
class Gaussian:
    """A pre-activation: a mean of every unit, one standard deviation for all.

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

    def average(
        self, function: Callable[[Floats], Floats], nodes: int = 61, reach: float = 6.5
    ) -> Floats:
        """(H,) E f(u) of every unit, with the nodes of `standard_nodes`."""
        z, weight = standard_nodes(nodes, reach)
        return np.asarray(function(self.mean[:, None] + self.deviation * z) @ weight)


def standard_nodes(nodes: int, reach: float = 6.5) -> tuple[Floats, Floats]:
    """Points of a standard normal variable and their weights, which add up to 1.

    Of the trapezoid rule, which converges geometrically for what is analytic, up to so many
    standard deviations: the rest beyond 6.5 is below 1e-10.
    """
    z = np.linspace(-reach, reach, nodes)
    weight = np.exp(-0.5 * z**2)
    return z, weight / weight.sum()


def settle(
    step: Callable[[Floats], Floats], start: Floats, tolerance: float, steps: int
) -> Floats | None:
    """The fixed point that the iteration of a map reaches, or None where it does not settle."""
    point = start
    for _ in range(steps):
        after = step(point)
        scale = np.abs(after).max()
        if not scale < LARGEST:
            return None
        if np.abs(after - point).max() <= tolerance * scale:
            return after
        point = after
    return None


def elman_operating_point(
    hidden: Floats,
    readin: Floats | None,
    bias: Floats,
    activation: str,
    input_variance: float = 1.0,
) -> OperatingPoint | None:
    """The fixed point of the mean and the variance of the pre-activations.

    Args:
        hidden: (n, n) W.
        readin: (n, inputs) U, or None for no input.
        bias: (n,) b, summed over the tensors that hold it.
        activation: ``tanh`` or ``relu``.
        input_variance: R(0) of each input.

    Returns:
        The point, or None where the variance grows without bound, as a ReLU's can.
    """
    size = len(hidden)
    hidden_variance = size * float(np.var(hidden))
    hidden_mean = size * float(np.mean(hidden))
    driven = 0.0 if readin is None else readin.shape[1] * float(np.mean(readin**2))
    start = np.array([np.mean(bias), driven * input_variance + np.var(bias)])
    output, slope = _ACTIVATIONS[activation]

    def average(point: Floats, function: Callable[[Floats], Floats]) -> float:
        gaussian = Gaussian(point[:1], math.sqrt(point[1]))
        return float(gaussian.average(function, NODES, REACH)[0])

    def second_moment(point: Floats) -> float:
        return average(point, lambda u: output(u) ** 2)

    def step(point: Floats) -> Floats:
        moved = hidden_mean * average(point, output), hidden_variance * second_moment(point)
        return np.asarray(start + moved)

    point = settle(step, start, SETTLED, STEPS)
    if point is None:
        return None
    squared = average(point, lambda u: slope(u) ** 2)
    mean, variance = point.tolist()
    return OperatingPoint(mean, variance, second_moment(point), math.sqrt(squared))


_ACTIVATIONS: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
    "tanh": (np.tanh, lambda u: 1 - np.tanh(u) ** 2),
    "relu": (lambda u: np.maximum(u, 0.0), lambda u: np.heaviside(u, 0.5)),
}
"""φ and φ'."""
