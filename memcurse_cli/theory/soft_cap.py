"""Gates behind a soft cap ``c tanh(z/c)``, and exponential ones, as in xLSTM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from memcurse_cli.theory.gate_laws import LOGISTIC, Openness
from memcurse_cli.theory.namespace import array_namespace

Array = Any


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
        bent = array_namespace(z).tanh(z / self.cap)
        opened = LOGISTIC(self.cap * bent)
        return Openness(opened.value, opened.complement, opened.slope * (1 - bent**2))


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
        bent = 0 * z if self.cap is None else xp.tanh(z / self.cap)
        capped = z if self.cap is None else self.cap * bent
        value = xp.exp(capped)
        return Openness(value, -xp.expm1(capped), value * (1 - bent**2))
