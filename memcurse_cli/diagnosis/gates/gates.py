"""What input-dependent gates do when they move: bands of λ, and the theory of i.i.d. gates.

Where bands of gates are taken, and figures of gates that move beside those at their bias.

The band of gates that see the state of their own unit.

The band of an eigenvalue that turns as it decays, and E|h|² of i.i.d. gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.gates.fixed_point import held_states, preactivation
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.gate_inputs import (
    GateInput,
    NoDrive,
    OwnStateDrive,
    TurningDrive,
    TwoGateDrive,
)
from memcurse_cli.families.reading import time_constants
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence
from memcurse_cli.schema.figures import quantiles
from memcurse_cli.schema.gates import GateBand, GateFigure, GateParameter, GateSummary
from memcurse_cli.theory.gates.laws import LOGISTIC, GateLaw
from memcurse_cli.theory.gates.moments import GatedMoments, gated_moments
from memcurse_cli.theory.gates.quadrature import Preactivation
from memcurse_cli.theory.gates.trapezoid_moments import MOST_TERMS as MOST_TERMS_OF_THREE
from memcurse_cli.theory.gates.trapezoid_moments import terms_of_three, trapezoid_moments
from memcurse_cli.theory.gates.turning_bands import radius_quantiles
from memcurse_cli.theory.gates.turning_gates import turning_second_moment
from memcurse_cli.theory.gates.two_gate_bands import TwoPreactivations, log_rate_quantiles
from memcurse_cli.theory.gates.two_gate_moments import MOST_TERMS, terms_of, two_gate_moments

Floats = NDArray[np.float64]

BANDS = ((0.05, -1.6448536), (0.1587, -1.0), (0.8413, 1.0), (0.95, 1.6448536))
"""The share of a Gaussian that lies below, and where, in standard deviations."""


def bands_of(moduli: Floats, complements: Floats) -> tuple[GateBand, ...]:
    """From |λ| and 1 - |λ| of every unit at the shares of `BANDS`, each (4, n)."""
    return tuple(
        GateBand(share, quantiles(modulus), quantiles(_time_constants(modulus, complement)))
        for (share, _), modulus, complement in zip(BANDS, moduli, complements, strict=True)
    )


def figure(nominal: Floats, moving: Floats) -> GateFigure:
    """Both and their ratio, of every element."""
    both = np.isinf(nominal) & np.isinf(moving)
    with np.errstate(invalid="ignore"):
        ratio = quotient(moving, nominal, nothing=1.0)
    return GateFigure(quantiles(nominal), quantiles(moving), quantiles(np.where(both, 1.0, ratio)))


def quotient(above: Floats, below: Floats, *, nothing: float) -> Floats:
    """above / below; inf where only below is 0, and ``nothing`` where both are."""
    alive = below > 0
    beyond = np.where(above > 0, np.inf, nothing)
    return np.where(alive, above / np.where(alive, below, 1.0), beyond)


def _time_constants(modulus: Floats, complement: Floats) -> Floats:
    """-1/log λ, from 1 - λ where λ is close to 1."""
    with np.errstate(divide="ignore"):
        log = np.where(complement < 0.5, np.log1p(-np.minimum(complement, 0.5)), np.log(modulus))
    return time_constants(log)


def summarise_own_state_gates(drive: OwnStateDrive, settings: Settings) -> GateSummary:
    """|λ| is taken as the gate σ(z) that keeps the state, and z as drawn."""
    drawn = drive.draw(settings.input_scale**2)
    places = np.quantile(drawn.preactivation, [share for share, _ in BANDS], axis=0)
    opened = drive.opening(places)
    return GateSummary(
        input_scale=settings.input_scale,
        sees=drive.sees,
        spread=quantiles(drawn.preactivation.std(axis=0)),
        hidden_second_moment=drawn.shown,
        bands=bands_of(opened.value, opened.complement),
        reason=drive.reason,
    )


ANGLE_AT_ZERO = (
    "E|dλ/db|² is infinite where a = W x + b can come near 0, since dλ/db grows as 1/|a|"
)


def summarise_turning_gates(drive: TurningDrive, settings: Settings) -> GateSummary:
    """The gates under inputs of the scale that was asked for; σ_z is that of both parts of a."""
    scale = settings.input_scale**2
    gates = drive.gates(scale)
    radii = radius_quantiles(gates, tuple(share for share, _ in BANDS))
    opened = LOGISTIC(radii)
    nominal, moving = (
        turning_second_moment(at, settings.autocorrelation) for at in (gates.still, gates)
    )
    return GateSummary(
        input_scale=settings.input_scale,
        sees=drive.sees,
        spread=quantiles(drive.spreads(scale)),
        bands=bands_of(opened.value, opened.complement),
        second_moment=figure(nominal, moving),
        reason=ANGLE_AT_ZERO,
    )


UNKNOWN = "the family does not say what drives its gates, or their weights are not in the file"
TOO_WIDE = "for gates this wide the sums take more than {most:.1e} terms, units times nodes"
LARGEST_ALIGNMENT = 0.05
"""Squared correlation of angles and steps, beyond which κ can be off by more than 7 %."""
ALIGNED = "a state turns by angles that are correlated with the steps, which the sums leave out"
GROWS = "the state that its gates see grows without bound under inputs of this scale"


def summarise_gates(recurrence: Recurrence, settings: Settings) -> GateSummary | None:
    """The gates of one layer under inputs of the scale that was asked for; None if not asked."""
    if not settings.gates or not recurrence.input_dependent:
        return None
    drive = recurrence.gate
    if drive is None:
        return GateSummary(settings.input_scale, reason=UNKNOWN)
    if isinstance(drive, NoDrive):
        return GateSummary(settings.input_scale, reason=drive.reason)
    if isinstance(drive, TwoGateDrive):
        return _of_two(drive, recurrence, settings)
    if isinstance(drive, OwnStateDrive):
        return summarise_own_state_gates(drive, settings)
    if isinstance(drive, TurningDrive):
        return summarise_turning_gates(drive, settings)
    held = held_states(drive, settings)
    if held is None:
        return GateSummary(settings.input_scale, reason=GROWS)
    gate = preactivation(drive.gate, settings, held)
    summary = GateSummary(
        input_scale=settings.input_scale,
        sees=drive.sees,
        spread=quantiles(gate.spread),
        hidden_second_moment=held.shown,
        bands=_bands(drive.law, gate),
    )
    write = None if drive.write_gate is None else preactivation(drive.write_gate, settings, held)
    still = _held_at_bias(drive.gate)
    still_write = None if drive.write_gate is None else _held_at_bias(drive.write_gate)
    nominal, moving = (
        gated_moments(law, at, settings.autocorrelation, factor, written)
        for law, at, factor, written in (
            (drive.nominal or drive.law, still, drive.write and drive.write.nominal, still_write),
            (drive.law, gate, drive.write, write),
        )
    )
    return replace(
        summary,
        second_moment=figure(nominal.second_moment, moving.second_moment),
        parameters=_parameters(recurrence, drive.motions, nominal, moving),
    )


def _held_at_bias(gate: GateInput) -> Preactivation:
    return Preactivation(gate.bias, np.zeros_like(gate.bias))


def _of_two(drive: TwoGateDrive, recurrence: Recurrence, settings: Settings) -> GateSummary:
    """The same of a layer whose λ two pre-activations move; σ_z is that of both."""
    gates = drive.gates(settings.input_scale**2)
    spreads = np.concatenate([gates.first.spread, gates.second.spread])
    # λ falls where -log λ rises.
    log_rates = log_rate_quantiles(drive.law, gates, [1 - share for share, _ in BANDS])
    with np.errstate(over="ignore"):
        bands = tuple(
            GateBand(share, quantiles(np.exp(-np.exp(at))), quantiles(np.exp(-at)))
            for (share, _), at in zip(BANDS, log_rates, strict=True)
        )
    summary = GateSummary(
        input_scale=settings.input_scale,
        sees=drive.sees,
        spread=quantiles(spreads),
        bands=bands,
        reason=drive.reason,
    )
    found = _moments_of_two(drive, gates, settings)
    if found is None or isinstance(found, str):
        return summary if found is None else replace(summary, reason=found)
    nominal, moving = found
    held = figure(nominal.second_moment, moving.second_moment)
    if drive.trapezoid is not None:
        aligned = float(np.max(drive.trapezoid.alignment, initial=0.0)) > LARGEST_ALIGNMENT
        if aligned:
            # The size of a state that a white drive leaves does not depend on how it turns.
            white = settings.autocorrelation.is_white
            return replace(summary, second_moment=held if white else None, reason=ALIGNED)
    return replace(
        summary,
        second_moment=held,
        parameters=_parameters(recurrence, drive.motions, nominal, moving),
    )


def _moments_of_two(
    drive: TwoGateDrive, gates: TwoPreactivations, settings: Settings
) -> tuple[GatedMoments, GatedMoments] | str | None:
    """With gates that stand still and that move, a reason why not, or None where the drive has it.

    A trapezoidal step has a third gate, and an input that comes in with those of two steps.
    """
    drives = settings.autocorrelation
    if drive.trapezoid is not None:
        law, three = drive.trapezoid.law, drive.trapezoid.gates(gates, settings.input_scale**2)
        if not terms_of_three(law, three, drives) <= MOST_TERMS_OF_THREE:
            return TOO_WIDE.format(most=MOST_TERMS_OF_THREE)
        return trapezoid_moments(law, three.still, drives), trapezoid_moments(law, three, drives)
    if drive.values is None:
        return None
    if not terms_of(gates) <= MOST_TERMS:
        return TOO_WIDE.format(most=MOST_TERMS)
    values = drive.values
    return two_gate_moments(values, gates.still, drives), two_gate_moments(values, gates, drives)


def _parameters(
    recurrence: Recurrence,
    motions: Mapping[str, tuple[str, float | Floats]],
    nominal: GatedMoments,
    moving: GatedMoments,
) -> tuple[GateParameter, ...]:
    """κ of every group that moves λ or γ."""
    return tuple(
        GateParameter(
            group.name,
            group.tensor,
            figure(*(_relative(group, motions[group.name], of) for of in (nominal, moving))),
        )
        for group in recurrence.parameters
        if group.name in motions
    )


def _bands(law: GateLaw, gate: Preactivation) -> tuple[GateBand, ...]:
    """λ moves one way with z, so that its quantiles are λ at those of z."""
    ends = [law(gate.mean + place * gate.spread) for _, place in BANDS]
    moduli = np.array([values.eigenvalue for values in ends])
    complements = np.array([values.complement for values in ends])
    order = np.argsort(-complements, axis=0, kind="stable")
    moduli = np.take_along_axis(moduli, order, axis=0)
    complements = np.take_along_axis(complements, order, axis=0)
    return bands_of(moduli, complements)


def _relative(
    group: ParameterGroup, motion: tuple[str, float | Floats], moments: GatedMoments
) -> Floats:
    """κ of every scalar of a group; the squares of the states that a tied scalar moves add."""
    parameter, factor = motion
    index = group.eigenvalue
    moved = factor**2 * moments.sensitivities[parameter][index]
    held = moments.second_moment[index]
    infinite = np.bincount(group.scalar, np.isinf(moved), group.size) > 0
    relative = quotient(_total(group, moved), _total(group, held), nothing=0.0)
    return np.where(infinite, np.inf, relative)


def _total(group: ParameterGroup, values: Floats) -> Floats:
    """The sum of what each scalar moves, of what is finite."""
    finite = np.where(np.isinf(values), 0.0, values)
    return np.bincount(group.scalar, finite, group.size).astype(np.float64)
