"""Which elements of B, C and D the stored tensors around a diagonal recurrence move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.families.reading import complex_parts
from memcurse_cli.families.recurrence import Complexes, Integers, ProjectionGroup

Matrix = Literal["B", "C", "D"]
REAL, IMAGINARY = "real", "imaginary"


def named_parts(
    store: TensorStore, tensors: Mapping[str, str], matrix: Matrix, values: Complexes
) -> tuple[ProjectionGroup, ...]:
    """The parts of B or C that `read_complex` found: two tensors, or one complex or real one."""
    for names in complex_parts(matrix):
        if all(name in tensors for name in names):
            return tuple(
                _group(store, tensors[name], name, matrix, values.shape, derivative)
                for name, derivative in zip(names, (1, 1j), strict=True)
            )
    return stored_parts(store, tensors[matrix], matrix, values.shape)


def layer_projections(
    store: TensorStore,
    tensors: Mapping[str, str],
    readin: Complexes | None,
    readout: Complexes | None,
) -> tuple[ProjectionGroup, ...]:
    """B, C and D of a layer that mixes its inputs; none where B or C is missing."""
    if readin is None or readout is None:
        return ()
    return (
        *named_parts(store, tensors, "B", readin),
        *named_parts(store, tensors, "C", readout),
        *direct_part(store, tensors.get("D"), len(readout), readin.shape[1]),
    )


def stored_parts(
    store: TensorStore,
    tensor: str,
    matrix: Matrix,
    shape: tuple[int, ...],
    *,
    pairs: bool = False,
    factor: float = 1.0,
    scalar: Integers | None = None,
) -> tuple[ProjectionGroup, ...]:
    """The parts of one tensor: real alone, or real and imaginary where it holds both.

    Args:
        store: the checkpoint.
        tensor: its name.
        matrix: which matrix it is.
        shape: the shape of the matrix.
        pairs: the last axis is (real, imaginary) where the tensor is not complex.
        factor: the matrix over what is stored.
        scalar: (elements,) the scalar of each element of the matrix, where some share one.
    """
    parts: dict[str, complex] = {matrix: 1}
    if pairs or store.tensors[tensor].dtype.startswith("complex"):
        parts = {f"{matrix}[{REAL}]": 1, f"{matrix}[{IMAGINARY}]": 1j}
    return tuple(
        _group(store, tensor, name, matrix, shape, factor * derivative, scalar)
        for name, derivative in parts.items()
    )


def direct_part(
    store: TensorStore, tensor: str | None, outputs: int, inputs: int
) -> tuple[ProjectionGroup, ...]:
    """D of a layer that mixes its inputs: a vector is a diagonal, or nothing where none fits."""
    shape = _real_shape(store, tensor)
    fits = shape == (outputs, inputs) or (shape == (outputs,) and outputs == inputs)
    if tensor is not None and fits:
        return (_group(store, tensor, "D", "D", shape),)
    return ()


def channel_direct_part(
    store: TensorStore, tensor: str | None, outputs: int, channels: int
) -> tuple[ProjectionGroup, ...]:
    """D of single-input channels, (channels,) or (outputs, channels); nothing where none fits."""
    shape = _real_shape(store, tensor)
    fits = shape == (outputs, channels) or (shape == (channels,) and outputs == 1)
    if tensor is not None and fits:
        return (_group(store, tensor, "D", "D", (outputs, channels)),)
    return ()


def beside(store: TensorStore, tensor: str, role: str, *, above: int = 0) -> str | None:
    """The tensor of a role in the same module, or in one further up, or None."""
    separator = next((mark for mark in "./," if mark in tensor), ".")
    modules = tensor.split(separator)[: -1 - above]
    name = separator.join([*modules, role])
    return name if name in store.tensors else None


def _real_shape(store: TensorStore, tensor: str | None) -> tuple[int, ...]:
    """The shape of a real tensor; that of a scalar where there is none."""
    if tensor is None or store.tensors[tensor].dtype.startswith("complex"):
        return ()
    return store.tensors[tensor].shape


def _group(
    store: TensorStore,
    tensor: str,
    name: str,
    matrix: Matrix,
    shape: tuple[int, ...],
    derivative: complex = 1,
    scalar: Integers | None = None,
) -> ProjectionGroup:
    """Every element of a matrix, row by row; those of the diagonal where it has one axis."""
    if len(shape) == 1:
        row = column = np.arange(shape[0])
    else:
        row, column = np.indices(shape).reshape(2, -1)
    scalar = np.arange(row.size) if scalar is None else scalar
    return ProjectionGroup(
        name=name,
        tensor=tensor,
        dtype=store.tensors[tensor].dtype,
        matrix=matrix,
        size=int(scalar.max()) + 1,
        scalar=scalar,
        row=row,
        column=column,
        derivative=np.full(row.size, derivative, np.complex128),
    )
