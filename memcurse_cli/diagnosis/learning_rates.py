"""Learning rates for the recurrent groups, beside that of the rest of the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memcurse_cli.diagnosis.hessian.scores import LARGEST_BLOCK, hessian_reason, layer_hessian
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.usable_rate import FACTOR
from memcurse_cli.diagnosis.verdicts import effect_rate
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.schema.figures import HessianSummary, ParameterSummary
from memcurse_cli.schema.optimizer import GroupRate, LearningRates, RelativeSharpness
from memcurse_cli.schema.report import UsableRate
from memcurse_cli.theory.diagonality import diagonality_scores


def learning_rates(
    recurrence: Recurrence,
    parameters: Sequence[ParameterSummary],
    usable: UsableRate,
    hessian: HessianSummary | None,
    settings: Settings,
) -> LearningRates:
    """The rates at which one Adam step changes the state by the limit called watch.

    A group whose steps only turn angles bears the measured rate, a factor of its uncertainty
    below it, where the output is known: the state alone says little of such steps.
    """
    measured = usable.rate / FACTOR if usable.rate is not None and hessian is not None else 0.0
    sharpness, reason = _sharpness(recurrence, settings)
    return LearningRates(
        rest=settings.learning_rate,
        limit=settings.watch_limit,
        groups=tuple(_group(parameter, measured, settings) for parameter in parameters),
        sharpness=sharpness,
        sharpness_reason=reason,
    )


def _group(parameter: ParameterSummary, measured: float, settings: Settings) -> GroupRate:
    name, tensor, rest = parameter.name, parameter.tensor, settings.learning_rate
    stable = effect_rate(parameter, settings.watch_limit, settings)
    if stable is None:
        if parameter.step_effect == 0:  # no step on it changes the state
            return GroupRate(name, tensor, None, rest, 1.0)
        return GroupRate(name, tensor, None, None, None)
    if parameter.direction == "decorrelating":
        stable = max(stable, measured)
    rate = min(stable, rest)
    return GroupRate(name, tensor, stable, rate, rate / rest)


def _sharpness(
    recurrence: Recurrence, settings: Settings
) -> tuple[RelativeSharpness | None, str | None]:
    """The Hessian over the recurrent parameters against that over B, C and D."""
    reason = "a dense matrix is not split from its B and C here"
    if recurrence.dense is None:
        reason = hessian_reason(recurrence, settings) or ""
    if not reason and not recurrence.projections:
        reason = "it is not known how B, C and D are stored"
    order = sum(group.size for group in recurrence.parameters)
    order += sum(group.size for group in recurrence.projections)
    if not reason and recurrence.channel is None and order > LARGEST_BLOCK:
        reason = f"the order of its Hessian, {order}, is beyond the {LARGEST_BLOCK} that are formed"
    if reason:
        return None, reason
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            recurrent = _scores(recurrence, settings)
            rest = _scores(replace(recurrence, parameters=()), settings)
    except OverflowError:
        return None, "it leaves the range of a float: the state explodes within the horizon"
    if recurrent is None or rest is None:
        return None, "one of the two is zero: no parameter changes the output"
    return (
        RelativeSharpness(
            recurrent=recurrent[0],
            rest=rest[0],
            sgd_ratio=rest[0] / recurrent[0],
            adam_ratio=math.sqrt(rest[1] / recurrent[1]),
        ),
        None,
    )


def _scores(recurrence: Recurrence, settings: Settings) -> tuple[float, float] | None:
    """λ_max and trace of the Hessian over λ and γ, or over B, C and D where these are no groups."""
    projections = () if recurrence.parameters else recurrence.projections
    hessian = layer_hessian(recurrence, settings, projections)
    scores = diagonality_scores(blocks.hessians for blocks in hessian.blocks())
    return None if scores is None else (scores.sharpness, scores.trace)
