"""From one recurrence to its part of the report."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.beyond_horizon import relative_sensitivities
from memcurse_cli.diagnosis.dense.dense import UNKNOWN, diagnose_dense
from memcurse_cli.diagnosis.dense.rounding import matrix_rounding
from memcurse_cli.diagnosis.findings import Facts, find
from memcurse_cli.diagnosis.gates.operating_point import (
    linearised_at_work,
    summarise_gated_operating_point,
    summarise_hidden,
)
from memcurse_cli.diagnosis.hessian.scores import summarise_dense_hessian, summarise_hessian
from memcurse_cli.diagnosis.learning_rates import learning_rates
from memcurse_cli.diagnosis.rounding import summarise_group, unknown_group
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.usable_rate import rate_verdict, settled, usable_rate
from memcurse_cli.diagnosis.verdicts import worst
from memcurse_cli.diagnosis.what_if import what_if
from memcurse_cli.families.reading import eigenvalues_of, time_constants
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.schema.dense import DenseSummary, jacobian_of
from memcurse_cli.schema.figures import (
    TIME_CONSTANT_EDGES,
    EigenvalueSummary,
    HessianSummary,
    StateSummary,
    quantiles,
)
from memcurse_cli.schema.report import LayerReport, UsableRate
from memcurse_cli.theory.moments.moments import moments
from memcurse_cli.theory.sensitivity import state_second_moment


def diagnose(recurrence: Recurrence, settings: Settings) -> LayerReport:
    """Every figure of one layer, its verdict and its findings."""
    eigenvalues = summarise_eigenvalues(recurrence, settings)
    dense: DenseSummary | None
    working, point, withheld = linearised_at_work(recurrence, settings)
    hessian: HessianSummary | None = None
    hessian_reason: str | None = withheld
    if working.dense is not None:
        state, parameters, dense = diagnose_dense(working, working.dense, settings, point, withheld)
        parameters = tuple(
            matrix_rounding(working, working.dense, group, settings) for group in parameters
        )
        if withheld is None:
            hessian, hessian_reason = summarise_dense_hessian(working, working.dense, settings)
    elif withheld is not None:
        state, dense = StateSummary(UNKNOWN), None
        parameters = tuple(unknown_group(recurrence, group) for group in recurrence.parameters)
    else:
        moment = moments(
            recurrence.log_eigenvalues,
            settings.autocorrelation,
            settings.horizon,
            settings.state_readout,
        )
        state = StateSummary(quantiles(state_second_moment(moment, recurrence.log_gain)))
        parameters = tuple(
            summarise_group(recurrence, group, moment, settings) for group in recurrence.parameters
        )
        dense = None
        hessian, hessian_reason = summarise_hessian(recurrence, settings)
    hidden, hidden_reason = summarise_hidden(recurrence, settings)
    jacobian = jacobian_of(hidden)
    gates = None
    if settings.gates and recurrence.input_dependent:
        from memcurse_cli.diagnosis.gates.gates import summarise_gates

        gates = summarise_gates(recurrence, settings)
    usable = (
        usable_rate(recurrence, hessian, settings)
        if withheld is None
        else UsableRate(None, None, withheld)
    )
    parameters = tuple(settled(group, usable, hessian, settings) for group in parameters)
    facts = Facts(
        recurrence,
        settings,
        eigenvalues,
        state,
        parameters,
        hessian,
        dense,
        jacobian,
        usable_rate=usable,
        gates=gates,
        withheld=withheld,
    )
    verdict = worst([*(group.verdict for group in parameters), rate_verdict(usable, settings)])
    return LayerReport(
        name=recurrence.name,
        family=recurrence.family,
        tensors=recurrence.tensors,
        input_dependent=recurrence.input_dependent,
        stable_by_construction=recurrence.stable_by_construction,
        assumptions=recurrence.assumptions,
        eigenvalues=eigenvalues,
        state=state,
        parameters=parameters,
        hessian=hessian,
        hessian_reason=hessian_reason,
        dense=dense,
        verdict=verdict,
        findings=find(facts),
        hidden_feedback=recurrence.hidden_feedback,
        hidden_spectra=hidden,
        hidden_spectra_reason=hidden_reason,
        usable_rate=usable,
        what_if=what_if(recurrence, settings),
        learning_rates=(
            learning_rates(recurrence, parameters, usable, hessian, settings)
            if settings.learning_rates
            else None
        ),
        gates=gates,
        operating_point=summarise_gated_operating_point(recurrence, settings),
    )


def summarise_eigenvalues(recurrence: Recurrence, settings: Settings) -> EigenvalueSummary:
    """|λ|, -1/log|λ| in steps and |arg λ|, each from log λ without passing through λ."""
    log_modulus = recurrence.log_eigenvalues.real
    time_constant = time_constants(log_modulus)
    eigenvalues = eigenvalues_of(recurrence.log_eigenvalues)
    angle = recurrence.log_eigenvalues.imag
    values, sensitivities = None, None
    if settings.values:
        sensitivities = relative_sensitivities(recurrence.log_eigenvalues, settings)
        values = tuple(zip(eigenvalues.real.tolist(), eigenvalues.imag.tolist(), strict=True))
    return EigenvalueSummary(
        count=recurrence.size,
        multiplicity=recurrence.multiplicity,
        unstable=int(np.count_nonzero(log_modulus >= 0)),
        modulus=quantiles(np.where(eigenvalues == 0, 0.0, np.exp(log_modulus))),
        time_constant=quantiles(time_constant),
        angle=quantiles(np.abs(wrap(angle)) if np.any(angle) else np.zeros(recurrence.size)),
        time_constant_histogram=histogram(time_constant),
        values=values,
        relative_sensitivities=sensitivities,
    )


def histogram(time_constant: NDArray[np.float64]) -> tuple[int, ...]:
    """How many time constants fall between the `TIME_CONSTANT_EDGES`; infinite ones nowhere."""
    bins = np.searchsorted(
        TIME_CONSTANT_EDGES, time_constant[np.isfinite(time_constant)], side="right"
    )
    return tuple(np.bincount(bins, minlength=len(TIME_CONSTANT_EDGES) + 1).tolist())


def wrap(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """An angle in [-π, π]; one that is there already is not rounded."""
    return np.where(
        np.abs(angle) <= math.pi, angle, np.remainder(angle + math.pi, math.tau) - math.pi
    )
