"""From one recurrence to its part of the report."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from memcurse_cli.families.reading import eigenvalues_of, time_constants
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.rewriting import Rewriting, rewrite
from memcurse_cli.schema.figures import (
    TIME_CONSTANT_EDGES,
    EigenvalueSummary,
    HessianSummary,
    ParameterSummary,
    StateSummary,
    Verdict,
    quantiles,
)
from memcurse_cli.schema.layer import DenseSummary, jacobian_of
from memcurse_cli.schema.report import LayerReport, SensitivityCurve, UsableRate, WhatIf, finite
from memcurse_cli.theory.sensitivity import state_second_moment

POINTS_PER_DECADE = 8
DECADES = (-1, 6)  # of the time constant in steps


class _Diagonal(NamedTuple):
    """The figures of eigenvalues that parameters of their own move."""

    state: StateSummary
    parameters: tuple[ParameterSummary, ...]
    hessian: HessianSummary | None
    hessian_reason: str | None


def diagnose(recurrence: Recurrence, settings: Settings) -> LayerReport:
    """Every figure of one layer, its verdict and its findings."""
    eigenvalues = summarise_eigenvalues(recurrence, settings)
    dense: DenseSummary | None = None
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
        state = StateSummary(UNKNOWN)
        parameters = tuple(unknown_group(recurrence, group) for group in recurrence.parameters)
    else:
        state, parameters, hessian, hessian_reason = _diagonal(recurrence, settings)
    hidden, hidden_reason = summarise_hidden(recurrence, settings)
    gates = None
    if settings.gates and recurrence.input_dependent:
        from memcurse_cli.diagnosis.gates.gates import summarise_gates

        gates = summarise_gates(recurrence, settings)
    usable = UsableRate(None, None, withheld)
    if withheld is None:
        usable = usable_rate(recurrence, hessian, settings)
    parameters, verdict = _judged(parameters, usable, hessian, settings)
    facts = Facts(
        recurrence,
        settings,
        eigenvalues,
        state,
        parameters,
        hessian,
        dense,
        jacobian_of(hidden),
        usable_rate=usable,
        gates=gates,
        withheld=withheld,
    )
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
        what_if=tuple(_what_if(recurrence, rewriting, settings) for rewriting in settings.what_if),
        learning_rates=(
            learning_rates(recurrence, parameters, usable, hessian, settings)
            if settings.learning_rates
            else None
        ),
        gates=gates,
        operating_point=summarise_gated_operating_point(recurrence, settings),
    )


def _what_if(recurrence: Recurrence, rewriting: Rewriting, settings: Settings) -> WhatIf:
    """The same eigenvalues and the same output, learnt through other parameters."""
    rewritten, left_out, reason = rewrite(recurrence, rewriting)
    if rewritten is None:
        return WhatIf(rewriting.parametrization, rewriting.gain, None, left_out, reason)
    state, parameters, hessian, hessian_reason = _diagonal(rewritten, settings)
    usable = usable_rate(rewritten, hessian, settings)
    parameters, verdict = _judged(parameters, usable, hessian, settings)
    return WhatIf(
        parametrization=rewriting.parametrization,
        gain=rewriting.gain,
        step_size=rewriting.step_size,
        left_out=left_out,
        reason=reason,
        state=state,
        parameters=parameters,
        hessian=hessian,
        hessian_reason=hessian_reason,
        usable_rate=usable,
        verdict=verdict,
    )


def _diagonal(recurrence: Recurrence, settings: Settings) -> _Diagonal:
    moment = settings.moments_of(recurrence.log_eigenvalues)
    return _Diagonal(
        StateSummary(quantiles(state_second_moment(moment, recurrence.log_gain))),
        tuple(
            summarise_group(recurrence, group, moment, settings) for group in recurrence.parameters
        ),
        *summarise_hessian(recurrence, settings),
    )


def _judged(
    parameters: tuple[ParameterSummary, ...],
    usable: UsableRate,
    hessian: HessianSummary | None,
    settings: Settings,
) -> tuple[tuple[ParameterSummary, ...], Verdict]:
    """The groups by the usable rate too, and the verdict on all of them."""
    settled_groups = tuple(settled(group, usable, hessian, settings) for group in parameters)
    verdicts = [group.verdict for group in settled_groups]
    return settled_groups, worst([*verdicts, rate_verdict(usable, settings)])


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


def relative_sensitivities(
    log_eigenvalues: NDArray[np.complex128], settings: Settings
) -> tuple[float | None, ...]:
    """κ(λ) = E|dh/dλ|² / E|h|² of each eigenvalue; None where it diverges.

    Zucchet & Orvieto 2024, eq. 6, with γ held. λ = 0 holds nothing but the last input: κ = 1.
    """
    moment = settings.moments_of(log_eigenvalues)
    with np.errstate(invalid="ignore", over="ignore"):
        kappa = np.asarray(moment.sensitivity / moment.second_moment)
    return tuple(map(finite, kappa.tolist()))


def sensitivity_curves(settings: Settings) -> tuple[SensitivityCurve, ...]:
    """The curve at the horizon, and the one of an infinite sequence."""
    count = (DECADES[1] - DECADES[0]) * POINTS_PER_DECADE + 1
    time_constant = np.logspace(*DECADES, count)
    logs = (-1 / time_constant).astype(np.complex128)
    endless = replace(settings, horizon=None, readout=None)
    return tuple(
        SensitivityCurve(
            under.horizon, tuple(time_constant.tolist()), relative_sensitivities(logs, under)
        )
        for under in ([endless] if settings.horizon is None else [settings, endless])
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
