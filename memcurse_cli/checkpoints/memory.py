"""Tensors that are in memory already: a state_dict, a JAX tree, a dict of NumPy arrays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.rewrites import REWRITES
from memcurse_cli.checkpoints.select import collect, name_jax, name_torch, texts
from memcurse_cli.checkpoints.store import (
    LazyTensor,
    TensorSpec,
    TensorStore,
    element_count,
    to_double,
)
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.errors import CheckpointError


class MemoryStore(TensorStore):
    """The tensors of a mapping from names to arrays, or of a nested one.

    PyTorch, JAX and NumPy arrays are told apart by what they offer, so that no framework is
    imported. What is not an array is passed over.

    Args:
        arrays: ``model.state_dict()``, a training checkpoint as loaded, or a tree of parameters.
        path: what to call it in messages.

    Raises:
        CheckpointError: the argument is not a mapping, or holds no array.
    """

    def __init__(self, arrays: Mapping[str, Any], path: str = "state_dict") -> None:
        if not isinstance(arrays, Mapping):
            raise CheckpointError(
                f"a {type(arrays).__name__} is not a mapping from names to arrays",
                where=path,
                remedy="pass model.state_dict(), a tree of parameters, or a path",
            )

        def expand(node: object) -> object:
            """A state of an optax transformation under a key that says so."""
            if isinstance(node, tuple) and type(node).__module__.split(".")[0] == "optax":
                return {"opt_state": tuple(node)}
            return node

        any_torch = False

        def leaf(node: object) -> LazyTensor | None:
            nonlocal any_torch
            tensor = lazy(node)
            any_torch |= tensor is not None and hasattr(node, "detach")
            return tensor

        try:
            found = collect(arrays, leaf, expand)
            selected, notes = (name_torch if any_torch else name_jax)(found)
        except ValueError as error:
            raise CheckpointError(
                f"the mapping cannot be read: {error}", where=path, remedy="pass a flat mapping"
            ) from error
        if not found:
            raise CheckpointError(
                "the mapping holds no array",
                where=path,
                remedy="pass model.state_dict() or a tree of parameters",
            )
        super().__init__(
            path=path,
            format="memory",
            bytes=sum(tensor.spec.bytes for tensor in found.values()),
            tensors=selected,
            metadata=texts(arrays),
            notes=notes,
            contents=arrays,
        )
        for rewrite in REWRITES:
            rewrite(self)


def _converted(array: Any, dtype: str) -> NDArray[Any]:
    try:
        if hasattr(array, "detach"):  # PyTorch, whose bfloat16 NumPy does not know
            array = array.detach().cpu()
            is_complex = array.is_complex()
            array = array.resolve_conj().resolve_neg() if is_complex else array.double()
        return to_double(np.asarray(array))
    except (TypeError, ValueError, RuntimeError) as error:
        reason = printable(str(error).partition("\n")[0])
        raise CheckpointError(
            f"this {dtype} array cannot be converted to float64 ({reason})",
            remedy="convert it to a dense float array first",
        ) from error


def lazy(node: object) -> LazyTensor | None:
    """An array of any framework as an entry; None where it is none."""
    shape, dtype = getattr(node, "shape", None), getattr(node, "dtype", None)
    if shape is None or dtype is None:
        return None
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    dimensions = tuple(int(size) for size in shape)
    size = element_count(dimensions) * int(getattr(dtype, "itemsize", 0))
    return LazyTensor(
        TensorSpec(dimensions, name, size), partial(_converted, node, name), _memory(node)
    )


def _memory(node: Any) -> Hashable | None:
    """Where a dense torch tensor lies and how, which tied parameters have in common; else None."""
    try:
        place = node.data_ptr()
        layout = node.shape, node.stride(), node.dtype, node.device
        return (place, *layout, node.is_conj(), node.is_neg()) if place else None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
