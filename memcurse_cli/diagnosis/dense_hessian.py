"""The Hessian scores of a dense layer, or the reason why it has none."""

from __future__ import annotations

import math

from memcurse_cli.diagnosis.hessian import TOO_LONG, unknown_projections
from memcurse_cli.diagnosis.operating_point import linearised_at_work
from memcurse_cli.diagnosis.report_figures import HessianSummary
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.recurrences.recurrence import DenseDynamics, Recurrence
from memcurse_cli.theory.dense import is_undetermined
from memcurse_cli.theory.dense_hessian import (
    HESSIAN_CONDITION,
    DenseHessian,
    dense_hessian,
    dense_hessian_scores,
)
from memcurse_cli.theory.dense_hessian_horizon import GRAM_ORDER
from memcurse_cli.theory.dense_without_eigenbasis import cost_without_eigenbasis
from memcurse_cli.theory.schur import ANGLES, TOO_UNCERTAIN

LARGEST = 512  # units; its Hessian has an order of 262,144
BUDGET = 6e10  # floating-point operations that a report may spend on it: a second or two
PRODUCTS = 30  # with H, until its largest eigenvalue has converged
PRODUCTS_OF_TEN = 100  # until ten have, and nothing larger is left beside them
MOST_OPERATIONS = 1e14  # that anyone may wait for: a sum over pairs of steps takes (n T)²
RESOLVENT_PRODUCTS = 4  # in a complex inverse
STEIN_PRODUCTS = 24  # n×n products in two Stein equations


def summarise_dense_hessian(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> tuple[HessianSummary | None, str | None]:
    """Scores of the Hessian at optimality over the stored matrix, or why there are none."""
    reason = dense_hessian_reason(recurrence, settings) or _too_costly(
        recurrence, dynamics, settings
    )
    if reason is not None:
        return None, reason
    try:
        hessian = dense_layer_hessian(recurrence, dynamics, settings)
        found = dense_hessian_scores(hessian)
    except OverflowError:
        return None, "it leaves the range of a float: the state explodes within the horizon"
    except ArithmeticError as error:
        return None, str(error)
    if found is None:
        return None, "it is zero: no entry of the matrix changes the output"
    scores, output = found.scores, hessian.output_second_moment
    effect = None
    if output > 0:
        effect = settings.learning_rate * math.sqrt(scores.trace / output)
    return (
        HessianSummary(
            order=scores.order,
            diagonality=scores.diagonality,
            sharpness=scores.sharpness,
            max_stable_lr=2 / scores.sharpness,
            adam_residual=scores.adam_residual,
            concentration=scores.concentration,
            output_step_effect=effect,
            diagonality_error=found.diagonality_error,
        ),
        None,
    )


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
    hessian = dense_hessian(
        dynamics.matrix,
        recurrence.eigenbasis,
        recurrence.readin.real,
        recurrence.readout.real,
        autocorrelation=settings.autocorrelation,
        horizon=settings.horizon,
        read_at=settings.loss_readout,
    )
    factor = (dynamics.slope * dynamics.scale) ** 2
    return hessian if factor == 1 else hessian.scaled(factor)


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
        return "it diverges: an eigenvalue has |λ| >= 1 and the horizon is infinite"
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
