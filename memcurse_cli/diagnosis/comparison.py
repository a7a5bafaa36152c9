"""The schema `memcurse.comparison/1`: what changed between two reports, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.matching import MatchedBy, Method, match_eigenvalues, match_layers
from memcurse_cli.schema.figures import EigenvalueSummary, ParameterSummary, Quantiles, Verdict
from memcurse_cli.schema.report import InputAssumption, LayerReport, Report
from memcurse_cli.version import VERSION

SCHEMA = "memcurse.comparison/1"

Floats = NDArray[np.float64]

MOVED = 0.05
"""The relative change of a decay -log|λ| from which an eigenvalue counts as moved."""

ROUNDING = 1e-12
"""Changes of a decay below this are those of arithmetic."""


@dataclass(frozen=True)
class Change:
    """One figure in both reports; null where it is not known or diverges.

    Attributes:
        before: in the first report.
        after: in the second.
        divergent_before: whether it diverges in the first.
        divergent_after: whether it diverges in the second.
    """

    before: float | None
    after: float | None
    divergent_before: bool = False
    divergent_after: bool = False


@dataclass(frozen=True)
class GroupComparison:
    """One recurrent parameter group; a side that lacks it has no figures.

    Attributes:
        name: its name in the family.
        relative_sensitivity: κ p99 = E|dh/dω|²/E|h|² of the group.
        step_effect: lr √κ of the p99 scalar.
    """

    name: str
    relative_sensitivity: Change
    step_effect: Change


@dataclass(frozen=True)
class HessianComparison:
    """Scores of the Hessian over the layer's recurrent parameters.

    Attributes:
        diagonality: Σ H_aa² / Σ H_ab².
        sharpness: the largest eigenvalue, per unit of input variance.
        adam_residual: λ_max(D^-½ H D^-½).
    """

    diagonality: Change
    sharpness: Change
    adam_residual: Change


@dataclass(frozen=True)
class SpectrumMove:
    """How matched eigenvalues moved; a decay is -log|λ|, the inverse of the time constant.

    Attributes:
        method: ``assignment`` of least squared change of log decay and angle, or ``modulus``: in
            the order of |λ|.
        matched: how many eigenvalues have a partner.
        only_before: how many of the first report have none.
        only_after: how many of the second have none.
        outward: how many lost more than 5 % of their decay, toward the unit circle or beyond it.
        inward: the reverse: how many would be outward with the reports exchanged.
        time_constant_median: the median of after/before of the time constants with |λ| < 1 in
            both; null where there is none.
        time_constant_least: the smallest such ratio.
        time_constant_most: the largest.
        left_unit_disk: how many went from |λ| < 1 to |λ| ≥ 1.
        entered_unit_disk: how many came the other way.
        largest_angle_change: the largest change of |arg λ| in radians.
        pairs: (re, im) before and after of every matched eigenvalue, if asked for.
    """

    method: Method
    matched: int
    only_before: int
    only_after: int
    outward: int
    inward: int
    time_constant_median: float | None
    time_constant_least: float | None
    time_constant_most: float | None
    left_unit_disk: int
    entered_unit_disk: int
    largest_angle_change: float
    pairs: tuple[tuple[float, float, float, float], ...] | None = None


@dataclass(frozen=True)
class LayerComparison:
    """One layer that both reports have.

    Attributes:
        name: its name in the first report.
        name_after: its name in the second.
        matched_by: ``name``, ``prefix`` (names equal without one), ``sizes`` (the family, the
            number of eigenvalues and the parameter groups) or ``alone`` (no other layer is left).
        family: its family in the first report.
        family_after: its family in the second.
        verdict: in the first report.
        verdict_after: in the second.
        unstable: how many eigenvalues have |λ| ≥ 1.
        time_constant: the longest -1/log|λ| in steps.
        usable_rate: the largest learning rate that training is expected to bear.
        parameters: the groups of either side.
        hessian: its scores, where a side has them.
        spectrum: how its eigenvalues moved.
        spectrum_reason: why that is not known, or null.
    """

    name: str
    name_after: str
    matched_by: MatchedBy
    family: str
    family_after: str
    verdict: Verdict
    verdict_after: Verdict
    unstable: Change
    time_constant: Change
    usable_rate: Change
    parameters: tuple[GroupComparison, ...]
    hessian: HessianComparison | None
    spectrum: SpectrumMove | None
    spectrum_reason: str | None


@dataclass(frozen=True)
class Comparison:
    """Two reports beside each other.

    Attributes:
        version: of memcurse.
        before: the path of the first checkpoint.
        after: that of the second.
        input: what the first report assumed.
        input_after: what the second assumed.
        verdict: of the first report.
        verdict_after: of the second.
        layers: those that both have, in the order of the first.
        only_before: the names of layers that only the first has.
        only_after: those that only the second has.
    """

    version: str
    before: str
    after: str
    input: InputAssumption
    input_after: InputAssumption
    verdict: Verdict
    verdict_after: Verdict
    layers: tuple[LayerComparison, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]


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
