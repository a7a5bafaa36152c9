"""What changed between two reports, by layers and eigenvalues that are matched."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence, Set

import numpy as np

from memcurse_cli.diagnosis.model import unseen_memory
from memcurse_cli.schema.derived import (
    Change,
    Compared,
    Comparison,
    LayerComparison,
    MatchedBy,
    Method,
    SpectrumMove,
)
from memcurse_cli.schema.figures import EigenvalueSummary
from memcurse_cli.schema.report import LayerReport, Report, finite, layer_figures
from memcurse_cli.theory.linalg import Complexes, Floats, Integers
from memcurse_cli.version import VERSION

WRAPPERS = ("module.", "_orig_mod.", "model.")
MOST_ASSIGNED = 2048
TINY = np.finfo(np.float64).tiny
LEAST_DECAY = 1e-3

MOVED = 0.05  # the relative change of a decay -log|λ| from which an eigenvalue counts as moved
ROUNDING = 1e-12  # changes of a decay below this are those of arithmetic


def compare(before: Report, after: Report, *, values: bool = False) -> Comparison:
    """What changed between two reports, with every matched pair of eigenvalues if asked for."""
    pairs = match_layers(before.layers, after.layers)
    return Comparison(
        version=VERSION,
        before=_whole(before, {one for one, _, _ in pairs}),
        after=_whole(after, {other for _, other, _ in pairs}),
        layers=tuple(
            _layer(before.layers[one], after.layers[other], how, values=values)
            for one, other, how in pairs
        ),
    )


def _whole(report: Report, matched: Set[int]) -> Compared:
    return Compared(
        path=report.checkpoint.path,
        input=report.input,
        verdict=report.verdict,
        memory=report.memory,
        gates_alone=any(map(unseen_memory, report.layers)),
        usable_rate=report.usable_rate,
        alone=tuple(one.name for i, one in enumerate(report.layers) if i not in matched),
    )


def _layer(
    before: LayerReport, after: LayerReport, how: MatchedBy, *, values: bool
) -> LayerComparison:
    spectrum, reason = _spectrum(before.eigenvalues, after.eigenvalues, values=values)
    ours, theirs = layer_figures(before), layer_figures(after)
    return LayerComparison(
        name=before.name,
        name_after=after.name,
        matched_by=how,
        family=before.family,
        family_after=after.family,
        verdict=before.verdict,
        verdict_after=after.verdict,
        changes=tuple(
            _change(name, ours.get(name), theirs.get(name))
            for name in dict.fromkeys((*ours, *theirs))
            if name != "verdict"
        ),
        spectrum=spectrum,
        spectrum_reason=reason,
    )


def _change(name: str, before: float | None, after: float | None) -> Change:
    return Change(name, finite(before), finite(after), before == math.inf, after == math.inf)


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
    pairs = None
    if values:
        parts = (start.real, start.imag, end.real, end.imag)
        pairs = tuple(map(tuple, np.stack(parts, axis=1).tolist()))
    return SpectrumMove(
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
        pairs=pairs,
    ), None


def _moved(decay: Floats, decay_after: Floats) -> int:
    """How many decays fell by more than 5 %, a zero eigenvalue's from infinity."""
    finite = decay < np.inf
    fallen = np.zeros(len(decay), dtype=bool)
    loss = decay[finite] - decay_after[finite]
    fallen[finite] = (loss > MOVED * np.abs(decay[finite])) & (loss > ROUNDING)
    fallen[~finite] = decay_after[~finite] < np.inf
    return int(np.sum(fallen))


def match_layers(
    before: Sequence[LayerReport], after: Sequence[LayerReport]
) -> list[tuple[int, int, MatchedBy]]:
    """The pairs of layers that are the same, by index, in the order of ``before``.

    Names decide first; then names without what wraps a model (``module.``, ``_orig_mod.``,
    ``model.``), or of which one ends with the other; then the family, the number of eigenvalues
    and the parameter groups with their sizes; each only where it is one to one. Two layers that
    are the only ones left are a pair too: a model under another parametrisation.
    """
    left, right = set(range(len(before))), set(range(len(after)))
    pairs: list[tuple[int, int, MatchedBy]] = []

    def take(how: MatchedBy, alike: Callable[[LayerReport, LayerReport], bool]) -> None:
        found = [
            (one, other)
            for one, other in itertools.product(left, right)
            if alike(before[one], after[other])
        ]
        ours, theirs = Counter(one for one, _ in found), Counter(other for _, other in found)
        for one, other in found:
            if ours[one] == theirs[other] == 1:
                pairs.append((one, other, how))
                left.remove(one)
                right.remove(other)

    take("name", lambda one, other: one.name == other.name)
    take("prefix", lambda one, other: _unwrapped(one.name) == _unwrapped(other.name))
    take("prefix", _ends)
    take("sizes", lambda one, other: _sizes(one) == _sizes(other))
    take("alone", lambda one, other: True)
    return sorted(pairs)


def _unwrapped(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name


def _ends(one: LayerReport, other: LayerReport) -> bool:
    short, long = sorted((one.name, other.name), key=len)
    return long.endswith(f".{short}")


def _sizes(layer: LayerReport) -> Hashable:
    spectrum = layer.eigenvalues
    groups = tuple((group.name, group.size) for group in layer.parameters)
    return layer.family, spectrum.count, spectrum.multiplicity, groups


def match_eigenvalues(before: Complexes, after: Complexes) -> tuple[Integers, Integers, Method]:
    """Indices into two spectra whose eigenvalues belong together.

    Up to 2048 eigenvalues a side this is the assignment of least Σ (Δu)² + (Δ|arg λ|)², where
    ``u = asinh(1000 δ)`` is the logarithm of the decay ``δ = -log|λ|`` for time constants up to
    about 1000 steps, and is linear in δ across the unit circle. As squares are summed, eigenvalues
    that all keep their angle while their decays keep their order are matched with themselves.
    |arg λ| counts a conjugate as the same eigenvalue: the spectrum of a real matrix holds both, and
    a layer that takes the real part of its state may hold either. Beyond 2048, spectra of equal
    size are paired in the order of |λ|, and others raise `ValueError`.
    """
    points, others = _points(before), _points(after)
    order, order_after = np.lexsort(points.T[::-1]), np.lexsort(others.T[::-1])
    if max(len(before), len(after)) > MOST_ASSIGNED:
        if len(before) != len(after):
            raise ValueError("spectra of different sizes are too large to assign")
        return order, order_after, "modulus"
    from scipy.optimize import linear_sum_assignment

    # Sorted and with the smaller side first, so that the result does not hang on the order in
    # which eigenvalues or spectra are given where several assignments cost the same.
    first, second = points[order], others[order_after]
    swapped = (len(second), second.tolist()) < (len(first), first.tolist())
    if swapped:
        first, second = second, first
    cost = np.sum((first[:, None, :] - second[None, :, :]) ** 2, axis=2)
    rows, columns = linear_sum_assignment(cost)
    if swapped:
        rows, columns = columns, rows
    return order[rows], order_after[columns], "assignment"


def _points(values: Complexes) -> Floats:
    """(asinh(1000 δ), |arg λ|) of every eigenvalue; a zero decays like the least float."""
    decay = -np.log(np.maximum(np.abs(values), TINY))
    return np.stack([np.arcsinh(decay / LEAST_DECAY), np.abs(np.angle(values))], axis=1)
