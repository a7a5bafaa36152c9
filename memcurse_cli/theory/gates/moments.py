"""Expectations of products of a gate's λ and γ and of their derivatives.

A gated recurrence under a cosine, from its mean gate and the fluctuations about it.

Second moments of a recurrence whose gates are drawn anew at every step.

``h[t+1] = λ(z) h[t] + γ(z) x[t+1]`` with z ~ N(b, σ²) independent in time, of the state and of x:
what input-dependent gates do to first order, where the nominal theory holds them at b. s = dh/dω
is the whole derivative by a parameter of λ and γ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation, Decay
from memcurse_cli.theory.gates.laws import Exponential, GateLaw, GateValues, Motion, Write
from memcurse_cli.theory.gates.quadrature import Preactivation, at_nodes, normal_nodes, pieces
from memcurse_cli.theory.moments import moments
from memcurse_cli.theory.namespace import array_namespace

if TYPE_CHECKING:
    from jaxtyping import Float


Array = Any


class ParameterExpectations(NamedTuple):
    """Expectations with d = dλ/dω and e = dγ/dω, of the shapes of `Expectations`.

    Attributes:
        d: E d.
        e: E e.
        eigenvalue_d: E λd.
        eigenvalue_e: E λe.
        gain_d: E γd.
        gain_e: E γe.
        d_d: E d².
        d_e: E de.
        e_e: E e².
    """

    d: Array
    e: Array
    eigenvalue_d: Array
    eigenvalue_e: Array
    gain_d: Array
    gain_e: Array
    d_d: Array
    d_e: Array
    e_e: Array


class Expectations(NamedTuple):
    """Expectations of products of λ and γ; what stands below a fraction as its complement.

    Each is (n,), or (rows, shared) where rows of units share their gates, with one column where
    the units of a row do not differ.

    Attributes:
        complement: E[1 - λ].
        squared_complement: E[1 - λ²].
        gain: E γ.
        eigenvalue_gain: E λγ.
        squared_gain: E γ².
        parameters: those with the derivatives, by parameter.
    """

    complement: Array
    squared_complement: Array
    gain: Array
    eigenvalue_gain: Array
    squared_gain: Array
    parameters: dict[str, ParameterExpectations]


def expectations(
    law: GateLaw, gate: Preactivation, write: Write | None, write_gate: Preactivation | None
) -> Expectations:
    """E over z of all that the moments take, and over the pre-activation of ``write``.

    Args:
        law: λ and γ as functions of z.
        gate: z of every unit (n,), or of every row of units that share it (rows, 1).
        write: a further factor of γ, or None.
        write_gate: its pre-activation, of the shape of z.
    """
    xp = array_namespace(gate.mean)
    nodes, weights = normal_nodes(gate.mean, gate.spread, law.smooth)
    found = expectations_of(law(at_nodes(gate, nodes)), xp.asarray(weights))
    if write is None or write_gate is None:
        return found
    return _with_write(found, write.parameter, _of_write(write, write_gate), 1 / write.width)


def expectations_of(values: GateValues, weights: Array) -> Expectations:
    """Those of a law's values (..., nodes), with the weights of the nodes."""
    eigenvalue, complement, gain = values.eigenvalue, values.complement, values.gain
    squared_complement = values.squared_complement
    if squared_complement is None:
        squared_complement = complement * (1 + eigenvalue)

    def parameter(motion: Motion) -> ParameterExpectations:
        d, e = motion
        products = (d, e, eigenvalue * d, eigenvalue * e, gain * d, gain * e, d * d, d * e, e * e)
        return ParameterExpectations(*(_mean(weights, product) for product in products))

    return Expectations(
        complement=_mean(weights, complement),
        squared_complement=_mean(weights, squared_complement),
        gain=_mean(weights, gain),
        eigenvalue_gain=_mean(weights, eigenvalue * gain),
        squared_gain=_mean(weights, gain**2),
        parameters={name: parameter(motion) for name, motion in values.motions.items()},
    )


def _mean(weights: Array, values: Array) -> Array:
    """The sum over nodes, the first axis."""
    return array_namespace(values).tensordot(weights, values, axes=1)


class _WriteExpectations(NamedTuple):
    """Those of a factor k of γ and of its slope k'.

    Attributes:
        value: E k.
        squared: E k².
        slope: E k'.
        value_slope: E kk'.
        squared_slope: E k'².
        overwritten: E k (2-k).
    """

    value: Array
    squared: Array
    slope: Array
    value_slope: Array
    squared_slope: Array
    overwritten: Array


def _of_write(write: Write, gate: Preactivation) -> _WriteExpectations:
    """By the rule of the law, or in closed form where k grows without end.

    E e^{pz} = e^{pb + p²σ²/2} has its weight pσ standard deviations off, beyond any fixed reach.
    """
    xp = array_namespace(gate.mean)
    if isinstance(write.opening, Exponential) and write.opening.cap is None:
        with np.errstate(over="ignore"):
            first, second = (
                write.factor**power * xp.exp(power * gate.mean + (power * gate.spread) ** 2 / 2)
                for power in (1, 2)
            )
        # No delta rule has such a gate.
        return _WriteExpectations(first, second, first, second, second, 0 * gate.mean)
    nodes, rule = normal_nodes(gate.mean, gate.spread, write.opening.smooth)
    opened, weights = write(at_nodes(gate, nodes)), xp.asarray(rule)
    value, slope = opened.value, opened.slope
    products = (value, value**2, slope, value * slope, slope**2, value * (2 - value))
    return _WriteExpectations(*(_mean(weights, product) for product in products))


def _with_write(
    law: Expectations, name: str, write: _WriteExpectations, share: float
) -> Expectations:
    """γ k in place of γ, with an independent k: E of products of both are products of E.

    A delta rule has λ (1 - k c) in place of λ, too, with c and c² of mean 1/d, its ``share``,
    independent of both gates: E of a unit key's kkᵀ is I/d.
    """

    def shared(values: Array) -> Array:
        return share * values if share else 0.0  # also of what is beyond all floats

    kept = 1 - shared(write.value)
    kept_squared = 1 - shared(write.overwritten)
    kept_written = write.value - shared(write.squared)
    parameters = {
        parameter: ParameterExpectations(
            d=of.d * kept,
            e=_times(of.e, write.value),
            eigenvalue_d=of.eigenvalue_d * kept_squared,
            eigenvalue_e=_times(of.eigenvalue_e, kept_written),
            gain_d=_times(of.gain_d, kept_written),
            gain_e=_times(of.gain_e, write.squared),
            d_d=of.d_d * kept_squared,
            d_e=_times(of.d_e, kept_written),
            e_e=_times(of.e_e, write.squared),
        )
        for parameter, of in law.parameters.items()
    }
    mean, square = 1 - law.complement, 1 - law.squared_complement
    both, zero = law.eigenvalue_gain, 0 * law.gain
    parameters[name] = ParameterExpectations(
        d=zero - mean * shared(write.slope),
        e=_times(law.gain, write.slope),
        eigenvalue_d=zero - square * shared(write.slope - write.value_slope),
        eigenvalue_e=_times(both, write.slope - shared(write.value_slope)),
        gain_d=zero - both * shared(write.value_slope),
        gain_e=_times(law.squared_gain, write.value_slope),
        d_d=zero + square * shared(write.squared_slope),
        d_e=zero - both * shared(write.squared_slope),
        e_e=_times(law.squared_gain, write.squared_slope),
    )
    return Expectations(
        law.complement + mean * shared(write.value),
        law.squared_complement + square * shared(write.overwritten),
        _times(law.gain, write.value),
        _times(both, kept_written),
        _times(law.squared_gain, write.squared),
        parameters,
    )


def _times(of_law: Array, of_write: Array) -> Array:
    """Their product, 0 where the law's is 0 and the other one beyond all floats."""
    nothing = of_law == 0
    return of_law * array_namespace(of_law).where(nothing, 0.0, of_write)


ROUNDING = 16 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class MeanResponse:
    """E[h|x] and E[s|x], a recurrence with the means m₁, E γ, E d and E e for λ, γ, λ' and γ'.

    A tone off resonance moves a slow state little, and the sums of `gated_moments` would cancel.
    What is left of a second moment is that of the fluctuations about this mean, which obey the same
    equations with covariances in the place of products.

    Attributes:
        of: the expectations.
        f: E h² of the mean at γ = 1.
        c: E hs by λ there.
        s: E s² by λ there.
    """

    of: Expectations
    f: Array
    c: Array
    s: Array

    @property
    def held(self) -> Array:
        """(E γ)² f."""
        return self.of.gain**2 * self.f

    @property
    def _variance(self) -> Array:
        """Var λ, from 1 - λ."""
        complement = self.of.complement
        return covariance(2 * complement - self.of.squared_complement, complement**2, complement)

    @property
    def _gain_covariance(self) -> Array:
        return covariance(self.of.eigenvalue_gain, (1 - self.of.complement) * self.of.gain)

    def fluctuation(self, a: Array) -> Array:
        """(1-m₂) times what the fluctuations add to E h²."""
        squared = covariance(self.of.squared_gain, self.of.gain**2)
        return self._variance * self.held + 2 * self._gain_covariance * a + squared

    def parameter(
        self, p: ParameterExpectations, a: Array, y: Array, fluctuation: Array, below: Array
    ) -> tuple[Array, Array]:
        """E hs and E s² of a parameter."""
        gain, m1 = self.of.gain, 1 - self.of.complement
        cross = gain * (p.d * gain * self.c + p.e * self.f)
        squared = (p.d * gain) ** 2 * self.s + 2 * p.d * gain * p.e * self.c + p.e**2 * self.f
        by_d = covariance(p.eigenvalue_d, m1 * p.d)
        by_e = covariance(p.eigenvalue_e, m1 * p.e)
        off = (
            self._variance * cross
            + p.eigenvalue_d * fluctuation
            + by_d * self.held
            + (by_e + covariance(p.gain_d, gain * p.d)) * a
            + self._gain_covariance * y
            + covariance(p.gain_e, gain * p.e)
        ) / below
        off_squared = (
            self._variance * squared
            + 2 * (p.eigenvalue_d * off + by_d * cross)
            + p.d_d * fluctuation
            + covariance(p.d_d, p.d**2) * self.held
            + 2 * (by_e * y + covariance(p.d_e, p.d * p.e) * a)
            + covariance(p.e_e, p.e**2)
        ) / below
        return cross + off, squared + off_squared


def covariance(product: Array, means: Array, scale: Array | None = None) -> Array:
    """E[ab] - E[a] E[b], and 0 where only rounding is left.

    Args:
        product: E[ab].
        means: E[a] E[b].
        scale: what was rounded, where the product is itself a difference; by default the product.
    """
    xp = array_namespace(product)
    found = product - means
    rounding = ROUNDING * xp.abs(product if scale is None else scale)
    return xp.where(xp.abs(found) <= rounding, 0.0, found)


def mean_response(of: Expectations, part: Decay, stable: Array) -> MeanResponse:
    """The response to one damped cosine, where E λ² < 1."""
    xp = array_namespace(of.gain)
    # That of a gate which is shut at all nodes may round to more than 1.
    complement = xp.clip(of.complement, None, math.nextafter(1.0, 0.0))
    log = xp.log1p(-xp.where(stable, complement, 0.5))
    alone = Autocorrelation((1.0,), (part.rho,), (part.frequency,))
    found = moments(log, alone)
    return MeanResponse(of, found.second_moment, xp.real(found.cross_moment), found.sensitivity)


class GatedMoments(NamedTuple):
    """Stationary moments, one per unit, for a drive of the given autocorrelation.

    Attributes:
        second_moment: E h²; inf where it diverges.
        cross_moments: E[h s] by parameter.
        sensitivities: E s² by parameter.
    """

    second_moment: Float[Array, " n"]
    cross_moments: Mapping[str, Float[Array, " n"]]
    sensitivities: Mapping[str, Float[Array, " n"]]


def gated_moments(
    law: GateLaw,
    gate: Preactivation,
    autocorrelation: Autocorrelation = WHITE,
    write: Write | None = None,
    write_gate: Preactivation | None = None,
) -> GatedMoments:
    """E h², E[h s] and E s² of a gated recurrence, over an infinite horizon.

    With E over z, m₁ = E λ, m₂ = E λ², d = dλ/dω, e = dγ/dω and a drive of autocorrelation ρ:

        a    = ρ E[γ] / (1 - ρ m₁)                                            = E[h_t x_{t+1}]
        y    = ρ (E[d] a + E[e]) / (1 - ρ m₁)                                 = E[s_t x_{t+1}]
        E h² = (E γ² + 2 E[λγ] a) / (1 - m₂)
        E hs = (E[λd] E h² + E[λe] a + E[γλ] y + E[γd] a + E[γe]) / (1 - m₂)
        E s² = (E d² E h² + E e² + 2 E[λd] E hs + 2 E[λe] y + 2 E[de] a) / (1 - m₂)

    and a mixture sums them with its weights. A damped cosine has ``ρ e^(iω)`` for ρ and the real
    parts of a and y, as all else is linear in them, and is summed from the response of the mean
    gate and the fluctuations about it. At σ = 0 it is the theory of a constant λ,
    which is that of Zucchet & Orvieto 2024, appendix D.2.

    Args:
        law: λ and γ as functions of z.
        gate: z of every unit.
        autocorrelation: R(Δ) of the drive x.
        write: a further factor of γ with a pre-activation of its own.
        write_gate: that pre-activation, independent of z.

    Returns:
        The moments, with those of the parameter of ``write`` among them.
    """
    if not isinstance(gate.mean, np.ndarray) or gate.mean.size == 0:
        return moments_of(expectations(law, gate, write, write_gate), autocorrelation)
    return gathered(
        gate.mean.size,
        (
            (
                piece.units,
                moments_of(
                    expectations(piece.law, piece.gate, write, piece.write_gate), autocorrelation
                ),
            )
            for piece in pieces(law, gate, write_gate)
        ),
    )


def gathered(size: int, parts: Iterable[tuple[NDArray[np.intp], GatedMoments]]) -> GatedMoments:
    """The moments of all units from those of some at a time.

    Args:
        size: n.
        parts: the indices of units, and arrays of their shape.
    """
    second_moment = np.zeros(size)
    cross_moments: dict[str, Array] = {}
    sensitivities: dict[str, Array] = {}
    for units, found in parts:
        second_moment[units] = found.second_moment
        for whole, part in (
            (cross_moments, found.cross_moments),
            (sensitivities, found.sensitivities),
        ):
            for name, values in part.items():
                whole.setdefault(name, np.zeros(size))[units] = values
    return GatedMoments(second_moment, cross_moments, sensitivities)


@np.errstate(over="ignore", invalid="ignore")  # of units that the last lines put out as inf
def moments_of(of: Expectations, autocorrelation: Autocorrelation) -> GatedMoments:
    """The moments that follow from a law's expectations; inf where they do not stay finite."""
    xp = array_namespace(of.gain)
    stable = (of.squared_complement > 0) & xp.isfinite(of.squared_gain)
    below = xp.where(stable, of.squared_complement, 1.0)
    held: Array = 0.0
    mixed: dict[str, Array] = dict.fromkeys(of.parameters, 0.0)
    moved: dict[str, Array] = dict.fromkeys(of.parameters, 0.0)
    for part in autocorrelation.parts:
        weight, rho = part.weight, part.pole
        if weight == 0:
            continue
        past = xp.where(stable, (1 - rho) + rho * of.complement, 1.0)  # 1 - ρ m₁
        correlation = rho * of.gain / past
        a = xp.real(correlation)
        mean = None if part.frequency == 0 or part.rho == 0 else mean_response(of, part, stable)
        second = (of.squared_gain + 2 * of.eigenvalue_gain * a) / below
        if mean is not None:
            fluctuation = mean.fluctuation(a) / below
            second = mean.held + fluctuation
        held = held + weight * second
        for name, p in of.parameters.items():
            y = xp.real(rho * (p.d * correlation + p.e) / past)
            if mean is not None:
                cross, squared = mean.parameter(p, a, y, fluctuation, below)
                mixed[name] = mixed[name] + weight * cross
                moved[name] = moved[name] + weight * squared
                continue
            cross = (
                p.eigenvalue_d * second
                + (p.eigenvalue_e + p.gain_d) * a
                + of.eigenvalue_gain * y
                + p.gain_e
            ) / below
            squared = (
                p.d_d * second
                + p.e_e
                + 2 * (p.eigenvalue_d * cross + p.eigenvalue_e * y + p.d_e * a)
            ) / below
            mixed[name] = mixed[name] + weight * cross
            moved[name] = moved[name] + weight * squared
    return GatedMoments(
        xp.where(stable, held, math.inf),
        {name: xp.where(stable, value, 0.0) for name, value in mixed.items()},
        {
            # Where λ' s and γ' x cancel, only rounding is left.
            name: xp.where(stable, xp.where(value > 0, value, 0.0), math.inf)
            for name, value in moved.items()
        },
    )
