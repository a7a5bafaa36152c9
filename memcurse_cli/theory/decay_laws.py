"""Laws of gates that set the rate of a decay, not the eigenvalue: KDA's safe gate and RWKV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memcurse_cli.theory.gate_laws import LOGISTIC, GateValues, Motion, Units
from memcurse_cli.theory.namespace import array_namespace

Array = Any

LARGEST_EXPONENT = 700.0
"""e^z is held below this power of e, far beyond where λ = e^(-e^z) has come to 0."""


@dataclass(frozen=True)
class OpenedDecay:
    """λ = e^(-cσ(z)) and γ = 1: RWKV-7, and KDA's safe gate, whose z is e^a times what it sees.

    Attributes:
        rate: c > 0, -log λ of a gate that is fully open.
        bias: the name of the parameter that is added to z.
        log_scale: the name of a parameter a with dz/da = z, or None.
    """

    rate: float
    bias: str = "bias"
    log_scale: str | None = None
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = -cσ'(z) λ, and z times that for the scale."""
        xp = array_namespace(z)
        opened = LOGISTIC(z)
        exponent = self.rate * opened.value
        value = xp.exp(-exponent)
        by_bias = -self.rate * opened.slope * value
        motions = {self.bias: Motion(by_bias, 0 * by_bias)}
        if self.log_scale is not None:
            motions[self.log_scale] = Motion(z * by_bias, 0 * by_bias)
        return GateValues(value, -xp.expm1(-exponent), xp.ones_like(value), motions)

    def take(self, units: Units) -> OpenedDecay:
        """The same law for every unit."""
        return self


@dataclass(frozen=True)
class ExponentialDecay:
    """λ = e^(-e^z) and γ = 1: RWKV-6.

    Attributes:
        bias: the name of the parameter that is added to z.
    """

    bias: str = "bias"
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = -e^z λ."""
        xp = array_namespace(z)
        exponent = xp.exp(xp.clip(z, None, LARGEST_EXPONENT))
        value = xp.exp(-exponent)
        by_bias = -exponent * value
        return GateValues(
            value,
            -xp.expm1(-exponent),
            xp.ones_like(value),
            {self.bias: Motion(by_bias, 0 * by_bias)},
        )

    def take(self, units: Units) -> ExponentialDecay:
        """The same law for every unit."""
        return self
