"""The largest learning rate that training is expected to bear, by measured constants.

Two things end training as the rate grows, and they are told apart. Where a step can push
eigenvalues out of the unit disk, the loss *diverges*; where it cannot, the output changes by as
much as itself in every step and the loss *stalls*. docs/verdict.md has the runs behind the
constants, and how often the rates that follow were right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import direction, effect_rate
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.schema.figures import HessianSummary, ParameterSummary, Verdict, quantiles
from memcurse_cli.schema.report import LayerReport, UsableRate
from memcurse_cli.theory.sensitivity import EigenvalueShift, dense_shift, diagonal_shift

ALIGNMENT = 0.5
"""How far the signs of an Adam step pull one way: half-way, in the logarithm, between
independent signs and signs in concert."""

DIVERGENCE_EFFECT = 1.2
"""lr √κ(λ) times an eigenvalue's shift per unit of the step, at which training diverges."""

STALL_EFFECT = 2.3
"""lr √(tr H / E y²), the relative change of the output, at which training stalls."""

FACTOR = 3.0
"""Within which the measured rates were of the predicted ones, in four setups of five."""


def usable_rate(
    recurrence: Recurrence, hessian: HessianSummary | None, settings: Settings
) -> UsableRate:
    """The largest usable learning rate of a layer, and what ends training beyond it."""
    reason = _reason(recurrence, settings)
    if reason is not None:
        return UsableRate(None, None, reason)
    divergence = _divergence_rate(recurrence, settings)
    stall = _stall_rate(hessian, settings)
    if divergence is None and stall is None:
        return UsableRate(None, None, "the readout of the layer is not known")
    if stall is None or (divergence is not None and divergence <= stall):
        return UsableRate(divergence, "divergence")
    return UsableRate(stall, "stall")


def rate_verdict(usable: UsableRate, settings: Settings) -> Verdict:
    """Cursed at a rate that training diverged at, to be watched within the uncertainty below it."""
    if usable.rate is None or settings.learning_rate * FACTOR <= usable.rate:
        return "ok"
    if usable.limited_by == "divergence" and settings.learning_rate > usable.rate:
        return "cursed"
    return "watch"


def settled(
    parameter: ParameterSummary,
    usable: UsableRate,
    hessian: HessianSummary | None,
    settings: Settings,
) -> ParameterSummary:
    """A group whose steps only turn angles, judged by the usable rate where the output is known.

    What such a step does to single states says little then: in the measured runs the best rates
    moved the state of one eigenvalue in a hundred by several times itself. Its largest rate is the
    usable one then, where that is above the rate of its own step effect.
    """
    decided = parameter.direction == "decorrelating" and hessian is not None
    if not decided or usable.rate is None:
        return parameter
    if parameter.max_lr is not None:
        parameter = replace(parameter, max_lr=max(parameter.max_lr, usable.rate))
    if parameter.verdict == "ok":
        return parameter
    verdict: Verdict = "ok" if rate_verdict(usable, settings) == "ok" else "watch"
    return replace(parameter, verdict=verdict)


def advised(
    parameter: ParameterSummary, usable: UsableRate | None, settings: Settings
) -> float | None:
    """The learning rate to stay below on account of a group.

    That of its own step effect, unless the measured rate says otherwise: lower where training
    would diverge before, and higher where steps only turn angles and the output is known.
    """
    watch = parameter.verdict == "watch"
    limit = settings.watch_limit if watch else settings.cursed_limit
    own = effect_rate(parameter, limit, settings)
    if usable is None or usable.rate is None:
        return own
    if usable.limited_by == "divergence":
        return usable.rate if own is None else min(own, usable.rate)
    return usable.rate / FACTOR if parameter.direction == "decorrelating" else own


def smallest_rate(layers: Iterable[LayerReport]) -> float | None:
    """The usable rate of several layers, the smallest of theirs; None where none is known."""
    rates = [layer.usable_rate.rate for layer in layers if layer.usable_rate is not None]
    return min((rate for rate in rates if rate is not None), default=None)


def _reason(recurrence: Recurrence, settings: Settings) -> str | None:
    """Why nothing that was measured applies to the layer, or None where it does."""
    if recurrence.input_dependent:
        return "it was measured on recurrences that do not depend on the input"
    of_matrix = "linear" if recurrence.dense is None else recurrence.dense.activation
    if (of_matrix, recurrence.activation) != ("linear", "linear"):
        return "it was measured on linear recurrences"
    if settings.horizon is None:
        return "it was measured on sequences that end: give --horizon T"
    return None


def _divergence_rate(recurrence: Recurrence, settings: Settings) -> float | None:
    """`DIVERGENCE_EFFECT` over the p99 of √κ(λ) times the shift; None without such a group."""
    logs = recurrence.log_eigenvalues
    if recurrence.dense is not None:
        basis = recurrence.eigenbasis
        logs = basis.logs
        shift = dense_shift(basis)
        shift = EigenvalueShift(*(recurrence.dense.scale * part for part in shift))
    else:
        groups = [
            group
            for group in recurrence.parameters
            if direction(recurrence, group) == "destabilising"
        ]
        if not groups:
            return None
        shift = diagonal_shift(recurrence.size, groups)
    moment = settings.moments_of(logs)
    with np.errstate(invalid="ignore", over="ignore"):
        effect = np.sqrt(moment.sensitivity / moment.second_moment) * shift.aligned(ALIGNMENT)
    worst = quantiles(np.where(np.isnan(effect), np.inf, effect)).p99
    return None if not worst else DIVERGENCE_EFFECT / worst


def _stall_rate(hessian: HessianSummary | None, settings: Settings) -> float | None:
    """`STALL_EFFECT` over √(tr H / E y²)."""
    effect = None if hessian is None else hessian.output_step_effect
    if not effect or not math.isfinite(effect):
        return None
    return STALL_EFFECT * settings.learning_rate / effect
