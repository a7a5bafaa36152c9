"""What changed between two reports, layer by layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.matching import match_eigenvalues, match_layers
from memcurse_cli.schema.comparison import (
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
        usable_rate=Change(
            None if before.usable_rate is None else before.usable_rate.rate,
            None if after.usable_rate is None else after.usable_rate.rate,
        ),
        parameters=_groups(before.parameters, after.parameters),
        hessian=_hessian(before, after),
        spectrum=spectrum,
        spectrum_reason=reason,
    )


def _quantile(before: Quantiles | None, after: Quantiles | None, level: str) -> Change:
    values = [None if one is None else getattr(one, level) for one in (before, after)]
    divergent = [
        one is not None and value is None and one.divergent > 0
        for one, value in zip((before, after), values, strict=True)
    ]
    return Change(values[0], values[1], divergent[0], divergent[1])


def _groups(
    before: tuple[ParameterSummary, ...], after: tuple[ParameterSummary, ...]
) -> tuple[GroupComparison, ...]:
    ours, theirs = {one.name: one for one in before}, {one.name: one for one in after}
    found = []
    for name in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get(name), theirs.get(name)
        kappa = _quantile(
            None if one is None else one.relative_sensitivity,
            None if other is None else other.relative_sensitivity,
            "p99",
        )
        effect = Change(
            None if one is None else one.step_effect,
            None if other is None else other.step_effect,
            kappa.divergent_before,
            kappa.divergent_after,
        )
        found.append(GroupComparison(name, kappa, effect))
    return tuple(found)


def _hessian(before: LayerReport, after: LayerReport) -> HessianComparison | None:
    if before.hessian is None and after.hessian is None:
        return None
    scores = [
        Change(getattr(before.hessian, score, None), getattr(after.hessian, score, None))
        for score in ("diagonality", "sharpness", "adam_residual")
    ]
    return HessianComparison(*scores)


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
