"""Gates behind a soft cap ``c tanh(z/c)``, and exponential ones, as in xLSTM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from memcurse_cli.theory.gate_laws import LOGISTIC, Openness
from memcurse_cli.theory.namespace import array_namespace

Array = Any


def soft_cap(z: Array, cap: float) -> tuple[Array, Array]:
    """``c tanh(z/c)`` and its slope ``4σ(2z/c)σ(-2z/c)``, exact in both tails."""
    xp = array_namespace(z)
    return cap * xp.tanh(z / cap), 4 * LOGISTIC(2 * z / cap).slope


@dataclass(frozen=True)
class CappedLogistic:
    """σ(c tanh(z/c)): xLSTM's forget gate.

    Attributes:
        cap: c > 0.
    """

    cap: float

    @property
    def smooth(self) -> bool:
        """Whether its first singularity, where c tan(y/c) = π, is beyond π/2."""
        return self.cap * math.atan(math.pi / self.cap) > math.pi / 2

    def __call__(self, z: Array) -> Openness:
        """The gate, and its slope with the cap's own, 1/cosh²(z/c)."""
        capped, slope = soft_cap(z, self.cap)
        opened = LOGISTIC(capped)
        return Openness(opened.value, opened.complement, opened.slope * slope)


@dataclass(frozen=True)
class Exponential:
    """e^(c tanh(z/c)), or e^z without a cap: xLSTM's input gate, which may be larger than 1.

    Attributes:
        cap: c > 0, or None.
    """

    cap: float | None = None

    @property
    def smooth(self) -> bool:
        """Whether the poles of the cap, at ic π/2, are beyond π/2."""
        return self.cap is None or self.cap > 1

    def __call__(self, z: Array) -> Openness:
        """The gate; 1 - e^z, which is negative for most, and the slope."""
        xp = array_namespace(z)
        capped, slope = (z, 1.0) if self.cap is None else soft_cap(z, self.cap)
        value = xp.exp(capped)
        return Openness(value, -xp.expm1(capped), value * slope)
