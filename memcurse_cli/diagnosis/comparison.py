"""What changed between two reports, layer by layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.matching import match_eigenvalues, match_layers
from memcurse_cli.schema.derived import (
    Change,
    Comparison,
    GroupComparison,
    HessianComparison,
    LayerComparison,
    MatchedBy,
    SpectrumMove,
)
from memcurse_cli.schema.figures import EigenvalueSummary, ParameterSummary, Quantiles
from memcurse_cli.schema.report import LayerReport, Report
from memcurse_cli.version import VERSION

Floats = NDArray[np.float64]

MOVED = 0.05
"""The relative change of a decay -log|λ| from which an eigenvalue counts as moved."""

ROUNDING = 1e-12
"""Changes of a decay below this are those of arithmetic."""


def compare(before: Report, after: Report, *, values: bool = False) -> Comparison:
    """What changed from one report to another; neither is changed.

    Args:
        before: the first.
        after: the second.
        values: keep every matched pair of eigenvalues.
    """
    pairs = match_layers(before.layers, after.layers)
    ours, theirs = {one for one, _, _ in pairs}, {other for _, other, _ in pairs}
    return Comparison(
        version=VERSION,
        before=before.checkpoint.path,
        after=after.checkpoint.path,
        input=before.input,
        input_after=after.input,
        verdict=before.verdict,
        verdict_after=after.verdict,
        layers=tuple(
            _layer(before.layers[one], after.layers[other], how, values=values)
            for one, other, how in pairs
        ),
        only_before=tuple(one.name for i, one in enumerate(before.layers) if i not in ours),
        only_after=tuple(one.name for i, one in enumerate(after.layers) if i not in theirs),
    )


def _layer(
    before: LayerReport, after: LayerReport, how: MatchedBy, *, values: bool
) -> LayerComparison:
    spectrum, reason = _spectrum(before.eigenvalues, after.eigenvalues, values=values)
    ours, theirs = ({group.name: group for group in one.parameters} for one in (before, after))
    hessian = None
    if before.hessian is not None or after.hessian is not None:
        scores = ("diagonality", "sharpness", "adam_residual")
        hessian = HessianComparison(*(_score(before.hessian, after.hessian, s) for s in scores))
    return LayerComparison(
        name=before.name,
        name_after=after.name,
        matched_by=how,
        family=before.family,
        family_after=after.family,
        verdict=before.verdict,
        verdict_after=after.verdict,
        unstable=Change(before.eigenvalues.unstable, after.eigenvalues.unstable),
        time_constant=_quantile(
            before.eigenvalues.time_constant, after.eigenvalues.time_constant, "max"
        ),
        usable_rate=_score(before.usable_rate, after.usable_rate, "rate"),
        parameters=tuple(
            _group(name, ours.get(name), theirs.get(name))
            for name in dict.fromkeys((*ours, *theirs))
        ),
        hessian=hessian,
        spectrum=spectrum,
        spectrum_reason=reason,
    )


def _quantile(before: Quantiles | None, after: Quantiles | None, level: str) -> Change:
    found = _score(before, after, level)
    return replace(
        found,
        divergent_before=found.before is None and before is not None and before.divergent > 0,
        divergent_after=found.after is None and after is not None and after.divergent > 0,
    )


def _score(before: object, after: object, name: str) -> Change:
    return Change(getattr(before, name, None), getattr(after, name, None))


def _group(
    name: str, before: ParameterSummary | None, after: ParameterSummary | None
) -> GroupComparison:
    kappa = _quantile(
        None if before is None else before.relative_sensitivity,
        None if after is None else after.relative_sensitivity,
        "p99",
    )
    effect = replace(
        _score(before, after, "step_effect"),
        divergent_before=kappa.divergent_before,
        divergent_after=kappa.divergent_after,
    )
    return GroupComparison(name, kappa, effect)


def _spectrum(
    before: EigenvalueSummary, after: EigenvalueSummary, *, values: bool
) -> tuple[SpectrumMove | None, str | None]:
    if before.values is None or after.values is None:
        return None, "a report lacks its eigenvalues; memcurse inspect --json --values writes them"
    if not before.values or not after.values:
        return None, "a layer has no eigenvalues"
    ours, theirs = (
        np.asarray([complex(*value) for value in values], dtype=np.complex128)
        for values in (before.values, after.values)
    )
    try:
        rows, columns, method = match_eigenvalues(ours, theirs)
    except ValueError as error:
        return None, str(error)
    start, end = ours[rows], theirs[columns]
    with np.errstate(divide="ignore"):
        decay, decay_after = -np.log(np.abs(start)), -np.log(np.abs(end))
    stable, stable_after = np.abs(start) < 1, np.abs(end) < 1
    both = stable & stable_after & (decay_after < np.inf) & (decay < np.inf)
    ratio = decay[both] / decay_after[both]
    angle = np.abs(np.abs(np.angle(end)) - np.abs(np.angle(start)))
    return (
        SpectrumMove(
            method=method,
            matched=len(rows),
            only_before=len(ours) - len(rows),
            only_after=len(theirs) - len(rows),
            outward=_moved(decay, decay_after),
            inward=_moved(decay_after, decay),
            time_constant_median=float(np.exp(np.median(np.log(ratio)))) if len(ratio) else None,
            time_constant_least=float(np.min(ratio)) if len(ratio) else None,
            time_constant_most=float(np.max(ratio)) if len(ratio) else None,
            left_unit_disk=int(np.sum(stable & ~stable_after)),
            entered_unit_disk=int(np.sum(~stable & stable_after)),
            largest_angle_change=float(np.max(angle)),
            pairs=tuple(
                (one.real, one.imag, other.real, other.imag)
                for one, other in zip(start.tolist(), end.tolist(), strict=True)
            )
            if values
            else None,
        ),
        None,
    )


def _moved(decay: Floats, decay_after: Floats) -> int:
    """How many decays fell by more than 5 %, a zero eigenvalue's from infinity."""
    finite = decay < np.inf
    fallen = np.zeros(len(decay), dtype=bool)
    loss = decay[finite] - decay_after[finite]
    fallen[finite] = (loss > MOVED * np.abs(decay[finite])) & (loss > ROUNDING)
    fallen[~finite] = decay_after[~finite] < np.inf
    return int(np.sum(fallen))
