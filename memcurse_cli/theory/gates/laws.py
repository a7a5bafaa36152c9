"""How the pre-activations of a gate become an eigenvalue and a gain, with the derivatives.

1 - λ is never a difference of rounded numbers. The laws follow the Array API.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.theory.linalg import Array, Integers, array_namespace

Units = slice | Integers
"""Some of the units; what a law has of each takes the shape of their indices."""

LARGEST_EXPONENT = 700.0  # of e, far beyond where λ = e^(-e^z) has come to 0
SMALL = -36.0  # below it log(1 + e^z) is e^z to the last digit


def softplus(z: Array) -> Array:
    """log(1 + e^z)."""
    xp = array_namespace(z)
    return xp.where(z > 0, z, 0.0) + xp.log1p(xp.exp(-xp.abs(z)))


def log_softplus(z: Array) -> Array:
    """log log(1 + e^z), which is z far below 0."""
    xp = array_namespace(z)
    return xp.where(z < SMALL, z, xp.log(softplus(xp.clip(z, SMALL, None))))


def soft_cap(z: Array, cap: float) -> tuple[Array, Array]:
    """``c tanh(z/c)`` and its slope ``4σ(2z/c)σ(-2z/c)``, exact in both tails."""
    xp = array_namespace(z)
    return cap * xp.tanh(z / cap), 4 * LOGISTIC(2 * z / cap).slope


class Openness(NamedTuple):
    """A gate's function: how far it is open, how far shut, and its slope."""

    value: Array
    complement: Array
    slope: Array


class Logistic(Struct, frozen=True):
    """σ(z) = 1 / (1 + e⁻ᶻ)."""

    smooth = True

    def __call__(self, z: Array) -> Openness:
        """σ(z), σ(-z) and their product, each exact in both tails."""
        xp = array_namespace(z)
        small = xp.exp(-xp.abs(z))
        near_one, near_zero = 1 / (1 + small), small / (1 + small)
        value = xp.where(z >= 0, near_one, near_zero)
        return Openness(value, xp.where(z >= 0, near_zero, near_one), near_one * near_zero)


LOGISTIC = Logistic()


class Clipped(Struct, frozen=True):
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


class CappedLogistic(Struct, frozen=True):
    """σ(c tanh(z/c)): xLSTM's forget gate, with c > 0."""

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


class Exponential(Struct, frozen=True):
    """e^(c tanh(z/c)), or e^z without a cap: xLSTM's input gate, which may be larger than 1."""

    cap: float | None = None

    @property
    def smooth(self) -> bool:
        """Whether the poles of the cap, at ic π/2, are beyond π/2."""
        return self.cap is None or self.cap > 1

    def __call__(self, z: Array) -> Openness:
        """The gate; 1 - e^z, which is negative for most, and the slope."""
        xp = array_namespace(z)
        free = xp.clip(z, None, LARGEST_EXPONENT)
        capped, slope = (free, 1.0) if self.cap is None else soft_cap(z, self.cap)
        value = xp.exp(capped)
        return Openness(value, -xp.expm1(capped), value * slope)


class Tanh(Struct, frozen=True):
    """tanh(z), which may turn the sign of the state: torchrecurrent's FastGRNN."""

    smooth = False

    def __call__(self, z: Array) -> Openness:
        """The gate; 1 - tanh(z) = 2σ(-2z), without cancellation, and their slope 4σ(2z)σ(-2z)."""
        opened = LOGISTIC(2 * z)
        return Openness(array_namespace(z).tanh(z), 2 * opened.complement, 4 * opened.slope)


TANH = Tanh()


Opening = Logistic | Clipped | CappedLogistic | Exponential | Tanh
"""A function that opens a gate, with whether it is ``smooth`` as a `GateLaw` may be."""


class Write(Struct, frozen=True):
    """A factor f σ(z₂) of γ whose pre-activation is independent of that of λ.

    ``width`` is d of a delta rule, ``λ (I - β k kᵀ)`` with β this factor and k anew each step.
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
        """The factor and its slope; it has no complement of its own."""
        value, complement, slope = self.opening(z)
        return Openness(self.factor * value, complement, self.factor * slope)


class Motion(NamedTuple):
    """What one unit of a parameter adds, at every pre-activation: dλ/dω and dγ/dω."""

    eigenvalue: Array
    gain: Array


class GateValues(NamedTuple):
    """A gate at given pre-activations: λ, 1 - λ, γ and what each parameter moves, by its name.

    ``squared_complement`` is E[1 - λ²] where λ is itself a mean over what the gate does not decide.
    """

    eigenvalue: Array
    complement: Array
    gain: Array
    motions: Mapping[str, Motion]
    squared_complement: Array | None = None


class OfUnits(Struct, frozen=True):
    """What holds of n units, by values that all share and arrays with one of each."""

    def take(self, units: Units) -> Self:
        """The same of some of the units."""
        taken: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                taken[name] = value[units]
            elif isinstance(value, OfUnits):
                taken[name] = value.take(units)
        return replace(self, **taken) if taken else self


class GateLaw(OfUnits, frozen=True):
    """λ and γ of n units as functions of one pre-activation each."""

    @property
    def smooth(self) -> bool:
        """Whether λ and γ are analytic for |Im z| < π/2, as the gate's function is."""
        return bool(getattr(self, "opening", LOGISTIC).smooth)

    @abstractmethod
    def __call__(self, z: Array) -> GateValues:
        """The gates at pre-activations (…, n), or (…, n, 1) for rows of units that share one."""


class Keep(GateLaw, frozen=True):
    """λ = σ(z) and γ = 1: an LSTM's forget gate, to whose γ a `Write` gate of its own is added."""

    opening: Opening = LOGISTIC

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = σ'(z)."""
        value, complement, slope = self.opening(z)
        one = value + complement
        return GateValues(value, complement, one, {"forget": Motion(slope, 0 * slope)})


class Mix(GateLaw, frozen=True):
    """λ = σ(z) and γ = 1 - λ (GRU), or γ = c σ(z) and λ = 1 - γ where an open gate writes.

    A gate that does not ``keep`` writes when open (minGRU, MGU), with c ≤ 1 as ``largest`` (LEM).
    """

    keeps: bool = True
    opening: Opening = LOGISTIC
    parameter: str = "update"
    largest: float = 1.0

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = σ'(z) = -dγ/db, or -c σ'(z); λ = σ(-z) + (1-c) σ(z) without cancellation."""
        value, complement, slope = self.opening(z)
        if not self.keeps:
            kept = complement + (1 - self.largest) * value
            value, complement, slope = kept, self.largest * value, -self.largest * slope
        return GateValues(value, complement, complement, {self.parameter: Motion(slope, -slope)})


class FlooredMix(GateLaw, frozen=True):
    """λ = a(z) and γ = σ(ζ) (1 - λ) + σ(ν), of ``scale`` ζ, ``floor`` ν and a = σ: FastGRNN."""

    scale: float
    floor: float
    opening: Opening = LOGISTIC

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = a'(z) with dγ/db = -σ(ζ) a'(z), dγ/dζ = σ'(ζ) (1 - λ) and dγ/dν = σ'(ν)."""
        xp, kept = array_namespace(z), self.opening(z)
        scale, floor = (LOGISTIC(xp.asarray(value)) for value in (self.scale, self.floor))
        nothing = 0 * kept.slope
        motions = {
            "gate": Motion(kept.slope, -scale.value * kept.slope),
            "zeta": Motion(nothing, scale.slope * kept.complement),
            "nu": Motion(nothing, floor.slope + nothing),
        }
        gain = scale.value * kept.complement + floor.value
        return GateValues(kept.value, kept.complement, gain, motions)


class OffsetMix(GateLaw, frozen=True):
    """λ = σ(z) and γ = 1 - σ(z - β) of ``offset`` β: JANET, with λ + γ > 1 for β > 0."""

    offset: float

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = σ'(z) and dγ/dβ = σ'(z - β) = -dγ/db."""
        kept, shut = LOGISTIC(z), LOGISTIC(z - self.offset)
        motions = {
            "update": Motion(kept.slope, -shut.slope),
            "beta": Motion(0 * kept.slope, shut.slope),
        }
        return GateValues(kept.value, kept.complement, shut.complement, motions)


class Bounded(GateLaw, frozen=True):
    """λ = 1 - (1-β) σ(-z) and γ = 1 - λ, of ``complement`` (n,) 1 - β: HGRN."""

    complement: Array

    def __call__(self, z: Array) -> GateValues:
        """dλ/dβ = σ(-z) = -dγ/dβ."""
        shut = LOGISTIC(z).complement
        lost = self.complement * shut
        return GateValues(1 - lost, lost, lost, {"bound": Motion(shut, -shut)})


class Written(GateLaw, frozen=True):
    """λ and, in the place of γ, all that is written: γ(z) tanh(z + d), d of ``offset`` (n,)."""

    law: GateLaw
    offset: Array

    def __call__(self, z: Array) -> GateValues:
        """Without motions: it serves for the size of the state alone."""
        values = self.law(z)
        candidate = array_namespace(z).tanh(z + self.offset)
        return GateValues(values.eigenvalue, values.complement, values.gain * candidate, {})


class Overwrite(GateLaw, frozen=True):
    """``S' = S (I - β k kᵀ) + β v kᵀ`` with β = f σ(z) and a unit key k of any direction: DeltaNet.

    A key drawn anew takes β/d of an entry of S on average, and of its square ``β (2-β)/d``. So
    ``λ = 1 - β/d``, and γ = β as of keys that stand still; d is infinite for keys that vanish.
    """

    width: float
    factor: float = 1.0

    def __call__(self, z: Array) -> GateValues:
        """No parameter is added to z."""
        strength = self.factor * LOGISTIC(z).value
        lost = strength / self.width
        return GateValues(1 - lost, lost, strength, {}, lost * (2 - strength))


def decayed(
    exponent: Array,
    slopes: Mapping[str, Array],
    gain: Array | None = None,
    gain_slopes: Mapping[str, Array] | None = None,
) -> GateValues:
    """λ = e^-x with dx/dω by parameter, and a γ, 1 by default, with dγ/dω, 0 by default."""
    xp = array_namespace(exponent)
    value, of_gain = xp.exp(-exponent), gain_slopes or {}
    motions = {
        name: Motion(-slope * value, of_gain.get(name, 0 * slope)) for name, slope in slopes.items()
    }
    gain = xp.ones_like(value) if gain is None else gain
    return GateValues(value, -xp.expm1(-exponent), gain, motions)


class StepSize(GateLaw, frozen=True):
    """λ = e^(-aΔ) and γ = Δ with Δ = log(1 + e^z): Mamba; or γ = 1, a gated delta net."""

    rate: Array  # (n,) a > 0, of log a as A_log
    writes: bool = True  # whether γ is Δ
    negated: bool = False  # A_log is -a instead, which GGUF stores and rounding may bring to a ≤ 0

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = -aλσ(z) with dγ/db = σ(z), and dλ/d log a = -aΔλ or dλ/d(-a) = Δλ."""
        slope, step = LOGISTIC(z).value, softplus(z)
        exponent = self.rate * step
        by_rate = -step if self.negated else exponent
        slopes = {"dt_bias": self.rate * slope, "A_log": by_rate}
        return decayed(exponent, slopes, *((step, {"dt_bias": slope}) if self.writes else ()))


class Root(GateLaw, frozen=True):
    """λ = σ(z)^p, γ = 1: gated linear attention, with p = 1/16; coupled, γ = 1 - λ: gated slots."""

    power: float
    coupled: bool = False

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = p λ σ(-z), with -log σ(z) exact in both tails."""
        slope = -self.power * LOGISTIC(z).complement
        exponent = self.power * softplus(-z)
        values = decayed(exponent, {"gate": slope})
        if self.coupled:
            moved = values.motions["gate"].eigenvalue
            motions = {"gate": Motion(moved, -moved)}
            return values._replace(gain=values.complement, motions=motions)
        return values


class Exponent(GateLaw, frozen=True):
    """λ = e^(-cσ(z)) and γ = √(1-λ²+ε): RG-LRU's recurrence gate."""

    rate: Array  # (n,) c·softplus(Λ) > 0
    rate_slope: Array  # (n,) d log(rate)/dΛ
    offset: float = 0.0  # ε, by which some code keeps γ from vanishing

    def __call__(self, z: Array) -> GateValues:
        """dλ/dω = λ d log λ/dω and dγ/dω = -λ² (d log λ/dω) / γ."""
        xp, opened = array_namespace(z), LOGISTIC(z)
        exponent = self.rate * opened.value
        gain = xp.sqrt(-xp.expm1(-2 * exponent) + self.offset)
        slopes = {"recurrence": self.rate * opened.slope, "rate": exponent * self.rate_slope}
        of_gain = xp.exp(-2 * exponent) / xp.where(gain > 0, gain, 1.0)
        return decayed(
            exponent, slopes, gain, {name: of_gain * slope for name, slope in slopes.items()}
        )


class OpenedDecay(GateLaw, frozen=True):
    """λ = e^(-c f(z)) and γ = 1: RWKV-7, KDA's safe gate with f = σ; RWKV-6 with f = e^z."""

    rate: float  # c > 0, -log λ of a gate that is fully open
    bias: str = "bias"
    log_scale: str | None = None  # the name of a, or None
    opening: Opening = LOGISTIC  # f

    def __call__(self, z: Array) -> GateValues:
        """dλ/db = -c f'(z) λ, and z times that for the scale."""
        opened = self.opening(z)
        slopes = {self.bias: self.rate * opened.slope}
        if self.log_scale is not None:
            slopes[self.log_scale] = z * slopes[self.bias]
        return decayed(self.rate * opened.value, slopes)


class JointValues(NamedTuple):
    """λ and γ of gates with several pre-activations, by their logarithms."""

    log_eigenvalue: Array  # log λ, complex where λ turns
    log_gain: Array  # log γ
    motions: Mapping[str, Motion]  # d log λ/dω and d log γ/dω by parameter
    # w, how much of an input comes in with the gain wγ of its own step, the rest with λ(1-w)γ of
    # the step after it; None for all
    share: Array | None = None

    @property
    def nominal(self) -> GateValues:
        """The same as of gates that stand still, under which an input's share does not matter."""
        xp = array_namespace(self.log_eigenvalue)
        eigenvalue, gain = xp.exp(self.log_eigenvalue), xp.exp(self.log_gain)
        motions = {
            name: Motion(eigenvalue * of.eigenvalue, gain * of.gain)
            for name, of in self.motions.items()
        }
        return GateValues(eigenvalue, -xp.expm1(self.log_eigenvalue), gain, motions)


class Share(Struct, frozen=True):
    """λ = f/(f+i) and γ = i/(f+i) with f = σ(z₁) and i = σ(z₂): minLSTM."""

    symmetric = True

    def __call__(self, z: Array) -> JointValues:
        """With y = log i - log f, λ = σ(-y) and γ = σ(y): dy/db_f = -σ(-z₁), dy/db_i = σ(-z₂)."""
        first, second = z[..., 0], z[..., 1]
        y = softplus(-first) - softplus(-second)
        kept = LOGISTIC(-y)
        by_first, by_second = LOGISTIC(first).complement, -LOGISTIC(second).complement
        motions = {
            name: Motion(kept.complement * by, -kept.value * by)
            for name, by in (("forget", by_first), ("input", by_second))
        }
        return JointValues(-softplus(y), -softplus(-y), motions)


def heavy_tail(z: Array) -> Array:
    """log a with a = 1 + z for z ≥ 0 and 1/(1 - z) below: ±log(1 + |z|)."""
    xp = array_namespace(z)
    return xp.sign(z) * xp.log1p(xp.abs(z))


class TrapezoidStep(Struct, frozen=True):
    """Mamba-3, whose step is ``h = λ (h⁻ + (1-w) Δ u⁻) + w Δ u`` in a frame that turns with keys.

    ``λ = e^(-aΔ - iθΔ)`` with Δ = log(1 + e^z₁), a = max(a(z₂), floor), w = σ(z₃), θ = π tanh(z₄);
    a(z) is log(1 + e^z) with ``softplus_rate``, otherwise that of `heavy_tail`.
    """

    softplus_rate: bool
    floor: float
    bias: str = "dt_bias"
    symmetric = True

    def __call__(self, z: Array) -> JointValues:
        """d log λ/db = -(a + iθ) σ(z₁) and d log γ/db = σ(z₁)/Δ."""
        xp = array_namespace(z)
        log_rate = log_softplus(z[..., 1]) if self.softplus_rate else heavy_tail(z[..., 1])
        rate = xp.exp(xp.clip(log_rate, math.log(self.floor), None))
        turning = rate + 1j * math.pi * xp.tanh(z[..., 3])
        log_step = log_softplus(z[..., 0])
        slope = LOGISTIC(z[..., 0]).value
        by_bias = Motion(-turning * slope, xp.exp(-softplus(-z[..., 0]) - log_step))
        return JointValues(
            -turning * xp.exp(log_step), log_step, {self.bias: by_bias}, LOGISTIC(z[..., 2]).value
        )


class Turn(Struct, frozen=True):
    """``λ = σ(|a|) e^(i arg a)`` with a = z₁ + iz₂, and γ = 1: GateLoop."""

    real: str = "real"
    imaginary: str = "imaginary"
    symmetric = False

    def __call__(self, z: Array) -> JointValues:
        """d log λ/dz₁ = σ(-|a|) cos φ - i sin φ/|a| with φ = arg a, likewise by z₂."""
        xp = array_namespace(z)
        a = z[..., 0] + 1j * z[..., 1]
        radius = xp.abs(a)
        away = xp.where(radius > 0, radius, 1.0)
        cosine, sine = z[..., 0] / away, z[..., 1] / away
        outward, nothing = LOGISTIC(radius).complement, xp.zeros_like(radius)
        motions = {
            self.real: Motion(outward * cosine - 1j * sine / away, nothing),
            self.imaginary: Motion(outward * sine + 1j * cosine / away, nothing),
        }
        return JointValues(
            -softplus(-radius) + 1j * xp.atan2(z[..., 1], z[..., 0]), nothing, motions
        )


JointLaw = Share | TrapezoidStep | Turn
"""λ and γ of n units as functions of pre-activations (…, n, gates), of which two move |λ|.

Under a ``symmetric`` law λ is as likely as its conjugate, whatever |λ| and γ are.
"""
