"""From one parameter group of a diagonal layer to its part of the report."""

from __future__ import annotations

import numpy as np

from memcurse_cli.diagnosis.quantiles import quantiles
from memcurse_cli.diagnosis.report_figures import ParameterSummary, Rounding
from memcurse_cli.diagnosis.report_quantiles import Quantiles
from memcurse_cli.diagnosis.rounding import summarise_rounding
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import (
    direction,
    group_verdict,
    max_learning_rate,
    step_effect,
)
from memcurse_cli.recurrences.reading import LARGEST_DECAY
from memcurse_cli.recurrences.recurrence import ParameterGroup, Recurrence
from memcurse_cli.theory.moments import Moments
from memcurse_cli.theory.sensitivity import group_sensitivity


def summarise_group(
    recurrence: Recurrence, group: ParameterGroup, moment: Moments, settings: Settings
) -> ParameterSummary:
    """The sensitivity of one group, its step effect and what rounding does to it."""
    sensitivity, kappa = group_sensitivity(moment, recurrence.log_gain, group)
    share = np.ones(recurrence.size)
    if group.scalar.size > group.size:
        # A tied scalar moves states of different sizes: κ weighs them as γ and B drive them.
        if recurrence.readin is not None:
            share = np.sum(np.abs(recurrence.readin) ** 2, axis=1)
            kappa = group_sensitivity(
                moment, recurrence.log_gain, group, share
            ).relative_sensitivity
        log_gain = recurrence.log_gain.real
        share = share * np.exp(2 * (log_gain - max(log_gain.max(), -LARGEST_DECAY)))
    relative = quantiles(kappa)
    effect = step_effect(relative.p99, settings.learning_rate)
    way = direction(recurrence, group, settings.learning_rate)
    rounding, own_scale = summarise_rounding(
        kappa, recurrence, group, moment.second_moment, share, settings
    )
    return ParameterSummary(
        name=group.name,
        tensor=group.tensor,
        size=group.size,
        dtype=group.dtype,
        sensitivity=quantiles(sensitivity),
        relative_sensitivity=relative,
        step_effect=effect,
        max_lr=max_learning_rate(relative.p99, settings.cursed_limit),
        direction=way,
        rounding=rounding,
        verdict=group_verdict(effect, way, settings),
        int8_own_scale=own_scale,
    )


def unknown_group(recurrence: Recurrence, group: ParameterGroup) -> ParameterSummary:
    """A group of a layer of which no linear figure holds."""
    unknown = Quantiles(None, None, None, None, None)
    return ParameterSummary(
        name=group.name,
        tensor=group.tensor,
        size=group.size,
        dtype=group.dtype,
        sensitivity=unknown,
        relative_sensitivity=unknown,
        step_effect=None,
        max_lr=None,
        direction=direction(recurrence, group),
        rounding=Rounding(None, None, None),
        verdict="watch",
    )
