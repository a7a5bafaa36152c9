"""How large a layer may be: what a few bytes of a sparse file claim must not fill the memory.

The bounds stand far above any model that is known and are checked on shapes, before elements are
read. A layer beyond one is left out with a `TensorError`, like any other that cannot be read.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.errors import CheckpointError, TensorError
from memcurse_cli.families.family import Family, Match, ReadOptions
from memcurse_cli.families.module_names import split_name
from memcurse_cli.families.neighbours import note_neighbours
from memcurse_cli.families.recurrence import Floats, Recurrence

LARGEST_LAYER = 2**23
"""Eigenvalues of a layer, or elements of a tensor that holds some for each eigenvalue.

A report takes some 320 bytes and 4 µs for each: 2.6 GB and 36 s at the bound. The largest Mamba
has 262 144 (16 384 channels of 16 states).
"""

LARGEST_ORDER = 8192
"""Hidden units of a dense layer, whose matrix is decomposed into its eigenvectors.

Of 2000 units it takes 10 s and 0.4 GB, as n³ and n²: 12 minutes and 7 GB at the bound.
"""

LARGEST_MATRIX = 2**28
"""Elements of any other tensor that is read whole: 2 GB in double precision."""

MOST_LAYERS = 10_000
"""Layers of one report, of which the smallest takes some 2 ms; known models have hundreds."""

# What tensors are called that hold one scalar for each eigenvalue, as channels by states.
_SCALARS = ("a", "alpha", "delta", "nu", "theta", "gamma", "lambda", "log", "inv", "dt", "poles")
_MOST_STATES = 64


def require_size(store: TensorStore, tensor: str) -> None:
    """Check that a tensor is one that a layer within the bounds can have.

    Raises:
        TensorError: it is larger.
    """
    shape = store.tensors[tensor].shape
    elements = math.prod(shape)
    if elements <= LARGEST_LAYER:
        return
    if len(shape) == 2 and shape[0] == shape[1] and not _holds_scalars(tensor, shape):
        require_order(shape[0], tensor)
    if _holds_scalars(tensor, shape):
        limit, what = LARGEST_LAYER, "of one for each eigenvalue"
    else:
        limit, what = LARGEST_MATRIX, "of a matrix"
    if elements > limit:
        raise _beyond(
            f"its {elements} elements are more than the {limit} {what} that is read", tensor
        )


def require_order(order: int, tensor: str) -> None:
    """Check the order of a matrix before it is read and decomposed.

    Raises:
        TensorError: it is above `LARGEST_ORDER`.
    """
    if order > LARGEST_ORDER:
        raise _beyond(
            f"an eigendecomposition of order {order} is above {LARGEST_ORDER} and is not taken",
            tensor,
        )


def read_layer(
    family: Family, store: TensorStore, match: Match, options: ReadOptions
) -> Recurrence:
    """The layer, if it has no more eigenvalues than `LARGEST_LAYER`.

    Raises:
        TensorError: it has more, cannot be read, or has a tensor beside it that changes λ.
    """
    recurrence = family.read(store, match, options)
    require_eigenvalues(recurrence.size, match.layer)
    dense = recurrence.dense
    recurrence = replace(
        recurrence,
        parameters=tuple(
            replace(group, tensor_largest=_largest_beyond(store, group.tensor, group.values))
            for group in recurrence.parameters
        ),
        dense=dense
        and replace(dense, tensor_largest=_largest_beyond(store, dense.tensor, dense.matrix)),
    )
    return note_neighbours(family, match, recurrence)


def _largest_beyond(store: TensorStore, tensor: str, values: Floats) -> float | None:
    """The largest |ω| of a tensor of which a group holds a part, where it is not in that part.

    A scheme with one scale per tensor takes it from there, as for the gates that share a bias.
    """
    spec = store.tensors.get(tensor)
    if spec is None:
        return None
    parts = 2 if spec.dtype.startswith("complex") else 1
    if parts * math.prod(spec.shape) <= values.size:
        return None
    whole = store.read(tensor)
    largest = float(max(np.abs(whole.real).max(), np.abs(whole.imag).max()))
    return largest if np.abs(values).max(initial=0.0) < largest < math.inf else None


def require_eigenvalues(count: int, where: str) -> None:
    """Check how many eigenvalues a layer has before they are made from fewer scalars.

    Raises:
        TensorError: they are more than `LARGEST_LAYER`.
    """
    if count > LARGEST_LAYER:
        raise _beyond(
            f"its {count} eigenvalues are more than the {LARGEST_LAYER} of a layer that is read",
            where,
        )


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


def _holds_scalars(tensor: str, shape: tuple[int, ...]) -> bool:
    """Whether a large tensor is a table of scalars rather than a matrix."""
    if len(shape) < 2 or min(shape[-2:]) <= _MOST_STATES:
        return True
    last = split_name(tensor)[1].lower()
    dense = last == "a" and shape[-1] == shape[-2]
    return not dense and any(part in _SCALARS for part in last.split("_"))


def _beyond(what: str, where: str) -> TensorError:
    return TensorError(
        what,
        where=where,
        remedy="no known model is as large: check that the checkpoint is what it should be",
    )
