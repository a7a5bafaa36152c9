"""Laws of gates that mix the old state with the new by shares that need not add up to one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from memcurse_cli.theory.gate_laws import LOGISTIC, GateLaw, GateValues, Motion, Units
from memcurse_cli.theory.namespace import array_namespace

Array = Any


@dataclass(frozen=True)
class FlooredMix:
    """λ = σ(z) and γ = σ(ζ) (1 - λ) + σ(ν): FastGRNN, whose γ never closes.

    Attributes:
        scale: ζ.
        floor: ν.
        bias: the name of the parameter that is added to z.
        scale_parameter: the name of ζ.
        floor_parameter: the name of ν.
    """

    scale: float
    floor: float
    bias: str = "bias_gate"
    scale_parameter: str = "zeta"
    floor_parameter: str = "nu"
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = σ'(z) with dγ/db = -σ(ζ) σ'(z), dγ/dζ = σ'(ζ) (1 - λ) and dγ/dν = σ'(ν)."""
        xp = array_namespace(z)
        kept = LOGISTIC(z)
        scale, floor = (LOGISTIC(xp.asarray(value)) for value in (self.scale, self.floor))
        nothing = 0 * kept.slope
        return GateValues(
            kept.value,
            kept.complement,
            scale.value * kept.complement + floor.value,
            {
                self.bias: Motion(kept.slope, -scale.value * kept.slope),
                self.scale_parameter: Motion(nothing, scale.slope * kept.complement),
                self.floor_parameter: Motion(nothing, floor.slope + nothing),
            },
        )

    def take(self, units: Units) -> FlooredMix:
        """The same law for every unit."""
        return self


@dataclass(frozen=True)
class OffsetMix:
    """λ = σ(z) and γ = 1 - σ(z - β): JANET, whose two shares add up to more than 1 for β > 0.

    Attributes:
        offset: β.
        parameter: the name of the gate.
        offset_parameter: the name of β.
    """

    offset: float
    parameter: str = "update"
    offset_parameter: str = "beta"
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = σ'(z) and dγ/dβ = σ'(z - β) = -dγ/db."""
        kept, shut = LOGISTIC(z), LOGISTIC(z - self.offset)
        return GateValues(
            kept.value,
            kept.complement,
            shut.complement,
            {
                self.parameter: Motion(kept.slope, -shut.slope),
                self.offset_parameter: Motion(0 * kept.slope, shut.slope),
            },
        )

    def take(self, units: Units) -> OffsetMix:
        """The same law for every unit."""
        return self


@dataclass(frozen=True)
class Written:
    """λ and, in the place of γ, all that is written: γ(z) tanh(z + d), of one pre-activation.

    Attributes:
        law: λ and γ.
        offset: (n,) d, what the candidate's bias has beyond the gate's.
    """

    law: GateLaw
    offset: Array
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """Without motions: it serves for the size of the state alone."""
        values = self.law(z)
        candidate = array_namespace(z).tanh(z + self.offset)
        return GateValues(values.eigenvalue, values.complement, values.gain * candidate, {})

    def take(self, units: Units) -> Written:
        """The offsets of these units."""
        return replace(self, law=self.law.take(units), offset=self.offset[units])


@dataclass(frozen=True)
class PartialMix:
    """λ = 1 - c σ(z) and γ = c σ(z): LEM, whose step is c σ(z) with c ≤ 1.

    Attributes:
        largest: c in (0, 1].
        parameter: the name of the gate.
    """

    largest: float
    parameter: str = "step"
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = -c σ'(z) = -dγ/db; λ = σ(-z) + (1-c) σ(z) without cancellation."""
        opened = LOGISTIC(z)
        step, slope = self.largest * opened.value, self.largest * opened.slope
        kept = opened.complement + (1 - self.largest) * opened.value
        return GateValues(kept, step, step, {self.parameter: Motion(-slope, slope)})

    def take(self, units: Units) -> PartialMix:
        """The same law for every unit."""
        return self
