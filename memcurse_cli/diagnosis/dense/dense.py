"""What a dense layer has beside its spectrum: the exact sensitivity to its whole matrix.

What the eigenvalues of a dense matrix do not tell: its parts, conditions and transients.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from memcurse_cli.diagnosis.rounding import summarise_matrix_rounding
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import group_verdict, max_learning_rate, step_effect
from memcurse_cli.families.reading import time_constants
from memcurse_cli.families.recurrence import DenseDynamics, Recurrence
from memcurse_cli.schema.dense import DenseStructure, DenseSummary, OperatingPoint
from memcurse_cli.schema.figures import (
    Direction,
    ParameterSummary,
    Quantiles,
    Rounding,
    StateSummary,
    quantiles,
)
from memcurse_cli.schema.report import finite
from memcurse_cli.theory.dense.bases import (
    TOO_UNCERTAIN,
    Eigenbasis,
    henrici_departure,
    is_undetermined,
    schur_form,
    within_rounding,
)
from memcurse_cli.theory.dense.sensitivity import (
    DenseSensitivity,
    SensitivitySplit,
    dense_sensitivity,
    sensitivity_split,
)
from memcurse_cli.theory.dense.transients import kreiss_bound, memory, transient_growth
from memcurse_cli.theory.linalg import eigenvalue_conditions

LARGEST = 512  # units up to which a report takes the time
SPLIT_FLOPS = 2e10  # what the moments of every pair of eigenvalues may cost
OPPOSED = 100.0  # times the whole: parts beyond it say nothing of the sum that they leave


def summarise_structure(
    recurrence: Recurrence,
    dynamics: DenseDynamics,
    sensitivity: DenseSensitivity,
    settings: Settings,
) -> DenseStructure:
    """The split of the sensitivity, the condition of every eigenvalue and the transient growth."""
    basis, size = recurrence.eigenbasis, recurrence.size
    if basis.is_usable:
        each = np.linalg.norm(basis.rows, axis=1) * np.linalg.norm(basis.columns, axis=0)
        conditions = quantiles(np.repeat(each, basis.weight.astype(np.intp)))
    else:
        conditions = quantiles(eigenvalue_conditions(dynamics.matrix))
    if size > LARGEST:
        limit = f"its parts and transients are taken up to {LARGEST} units"
        return DenseStructure(None, None, None, conditions, None, None, None, limit)
    split, reason = _split(recurrence, sensitivity, settings)
    growth, step, kreiss = None, None, None
    if is_undetermined(dynamics.matrix, basis):
        reason = TOO_UNCERTAIN
    elif bool((recurrence.log_eigenvalues.real < 0).all()):
        try:
            growth, step, kreiss = _transients(dynamics, basis)
        except ArithmeticError as error:
            reason = str(error)
    through, around, both = (None, None, None) if split is None else split
    return DenseStructure(
        eigenvalue_part=through,
        eigenvector_part=around,
        cross_part=both,
        eigenvalue_condition=conditions,
        transient_growth=growth,
        transient_step=step,
        kreiss_bound=kreiss,
        reason=reason,
    )


def _transients(dynamics: DenseDynamics, basis: Eigenbasis) -> tuple[float, int, float]:
    """The largest ‖A^k‖₂, its k and the Kreiss bound: by the Schur form past κ(P) = 1e8.

    Raises:
        ArithmeticError: a power leaves the range of a float.
    """
    if basis.is_usable:
        return *transient_growth(dynamics.matrix), kreiss_bound(dynamics.matrix, basis)
    triangle = schur_form(dynamics.matrix).triangle
    return *transient_growth(triangle), kreiss_bound(triangle, None)


def _split(
    recurrence: Recurrence, sensitivity: DenseSensitivity, settings: Settings
) -> tuple[SensitivitySplit | None, str | None]:
    """The parts as shares of the whole, or why they are missing."""
    total = sensitivity.total
    if total is None or not 0 < total < math.inf:
        return None, sensitivity.reason
    if not recurrence.eigenbasis.is_usable:
        return None, "its eigenvectors are too ill-conditioned to be told apart"
    horizon = settings.horizon
    if horizon is not None and 32.0 * recurrence.size**2 * horizon > SPLIT_FLOPS:
        return None, f"{horizon} steps are too many for a matrix of this size to be split"
    split = sensitivity_split(
        recurrence.eigenbasis,
        total,
        None if recurrence.readin is None else recurrence.readin.real,
        settings.autocorrelation,
        horizon,
        settings.state_readout,
    )
    if split.eigenvalues > OPPOSED * total:
        return None, "its eigenvalues and eigenvectors undo each other's parts of the sensitivity"
    return SensitivitySplit(*(part / total for part in split)), None


UNKNOWN = Quantiles(None, None, None, None, None)


def diagnose_dense(
    recurrence: Recurrence,
    dynamics: DenseDynamics,
    settings: Settings,
    point: OperatingPoint | None = None,
    withheld: str | None = None,
) -> tuple[StateSummary, tuple[ParameterSummary, ...], DenseSummary]:
    """The state, the matrix as one parameter group, and how far from normal it is.

    Args:
        recurrence: the layer, as `linearised_at_work` gives it.
        dynamics: its matrix.
        settings: what was asked for.
        point: its operating point, where it has one.
        withheld: why no linear figure holds, or None.
    """
    basis = recurrence.eigenbasis
    if withheld is not None:
        sensitivity = DenseSensitivity(None, None, None, withheld)
    else:
        sensitivity = dense_sensitivity(
            dynamics.matrix,
            basis,
            None if recurrence.readin is None else recurrence.readin.real,
            settings.autocorrelation,
            settings.horizon,
            settings.state_readout,
        )
        if point is not None:
            sensitivity = _of_size(sensitivity, recurrence.size * point.second_moment)
    state = UNKNOWN
    # At its operating point a state is not linear in the drive, and known as a mean over units.
    if sensitivity.second_moment is not None and point is None:
        state = quantiles(sensitivity.second_moment)
    summary = DenseSummary(
        eigenvector_condition=finite(basis.condition),
        henrici_departure=henrici_departure(dynamics.matrix, np.exp(recurrence.log_eigenvalues)),
        sensitivity=_finite(dynamics, sensitivity.total),
        relative_sensitivity=_finite(dynamics, sensitivity.relative),
        memory=_memory(recurrence, dynamics),
        activation=dynamics.activation,
        reason=sensitivity.reason,
        structure=summarise_structure(recurrence, dynamics, sensitivity, settings),
        radius_within_rounding=within_rounding(dynamics.matrix, basis),
        operating_point=point,
    )
    # An orthogonal matrix stays one: a step turns the state and takes no |λ| past 1.
    way: Direction = "decorrelating" if recurrence.stable_by_construction else "destabilising"
    return StateSummary(state), (_matrix_group(dynamics, sensitivity, settings, way),), summary


def _of_size(sensitivity: DenseSensitivity, size: float) -> DenseSensitivity:
    """The same relative to the state, whose E‖h‖² is that of mean field theory."""
    moment, total, entries = sensitivity.second_moment, sensitivity.total, sensitivity.per_entry
    state = 0.0 if moment is None else float(moment.sum())
    if moment is None or not 0 < state < math.inf:
        return sensitivity
    ratio = size / state
    return DenseSensitivity(
        ratio * moment,
        None if total is None else ratio * total,
        None if entries is None else ratio * entries,
        sensitivity.reason,
    )


def _memory(recurrence: Recurrence, dynamics: DenseDynamics) -> float | None:
    """How many steps the layer remembers, or None where it does not forget or is not known to."""
    longest = finite(float(np.max(time_constants(recurrence.log_eigenvalues.real), initial=0.0)))
    basis = recurrence.eigenbasis
    if longest is None:
        return None
    try:
        usable = basis if basis.is_usable else None
        return memory(dynamics.matrix, usable, longest)
    except ArithmeticError:
        return None


def _finite(dynamics: DenseDynamics, total: float | None) -> float | None:
    """A total over the entries of A as one over those of the stored matrix."""
    factor = (dynamics.slope * dynamics.scale) ** 2
    return None if total is None or math.isinf(total) else factor * total


def _matrix_group(
    dynamics: DenseDynamics, sensitivity: DenseSensitivity, settings: Settings, way: Direction
) -> ParameterSummary:
    """Every entry of the matrix moved at once: the whole of it decides, not one element."""
    diverges = sensitivity.relative is not None and math.isinf(sensitivity.relative)
    relative = _finite(dynamics, sensitivity.relative)
    effect = step_effect(relative, settings.learning_rate)
    # A saturating activation keeps the state finite where its linearisation explodes.
    linear = dynamics.activation == "linear"
    verdict = group_verdict(effect, way, settings)
    if effect is None and not (diverges and linear):
        verdict = "watch"
    unknown = replace(UNKNOWN, divergent=dynamics.matrix.size if diverges else 0)
    entries, relative_entries = unknown, unknown
    rounding = Rounding(None, None, None)
    if sensitivity.per_entry is not None and sensitivity.second_moment is not None:
        state = float(sensitivity.second_moment.sum())
        per_entry = (dynamics.slope * dynamics.scale) ** 2 * sensitivity.per_entry
        entries = quantiles(per_entry)
        if not diverges and 0 < state < math.inf:
            relative_entries = quantiles(per_entry / state)
            rounding = summarise_matrix_rounding(
                per_entry / state, dynamics.matrix / dynamics.slope, dynamics.tensor_largest
            )
    return ParameterSummary(
        name=dynamics.tensor.rpartition(".")[2],
        tensor=dynamics.tensor,
        size=dynamics.matrix.size,
        dtype=dynamics.dtype,
        sensitivity=entries,
        relative_sensitivity=relative_entries,
        step_effect=effect,
        max_lr=max_learning_rate(relative, settings.cursed_limit),
        direction=way,
        rounding=rounding,
        verdict=verdict,
    )
