"""From a sensitivity to a verdict, to the learning rate that training bears, and to a sentence.

Two things end training as the rate grows, and they are told apart. Where a step can push
eigenvalues out of the unit disk, the loss *diverges*; where it cannot, the output changes by as
much as itself in every step and the loss *stalls*. docs/verdict.md has the runs behind the
constants, and how often the rates that follow were right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.wording import count, duration, number, percent, rounded_down
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence
from memcurse_cli.schema.figures import (
    ORDER,
    Direction,
    HessianSummary,
    ParameterSummary,
    Verdict,
    diverges,
    parameter_rank,
    quantiles,
)
from memcurse_cli.schema.report import LayerReport, UsableRate

ALIGNMENT = 0.5
"""How far the signs of an Adam step pull one way: half-way, in the logarithm, between
independent signs and signs in concert."""

DIVERGENCE_EFFECT = 1.2
"""lr √κ(λ) times an eigenvalue's shift per unit of the step, at which training diverges."""

STALL_EFFECT = 2.3
"""lr √(tr H / E y²), the relative change of the output, at which training stalls."""

FACTOR = 3.0
"""Within which the measured rates were of the predicted ones, in four setups of five."""

CONSEQUENCE = {
    "destabilising": "and can leave the unit disk",
    "decorrelating": "by turning its angle: it scrambles what the state holds and takes no |λ| "
    "past 1",
    "scaling": "in scale",
}
REMEDY = {
    "destabilising": "reparametrise the modulus so that |λ| < 1 holds by construction",
    "decorrelating": "give it a lower learning rate of its own",
    "scaling": "give it a lower learning rate of its own",
}


def step_effect(relative_sensitivity: float | None, learning_rate: float) -> float | None:
    """lr √κ: the relative change of the state that one step on a parameter makes.

    An adaptive optimizer moves every parameter by about its learning rate per step.
    """
    return None if relative_sensitivity is None else learning_rate * math.sqrt(relative_sensitivity)


def max_learning_rate(relative_sensitivity: float | None, limit: float) -> float | None:
    """limit / √κ: the learning rate at which one step changes the state by the limit."""
    if relative_sensitivity is None or relative_sensitivity <= 0:
        return None
    return limit / math.sqrt(relative_sensitivity)


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


def group_verdict(effect: float | None, way: Direction, settings: Settings) -> Verdict:
    """The verdict on one group; an effect of None diverges.

    A decorrelating group is never worse than *watch*: its |λ| stay in the unit disk, and the
    networks that were measured trained through step effects far above 100 %.
    """
    if effect is None or effect > settings.cursed_limit:
        return "watch" if way == "decorrelating" else "cursed"
    return "watch" if effect > settings.watch_limit else "ok"


def effect_rate(parameter: ParameterSummary, limit: float, settings: Settings) -> float | None:
    """The learning rate at which a group's step effect, which grows with it, is at a limit."""
    if not parameter.step_effect:
        return None
    return settings.learning_rate * (limit / parameter.step_effect)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of some verdicts; ok where there is none."""
    return max(verdicts, key=ORDER.index, default="ok")


def usable_rate(
    recurrence: Recurrence, hessian: HessianSummary | None, settings: Settings
) -> UsableRate:
    """The largest usable learning rate of a layer, and what ends training beyond it."""
    reason = _reason(recurrence, settings)
    if reason is not None:
        return UsableRate(None, None, reason)
    divergence = _divergence_rate(recurrence, settings)
    stall = None
    effect = None if hessian is None else hessian.output_step_effect
    if effect and math.isfinite(effect):
        stall = STALL_EFFECT * settings.learning_rate / effect
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
    return None if not highest else DIVERGENCE_EFFECT / highest


def sentence(layers: Sequence[LayerReport], settings: Settings) -> str:
    """What the worst parameter group of the worst layer does to the state in one step."""
    ranked = [(layer, parameter) for layer in layers for parameter in layer.parameters]
    if not ranked:
        return (
            f"{count(len(layers), 'layer')} without a recurrent parameter of its own: nothing "
            "that an optimizer step could be too large for"
        )
    layer, parameter = max(ranked, key=lambda pair: parameter_rank(pair[1]))
    memory, remedy = _memory(layer), REMEDY[parameter.direction]
    if parameter.step_effect is None and not diverges(parameter):
        return f"the sensitivity of {layer.name} to `{parameter.name}` is not computed; {memory}"
    if parameter.step_effect is None:
        over, give = "", ""
        if settings.horizon is None:
            over, give = " over an infinite sequence", "give --horizon T, or "
        return (
            f"the state of {layer.name} is infinitely sensitive to `{parameter.name}`{over}"
            f"; {memory}; {give}{remedy}"
        )
    if parameter.step_effect == 0:
        return f"no step on `{parameter.name}` changes the state of {layer.name}; {memory}"
    text = (
        f"one Adam step{'' if layer.dense is None else ' of independent signs'} at "
        f"{number(settings.learning_rate)} on `{parameter.name}` moves the state "
        f"of {layer.name} by {percent(parameter.step_effect)}"
    )
    if parameter.verdict == "ok":
        if parameter.step_effect > settings.watch_limit:
            text += " by turning its angle, which is judged by the output"
        rate = smallest_rate(layers)
        room = "" if rate is None else f"; training should bear a rate of about {number(rate)}"
        return f"at worst, {text}; {memory}{room}"
    text += f" {CONSEQUENCE[parameter.direction]}; {memory}; "
    text += remedy if layer.dense is None else "make the recurrence diagonal"
    target = _advised(layers, parameter.verdict, settings)
    return text if target is None else f"{text}, or stay below {rounded_down(target)}"


def _advised(layers: Sequence[LayerReport], verdict: Verdict, settings: Settings) -> float | None:
    """The lowest of the rates that layers and groups of a verdict, or of a worse one, ask for."""

    def as_bad(usable: UsableRate) -> bool:
        return ORDER.index(rate_verdict(usable, settings)) >= ORDER.index(verdict)

    rates = [
        advised(parameter, layer.usable_rate, settings)
        for layer in layers
        for parameter in layer.parameters
        if parameter.verdict == verdict
    ]
    usable = [layer.usable_rate for layer in layers if layer.usable_rate is not None]
    rates += [one.rate for one in usable if as_bad(one)]
    return min((rate for rate in rates if rate is not None), default=None)


def _memory(layer: LayerReport) -> str:
    longest = layer.eigenvalues.time_constant.max
    if longest is None:
        unstable = layer.eigenvalues.unstable
        return (
            f"{count(unstable, 'eigenvalue')} of it never {'decays' if unstable == 1 else 'decay'}"
        )
    if layer.dense is not None and layer.dense.memory is not None:
        return f"its memory is {duration(layer.dense.memory)}"
    aside = ", hidden weights aside," if layer.hidden_feedback else ""
    return f"its longest time constant{aside} is {duration(longest)}"
