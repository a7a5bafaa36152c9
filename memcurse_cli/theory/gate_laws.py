"""How the pre-activation of a gate becomes an eigenvalue and a gain, with the derivatives.

A law takes pre-activations z (…, n) and gives λ, 1 - λ, γ and what each of its parameters moves.
1 - λ is never a difference of rounded numbers. The laws follow the Array API.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.namespace import array_namespace

Array = Any
Units = slice | NDArray[np.intp]
"""Some of the units; what a law has of each takes the shape of their indices."""


class Motion(NamedTuple):
    """What one unit of a parameter adds, at every pre-activation.

    Attributes:
        eigenvalue: dλ/dω.
        gain: dγ/dω.
    """

    eigenvalue: Array
    gain: Array


class GateValues(NamedTuple):
    """A gate at given pre-activations.

    Attributes:
        eigenvalue: λ.
        complement: 1 - λ.
        gain: γ.
        motions: what each parameter moves, by the parameter's name.
        squared_complement: 1 - λ², or its mean where λ is itself a mean over what the gate does not
            decide; None for the square of λ.
    """

    eigenvalue: Array
    complement: Array
    gain: Array
    motions: Mapping[str, Motion]
    squared_complement: Array | None = None


class GateLaw(Protocol):
    """λ and γ of n units as functions of one pre-activation each."""

    @property
    def smooth(self) -> bool:
        """Whether λ and γ are analytic for |Im z| < π/2."""

    def __call__(self, z: Array) -> GateValues:
        """The gates at pre-activations (…, n), or (…, n, 1) for each row of units that share one.

        What the units of a row have in common may stay (…, n, 1).
        """

    def take(self, units: Units) -> GateLaw:
        """The law of some of the units."""


class Openness(NamedTuple):
    """A gate's function: how far it is open, how far shut, and its slope."""

    value: Array
    complement: Array
    slope: Array


class Opening(Protocol):
    """A function that opens a gate."""

    @property
    def smooth(self) -> bool:
        """As `GateLaw.smooth`."""

    def __call__(self, z: Array) -> Openness:
        """The gate at pre-activations of any shape."""


@dataclass(frozen=True)
class Logistic:
    """σ(z) = 1 / (1 + e⁻ᶻ)."""

    smooth = True

    def __call__(self, z: Array) -> Openness:
        """σ(z), σ(-z) and their product, each exact in both tails."""
        xp = array_namespace(z)
        small = xp.exp(-xp.abs(z))
        near_one, near_zero = 1 / (1 + small), small / (1 + small)
        value = xp.where(z >= 0, near_one, near_zero)
        return Openness(value, xp.where(z >= 0, near_zero, near_one), near_one * near_zero)


@dataclass(frozen=True)
class Clipped:
    """min(1, max(0, slope · z + offset)), Keras's and ONNX's hard sigmoid."""

    slope: float
    offset: float
    smooth = False

    def __call__(self, z: Array) -> Openness:
        """The clipped line, with slope 0 beyond its ends."""
        xp = array_namespace(z)
        line = self.slope * z + self.offset
        value = xp.clip(line, 0.0, 1.0)
        inside = (line > 0) & (line < 1)
        return Openness(value, 1 - value, xp.where(inside, self.slope, 0.0))


LOGISTIC = Logistic()


@dataclass(frozen=True)
class Keep:
    """λ = σ(z) and γ = 1: an LSTM's forget gate, to whose γ a `Write` gate of its own is added."""

    opening: Opening = LOGISTIC
    parameter: str = "forget"

    @property
    def smooth(self) -> bool:
        """As the gate's function."""
        return self.opening.smooth

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = σ'(z)."""
        value, complement, slope = self.opening(z)
        one = value + complement
        return GateValues(value, complement, one, {self.parameter: Motion(slope, 0 * slope)})

    def take(self, units: Units) -> Keep:
        """The same law for every unit."""
        return self


@dataclass(frozen=True)
class Mix:
    """λ = σ(z) and γ = 1 - λ, or the other way round where an open gate takes the new value.

    Attributes:
        keeps: an open gate keeps the state (GRU); otherwise it writes (minGRU, MGU).
        opening: σ.
        parameter: the name of the gate.
    """

    keeps: bool = True
    opening: Opening = LOGISTIC
    parameter: str = "update"

    @property
    def smooth(self) -> bool:
        """As the gate's function."""
        return self.opening.smooth

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = ±σ'(z) = -dγ/db."""
        value, complement, slope = self.opening(z)
        if not self.keeps:
            value, complement, slope = complement, value, -slope
        return GateValues(value, complement, complement, {self.parameter: Motion(slope, -slope)})

    def take(self, units: Units) -> Mix:
        """The same law for every unit."""
        return self


@dataclass(frozen=True)
class Bounded:
    """λ = 1 - (1-β) σ(-z) and γ = 1 - λ: HGRN, whose λ stays above β.

    Attributes:
        complement: (n,) 1 - β.
        bound: the name of the parameter β.
    """

    complement: Array
    bound: str = "bound"
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/dβ = σ(-z) = -dγ/dβ."""
        shut = LOGISTIC(z).complement
        lost = self.complement * shut
        return GateValues(1 - lost, lost, lost, {self.bound: Motion(shut, -shut)})

    def take(self, units: Units) -> Bounded:
        """The bounds of these units."""
        return replace(self, complement=self.complement[units])


@dataclass(frozen=True)
class StepSize:
    """λ = e^(-aΔ) and γ = Δ with Δ = log(1 + e^z): Mamba; or γ = 1, a gated delta net.

    Attributes:
        rate: (n,) a > 0.
        writes: whether γ is Δ.
        bias: the name of the parameter that is added to z.
        log_rate: the name of log a.
    """

    rate: Array
    bias: str = "dt_bias"
    log_rate: str = "A_log"
    writes: bool = True
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = -aλσ(z) with dγ/db = σ(z), and dλ/d log a = -aΔλ."""
        xp = array_namespace(z)
        slope = LOGISTIC(z).value
        step = xp.where(z > 0, z, 0.0) + xp.log1p(xp.exp(-xp.abs(z)))
        exponent = self.rate * step
        value = xp.exp(-exponent)
        motions = {
            self.bias: Motion(-self.rate * slope * value, slope if self.writes else 0 * slope),
            self.log_rate: Motion(-exponent * value, 0 * slope),
        }
        gain = step if self.writes else xp.ones_like(step)
        return GateValues(value, -xp.expm1(-exponent), gain, motions)

    def take(self, units: Units) -> StepSize:
        """The rates of these units."""
        return replace(self, rate=self.rate[units])


@dataclass(frozen=True)
class Root:
    """λ = σ(z)^p and γ = 1: gated linear attention, whose p is 1/16.

    Attributes:
        power: p > 0.
        parameter: the name of the gate.
    """

    power: float
    parameter: str = "gate"
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = p λ σ(-z)."""
        xp = array_namespace(z)
        opened = LOGISTIC(z)
        # log σ(z), exact in both tails
        log = xp.where(z < 0, z, 0.0) - xp.log1p(xp.exp(-xp.abs(z)))
        value = xp.exp(self.power * log)
        motion = Motion(self.power * value * opened.complement, 0 * value)
        return GateValues(
            value, -xp.expm1(self.power * log), xp.ones_like(value), {self.parameter: motion}
        )

    def take(self, units: Units) -> Root:
        """The same law for every unit."""
        return self


@dataclass(frozen=True)
class Exponent:
    """λ = e^(-cσ(z)), with γ = √(1-λ²) or 1: RG-LRU's recurrence gate.

    Attributes:
        rate: (n,) c·softplus(Λ) > 0.
        rate_slope: (n,) d log(rate)/dΛ.
        bias: the name of the parameter that is added to z.
        rate_parameter: the name of Λ.
    """

    rate: Array
    rate_slope: Array
    bias: str = "recurrence"
    rate_parameter: str = "rate"
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/dω = λ d log λ/dω and dγ/dω = -λ² (d log λ/dω) / γ."""
        xp = array_namespace(z)
        opened = LOGISTIC(z)
        exponent = self.rate * opened.value
        value = xp.exp(-exponent)
        gain = xp.sqrt(-xp.expm1(-2 * exponent))

        def motion(log_derivative: Array) -> Motion:
            return Motion(value * log_derivative, -(value**2) * log_derivative / gain)

        motions = {
            self.bias: motion(-self.rate * opened.slope),
            self.rate_parameter: motion(-exponent * self.rate_slope),
        }
        return GateValues(value, -xp.expm1(-exponent), gain, motions)

    def take(self, units: Units) -> Exponent:
        """The rates of these units."""
        return replace(self, rate=self.rate[units], rate_slope=self.rate_slope[units])


@dataclass(frozen=True)
class Write:
    """A factor f σ(z₂) of γ whose pre-activation is independent of that of λ.

    Attributes:
        opening: σ.
        parameter: the name of the gate.
        factor: f.
        width: d of a delta rule, ``λ (I - β k kᵀ)`` with β the factor of γ and a unit key k drawn
            anew at every step from all directions alike; infinite where nothing is overwritten.
    """

    opening: Opening = LOGISTIC
    parameter: str = "input"
    factor: float = 1.0
    width: float = math.inf

    @property
    def nominal(self) -> Write:
        """At zero input, where keys vanish."""
        return replace(self, width=math.inf)

    def __call__(self, z: Array) -> Openness:
        """The factor at pre-activations, and its slope; it has no complement of its own."""
        value, complement, slope = self.opening(z)
        return Openness(self.factor * value, complement, self.factor * slope)
