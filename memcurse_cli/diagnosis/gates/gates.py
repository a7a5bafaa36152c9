"""What input-dependent gates do when they move: bands of λ, and the theory of i.i.d. gates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.gates.fixed_point import held_states, preactivation
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.gate_inputs import (
    GateDrive,
    GateInput,
    JointDrive,
    NoDrive,
    OwnStateDrive,
)
from memcurse_cli.families.reading import time_constants
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence
from memcurse_cli.schema.figures import quantiles
from memcurse_cli.schema.layer import GateBand, GateFigure, GateParameter, GateSummary
from memcurse_cli.theory.gates.draw import drawn_gates, relative_error, run_own_states
from memcurse_cli.theory.gates.laws import GateLaw
from memcurse_cli.theory.gates.moments import GatedMoments, gated_moments
from memcurse_cli.theory.gates.quadrature import Preactivation

Floats = NDArray[np.float64]

SHARES = (0.05, 0.1587, 0.8413, 0.95)
PLACES = (-1.6448536, -1.0, 1.0, 1.6448536)
"""Where these shares of a Gaussian lie below, in standard deviations."""

UNKNOWN = "the family does not say what drives its gates, or their weights are not in the file"
GROWS = "the state that its gates see grows without bound under inputs of this scale"


def summarise_gates(recurrence: Recurrence, settings: Settings) -> GateSummary | None:
    """The gates of one layer under inputs of the scale that was asked for; None if not asked."""
    if not settings.gates or not recurrence.input_dependent:
        return None
    drive = recurrence.gate
    if isinstance(drive, GateDrive):
        return _of_one(drive, recurrence, settings)
    if isinstance(drive, JointDrive):
        return _of_several(drive, recurrence, settings)
    if isinstance(drive, OwnStateDrive):
        return _of_own_states(drive, settings)
    reason = drive.reason if isinstance(drive, NoDrive) else UNKNOWN
    return GateSummary(settings.input_scale, reason=reason)


def _of_one(drive: GateDrive, recurrence: Recurrence, settings: Settings) -> GateSummary:
    """Gates of one pre-activation, by quadrature."""
    held = held_states(drive, settings)
    if held is None:
        return GateSummary(settings.input_scale, reason=GROWS)
    gate = preactivation(drive.gate, settings, held)
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
    return GateSummary(
        input_scale=settings.input_scale,
        sees=drive.sees,
        spread=quantiles(gate.spread),
        hidden_second_moment=held.shown,
        bands=_bands(*_at_places(drive.law, gate)),
        second_moment=_figure(nominal.second_moment, moving.second_moment),
        parameters=_parameters(recurrence, drive.motions, nominal, moving),
    )


def _held_at_bias(gate: GateInput) -> Preactivation:
    return Preactivation(gate.bias, np.zeros_like(gate.bias))


def _at_places(law: GateLaw, gate: Preactivation) -> tuple[Floats, Floats]:
    """λ and 1 - λ at the quantiles of z, with which λ moves one way."""
    ends = [law(gate.mean + place * gate.spread) for place in PLACES]
    moduli = np.array([values.eigenvalue for values in ends])
    complements = np.array([values.complement for values in ends])
    order = np.argsort(-complements, axis=0, kind="stable")
    return np.take_along_axis(moduli, order, axis=0), np.take_along_axis(complements, order, axis=0)


def _of_several(drive: JointDrive, recurrence: Recurrence, settings: Settings) -> GateSummary:
    """Gates of several pre-activations, drawn; σ_z is that of the two that move |λ|."""
    gates = drive.preactivations(settings.input_scale**2)
    parameters = list(dict.fromkeys(parameter for parameter, _ in drive.motions.values()))
    nominal, moving = (
        drawn_gates(
            drive.law,
            at,
            settings.autocorrelation,
            SHARES,
            parameters=parameters,
            kinds=drive.kinds,
        )
        for at in (gates.still, gates)
    )
    given = settings.autocorrelation.is_white or not drive.white_alone
    return GateSummary(
        input_scale=settings.input_scale,
        sees=drive.sees,
        spread=quantiles(gates.spread[:: len(drive.kinds), :2].ravel()),
        bands=_bands(np.exp(moving.log_moduli), -np.expm1(moving.log_moduli)),
        second_moment=_figure(nominal.moments.second_moment, moving.moments.second_moment)
        if given
        else None,
        parameters=_parameters(recurrence, drive.motions, nominal.moments, moving.moments),
        reason=drive.reason,
        sampling_error=moving.error,
    )


def _of_own_states(drive: OwnStateDrive, settings: Settings) -> GateSummary:
    """The band of gates that ran; |λ| is taken as the gate σ(z) that keeps the state."""
    z, shown = run_own_states(
        lambda held: drive.preactivations(settings.input_scale**2, held),
        drive.step,
        drive.projection,
    )
    opened = drive.opening(np.quantile(z, SHARES, axis=(0, 1)))
    of_chains = drive.opening(np.quantile(z, SHARES, axis=1).swapaxes(0, 1))
    of_median = np.median(_time_constants(of_chains.value, of_chains.complement), axis=-1)
    return GateSummary(
        input_scale=settings.input_scale,
        sees=drive.sees,
        spread=quantiles(z.std(axis=(0, 1))),
        hidden_second_moment=shown,
        bands=_bands(opened.value, opened.complement),
        reason=drive.reason,
        sampling_error=float(np.max(relative_error(of_median))),
    )


def _bands(moduli: Floats, complements: Floats) -> tuple[GateBand, ...]:
    """From |λ| and 1 - |λ| of every unit at `SHARES`, each (4, n)."""
    return tuple(
        GateBand(share, quantiles(modulus), quantiles(_time_constants(modulus, complement)))
        for share, modulus, complement in zip(SHARES, moduli, complements, strict=True)
    )


def _time_constants(modulus: Floats, complement: Floats) -> Floats:
    """-1/log λ, from 1 - λ where λ is close to 1."""
    with np.errstate(divide="ignore"):
        log = np.where(complement < 0.5, np.log1p(-np.minimum(complement, 0.5)), np.log(modulus))
    return time_constants(log)


def _figure(nominal: Floats, moving: Floats) -> GateFigure:
    """Both and their ratio, of every element."""
    both = np.isinf(nominal) & np.isinf(moving)
    with np.errstate(invalid="ignore"):
        ratio = _quotient(moving, nominal, nothing=1.0)
    return GateFigure(quantiles(nominal), quantiles(moving), quantiles(np.where(both, 1.0, ratio)))


def _quotient(above: Floats, below: Floats, *, nothing: float) -> Floats:
    """above / below; inf where only below is 0, and ``nothing`` where both are."""
    alive = below > 0
    beyond = np.where(above > 0, np.inf, nothing)
    return np.where(alive, above / np.where(alive, below, 1.0), beyond)


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
            _figure(*(_relative(group, motions[group.name], of) for of in (nominal, moving))),
        )
        for group in recurrence.parameters
        if group.name in motions
    )


def _relative(
    group: ParameterGroup, motion: tuple[str, float | Floats], moments: GatedMoments
) -> Floats:
    """κ of every scalar of a group; the squares of the states that a tied scalar moves add."""
    parameter, factor = motion
    index = group.eigenvalue
    moved = factor**2 * moments.sensitivities[parameter][index]
    held = moments.second_moment[index]
    infinite = np.bincount(group.scalar, np.isinf(moved), group.size) > 0
    relative = _quotient(_total(group, moved), _total(group, held), nothing=0.0)
    return np.where(infinite, np.inf, relative)


def _total(group: ParameterGroup, values: Floats) -> Floats:
    """The sum of what each scalar moves, of what is finite."""
    finite = np.where(np.isinf(values), 0.0, values)
    return np.bincount(group.scalar, finite, group.size).astype(np.float64)
