"""One block of a Hessian, or an even choice of its scalars, small enough to be drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.schema.hessian import HessianPicture
from memcurse_cli.theory.diagonality import SPECTRUM_ORDER, TOP, correlations, largest

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

CELLS = 480
"""A heat map has no more rows than about so many."""
CHOSEN = 240
"""Scalars of a block that was not formed, whose rows and columns are taken for a heat map."""
OF_EVERY_GROUP = 8


def picture(
    title: str,
    matrix: Floats,
    group: Integers,
    names: Sequence[str],
    top: tuple[Floats, Floats] | None = None,
) -> HessianPicture:
    """Prepare a block, or what some scalars have of one that was not formed.

    Args:
        title: what it is.
        matrix: (N, N) the rows and columns of these scalars.
        group: (N,) the group of each scalar, ascending.
        names: the name of every group.
        top: (k,) the known eigenvalues of a block that was not formed, descending, and (k, N) their
            eigenvectors at these scalars; None for those of the matrix.
    """
    order = len(matrix)
    present, first = np.unique(group, return_index=True)
    starts, boundaries = _cells(first, order)
    if top is not None:
        values, vectors = top
    elif order <= SPECTRUM_ORDER:
        values, columns = np.linalg.eigh(matrix)
        values, vectors = values[::-1], columns[:, ::-1].T
    else:
        values, columns = largest(matrix, TOP)
        vectors = columns.T
    return HessianPicture(
        title=title,
        order=order,
        magnitude=_shrink(_shrink(np.abs(matrix), starts, 0), starts, 1),
        correlation=_shrink(_shrink(np.abs(correlations(matrix[None])[0]), starts, 0), starts, 1),
        groups=tuple(names[index] for index in present.tolist()),
        boundaries=boundaries,
        eigenvalues=values,
        eigenvectors=_shrink(np.abs(vectors[:TOP]), starts, 1),
    )


def evenly_chosen(group: Integers) -> Integers:
    """Places of some scalars, evenly over all, and at least a few of every group."""
    every = np.linspace(0, group.size - 1, min(CHOSEN, group.size))
    chosen = [np.rint(every).astype(np.intp)]
    _, first, sizes = np.unique(group, return_index=True, return_counts=True)
    for start, size in zip(first, sizes, strict=True):
        few = np.linspace(start, start + size - 1, min(OF_EVERY_GROUP, int(size)))
        chosen.append(np.rint(few).astype(np.intp))
    return np.unique(np.concatenate(chosen))


def _cells(first: Integers, order: int) -> tuple[Integers, tuple[int, ...]]:
    """The first scalar of each cell, and the first cell of each group with the end.

    No cell holds scalars of two groups.
    """
    step = -(-order // CELLS)
    ends = [*first[1:].tolist(), order]
    runs = [np.arange(start, end, step) for start, end in zip(first.tolist(), ends, strict=True)]
    boundaries = np.cumsum([0, *(run.size for run in runs)])
    return np.concatenate(runs), tuple(boundaries.tolist())


def _shrink(values: Floats, starts: Integers, axis: int) -> Floats:
    return (
        values if starts.size == values.shape[axis] else np.maximum.reduceat(values, starts, axis)
    )
