"""Expectations of products of a gate's λ and γ and of their derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from memcurse_cli.theory.gate_laws import GateLaw, GateValues, Motion, Write
from memcurse_cli.theory.gaussian_gates import Preactivation, at_nodes, normal_nodes
from memcurse_cli.theory.namespace import array_namespace
from memcurse_cli.theory.soft_cap import Exponential

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
