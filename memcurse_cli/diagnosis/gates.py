"""What input-dependent gates do when they move: bands of λ, and the theory of i.i.d. gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from memcurse_cli.diagnosis.diagonal import moving_storage
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.gate_inputs import (
    GateDrive,
    GateInput,
    HiddenState,
    JointDrive,
    NoDrive,
    OwnStateDrive,
)
from memcurse_cli.families.reading import time_constants
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence
from memcurse_cli.schema.figures import quantiles
from memcurse_cli.schema.layer import GateBand, GateFigure, GateParameter, GateSummary
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.gates.moments import (
    TANH,
    GatedMoments,
    Preactivation,
    averaged_variance,
    drawn_gates,
    gated_moments,
    mean_of,
    relative_error,
    run_own_states,
)
from memcurse_cli.theory.linalg import Floats
from memcurse_cli.theory.moments import Moments
from memcurse_cli.theory.sensitivity import group_sensitivity

SHARES = (0.05, 0.1587, 0.8413, 0.95)
# Where these shares of a Gaussian lie below, in standard deviations.
PLACES = (-1.6448536, -1.0, 1.0, 1.6448536)

ITERATIONS = 200
TOLERANCE = 1e-6
CLOSE = 1e-3  # what may be left after so many rounds
WIDEST_CELL = 30.0  # of c: beyond this standard deviation tanh²(c) = 1 within 3 %
LARGEST = 1e12  # a second moment beyond which a state is taken to grow without bound


def summarise_gates(recurrence: Recurrence, settings: Settings) -> GateSummary:
    """The gates of one input-dependent layer under inputs of the scale that was asked for."""
    drive = recurrence.gate
    if isinstance(drive, GateDrive):
        return _of_one(drive, recurrence, settings)
    if isinstance(drive, JointDrive):
        return _of_several(drive, recurrence, settings)
    if isinstance(drive, OwnStateDrive):
        return _of_own_states(drive, settings)
    reason = "the family does not say what drives its gates, or their weights are not in the file"
    if isinstance(drive, NoDrive):
        reason = drive.reason
    return GateSummary(settings.input_scale, reason=reason)


def _of_one(drive: GateDrive, recurrence: Recurrence, settings: Settings) -> GateSummary:
    """Gates of one pre-activation, by quadrature."""
    held = held_states(drive, settings)
    if held is None:
        grows = "the state that its gates see grows without bound under inputs of this scale"
        return GateSummary(settings.input_scale, reason=grows)
    gate, write = _moving(drive, settings, held)
    still_write = None if drive.write_gate is None else drive.write_gate.still
    still_factor = None if drive.write is None else drive.write.nominal
    law, under = drive.nominal or drive.law, settings.autocorrelation
    nominal = gated_moments(law, drive.gate.still, under, still_factor, still_write)
    moving = gated_moments(drive.law, gate, under, drive.write, write)
    # λ moves one way with z, so that its quantiles are those at the quantiles of z.
    ends = [drive.law(gate.mean + place * gate.spread) for place in PLACES]
    moduli = np.sort([one.eigenvalue for one in ends], axis=0)
    complements = np.sort([one.complement for one in ends], axis=0)[::-1]
    return GateSummary(
        input_scale=settings.input_scale,
        sees=drive.sees,
        spread=quantiles(gate.spread),
        hidden_second_moment=held.shown,
        bands=_bands(moduli, complements),
        second_moment=_figure(nominal.second_moment, moving.second_moment),
        parameters=_parameters(recurrence, drive.motions, nominal, moving),
        storage=moving_storage(moving, np.log1p(-complements[-1]), recurrence, settings),
    )


def _of_several(drive: JointDrive, recurrence: Recurrence, settings: Settings) -> GateSummary:
    """Gates of several pre-activations, drawn; σ_z is that of the two that move |λ|."""
    gates = drive.preactivations(settings.input_scale**2)
    under = settings.autocorrelation
    names = dict.fromkeys(name for name, _ in drive.motions.values())
    nominal, moving = (
        drawn_gates(drive.law, at, under, SHARES, parameters=names, kinds=drive.kinds)
        for at in (gates.still, gates)
    )
    second_moment = None
    if under.is_white or not drive.white_alone:
        second_moment = _figure(nominal.moments.second_moment, moving.moments.second_moment)
    return GateSummary(
        input_scale=settings.input_scale,
        sees=drive.sees,
        spread=quantiles(gates.spread[:: len(drive.kinds), :2].ravel()),
        bands=_bands(np.exp(moving.log_moduli), -np.expm1(moving.log_moduli)),
        second_moment=second_moment,
        parameters=_parameters(recurrence, drive.motions, nominal.moments, moving.moments),
        reason=drive.reason,
        sampling_error=moving.error,
        storage=moving_storage(moving.moments, moving.log_moduli[-1], recurrence, settings),
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
        sees="the layer's input",
        spread=quantiles(z.std(axis=(0, 1))),
        hidden_second_moment=shown,
        bands=_bands(opened.value, opened.complement),
        reason=drive.reason,
        sampling_error=float(np.max(relative_error(of_median))),
    )


class HeldStates(NamedTuple):
    """What the pre-activations of a layer see beside its input."""

    # the mean over units of the second moment that gates see of h; None where none sees it
    shown: float | None = None
    # that of what they show to the candidates, alike or of each of them
    taken: float | Floats = 0.0


def held_states(drive: GateDrive, settings: Settings) -> HeldStates | None:
    """How large states are that gates see: the fixed point that grows from a zero state, or None.

    The state takes in ``u = f(n)`` with ``n ~ N(b, ‖W‖² E x² + E r² ‖U‖² E h²)``, whose mean is a
    constant drive and the rest one of the input's autocorrelation:
    ``E h² = (E u)² M₁ + (E u² - (E u)²) M`` with M and M₁ the second moments for a drive of
    variance 1 of either kind. An LSTM shows ``σ(o) tanh(c)``, c of second moment E c² taken as
    Gaussian, and an sLSTM ``σ(o) c/n`` with M of `averaged_variance` and M₁ = 1. Where a candidate
    sees just what its gate sees, both are one function of it, and inputs are taken as independent
    in time. One value for all units: the mean over them, as the hidden weights see it.
    """
    if drive.state is None:
        return HeldStates()
    held = HeldStates(0.0)
    for _ in range(ITERATIONS):
        after = _seen(drive.state, _shown(drive, drive.state, settings, held))
        taken = np.asarray(after.taken)
        # Steps are bounded where |f| ≤ 1 and λ + γ ≤ 1; other states may grow for ever.
        if not np.max(taken) < LARGEST:
            return None
        change = np.max(np.abs(taken - held.taken) / (1 + taken))
        if change <= TOLERANCE:
            return after
        held = after
    return held if change <= CLOSE else None


def _moving(
    drive: GateDrive, settings: Settings, held: HeldStates
) -> tuple[Preactivation, Preactivation | None]:
    seen, write = (settings.input_scale**2, held.shown or 0.0), drive.write_gate
    return drive.gate.preactivation(*seen), None if write is None else write.preactivation(*seen)


def _shown(drive: GateDrive, state: HiddenState, settings: Settings, held: HeldStates) -> Floats:
    """(n,) the second moment of what every unit shows, given what was shown a round before."""
    scale = settings.input_scale**2

    def opened(gate: GateInput | None) -> Floats | float:
        """E σ(z)², 1 where there is no gate."""
        if gate is None:
            return 1.0
        z = gate.preactivation(scale, held.shown or 0.0)
        return np.asarray(mean_of(lambda z: state.opening(z).value ** 2, z, state.opening.smooth))

    mean, square = state.function.moments(
        state.candidate.preactivation(scale, held.taken * opened(state.reset))
    )
    variance = np.maximum(square - mean**2, 0.0)
    gate, write = _moving(drive, settings, held)
    under, one = settings.autocorrelation, Autocorrelation.from_rho(1.0)
    if state.written is not None:
        stored = np.asarray(gated_moments(state.written, gate, one).second_moment)
    elif state.averaged and drive.write is not None and write is not None:
        averaged = averaged_variance(drive.law, gate, drive.write, write, under)
        stored = mean**2 + variance * averaged
    else:
        of_one = replace(under, weights=tuple(weight / under.variance for weight in under.weights))
        varied, constant = (
            gated_moments(drive.law, gate, of, drive.write, write).second_moment
            for of in (of_one, one)
        )
        with np.errstate(invalid="ignore"):  # inf · 0 of a gate that never forgets
            stored = mean**2 * constant + variance * varied
        stored = np.where(np.isnan(stored), 0.0, stored)
    if state.output is None:
        return np.minimum(stored, 1.0) if state.convex and state.function.bounded else stored
    if not state.averaged:
        spread = np.minimum(np.sqrt(stored), WIDEST_CELL)
        stored = TANH.moments(Preactivation(np.zeros_like(spread), spread))[1]
    return stored * opened(state.output)


def _seen(state: HiddenState, shown: Floats) -> HeldStates:
    """The means over the units that are seen."""
    if state.cascade:
        first, second = (
            float(np.mean(some)) for some in (shown[: state.cascade], shown[state.cascade :])
        )
        taken = np.full(shown.size, first)
        taken[: state.cascade] = second
        return HeldStates(first, taken)
    mean = float(np.mean(shown))
    if state.projection is not None:
        mean *= float(np.mean(state.projection))
    return HeldStates(mean, mean)


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
    """Both and their ratio, of every element; inf where only the first is 0."""
    alive = nominal > 0
    with np.errstate(invalid="ignore"):
        ratio = np.where(alive, moving / np.where(alive, nominal, 1.0), np.inf)
    ratio = np.where(nominal == moving, 1.0, ratio)
    return GateFigure(quantiles(nominal), quantiles(moving), quantiles(ratio))


def _parameters(
    recurrence: Recurrence,
    motions: Mapping[str, tuple[str, float | Floats]],
    nominal: GatedMoments,
    moving: GatedMoments,
) -> tuple[GateParameter, ...]:
    """κ of every group that moves λ or γ."""
    found = []
    for group in recurrence.parameters:
        if group.name in motions:
            still, moved = (_relative(group, *motions[group.name], of) for of in (nominal, moving))
            found.append(GateParameter(group.name, group.tensor, _figure(still, moved)))
    return tuple(found)


def _relative(
    group: ParameterGroup, parameter: str, factor: float | Floats, moments: GatedMoments
) -> Floats:
    """κ of every scalar of a group, each of which moves a parameter of the gates ``factor`` times.

    What γ does is in the moments, those of λ and γ at once.
    """
    held = moments.second_moment
    unit = np.zeros(held.size, np.complex128)
    derivative = np.broadcast_to(factor, group.scalar.shape).astype(np.complex128)
    alone = replace(group, eigenvalue_derivative=derivative, log_gain_derivative=None)
    states = Moments(held, unit, moments.sensitivities[parameter])
    return group_sensitivity(states, unit, alone).relative_sensitivity
