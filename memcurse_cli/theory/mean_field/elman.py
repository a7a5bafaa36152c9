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

Floats = NDArray[np.float64]

NODES = 4001  # of the trapezoid rule, which converges geometrically for what is analytic
REACH = 9.0  # standard deviations that are integrated over: the rest is below 1e-18
SETTLED = 1e-12
STEPS = 10_000
LARGEST = 1e12  # a variance that the activation does not bound


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


_Z = np.linspace(-REACH, REACH, NODES)
_WEIGHT = np.exp(-0.5 * _Z**2)
_TOTAL = np.sum(_WEIGHT)


def gaussian_mean(function: Callable[[Floats], Floats], mean: float, variance: float) -> float:
    """E f(u) over u ~ N(mean, variance)."""
    return _weighted(function(mean + math.sqrt(variance) * _Z))


def _weighted(values: Floats) -> float:
    return float(np.sum(_WEIGHT * values) / _TOTAL)


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
    drive = driven * input_variance + float(np.var(bias))
    output, slope = _ACTIVATIONS[activation]
    shift = float(np.mean(bias))
    mean, variance = shift, drive
    for _ in range(STEPS):
        outputs = output(mean + math.sqrt(variance) * _Z)
        second = _weighted(outputs**2)
        after = hidden_variance * second + drive, shift + hidden_mean * _weighted(outputs)
        change = abs(after[0] - variance) + abs(after[1] - mean)
        variance, mean = after
        if not variance + abs(mean) < LARGEST:
            return None
        if change <= SETTLED * (variance + abs(mean)):
            break
    else:
        return None
    squared = gaussian_mean(lambda u: slope(u) ** 2, mean, variance)
    return OperatingPoint(mean, variance, second, math.sqrt(squared))


def _relu(u: Floats) -> Floats:
    return np.maximum(u, 0.0)


def _step(u: Floats) -> Floats:
    return np.heaviside(u, 0.5)


def _tanh_slope(u: Floats) -> Floats:
    return np.asarray(1 - np.tanh(u) ** 2)


_ACTIVATIONS: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
    "tanh": (np.tanh, _tanh_slope),
    "relu": (_relu, _step),
}
