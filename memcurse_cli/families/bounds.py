"""Reading one layer, within the bounds of what a report can hold."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.errors import CheckpointError
from memcurse_cli.families.family import Family, Match, ReadOptions
from memcurse_cli.families.neighbours import note_neighbours
from memcurse_cli.families.reading import require_eigenvalues
from memcurse_cli.families.recurrence import Floats, Recurrence

MOST_LAYERS = 10_000
"""Layers of one report, of which the smallest takes some 2 ms; known models have hundreds."""


def read_layer(
    family: Family, store: TensorStore, match: Match, options: ReadOptions
) -> Recurrence:
    """The layer, if it has no more eigenvalues than `reading.LARGEST_LAYER`.

    Raises:
        TensorError: it has more, cannot be read, or has a tensor beside it that changes λ.
    """
    recurrence = family.read(store, match, options)
    require_eigenvalues(recurrence.size, match.layer)

    @cache
    def largest(tensor: str) -> float:
        whole = store.read(tensor)
        return float(max(np.abs(whole.real).max(), np.abs(whole.imag).max()))

    def beyond(tensor: str, values: Floats) -> float | None:
        """The largest |ω| of a tensor of which a group holds a part, if it is not in that part.

        A scheme with one scale per tensor takes it from there, as for the gates of one bias.
        """
        spec = store.tensors.get(tensor)
        if spec is None:
            return None
        parts = 2 if spec.dtype.startswith("complex") else 1
        if parts * math.prod(spec.shape) <= values.size:
            return None
        held = np.abs(values).max(initial=0.0)
        return largest(tensor) if held < largest(tensor) < math.inf else None

    groups = tuple(
        replace(group, tensor_largest=beyond(group.tensor, group.values))
        for group in recurrence.parameters
    )
    dense = recurrence.dense
    if dense is not None:
        dense = replace(dense, tensor_largest=beyond(dense.tensor, dense.matrix))
    return note_neighbours(family, match, replace(recurrence, parameters=groups, dense=dense))


def require_layers(count: int, path: str) -> None:
    """Check how many layers a report is to be made of.

    Raises:
        CheckpointError: they are more than `MOST_LAYERS`.
    """
    if count > MOST_LAYERS:
        raise CheckpointError(
            f"{count} recurrent layers are more than the {MOST_LAYERS} of one report",
            where=path,
            remedy="choose some of them with --layer GLOB",
        )
