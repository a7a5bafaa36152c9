"""The Hessian scores of a diagonal layer, or the reason why it has none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from memcurse_cli.diagnosis.report_figures import HessianSummary
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.recurrences.recurrence import ProjectionGroup, Recurrence
from memcurse_cli.theory.diagonality import DiagonalityTally
from memcurse_cli.theory.hessian import LayerHessian
from memcurse_cli.theory.pair_moments import MOST_LAGS, lags_within

LARGEST_BLOCK = 6000  # parameters in a block that is formed: 288 MB
TOO_LONG = "{:,} steps are too many to sum with a memory this long"


def summarise_hessian(
    recurrence: Recurrence, settings: Settings
) -> tuple[HessianSummary | None, str | None]:
    """Scores of the Hessian at optimality over the recurrent parameters, or why there are none."""
    reason = hessian_reason(recurrence, settings)
    if reason is not None:
        return None, reason
    output = 0.0
    hessian = layer_hessian(recurrence, settings)

    tally = DiagonalityTally()
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            for blocks in hessian.blocks(LARGEST_BLOCK):
                output += float(blocks.output_second_moments.sum())
                tally.add(blocks.hessians)
            for large in hessian.large_blocks(LARGEST_BLOCK):
                output = math.nan  # E y² is a sum over every pair of eigenvalues
                block = large.factorise()
                tally.add_factored(block.diagonal, block.plain, block.scaled)
    except OverflowError:
        return None, "it leaves the range of a float: the state explodes within the horizon"
    scores = tally.scores()
    if scores is None:
        return None, "it is zero: no parameter changes the output"
    return (
        HessianSummary(
            order=scores.order,
            diagonality=scores.diagonality,
            sharpness=scores.sharpness,
            max_stable_lr=2 / (scores.sharpness + scores.sharpness_error),
            adam_residual=scores.adam_residual,
            concentration=scores.concentration,
            sharpness_error=scores.sharpness_error,
            adam_residual_error=scores.adam_residual_error,
            output_step_effect=(
                settings.learning_rate * math.sqrt(scores.trace / output) if output > 0 else None
            ),
        ),
        None,
    )


def layer_hessian(
    recurrence: Recurrence, settings: Settings, projections: Sequence[ProjectionGroup] = ()
) -> LayerHessian:
    """The Hessian of a layer that `hessian_reason` says nothing against."""
    assert recurrence.readin is not None
    assert recurrence.readout is not None
    return LayerHessian(
        recurrence.log_eigenvalues,
        recurrence.log_gain,
        recurrence.parameters,
        recurrence.readin,
        recurrence.readout,
        projections,
        channel=recurrence.channel,
        conjugate_pairs=recurrence.conjugate_pairs,
        autocorrelation=settings.autocorrelation,
        horizon=settings.horizon,
        read_at=settings.loss_readout,
    )


def unknown_projections(recurrence: Recurrence) -> str:
    """Which of B and C a layer lacks; those of another basis than its eigenvectors' are unknown."""
    known = recurrence.readin is not None, recurrence.readout is not None
    missing = {(False, False): "neither B nor C", (False, True): "no B", (True, False): "no C"}
    return f"{missing[known]} is known for it"


def hessian_reason(recurrence: Recurrence, settings: Settings) -> str | None:
    """Why a layer has no Hessian at a perfect fit, or None where it has one."""
    if not recurrence.parameters:
        return "no recurrent parameter is stored"
    if recurrence.readin is None or recurrence.readout is None:
        if recurrence.input_dependent:
            return "B and C depend on the input"
        return unknown_projections(recurrence)
    if settings.horizon is None and bool(np.any(recurrence.log_eigenvalues.real >= 0)):
        return "it diverges: an eigenvalue has |λ| >= 1 and the horizon is infinite"
    if settings.horizon is not None:
        logs, inputs = recurrence.log_eigenvalues, settings.autocorrelation
        if lags_within(logs, inputs, settings.horizon) > MOST_LAGS:
            return TOO_LONG.format(settings.horizon)
    return None
