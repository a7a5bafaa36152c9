"""From a sensitivity to the learning rate that training bears, and what ends training beyond it.

Where a step can push eigenvalues out of the unit disk, the loss *diverges*; where it cannot, the
output changes by as much as itself in every step and the loss *stalls*. A cell without a closed
form is run, and ends where a step costs it its stability. docs/verdict.md has the runs behind the
constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence
from memcurse_cli.schema.figures import Direction, HessianSummary, quantiles
from memcurse_cli.schema.report import UsableRate, known_rate
from memcurse_cli.schema.simulation import Simulation
from memcurse_cli.wording import about

# How far Adam's signs pull one way: half-way, in log, from independent to in concert.
ALIGNMENT = 0.5
# lr √κ(λ) times an eigenvalue's shift per unit of the step, at which training diverges.
DIVERGENCE_EFFECT = 1.2
STALL_EFFECT = 2.3  # lr √(tr H / E y²), the relative change of the output, at which it stalls


class Rule(NamedTuple):
    """What the networks of a family bore, over the rate at which a step ends their stability."""

    share: float  # the median
    low: float  # the 10 and 90 % quantiles, as multiples of it
    high: float


class Borne(NamedTuple):
    """The rates that the networks of a family bore, where their weights do not tell which."""

    rate: float  # the median
    low: float  # the 10 and 90 % quantiles
    high: float


RULES: Mapping[str, Rule | Borne] = {
    "initial GRU": Rule(0.153, 0.215, 1.52),
    "trained GRU": Borne(0.0464, 0.0185, 0.0464),
    "initial LSTM": Borne(0.0464, 0.0158, 0.0631),
    "trained LSTM": Rule(0.0501, 0.396, 1.52),
    "initial tanh": Rule(0.02, 0.495, 2.92),
    "trained tanh": Rule(0.0208, 0.437, 2.82),
}
"""By the cell, and whether its weights are as an initialiser left them or trained."""

MEMORIES = 3
"""A run of so many memories shows what one of the whole horizon would."""

MOST_GROWTH = 3.5
"""The largest Λ₁ T of the networks that were measured."""

UNMEASURED = ", where no usable rate was measured"


def step_effect(relative_sensitivity: float | None, learning_rate: float) -> float | None:
    """lr √κ: the state's relative change by an adaptive optimizer's step, about lr a parameter."""
    return None if relative_sensitivity is None else learning_rate * math.sqrt(relative_sensitivity)


def direction(
    recurrence: Recurrence, group: ParameterGroup, learning_rate: float = 0.0
) -> Direction:
    """What a step on a group does to the eigenvalues that it moves.

    *destabilising*: it changes |λ| and the parametrisation lets |λ| pass 1. *decorrelating*: it
    mostly turns the angle, which scrambles what the state holds and takes no |λ| past 1.
    *scaling*: it changes the gain, or a modulus that cannot leave the unit disk.

    Where nothing keeps |λ| < 1, λ is taken at ω ± lr too: a step on Im λ of a real λ leaves |λ|
    as it is to first order only, |λ'|² = λ² + lr².
    """
    derivative = group.eigenvalue_derivative
    stable = recurrence.stable_by_construction or recurrence.unitary or group.keeps_stable
    if stable and not (np.any(derivative.imag) or np.any(recurrence.log_eigenvalues.imag)):
        return "scaling"
    eigenvalue = np.exp(recurrence.log_eigenvalues[group.eigenvalue])
    turned = derivative * np.conj(eigenvalue)
    radial, tangential = np.abs(turned.real), np.abs(turned.imag)
    # |λ'| |λ| is the scale at which rounding leaves a purely tangential change slightly radial.
    moves_modulus = bool(np.any(radial > 1e-12 * np.abs(turned)))
    ends = np.abs(eigenvalue + learning_rate * np.array([derivative, -derivative]))
    if not stable and (moves_modulus or np.any((ends >= 1) & (derivative != 0))):
        return "destabilising"
    # Near the unit circle a change counts 1/(1-|λ|)²; there the question is decided.
    decay = np.maximum(-recurrence.log_eigenvalues[group.eigenvalue].real, 1e-300)
    weight = np.minimum(1 / decay, 1e150)
    if np.sum((tangential * weight) ** 2) > np.sum((radial * weight) ** 2):
        return "decorrelating"
    return "scaling"


def rate_when_run(
    recurrence: Recurrence,
    ran: Simulation | None,
    not_run: str | None,
    withheld: str | None,
    settings: Settings,
) -> UsableRate:
    """The largest usable learning rate of a layer without a closed form, by what it did when run.

    ``lr = c lr_stability``, the rate at which a step of random signs on all entries of all tensors
    of the cell ends its stability, with the c of `RULES`. Where ``ran`` is None, ``not_run`` says
    why; of a cell that was not measured ``withheld`` says why no linear figure holds.
    """
    dynamics = recurrence.dynamics
    if dynamics is None or not dynamics.plain:
        return UsableRate(None, None, withheld or _unmeasured(recurrence))
    reason = _beyond_measurement(settings)
    if reason is not None or ran is None:
        return UsableRate(None, None, reason or not_run or "it was not run")
    measured_on = f"{'initial' if dynamics.initial else 'trained'} {dynamics.plain}"
    rule, horizon = RULES[measured_on], settings.horizon or 0
    if isinstance(rule, Borne):
        bore = "{} ({} to {})".format(*map(about, rule))
        reason = f"its weights do not tell its rate, and {measured_on} networks bore {bore}"
        return UsableRate(None, None, reason)
    memory = horizon if ran.memory is None else MEMORIES * ran.memory.value
    if ran.steps < min(horizon, memory):
        return UsableRate(None, None, f"it was run for {ran.steps} steps only (--simulate)")
    if ran.exponent is not None and ran.exponent.value * horizon > MOST_GROWTH:
        return UsableRate(None, None, "on such inputs it is chaotic (give yours with --inputs)")
    if not ran.stability_rate:
        return UsableRate(None, None, "no step on it is small enough to leave it stable")
    bears = rule.share * ran.stability_rate
    return known_rate(bears, "instability", (rule.low, rule.high), measured_on)


def usable_rate(
    recurrence: Recurrence,
    hessian: HessianSummary | None,
    hessian_reason: str | None,
    settings: Settings,
) -> UsableRate:
    """The largest usable learning rate of a layer, and what ends training beyond it.

    A group that no step may make diverge, as one of an LRU, has none where its Hessian, and with
    it the change of the output, is not known for ``hessian_reason``.
    """
    reason = _unmeasured(recurrence) or _beyond_measurement(settings)
    if reason is not None:
        return UsableRate(None, None, reason)
    divergence = _divergence_rate(recurrence, settings)
    if divergence == 0:
        reason = "the state explodes within the horizon"
        if recurrence.dense is not None and not recurrence.eigenbasis.is_usable:
            reason = "its eigenvectors are nearly parallel: nothing bounds how far a step moves |λ|"
        return UsableRate(None, None, reason)
    effect = None if hessian is None else hessian.output_step_effect
    stall = STALL_EFFECT * settings.rate / effect if effect and math.isfinite(effect) else None
    if divergence is not None and (stall is None or divergence <= stall):
        return known_rate(divergence, "divergence")
    if stall is not None:
        return known_rate(stall, "stall")
    unknown = hessian_reason or "the size of the output was not taken"
    return UsableRate(None, None, f"the Hessian of its output is not known ({unknown})")


def _unmeasured(recurrence: Recurrence) -> str | None:
    """Why nothing that was measured applies to the layer, or None where it does."""
    if recurrence.hidden_feedback:
        return f"its gates see the hidden state{UNMEASURED}"
    if recurrence.input_dependent:
        return f"inputs move its gates{UNMEASURED}"
    of_matrix = "linear" if recurrence.dense is None else recurrence.dense.activation
    if (of_matrix, recurrence.activation) != ("linear", "linear"):
        return f"it has an activation between steps{UNMEASURED}"
    if recurrence.dense is None and not recurrence.parameters:
        return "nothing of the recurrence is trained"
    return None


def _beyond_measurement(settings: Settings) -> str | None:
    """Why what was measured does not apply to how it is trained, or None where it does."""
    if settings.adaptive is False:
        used = settings.optimizer or "another optimizer"
        return f"it is trained with {used}, and usable rates were measured with Adam"
    if settings.horizon is None:
        return f"its sequence has no end{UNMEASURED} (give --horizon T)"
    return None


def _divergence_rate(recurrence: Recurrence, settings: Settings) -> float | None:
    """`DIVERGENCE_EFFECT` over the p99 of √κ(λ) times the shift, 0 where that diverges.

    None without a group that could push an eigenvalue out of the unit disk.
    """
    logs, dense, groups = recurrence.log_eigenvalues, recurrence.dense, recurrence.parameters
    pushing = [one for one in groups if direction(recurrence, one) == "destabilising"]
    if dense is None and not pushing:
        return None
    from memcurse_cli.theory.sensitivity import EigenvalueShift, dense_shift, diagonal_shift

    if dense is None:
        shift = diagonal_shift(recurrence.size, pushing)
    else:
        logs, shift = recurrence.eigenbasis.logs, dense_shift(recurrence.eigenbasis)
        shift = EigenvalueShift(*(dense.scale * part for part in shift))
    moment = settings.moments_of(logs)
    with np.errstate(invalid="ignore", over="ignore"):
        effect = np.sqrt(moment.sensitivity / moment.second_moment) * shift.aligned(ALIGNMENT)
    highest = quantiles(np.where(np.isnan(effect), np.inf, effect)).p99
    if highest is None:
        return 0.0
    return DIVERGENCE_EFFECT / highest if highest else None
