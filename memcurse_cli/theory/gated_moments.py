"""Second moments of a recurrence whose gates are drawn anew at every step.

``h[t+1] = λ(z) h[t] + γ(z) x[t+1]`` with z ~ N(b, σ²) independent in time, of the state and of x:
what input-dependent gates do to first order, where the nominal theory holds them at b. s = dh/dω
is the whole derivative by a parameter of λ and γ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation, Decay
from memcurse_cli.theory.gate_laws import GateLaw, GateValues, Motion, Openness, Write
from memcurse_cli.theory.moments import moments
from memcurse_cli.theory.namespace import array_namespace, may_be_traced

if TYPE_CHECKING:
    from jaxtyping import Float

Array = Any
Floats = NDArray[np.float64]

LARGEST_STEP = 0.35
"""Standard deviations between nodes: e^(-2π²/h²) of a Gaussian is then far below an ulp."""
STRIP = math.pi / 2
"""Every smooth law is analytic for |Im z| < π/2, and bounded there."""
DIGITS = 36.0
"""-log of the error of the rule that is allowed."""
KINKED_STEP = 0.01
"""For laws with corners, whose error falls with h² only."""
TAIL = 9.0
"""Standard deviations beyond which a Gaussian is below an ulp."""
REACH = 20.0
"""How far beyond |b| a law may still grow exponentially, as softplus does below 0."""
MOST_NODES = 5000
"""On either side."""
ROUNDING = 16 * float(np.finfo(np.float64).eps)
CHUNK = 1 << 20
"""Nodes times units that are held at once."""


@dataclass(frozen=True)
class Preactivation:
    """z ~ N(b, σ²) of n units.

    Attributes:
        mean: (n,) b.
        spread: (n,) σ ≥ 0.
    """

    mean: Array
    spread: Array

    def take(self, units: slice) -> Preactivation:
        """Those of some of the units."""
        return Preactivation(self.mean[units], self.spread[units])


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


class _Parameter(NamedTuple):
    """Expectations with d = dλ/dω and e = dγ/dω."""

    d: Array
    e: Array
    eigenvalue_d: Array
    eigenvalue_e: Array
    gain_d: Array
    gain_e: Array
    d_d: Array
    d_e: Array
    e_e: Array


class _Expectations(NamedTuple):
    """Expectations of products of λ and γ; what stands below a fraction as its complement."""

    complement: Array  # E[1 - λ]
    squared_complement: Array  # E[1 - λ²]
    gain: Array
    eigenvalue_gain: Array
    squared_gain: Array
    parameters: dict[str, _Parameter]


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
    parts = [
        _moments(_expectations(*part), autocorrelation)
        for part in _chunks(law, gate, write, write_gate)
    ]
    if len(parts) == 1:
        return parts[0]
    names = parts[0].sensitivities
    return GatedMoments(
        np.concatenate([part.second_moment for part in parts]),
        {name: np.concatenate([part.cross_moments[name] for part in parts]) for name in names},
        {name: np.concatenate([part.sensitivities[name] for part in parts]) for name in names},
    )


def normal_nodes(mean: Array, spread: Array, smooth: bool = True) -> tuple[Floats, Floats]:
    """Nodes u and weights w with ``E f(z) = Σ w f(b + σ u)`` for every unit at once.

    The trapezoidal rule on the real line. For an f that is analytic in a strip of half width a its
    error is e^(-2πa/(σh)), so that 350 nodes do for σ = 5, where that of a Gauss-Hermite rule falls
    with the root of its order only.

    Args:
        mean: (n,) b.
        spread: (n,) σ; the largest decides.
        smooth: whether f is analytic for |Im z| < π/2; otherwise a fine step is taken.
    """
    widest = float(np.max(np.asarray(spread), initial=0.0))
    if widest == 0:
        return np.zeros(1), np.ones(1)
    step = KINKED_STEP
    if smooth:
        step = min(LARGEST_STEP, 2 * math.pi * STRIP / (DIGITS * widest))
    # Products of two laws can fall as e^(-2z): their weight sits up to 2σ off the centre, though
    # no further than where the laws level out.
    reach = TAIL + 2 * widest
    if not may_be_traced(mean):
        farthest = float(np.max(np.abs(np.asarray(mean)), initial=0.0)) + REACH
        reach = TAIL + min(2 * widest, farthest / widest)
    # A gate that is so wide is a switch; what is between its two ends hardly counts.
    step = max(step, reach / MOST_NODES)
    count = math.ceil(reach / step)
    nodes: Floats = step * np.arange(-count, count + 1, dtype=np.float64)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, weights / math.fsum(weights)


def mean_of(function: Callable[[Array], Array], gate: Preactivation, smooth: bool = True) -> Array:
    """E f(z) of every unit, for a function f of pre-activations (nodes, n)."""
    xp = array_namespace(gate.mean)
    nodes, weights = normal_nodes(gate.mean, gate.spread, smooth)
    return xp.asarray(weights) @ function(_at(gate, nodes))


_Part = tuple[GateLaw, Preactivation, Write | None, Preactivation | None]


def _chunks(
    law: GateLaw, gate: Preactivation, write: Write | None, write_gate: Preactivation | None
) -> Iterator[_Part]:
    """The units in pieces whose nodes fit into memory; all at once where they may be traced."""
    if not isinstance(gate.mean, np.ndarray):
        yield law, gate, write, write_gate
        return
    count = normal_nodes(gate.mean, gate.spread, law.smooth)[0].size
    length = max(1, CHUNK // count)
    for start in range(0, max(gate.mean.size, 1), length):
        units = slice(start, start + length)
        second = None if write_gate is None else write_gate.take(units)
        yield law.take(units), gate.take(units), write, second


def _at(gate: Preactivation, nodes: Floats) -> Array:
    return gate.mean + gate.spread * array_namespace(gate.mean).asarray(nodes)[:, None]


def _expectations(
    law: GateLaw, gate: Preactivation, write: Write | None, write_gate: Preactivation | None
) -> _Expectations:
    xp = array_namespace(gate.mean)
    nodes, weights = normal_nodes(gate.mean, gate.spread, law.smooth)
    expectations = _of_law(law(_at(gate, nodes)), xp.asarray(weights))
    if write is None or write_gate is None:
        return expectations
    nodes, weights = normal_nodes(write_gate.mean, write_gate.spread, write.opening.smooth)
    return _with_write(
        expectations, write.parameter, write(_at(write_gate, nodes)), xp.asarray(weights)
    )


def _of_law(values: GateValues, weights: Array) -> _Expectations:
    eigenvalue, complement, gain = values.eigenvalue, values.complement, values.gain

    def parameter(motion: Motion) -> _Parameter:
        d, e = motion
        products = (d, e, eigenvalue * d, eigenvalue * e, gain * d, gain * e, d * d, d * e, e * e)
        return _Parameter(*(weights @ product for product in products))

    return _Expectations(
        complement=weights @ complement,
        squared_complement=weights @ (complement * (1 + eigenvalue)),
        gain=weights @ gain,
        eigenvalue_gain=weights @ (eigenvalue * gain),
        squared_gain=weights @ gain**2,
        parameters={name: parameter(motion) for name, motion in values.motions.items()},
    )


def _with_write(law: _Expectations, name: str, opened: Openness, weights: Array) -> _Expectations:
    """γ k in place of γ, with an independent k: E of products of both are products of E."""
    first, second = weights @ opened.value, weights @ opened.value**2
    parameters = {
        parameter: _Parameter(
            d=of.d,
            e=of.e * first,
            eigenvalue_d=of.eigenvalue_d,
            eigenvalue_e=of.eigenvalue_e * first,
            gain_d=of.gain_d * first,
            gain_e=of.gain_e * second,
            d_d=of.d_d,
            d_e=of.d_e * first,
            e_e=of.e_e * second,
        )
        for parameter, of in law.parameters.items()
    }
    zero = 0 * law.gain
    slope = weights @ opened.slope
    parameters[name] = _Parameter(
        d=zero,
        e=law.gain * slope,
        eigenvalue_d=zero,
        eigenvalue_e=law.eigenvalue_gain * slope,
        gain_d=zero,
        gain_e=law.squared_gain * (weights @ (opened.value * opened.slope)),
        d_d=zero,
        d_e=zero,
        e_e=law.squared_gain * (weights @ opened.slope**2),
    )
    return _Expectations(
        law.complement,
        law.squared_complement,
        law.gain * first,
        law.eigenvalue_gain * first,
        law.squared_gain * second,
        parameters,
    )


@dataclass(frozen=True)
class _MeanResponse:
    """E[h|x] and E[s|x], a recurrence with the means m₁, E γ, E d and E e for λ, γ, λ' and γ'.

    A tone off resonance moves a slow state little, and the sums above would cancel. What is left of
    a second moment is that of the fluctuations about this mean, which obey the same equations with
    covariances in the place of products.

    Attributes:
        of: the expectations.
        f: E h² of the mean at γ = 1.
        c: E hs by λ there.
        s: E s² by λ there.
    """

    of: _Expectations
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
        return _covariance(2 * complement - self.of.squared_complement, complement**2, complement)

    @property
    def _gain_covariance(self) -> Array:
        return _covariance(self.of.eigenvalue_gain, (1 - self.of.complement) * self.of.gain)

    def fluctuation(self, a: Array) -> Array:
        """(1-m₂) times what the fluctuations add to E h²."""
        squared = _covariance(self.of.squared_gain, self.of.gain**2)
        return self._variance * self.held + 2 * self._gain_covariance * a + squared

    def parameter(
        self, p: _Parameter, a: Array, y: Array, fluctuation: Array, below: Array
    ) -> tuple[Array, Array]:
        """E hs and E s² of a parameter."""
        gain, m1 = self.of.gain, 1 - self.of.complement
        cross = gain * (p.d * gain * self.c + p.e * self.f)
        squared = (p.d * gain) ** 2 * self.s + 2 * p.d * gain * p.e * self.c + p.e**2 * self.f
        by_d = _covariance(p.eigenvalue_d, m1 * p.d)
        by_e = _covariance(p.eigenvalue_e, m1 * p.e)
        off = (
            self._variance * cross
            + p.eigenvalue_d * fluctuation
            + by_d * self.held
            + (by_e + _covariance(p.gain_d, gain * p.d)) * a
            + self._gain_covariance * y
            + _covariance(p.gain_e, gain * p.e)
        ) / below
        off_squared = (
            self._variance * squared
            + 2 * (p.eigenvalue_d * off + by_d * cross)
            + p.d_d * fluctuation
            + _covariance(p.d_d, p.d**2) * self.held
            + 2 * (by_e * y + _covariance(p.d_e, p.d * p.e) * a)
            + _covariance(p.e_e, p.e**2)
        ) / below
        return cross + off, squared + off_squared


def _covariance(product: Array, means: Array, scale: Array | None = None) -> Array:
    """E[ab] - E[a] E[b], and 0 where only rounding is left."""
    xp = array_namespace(product)
    found = product - means
    rounding = ROUNDING * xp.abs(product if scale is None else scale)
    return xp.where(xp.abs(found) <= rounding, 0.0, found)


def _mean_response(of: _Expectations, part: Decay, stable: Array) -> _MeanResponse:
    xp = array_namespace(of.gain)
    log = xp.log1p(-xp.where(stable, of.complement, 0.5))
    alone = Autocorrelation((1.0,), (part.rho,), (part.frequency,))
    found = moments(log, alone)
    return _MeanResponse(of, found.second_moment, xp.real(found.cross_moment), found.sensitivity)


def _moments(of: _Expectations, autocorrelation: Autocorrelation) -> GatedMoments:
    xp = array_namespace(of.gain)
    stable = of.squared_complement > 0
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
        mean = None if part.frequency == 0 or part.rho == 0 else _mean_response(of, part, stable)
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
