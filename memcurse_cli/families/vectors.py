"""Gate parameters as flat vectors, whatever shape a library keeps them in."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.reading import LARGEST_DECAY, read_real, require_shape, shown_shape
from memcurse_cli.families.recurrence import Floats


def first_name(names: Mapping[str, str], roles: tuple[str, ...]) -> str | None:
    """The tensor of the first of some roles that a layer has."""
    return next((names[role] for role in roles if role in names), None)


def read_vector(store: TensorStore, tensor: str, size: int | None = None) -> Floats:
    """A real tensor of any shape, flattened row by row: (1, 1, n), (heads, n / heads) and (n).

    Raises:
        TensorError: it has another number of elements, is complex, empty, or holds NaN or inf.
    """
    shape = store.tensors[tensor].shape
    if size is not None and prod(shape) != size:
        raise TensorError(
            f"its shape {shown_shape(shape)} does not fit a layer that needs {size} values",
            where=tensor,
            remedy="name the right family with --family, or export the layer again",
        )
    return read_real(store, tensor, shape).ravel()


def element_count(spec: TensorSpec) -> int:
    """The number of elements."""
    return prod(spec.shape)


def rows_per(store: TensorStore, tensor: str | None, count: int) -> int:
    """How many rows of a weight (outputs, inputs) each of ``count`` heads has; 1 if unknown."""
    shape = () if tensor is None else store.tensors[tensor].shape
    return shape[0] // count if shape and count and shape[0] % count == 0 and shape[0] else 1


def stacked_rows(store: TensorStore, tensor: str, count: int) -> int:
    """The rows of each of ``count`` equal layers in one weight (outputs, inputs).

    Raises:
        TensorError: it is no matrix, is empty, or its rows do not divide.
    """
    require_shape(store, tensor, (None, None))
    shape = store.tensors[tensor].shape
    if not shape[0] or shape[0] % count:
        raise TensorError(
            f"the rows of its shape {shown_shape(shape)} are not {count} equal parts",
            where=tensor,
            remedy="name the right family with --family, or export the layer again",
        )
    return shape[0] // count


def exponential_decay(log_rate: Floats) -> Floats:
    """The decay ``e^w`` of ``λ = exp(-e^w)``, cut at `LARGEST_DECAY`."""
    return np.exp(np.minimum(log_rate, np.log(LARGEST_DECAY)))
