"""The Hessian scores of a layer at a perfect fit, or the reason why it has none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.recurrence import DenseDynamics, ProjectionGroup, Recurrence
from memcurse_cli.schema.figures import HessianSummary
from memcurse_cli.theory.diagonality import DiagonalityScores, DiagonalityTally
from memcurse_cli.theory.hessian import LayerHessian
from memcurse_cli.theory.moments import MOST_LAGS, lags_within

if TYPE_CHECKING:
    from memcurse_cli.schema.hessian import HessianScores
    from memcurse_cli.schema.layer import OperatingPoint
    from memcurse_cli.theory.dense.hessian import DenseHessian

Scores = TypeVar("Scores", "HessianSummary", "HessianScores")

LARGEST_BLOCK = 6000  # parameters in a block that is formed: 288 MB
LARGEST = 512  # units of a dense layer; its Hessian has an order of 262,144
BUDGET = 6e10  # floating-point operations that a report may spend on it: a second or two
PRODUCTS = 30  # with H, until its largest eigenvalue has converged
PRODUCTS_OF_TEN = 100  # until ten have, and nothing larger is left beside them
MOST_OPERATIONS = 1e14  # that anyone may wait for
PER_PAIR = 100  # for each unit, in the sum over pairs of steps, where memory is what it waits for
RESOLVENT_PRODUCTS = 4  # in a complex inverse
STEIN_PRODUCTS = 24  # n×n products in two Stein equations

TOO_LONG = "{:,} steps are too many to sum with a memory this long"
EXPLODES = "it leaves the range of a float: the state explodes within the horizon"
DIVERGES = "it diverges: an eigenvalue has |λ| >= 1 and the horizon is infinite"
NO_PARAMETER = "it is zero: no parameter changes the output"
NO_ENTRY = "it is zero: no entry of the matrix changes the output"


def at_work(
    recurrence: Recurrence, settings: Settings
) -> tuple[Recurrence, OperatingPoint | None, str | None]:
    """As `linearised_at_work`, which is imported for layers with an activation alone."""
    dense = recurrence.dense
    if (recurrence.activation if dense is None else dense.activation) == "linear":
        return recurrence, None, None
    from memcurse_cli.diagnosis.gates.operating_point import linearised_at_work

    return linearised_at_work(recurrence, settings)


def summarise_hessian(
    recurrence: Recurrence, settings: Settings
) -> tuple[HessianSummary | None, str | None]:
    """Scores of the Hessian at optimality over the recurrent parameters, or why there are none."""
    dense = recurrence.dense
    reason = hessian_reason(recurrence, settings)
    if reason is None and dense is not None:
        reason = _too_costly(recurrence, dense, settings)
    if reason is not None:
        return None, reason
    try:
        if dense is None:
            scores, output = _diagonal_scores(recurrence, settings)
        else:
            scores, output = _dense_scores(recurrence, dense, settings)
    except OverflowError:
        return None, EXPLODES
    except ArithmeticError as error:
        return None, str(error)
    if scores is None:
        return None, NO_PARAMETER if dense is None else NO_ENTRY
    effect = settings.rate * math.sqrt(scores.trace / output) if output > 0 else None
    return scores_as(HessianSummary, scores, output_step_effect=effect), None


def _diagonal_scores(
    recurrence: Recurrence, settings: Settings
) -> tuple[DiagonalityScores | None, float]:
    hessian, output, tally = layer_hessian(recurrence, settings), 0.0, DiagonalityTally()
    with np.errstate(over="ignore", invalid="ignore"):
        for blocks in hessian.blocks(LARGEST_BLOCK):
            output += float(blocks.output_second_moments.sum())
            tally.add(blocks.hessians)
        for large in hessian.large_blocks(LARGEST_BLOCK):
            output = math.nan  # E y² is a sum over every pair of eigenvalues
            block = large.factorise()
            tally.add_factored(block.diagonal, block.plain, block.scaled)
    return tally.scores(), output


def _dense_scores(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> tuple[DiagonalityScores | None, float]:
    from memcurse_cli.theory.dense.hessian import dense_hessian_scores

    hessian = dense_layer_hessian(recurrence, dynamics, settings)
    found = dense_hessian_scores(hessian)
    return None if found is None else found[0], hessian.output_second_moment


def scores_as(kind: type[Scores], found: DiagonalityScores, **others: Any) -> Scores:
    """The scores as a class of the report has them, under the same names."""
    same = {
        name: getattr(found, name) for name in kind.__dataclass_fields__ if hasattr(found, name)
    }
    return kind(max_stable_lr=2 / (found.sharpness + found.sharpness_error), **same, **others)


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


def hessian_reason(recurrence: Recurrence, settings: Settings) -> str | None:
    """Why a layer has no Hessian at a perfect fit, or None where it has one."""
    dense, logs, horizon = recurrence.dense, recurrence.log_eigenvalues, settings.horizon
    if dense is None and not recurrence.parameters:
        return "no recurrent parameter is stored"
    known = recurrence.readin is not None, recurrence.readout is not None
    if not all(known):
        if dense is None and recurrence.input_dependent:
            return "B and C depend on the input"
        # Those of another basis than its eigenvectors' are unknown too.
        missing = {(False, False): "neither B nor C", (False, True): "no B", (True, False): "no C"}
        return f"{missing[known]} is known for it"
    if dense is not None:
        withheld = at_work(recurrence, settings)[2]
        if withheld is not None:
            return withheld
    if dense is not None and horizon is None:
        from memcurse_cli.theory.dense.bases import TOO_UNCERTAIN, is_undetermined

        if is_undetermined(dense.matrix, recurrence.eigenbasis):
            return TOO_UNCERTAIN
    if horizon is None and bool(np.any(logs.real >= 0)):
        return DIVERGES
    if dense is not None and recurrence.size > LARGEST:
        return f"its order of {recurrence.size}² is beyond the {LARGEST}² that it is taken up to"
    if horizon is None:
        return None
    if dense is None:
        too_long = lags_within(logs, settings.autocorrelation, horizon) > MOST_LAGS
    else:
        too_long = _pairs_cost(recurrence.size, horizon) > MOST_OPERATIONS
    return TOO_LONG.format(horizon) if too_long else None


def dense_layer_hessian(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> DenseHessian:
    """The Hessian over the stored matrix of a layer that `hessian_reason` lets through.

    Raises:
        OverflowError: it leaves the range of a float.
        ArithmeticError: the memory is too long for so ill-conditioned eigenvectors.
    """
    from memcurse_cli.theory.dense.hessian import dense_hessian

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


def _pairs_cost(size: int, horizon: int) -> float:
    """What the diagonal of a dense Hessian costs: a sum over pairs of steps."""
    return float(horizon) ** 2 * size * max(size, PER_PAIR)


def _too_costly(recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings) -> str | None:
    """Why a report does not wait for the scores, or None where it does."""
    from memcurse_cli.theory.dense.bases import ANGLES
    from memcurse_cli.theory.dense.hessian import GRAM_ORDER, HESSIAN_CONDITION
    from memcurse_cli.theory.dense.stationary import cost_without_eigenbasis

    assert recurrence.readin is not None
    assert recurrence.readout is not None
    size, horizon = recurrence.size, settings.horizon
    channels = (recurrence.readin.shape[1], len(recurrence.readout))
    if horizon is not None:
        products = PRODUCTS
        if math.prod(channels) * horizon > GRAM_ORDER:
            products += PRODUCTS_OF_TEN
        cost = 4.0 * products * horizon * min(channels) * size**2 + _pairs_cost(size, horizon)
    else:
        cost = (PRODUCTS + PRODUCTS_OF_TEN) * STEIN_PRODUCTS * 2.0 * size**3
        if recurrence.eigenbasis.condition >= HESSIAN_CONDITION:
            decay = -float(recurrence.log_eigenvalues.real.max())
            cost += ANGLES * RESOLVENT_PRODUCTS * 2.0 * size**3
            cost += cost_without_eigenbasis(dynamics.matrix, decay)
    if cost <= BUDGET:
        return None
    over = "" if horizon is None else f" over {horizon:,} steps"
    return f"it takes long for a matrix of this size{over}; `memcurse hessian` takes that time"
