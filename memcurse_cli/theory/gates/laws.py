"""How the pre-activation of a gate becomes an eigenvalue and a gain, with the derivatives.

A law takes pre-activations z (…, n) and gives λ, 1 - λ, γ and what each of its parameters moves.
1 - λ is never a difference of rounded numbers. The laws follow the Array API.

Laws of gates that mix the old state with the new by shares that need not add up to one.

Laws of gates that set the rate of a decay, not the eigenvalue: KDA's safe gate and RWKV.

Gates behind a soft cap ``c tanh(z/c)``, and exponential ones, as in xLSTM.

The law of a delta rule, which forgets nothing but what it overwrites.

Eigenvalues that two pre-activations move at once: minLSTM's and Mamba-3's.

A law gives log(-log λ), minus the logarithm of the time constant, which is exact at both ends of
λ, and the place of either pre-activation at which it takes a value. The laws follow the Array API.
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
        negated: ``log_rate`` names -a instead, which GGUF stores and rounding may bring to a ≤ 0.
    """

    rate: Array
    bias: str = "dt_bias"
    log_rate: str = "A_log"
    writes: bool = True
    negated: bool = False
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = -aλσ(z) with dγ/db = σ(z), and dλ/d log a = -aΔλ or dλ/d(-a) = Δλ."""
        xp = array_namespace(z)
        slope = LOGISTIC(z).value
        step = xp.where(z > 0, z, 0.0) + xp.log1p(xp.exp(-xp.abs(z)))
        exponent = self.rate * step
        value = xp.exp(-exponent)
        motions = {
            self.bias: Motion(-self.rate * slope * value, slope if self.writes else 0 * slope),
            self.log_rate: Motion((step if self.negated else -exponent) * value, 0 * slope),
        }
        gain = step if self.writes else xp.ones_like(step)
        return GateValues(value, -xp.expm1(-exponent), gain, motions)

    def take(self, units: Units) -> StepSize:
        """The rates of these units."""
        return replace(self, rate=self.rate[units])


@dataclass(frozen=True)
class Root:
    """λ = σ(z)^p and γ = 1, or 1 - λ: gated linear attention, whose p is 1/16, or gated slots.

    Attributes:
        power: p > 0.
        parameter: the name of the gate.
        coupled: γ is 1 - λ.
    """

    power: float
    parameter: str = "gate"
    coupled: bool = False
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = p λ σ(-z)."""
        xp = array_namespace(z)
        opened = LOGISTIC(z)
        # log σ(z), exact in both tails
        log = xp.where(z < 0, z, 0.0) - xp.log1p(xp.exp(-xp.abs(z)))
        value = xp.exp(self.power * log)
        lost = -xp.expm1(self.power * log)
        moved = self.power * value * opened.complement
        gain, by_gain = (lost, -moved) if self.coupled else (xp.ones_like(value), 0 * moved)
        return GateValues(value, lost, gain, {self.parameter: Motion(moved, by_gain)})

    def take(self, units: Units) -> Root:
        """The same law for every unit."""
        return self


@dataclass(frozen=True)
class Exponent:
    """λ = e^(-cσ(z)) and γ = √(1-λ²+ε): RG-LRU's recurrence gate.

    Attributes:
        rate: (n,) c·softplus(Λ) > 0.
        rate_slope: (n,) d log(rate)/dΛ.
        bias: the name of the parameter that is added to z.
        rate_parameter: the name of Λ.
        offset: ε, by which some code keeps γ from vanishing.
    """

    rate: Array
    rate_slope: Array
    bias: str = "recurrence"
    rate_parameter: str = "rate"
    offset: float = 0.0
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """dλ/dω = λ d log λ/dω and dγ/dω = -λ² (d log λ/dω) / γ."""
        xp = array_namespace(z)
        opened = LOGISTIC(z)
        exponent = self.rate * opened.value
        value = xp.exp(-exponent)
        gain = xp.sqrt(-xp.expm1(-2 * exponent) + self.offset)

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


@dataclass(frozen=True)
class Overwrite:
    """``S' = S (I - β k kᵀ) + β v kᵀ`` with β = f σ(z) and a unit key k of any direction: DeltaNet.

    A key drawn anew at every step, all directions of d alike, takes β/d of an entry of S on
    average, and of its square ``β (2-β)/d``, since ``‖S (I - β k kᵀ)‖² = ‖S‖² - β (2-β) ‖S k‖²``
    and E k kᵀ = I/d. So ``λ = 1 - β/d``, and γ = β as of a layer whose keys stand still.

    Attributes:
        width: d; infinite for keys that vanish, as they do at zero input.
        factor: f, 1, or 2 where β reaches 2.
    """

    width: float
    factor: float = 1.0
    smooth = True

    def __call__(self, z: Array) -> GateValues:
        """No parameter is added to z."""
        strength = self.factor * LOGISTIC(z).value
        lost = strength / self.width
        return GateValues(1 - lost, lost, strength, {}, lost * (2 - strength))

    def take(self, units: Units) -> Overwrite:
        """The same law for every unit."""
        return self


SMALL = -36.0
"""Below it log(1 + e^z) is e^z to the last digit."""
LARGEST_LOG = 700.0


class TwoGateLaw(Protocol):
    """λ of n units as a function of two pre-activations each, monotonic in either.

    Attributes:
        signs: for either pre-activation, 1 where λ falls with it and -1 where it rises.
    """

    @property
    def signs(self) -> tuple[int, int]:
        """For either pre-activation, 1 where λ falls with it and -1 where it rises."""

    def log_rate(self, first: Array, second: Array) -> Array:
        """log(-log λ) at pre-activations (…, n)."""

    def first_at(self, log_rate: Array, second: Array) -> Array:
        """The first pre-activation that makes log(-log λ) this; ±inf where none is far enough."""

    def second_at(self, log_rate: Array, first: Array) -> Array:
        """The second one that does."""


@dataclass(frozen=True)
class Share:
    """λ = f/(f+i) and γ = i/(f+i) with f = σ(z₁) and i = σ(z₂): minLSTM.

    With y = log i - log f = log(1 + e^-z₁) - log(1 + e^-z₂): λ = σ(-y), γ = σ(y) and -log λ is
    log(1 + e^y).

    Attributes:
        forget: the name of the parameter that is added to z₁.
        opened: that of z₂.
    """

    forget: str = "forget"
    opened: str = "input"
    signs = (-1, 1)

    def __call__(self, first: Array, second: Array) -> GateValues:
        """dλ/db_f = λγσ(-z₁) = -dγ/db_f and dλ/db_i = -λγσ(-z₂) = -dγ/db_i."""
        kept = LOGISTIC(_softplus(-second) - _softplus(-first))
        by_first = kept.slope * LOGISTIC(first).complement
        by_second = kept.slope * LOGISTIC(second).complement
        return GateValues(
            kept.value,
            kept.complement,
            kept.complement,
            {
                self.forget: Motion(by_first, -by_first),
                self.opened: Motion(-by_second, by_second),
            },
        )

    def log_rate(self, first: Array, second: Array) -> Array:
        """log log(1 + e^y)."""
        return _log_softplus(_softplus(-first) - _softplus(-second))

    def first_at(self, log_rate: Array, second: Array) -> Array:
        """log(1 + e^-z₁) = y + log(1 + e^-z₂), which no z₁ gives where that is not positive."""
        return -_inverse_softplus(_at_log_softplus(log_rate) + _softplus(-second))

    def second_at(self, log_rate: Array, first: Array) -> Array:
        """log(1 + e^-z₂) = log(1 + e^-z₁) - y."""
        return -_inverse_softplus(_softplus(-first) - _at_log_softplus(log_rate))


class Rate(Protocol):
    """A positive function a(z) that rises with z."""

    def log(self, z: Array) -> Array:
        """log a(z)."""

    def at_log(self, log: Array) -> Array:
        """z at a value of log a."""


@dataclass(frozen=True)
class HeavyTail:
    """a = 1 + z for z ≥ 0 and 1/(1 - z) below, so that log a = ±log(1 + |z|)."""

    def log(self, z: Array) -> Array:
        """±log(1 + |z|)."""
        xp = array_namespace(z)
        return xp.sign(z) * xp.log1p(xp.abs(z))

    def at_log(self, log: Array) -> Array:
        """±(a^±1 - 1)."""
        xp = array_namespace(log)
        return xp.sign(log) * xp.expm1(xp.clip(xp.abs(log), 0.0, LARGEST_LOG))


@dataclass(frozen=True)
class Softplus:
    """a = log(1 + e^z)."""

    def log(self, z: Array) -> Array:
        """log log(1 + e^z)."""
        return _log_softplus(z)

    def at_log(self, log: Array) -> Array:
        """log(e^a - 1)."""
        return _at_log_softplus(log)


@dataclass(frozen=True)
class RatedStep:
    """λ = e^(-aΔ) with Δ = log(1 + e^z₁) and a = max(a(z₂), floor): Mamba-3.

    Attributes:
        rate: a(z₂).
        log_floor: the logarithm of the smallest a.
    """

    rate: Rate
    log_floor: float
    signs = (1, 1)

    def log_rate(self, first: Array, second: Array) -> Array:
        """log Δ + log a."""
        return _log_softplus(first) + self._log_rate(second)

    def first_at(self, log_rate: Array, second: Array) -> Array:
        """log(1 + e^z₁) = -log λ / a."""
        return _at_log_softplus(log_rate - self._log_rate(second))

    def second_at(self, log_rate: Array, first: Array) -> Array:
        """a = -log λ / Δ, which no z₂ gives where that is below the floor."""
        log = log_rate - _log_softplus(first)
        xp = array_namespace(log)
        return xp.where(log < self.log_floor, -xp.inf, self.rate.at_log(log))

    def _log_rate(self, second: Array) -> Array:
        return array_namespace(second).clip(self.rate.log(second), self.log_floor, None)


def _softplus(z: Array) -> Array:
    """log(1 + e^z)."""
    xp = array_namespace(z)
    return xp.where(z > 0, z, 0.0) + xp.log1p(xp.exp(-xp.abs(z)))


def _inverse_softplus(value: Array) -> Array:
    """log(e^value - 1), and -inf where the value is not positive."""
    xp = array_namespace(value)
    positive = xp.where(value > 0, value, 1.0)
    return xp.where(value > 0, positive + xp.log(-xp.expm1(-positive)), -xp.inf)


def _log_softplus(z: Array) -> Array:
    """log log(1 + e^z), which is z far below 0."""
    xp = array_namespace(z)
    return xp.where(z < SMALL, z, xp.log(_softplus(xp.clip(z, SMALL, None))))


def _at_log_softplus(log: Array) -> Array:
    """z at which log log(1 + e^z) has a value."""
    xp = array_namespace(log)
    value = xp.exp(xp.clip(log, SMALL, LARGEST_LOG))
    return xp.where(log < SMALL, log, _inverse_softplus(value))
