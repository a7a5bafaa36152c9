"""Which layer and which eigenvalue of one report is which of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.schema.derived import MatchedBy, Method
from memcurse_cli.schema.report import LayerReport

Complexes = NDArray[np.complex128]
Indices = NDArray[np.intp]

WRAPPERS = ("module.", "_orig_mod.", "model.")
MOST_ASSIGNED = 2048
TINY = np.finfo(np.float64).tiny
LEAST_DECAY = 1e-3


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

    def take(found: list[tuple[int, int]], how: MatchedBy) -> None:
        for one, other in found:
            pairs.append((one, other, how))
            left.discard(one)
            right.discard(other)

    def same(key: Callable[[LayerReport], Hashable]) -> list[tuple[int, int]]:
        ours, theirs = {i: key(before[i]) for i in left}, {i: key(after[i]) for i in right}
        counts, counts_after = Counter(ours.values()), Counter(theirs.values())
        place = {value: index for index, value in theirs.items()}
        return [
            (index, place[value])
            for index, value in ours.items()
            if counts[value] == 1 and counts_after[value] == 1
        ]

    take(same(lambda layer: layer.name), "name")
    take(same(lambda layer: _unwrapped(layer.name)), "prefix")
    take(_ends([(i, before[i].name) for i in left], [(i, after[i].name) for i in right]), "prefix")
    take(same(_sizes), "sizes")
    if len(left) == len(right) == 1:
        take([(left.pop(), right.pop())], "alone")
    return sorted(pairs)


def _unwrapped(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name


def _ends(
    before: Sequence[tuple[int, str]], after: Sequence[tuple[int, str]]
) -> list[tuple[int, int]]:
    """Pairs of which one name ends with the other after a dot, each name in one pair only."""
    found = [
        (one, other)
        for one, name in before
        for other, called in after
        if name.endswith(f".{called}") or called.endswith(f".{name}")
    ]
    ours, theirs = Counter(one for one, _ in found), Counter(other for _, other in found)
    return [(one, other) for one, other in found if ours[one] == 1 and theirs[other] == 1]


def _sizes(layer: LayerReport) -> Hashable:
    spectrum = layer.eigenvalues
    groups = tuple((group.name, group.size) for group in layer.parameters)
    return layer.family, spectrum.count, spectrum.multiplicity, groups


def match_eigenvalues(before: Complexes, after: Complexes) -> tuple[Indices, Indices, Method]:
    """Indices into two spectra whose eigenvalues belong together.

    Up to 2048 eigenvalues a side this is the assignment of least Σ (Δu)² + (Δ|arg λ|)², where
    ``u = asinh(1000 δ)`` is the logarithm of the decay ``δ = -log|λ|`` for time constants up to
    about 1000 steps, and is linear in δ across the unit circle. As squares are summed, eigenvalues
    that all keep their angle while their decays keep their order are matched with themselves.
    |arg λ| counts a conjugate as the same eigenvalue: the spectrum of a real matrix holds both, and
    a layer that takes the real part of its state may hold either. Beyond 2048, spectra of equal
    size are paired in the order of |λ|.

    Raises:
        ValueError: more than 2048 eigenvalues, and another number on either side.
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


def _points(values: Complexes) -> NDArray[np.float64]:
    """(asinh(1000 δ), |arg λ|) of every eigenvalue; a zero decays like the least float."""
    decay = -np.log(np.maximum(np.abs(values), TINY))
    return np.stack([np.arcsinh(decay / LEAST_DECAY), np.abs(np.angle(values))], axis=1)
