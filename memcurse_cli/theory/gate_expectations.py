"""Expectations of products of a gate's λ and γ and of their derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple

from memcurse_cli.theory.gate_laws import GateLaw, GateValues, Motion, Openness, Write
from memcurse_cli.theory.gaussian_gates import Preactivation, at_nodes, normal_nodes
from memcurse_cli.theory.namespace import array_namespace

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
    nodes, weights = normal_nodes(write_gate.mean, write_gate.spread, write.opening.smooth)
    return _with_write(
        found, write.parameter, write(at_nodes(write_gate, nodes)), xp.asarray(weights)
    )


def expectations_of(values: GateValues, weights: Array) -> Expectations:
    """Those of a law's values (..., nodes), with the weights of the nodes."""
    eigenvalue, complement, gain = values.eigenvalue, values.complement, values.gain

    def parameter(motion: Motion) -> ParameterExpectations:
        d, e = motion
        products = (d, e, eigenvalue * d, eigenvalue * e, gain * d, gain * e, d * d, d * e, e * e)
        return ParameterExpectations(*(_mean(weights, product) for product in products))

    return Expectations(
        complement=_mean(weights, complement),
        squared_complement=_mean(weights, complement * (1 + eigenvalue)),
        gain=_mean(weights, gain),
        eigenvalue_gain=_mean(weights, eigenvalue * gain),
        squared_gain=_mean(weights, gain**2),
        parameters={name: parameter(motion) for name, motion in values.motions.items()},
    )


def _mean(weights: Array, values: Array) -> Array:
    """The sum over nodes, the first axis."""
    return array_namespace(values).tensordot(weights, values, axes=1)


def _with_write(law: Expectations, name: str, opened: Openness, weights: Array) -> Expectations:
    """γ k in place of γ, with an independent k: E of products of both are products of E."""
    first, second = _mean(weights, opened.value), _mean(weights, opened.value**2)
    parameters = {
        parameter: ParameterExpectations(
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
    slope = _mean(weights, opened.slope)
    parameters[name] = ParameterExpectations(
        d=zero,
        e=law.gain * slope,
        eigenvalue_d=zero,
        eigenvalue_e=law.eigenvalue_gain * slope,
        gain_d=zero,
        gain_e=law.squared_gain * _mean(weights, opened.value * opened.slope),
        d_d=zero,
        d_e=zero,
        e_e=law.squared_gain * _mean(weights, opened.slope**2),
    )
    return Expectations(
        law.complement,
        law.squared_complement,
        law.gain * first,
        law.eigenvalue_gain * first,
        law.squared_gain * second,
        parameters,
    )
