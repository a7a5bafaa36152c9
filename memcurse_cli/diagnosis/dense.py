"""What a dense layer has beside its spectrum: the exact sensitivity to its whole matrix."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from memcurse_cli.diagnosis.dense_structure import summarise_structure
from memcurse_cli.diagnosis.finite import finite
from memcurse_cli.diagnosis.operating_point import summarise_operating_point
from memcurse_cli.diagnosis.quantiles import quantiles
from memcurse_cli.diagnosis.report_dense import DenseSummary
from memcurse_cli.diagnosis.report_figures import (
    Direction,
    ParameterSummary,
    Rounding,
    StateSummary,
)
from memcurse_cli.diagnosis.report_quantiles import Quantiles
from memcurse_cli.diagnosis.rounding import summarise_matrix_rounding
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import group_verdict, max_learning_rate, step_effect
from memcurse_cli.recurrences.reading import time_constants
from memcurse_cli.recurrences.recurrence import DenseDynamics, Recurrence
from memcurse_cli.theory.dense import (
    EIGENBASIS_CONDITION,
    dense_sensitivity,
    henrici_departure,
    within_rounding,
)
from memcurse_cli.theory.dense_result import DenseSensitivity
from memcurse_cli.theory.transients import memory

UNKNOWN = Quantiles(None, None, None, None, None)


def diagnose_dense(
    recurrence: Recurrence, dynamics: DenseDynamics, settings: Settings
) -> tuple[StateSummary, tuple[ParameterSummary, ...], DenseSummary]:
    """The state, the matrix as one parameter group, and how far from normal it is."""
    basis = recurrence.eigenbasis
    readin = None if recurrence.readin is None else recurrence.readin.real
    sensitivity = dense_sensitivity(
        dynamics.matrix,
        basis,
        readin,
        settings.autocorrelation,
        settings.horizon,
        settings.state_readout,
    )
    state = UNKNOWN if sensitivity.second_moment is None else quantiles(sensitivity.second_moment)
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
        operating_point=summarise_operating_point(recurrence, dynamics, settings),
    )
    # An orthogonal matrix stays one: a step turns the state and takes no |λ| past 1.
    way: Direction = "decorrelating" if recurrence.stable_by_construction else "destabilising"
    return StateSummary(state), (_matrix_group(dynamics, sensitivity, settings, way),), summary


def _memory(recurrence: Recurrence, dynamics: DenseDynamics) -> float | None:
    """How many steps the layer remembers, or None where it does not forget or is not known to."""
    longest = finite(float(np.max(time_constants(recurrence.log_eigenvalues.real), initial=0.0)))
    basis = recurrence.eigenbasis
    if longest is None:
        return None
    try:
        usable = basis if basis.condition < EIGENBASIS_CONDITION else None
        return memory(dynamics.matrix, usable, longest)
    except ArithmeticError:
        return None


def _finite(dynamics: DenseDynamics, total: float | None) -> float | None:
    """A total over the entries of A as one over those of the stored matrix."""
    return None if total is None or math.isinf(total) else dynamics.scale**2 * total


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
        per_entry = dynamics.scale**2 * sensitivity.per_entry
        entries = quantiles(per_entry)
        if not diverges and 0 < state < math.inf:
            relative_entries = quantiles(per_entry / state)
            rounding = summarise_matrix_rounding(
                per_entry / state, dynamics.matrix, dynamics.tensor_largest
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
