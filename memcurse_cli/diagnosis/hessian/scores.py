"""The Hessian scores of a layer at a perfect fit, or the reason why it has none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from memcurse_cli.diagnosis.gates.operating_point import linearised_at_work
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.recurrence import DenseDynamics, ProjectionGroup, Recurrence
from memcurse_cli.schema.figures import HessianSummary
from memcurse_cli.theory.dense.bases import ANGLES, TOO_UNCERTAIN, is_undetermined
from memcurse_cli.theory.dense.hessian import (
    GRAM_ORDER,
    HESSIAN_CONDITION,
    DenseHessian,
    dense_hessian,
    dense_hessian_scores,
)
from memcurse_cli.theory.dense.stationary import cost_without_eigenbasis
from memcurse_cli.theory.diagonality import DiagonalityScores, DiagonalityTally
from memcurse_cli.theory.hessian import LayerHessian
from memcurse_cli.theory.moments import MOST_LAGS, lags_within

LARGEST_BLOCK = 6000  # parameters in a block that is formed: 288 MB
LARGEST = 512  # units of a dense layer; its Hessian has an order of 262,144
BUDGET = 6e10  # floating-point operations that a report may spend on it: a second or two
PRODUCTS = 30  # with H, until its largest eigenvalue has converged
PRODUCTS_OF_TEN = 100  # until ten have, and nothing larger is left beside them
MOST_OPERATIONS = 1e14  # that anyone may wait for: a sum over pairs of steps takes (n T)²
RESOLVENT_PRODUCTS = 4  # in a complex inverse
STEIN_PRODUCTS = 24  # n×n products in two Stein equations

TOO_LONG = "{:,} steps are too many to sum with a memory this long"
EXPLODES = "it leaves the range of a float: the state explodes within the horizon"
DIVERGES = "it diverges: an eigenvalue has |λ| >= 1 and the horizon is infinite"
NO_PARAMETER = "it is zero: no parameter changes the output"
NO_ENTRY = "it is zero: no entry of the matrix changes the output"


def summarise_hessian(
    recurrence: Recurrence, settings: Settings
) -> tuple[HessianSummary | None, str | None]:
    """Scores of the Hessian at optimality over the recurrent parameters, or why there are none."""
    reason = hessian_reason(recurrence, settings)
    if reason is not None:
        return None, reason
    hessian, output = layer_hessian(recurrence, settings), 0.0
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
        return None, EXPLODES
    scores = tally.scores()
    return (None, NO_PARAMETER) if scores is None else (_summary(scores, output, settings), None)


def summarise_dense_hessian(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> tuple[HessianSummary | None, str | None]:
    """Scores of the Hessian at optimality over the stored matrix, or why there are none."""
    reason = dense_hessian_reason(recurrence, settings)
    reason = reason or _too_costly(recurrence, dynamics, settings)
    if reason is not None:
        return None, reason
    try:
        hessian = dense_layer_hessian(recurrence, dynamics, settings)
        found = dense_hessian_scores(hessian)
    except OverflowError:
        return None, EXPLODES
    except ArithmeticError as error:
        return None, str(error)
    if found is None:
        return None, NO_ENTRY
    return _summary(found[0], hessian.output_second_moment, settings), None


def _summary(scores: DiagonalityScores, output: float, settings: Settings) -> HessianSummary:
    effect = settings.learning_rate * math.sqrt(scores.trace / output) if output > 0 else None
    return HessianSummary(
        order=scores.order,
        diagonality=scores.diagonality,
        sharpness=scores.sharpness,
        max_stable_lr=2 / (scores.sharpness + scores.sharpness_error),
        adam_residual=scores.adam_residual,
        concentration=scores.concentration,
        output_step_effect=effect,
        diagonality_error=scores.diagonality_error,
        sharpness_error=scores.sharpness_error,
        adam_residual_error=scores.adam_residual_error,
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
        return DIVERGES
    if settings.horizon is not None:
        logs, inputs = recurrence.log_eigenvalues, settings.autocorrelation
        if lags_within(logs, inputs, settings.horizon) > MOST_LAGS:
            return TOO_LONG.format(settings.horizon)
    return None


def dense_layer_hessian(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> DenseHessian:
    """The Hessian over the stored matrix of a layer that `dense_hessian_reason` lets through.

    Raises:
        OverflowError: it leaves the range of a float.
        ArithmeticError: the memory is too long for so ill-conditioned eigenvectors.
    """
    assert recurrence.readin is not None
    assert recurrence.readout is not None
    return dense_hessian(
        dynamics.matrix,
        recurrence.eigenbasis,
        recurrence.readin.real,
        recurrence.readout.real,
        autocorrelation=settings.autocorrelation,
        horizon=settings.horizon,
        read_at=settings.loss_readout,
        scale=dynamics.slope * dynamics.scale,
    )


def dense_hessian_reason(recurrence: Recurrence, settings: Settings) -> str | None:
    """Why a dense layer has no Hessian at a perfect fit, or None where it has one."""
    if recurrence.readin is None or recurrence.readout is None:
        return unknown_projections(recurrence)
    withheld = linearised_at_work(recurrence, settings)[2]
    if withheld is not None:
        return withheld
    if (
        settings.horizon is None
        and recurrence.dense is not None
        and is_undetermined(recurrence.dense.matrix, recurrence.eigenbasis)
    ):
        return TOO_UNCERTAIN
    if settings.horizon is None and bool((recurrence.log_eigenvalues.real >= 0).any()):
        return DIVERGES
    if recurrence.size > LARGEST:
        return f"its order of {recurrence.size}² is beyond the {LARGEST}² that it is taken up to"
    if settings.horizon is not None and (recurrence.size * settings.horizon) ** 2 > MOST_OPERATIONS:
        return TOO_LONG.format(settings.horizon)
    return None


def _too_costly(recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings) -> str | None:
    """Why a report does not wait for the scores, or None where it does."""
    assert recurrence.readin is not None
    assert recurrence.readout is not None
    size, horizon = recurrence.size, settings.horizon
    channels = (recurrence.readin.shape[1], len(recurrence.readout))
    if horizon is not None:
        products = PRODUCTS
        if math.prod(channels) * horizon > GRAM_ORDER:
            products += PRODUCTS_OF_TEN
        cost = 4.0 * products * horizon * min(channels) * size**2 + float(horizon * size) ** 2
    else:
        cost = (PRODUCTS + PRODUCTS_OF_TEN) * STEIN_PRODUCTS * 2.0 * size**3
        if recurrence.eigenbasis.condition >= HESSIAN_CONDITION:
            decay = -float(recurrence.log_eigenvalues.real.max())
            cost += ANGLES * RESOLVENT_PRODUCTS * 2.0 * size**3
            cost += cost_without_eigenbasis(dynamics.matrix, decay)
    if cost <= BUDGET:
        return None
    return "it takes long for a matrix of this size; `memcurse hessian` takes that time"
