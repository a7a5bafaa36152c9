"""From one recurrence to its part of the report."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from memcurse_cli.diagnosis.diagonal import diagnose_diagonal, store_state
from memcurse_cli.diagnosis.findings import Facts, find
from memcurse_cli.diagnosis.hessian import summarise_hessian
from memcurse_cli.diagnosis.operating_point import (
    gated_operating_point,
    hidden_spectra,
    linearised_at_work,
)
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import rate_when_run, usable_rate
from memcurse_cli.families.reading import eigenvalues_of, time_constants
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.schema.figures import TIME_CONSTANT_EDGES, EigenvalueSummary, quantiles
from memcurse_cli.schema.report import (
    Cure,
    LayerReport,
    SensitivityCurve,
    UsableRate,
    WhatIf,
    finite,
    judged,
)
from memcurse_cli.theory.linalg import Complexes

if TYPE_CHECKING:
    from memcurse_cli.families.rewriting import Rewriting

HELPS = 3.0  # how many times larger a rate other parameters must bear to be worth naming
CLIPPED = 0.999  # what |λ| >= 1 becomes where only that helps
CURVE = np.logspace(-1, 6, 57)  # the time constants of a curve in steps, eight to a decade


def diagnose(recurrence: Recurrence, settings: Settings) -> LayerReport:
    """Every figure of one layer, its verdict and its findings."""
    dense = None
    settings = settings.of_layer(_trained(recurrence))
    working, point, withheld = linearised_at_work(recurrence, settings)
    moment = None
    if working.dense is None:
        if withheld is None:
            moment = settings.moments_of(working.log_eigenvalues)
        state, groups = diagnose_diagonal(working, settings, moment)
    else:
        from memcurse_cli.diagnosis.dense import diagnose_dense

        state, groups, dense = diagnose_dense(working, working.dense, settings, point, withheld)
    hessian, reason = None, withheld
    if withheld is None:
        hessian, reason = summarise_hessian(working, settings)
    asked: dict[str, Any] = {}  # the fields that not every report has
    ran = not_run = None
    if settings.simulate or (settings.simulate is None and not recurrence.is_linear):
        from memcurse_cli.diagnosis.simulation import simulate

        ran, not_run = simulate(recurrence, settings)
        asked |= {"simulation": ran, "not_simulated": not_run}
    if not recurrence.is_linear:
        usable = rate_when_run(recurrence, ran, not_run, withheld, settings)
    elif withheld is None:
        usable = usable_rate(recurrence, hessian, reason, settings)
    else:
        usable = UsableRate(None, None, withheld)
    storage = store_state(recurrence, settings, moment)
    asked["storage_reason" if isinstance(storage, str) else "storage"] = storage
    if settings.spectra and recurrence.hidden is not None:
        asked["hidden_spectra"] = hidden_spectra(recurrence.hidden)
        asked["hidden_spectra_reason"] = recurrence.hidden.reason
        if recurrence.hidden.network is not None:
            asked["operating_point"] = gated_operating_point(recurrence.hidden.network, settings)
    if settings.gates and recurrence.input_dependent:
        from memcurse_cli.diagnosis.gates import summarise_gates

        asked["gates"] = summarise_gates(recurrence, settings)
    found = LayerReport(
        name=recurrence.name,
        family=recurrence.family,
        tensors=recurrence.tensors,
        input_dependent=recurrence.input_dependent,
        stable_by_construction=recurrence.stable_by_construction,
        assumptions=recurrence.assumptions,
        eigenvalues=summarise_eigenvalues(recurrence, settings),
        state=state,
        parameters=groups,
        hessian=hessian,
        hessian_reason=reason,
        dense=dense,
        verdict="not_judged",
        usable_rate=usable,
        learning_rate=settings.rate,
        memory=None,
        findings=(),
        hidden_feedback=recurrence.hidden_feedback,
        what_if=tuple(_what_if(recurrence, rewriting, settings) for rewriting in settings.what_if),
        **asked,
    )
    layer = judged(found)
    if settings.learning_rates:
        from memcurse_cli.diagnosis.optimizer import learning_rates

        layer = replace(layer, learning_rates=learning_rates(recurrence, layer, settings))
    if layer.verdict in ("watch", "cursed"):
        layer = replace(layer, cure=_cure(recurrence, layer, settings))
    return replace(layer, findings=find(Facts(recurrence, settings, layer, withheld)))


def _trained(recurrence: Recurrence) -> Iterator[str]:
    """The recurrent tensors of a layer."""
    if recurrence.dynamics is not None:
        yield from recurrence.dynamics.tensors
    elif recurrence.dense is not None:
        yield recurrence.dense.tensor
    for group in recurrence.parameters:
        yield group.tensor


def _what_if(recurrence: Recurrence, rewriting: Rewriting, settings: Settings) -> WhatIf:
    """The same eigenvalues and the same output, learnt through other parameters."""
    from memcurse_cli.families.rewriting import rewrite

    rewritten, left_out, reason = rewrite(recurrence, rewriting)
    named = rewriting.parametrization, rewriting.gain
    if rewritten is None:
        return WhatIf(*named, None, left_out, reason)
    # Its groups are no tensors of the checkpoint, which have rates of their own.
    under = replace(settings, learning_rate=settings.rate, rates={})
    moment = under.moments_of(rewritten.log_eigenvalues)
    figures = diagnose_diagonal(rewritten, under, moment)
    hessian = summarise_hessian(rewritten, under)
    usable = usable_rate(rewritten, *hessian, under)
    return WhatIf(*named, rewriting.step_size, left_out, reason, *figures, *hessian, usable)


def _cure(recurrence: Recurrence, layer: LayerReport, settings: Settings) -> Cure | None:
    """The first of the forms that a linear layer can have which bears a much larger rate.

    As an LRU; where that cannot hold every λ, in polar form, or without what grows.
    """
    from memcurse_cli.families.rewriting import Rewriting, is_linear, rewrite, unstorable

    usable = layer.usable_rate and layer.usable_rate.rate
    if recurrence.stable_by_construction or not is_linear(recurrence) or not usable:
        return None
    unstored = unstorable(recurrence)
    lru, polar = Rewriting("lru", "own"), Rewriting("polar")
    real = unstored is None and np.any(recurrence.log_eigenvalues.imag == 0)  # without theta_log
    for rewriting in (polar,) if real else (lru, polar, replace(lru, largest=CLIPPED)):
        rewritten, left_out, reason = rewrite(recurrence, rewriting)
        if rewritten is None or left_out or reason is not None:
            continue
        found = usable_rate(rewritten, *summarise_hessian(rewritten, settings), settings)
        if found.rate is not None and found.rate > HELPS * usable:
            return Cure(str(rewriting.parametrization), found, rewriting.largest, unstored)
    return None


def summarise_eigenvalues(recurrence: Recurrence, settings: Settings) -> EigenvalueSummary:
    """|λ|, -1/log|λ| in steps and |arg λ|, each from log λ without passing through λ."""
    log_modulus = recurrence.log_eigenvalues.real
    time_constant = time_constants(log_modulus)
    eigenvalues = eigenvalues_of(recurrence.log_eigenvalues)
    angle = np.abs(recurrence.log_eigenvalues.imag)
    beyond = angle > math.pi  # one within is not rounded
    angle[beyond] = np.abs(np.remainder(angle[beyond] + math.pi, math.tau) - math.pi)
    # Infinite ones fall in no bin.
    finite_ones = time_constant[np.isfinite(time_constant)]
    bins = np.searchsorted(TIME_CONSTANT_EDGES, finite_ones, side="right")
    histogram = np.bincount(bins, minlength=len(TIME_CONSTANT_EDGES) + 1)
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
        angle=quantiles(angle),
        time_constant_histogram=tuple(histogram.tolist()),
        values=values,
        relative_sensitivities=sensitivities,
    )


def relative_sensitivities(
    log_eigenvalues: Complexes, settings: Settings
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
    logs = (-1 / CURVE).astype(np.complex128)
    endless = replace(settings, horizon=None, readout=None)
    return tuple(
        SensitivityCurve(under.horizon, tuple(CURVE.tolist()), relative_sensitivities(logs, under))
        for under in ([endless] if settings.horizon is None else [settings, endless])
    )
