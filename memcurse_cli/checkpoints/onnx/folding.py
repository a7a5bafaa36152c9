"""Weights that an ONNX graph computes from its initializers: slices of them, put together anew.

Exporters reorder a framework's gates by nodes of the graph. Only nodes that move elements about are
followed; what depends on an input of the graph has no value here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.elements import (
    element_bytes,
    element_count,
    element_type,
    to_double,
)
from memcurse_cli.checkpoints.onnx.graph import Attribute, Graph, Node
from memcurse_cli.checkpoints.onnx.tensors import ELEMENTS, Tensor

MAX_DEPTH = 64
MAX_INDICES = 1024
# What a fold may grow to beyond the tensors that it is made of.
MAX_GROWTH = 16
SLACK_BYTES = 4096

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that the graph computes without any input, not yet computed.

    Attributes:
        key: the same number for the same computation on the same initializers.
        shape: its shape.
        dtype: its type.
        sources: the initializers and constants that it is made of.
        inputs: the values that it is computed from.
        compute: the computation.
    """

    key: int
    shape: tuple[int, ...]
    dtype: str
    sources: frozenset[Tensor]
    inputs: tuple[Value, ...]
    compute: Callable[..., Array]

    def load(self) -> Array:
        """Compute it, each part once, as float64 or complex128."""
        return self._load({})

    def _load(self, known: dict[int, Array]) -> Array:
        if self.key not in known:
            known[self.key] = self.compute(*(value._load(known) for value in self.inputs))
        return known[self.key]


class Folder:
    """Finds the values of names."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, str], Value | None] = {}
        self._keys: dict[tuple[Any, ...], int] = {}

    def value(self, graph: Graph, name: str, depth: int = 0) -> Value | None:
        """The value of a name in a graph; None where it depends on an input or is not followed.

        Raises:
            ValueError: the nodes that make it do not fit together.
        """
        if not name or depth > MAX_DEPTH:
            return None
        home, name = graph.home(name)
        if home is None:
            return None
        place = (id(home), name)
        if place not in self._values:
            self._values[place] = None  # what is made from itself has no value
            if name in home.tensors:
                self._values[place] = self._leaf(home.tensors[name])
            else:
                self._values[place] = self._fold(home, home.producers[name], name, depth + 1)
        return self._values[place]

    def _leaf(self, tensor: Tensor | None) -> Value | None:
        if tensor is None or tensor.lazy is None:
            return None
        spec = tensor.lazy.spec
        # The same constant is read anew for each call of its function.
        key = self._key("tensor", tensor.start)
        return Value(key, spec.shape, spec.dtype, frozenset({tensor}), (), tensor.lazy.load)

    def _fold(self, graph: Graph, node: Node, name: str, depth: int) -> Value | None:
        if node.call is not None:
            return self.value(*node.call.source(name), depth)
        if node.domain not in ("", "ai.onnx"):
            return None
        if node.operator == "Constant":
            return self._leaf(node.attributes.get("value", Attribute()).tensor)
        data = self.value(graph, node.input(0), depth)
        if data is None:
            return None
        if node.operator == "Identity":
            return data
        if node.operator == "Cast":
            return self._cast(data, node.integer("to", 0))
        if node.operator == "Concat":
            others = [self.value(graph, name, depth) for name in node.inputs[1:]]
            parts = [data, *(other for other in others if other is not None)]
            return self._concat(parts, node) if len(parts) == len(node.inputs) else None
        if node.operator == "Transpose":
            found = node.attributes.get("perm", Attribute()).integers
            order = tuple(found or reversed(range(len(data.shape))))
            if sorted(order) != list(range(len(data.shape))):
                raise ValueError("a Transpose does not fit its tensor")
            return self._made(
                ("Transpose", order),
                tuple(data.shape[axis] for axis in order),
                (data,),
                lambda array: array.transpose(order),
            )
        if node.operator == "Slice":
            return self._slice(graph, node, data, depth)
        if node.operator in ("Reshape", "Squeeze", "Unsqueeze"):
            return self._reshape(graph, node, data, depth)
        return None

    def _cast(self, data: Value, code: int) -> Value | None:
        if code not in ELEMENTS:
            return None
        dtype = ELEMENTS[code][0]
        if dtype.startswith("complex") or data.dtype.startswith("complex"):
            return None

        def cast(array: Array) -> Array:
            with np.errstate(all="ignore"):
                return to_double(array.astype(element_type(dtype)))

        return self._made(("Cast", dtype), data.shape, (data,), cast, dtype)

    def _concat(self, parts: list[Value], node: Node) -> Value | None:
        rank = len(parts[0].shape)
        axis = node.integer("axis", rank)
        axis += rank if axis < 0 else 0
        rests = {part.shape[:axis] + part.shape[axis + 1 :] for part in parts}
        ranks = {len(part.shape) for part in parts}
        if not 0 <= axis < rank or len(rests) > 1 or len(ranks) > 1:
            raise ValueError("a Concat does not fit its tensors")
        size = sum(part.shape[axis] for part in parts)
        shape = (*parts[0].shape[:axis], size, *parts[0].shape[axis + 1 :])
        return self._made(
            ("Concat", axis), shape, tuple(parts), lambda *arrays: np.concatenate(arrays, axis)
        )

    def _slice(self, graph: Graph, node: Node, data: Value, depth: int) -> Value | None:
        given = [
            self._indices(graph, node, index, name, depth)
            for index, name in enumerate(("starts", "ends", "axes", "steps"), 1)
        ]
        starts, ends, axes, steps = given
        if starts is None or ends is None or len(starts) != len(ends):
            return None
        if any(given[i] is None and node.input(i + 1) for i in (2, 3)):
            return None
        axes = list(range(len(starts))) if axes is None else axes
        steps = [1] * len(starts) if steps is None else steps
        if not len(starts) == len(axes) == len(steps) or 0 in steps:
            raise ValueError("a Slice has no valid indices")
        slices = [slice(None)] * len(data.shape)
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            if not -len(slices) <= axis < len(slices):
                raise ValueError("a Slice does not fit its tensor")
            slices[axis] = slice(start, end, step)
        cut = tuple(slices)
        # ONNX clamps as Python does.
        shape = tuple(len(range(*s.indices(n))) for s, n in zip(cut, data.shape, strict=True))
        key = ("Slice", tuple(s.indices(n) for s, n in zip(cut, data.shape, strict=True)))
        return self._made(key, shape, (data,), lambda array: array[cut])

    def _reshape(self, graph: Graph, node: Node, data: Value, depth: int) -> Value | None:
        name = "shape" if node.operator == "Reshape" else "axes"
        given = self._indices(graph, node, 1, name, depth)
        if given is None and (node.operator != "Squeeze" or node.input(1)):
            return None
        if node.operator == "Reshape":
            shape = _reshaped(data.shape, given or [], bool(node.integer("allowzero", 0)))
        elif node.operator == "Squeeze":
            shape = _squeezed(data.shape, given)
        else:
            shape = _unsqueezed(data.shape, given or [])
        if element_count(shape) != element_count(data.shape):
            raise ValueError(f"a {node.operator} does not fit its tensor")
        return self._made(("Reshape", shape), shape, (data,), lambda array: array.reshape(shape))

    def _indices(
        self, graph: Graph, node: Node, index: int, name: str, depth: int
    ) -> list[int] | None:
        """The integers of an input, or of the attribute that it was before opset 10 and 13."""
        if name in node.attributes:
            return node.attributes[name].integers
        value = self.value(graph, node.input(index), depth)
        if value is None or len(value.shape) > 1 or element_count(value.shape) > MAX_INDICES:
            return None
        numbers = value.load().ravel()
        return [int(number) for number in numbers] if np.isrealobj(numbers) else None

    def _made(
        self,
        key: tuple[Any, ...],
        shape: tuple[int, ...],
        inputs: tuple[Value, ...],
        compute: Callable[..., Array],
        dtype: str = "",
    ) -> Value:
        dtype = dtype or inputs[0].dtype
        sources = frozenset[Tensor]().union(*(value.sources for value in inputs))
        stored = sum(tensor.lazy.spec.bytes for tensor in sources if tensor.lazy)
        if element_count(shape) * element_bytes(dtype) > MAX_GROWTH * stored + SLACK_BYTES:
            raise ValueError("its nodes make a tensor much larger than those that it is made of")
        number = self._key(*key, *(value.key for value in inputs))
        return Value(number, shape, dtype, sources, inputs, compute)

    def _key(self, *parts: Any) -> int:
        return self._keys.setdefault(parts, len(self._keys))


def _reshaped(shape: tuple[int, ...], given: Sequence[int], keeps_zero: bool) -> tuple[int, ...]:
    """The shape with 0 for "as before" and one -1 for "the rest" filled in."""
    filled = [
        shape[axis] if size == 0 and not keeps_zero and axis < len(shape) else size
        for axis, size in enumerate(given)
    ]
    if filled.count(-1) == 1:
        rest = element_count(tuple(size for size in filled if size != -1))
        filled[filled.index(-1)] = element_count(shape) // rest if rest > 0 else 0
    if any(size < 0 for size in filled):
        raise ValueError("a Reshape has no valid shape")
    return tuple(filled)


def _squeezed(shape: tuple[int, ...], axes: Sequence[int] | None) -> tuple[int, ...]:
    dropped = {axis % len(shape) for axis in axes} if axes is not None and shape else None
    return tuple(
        size
        for axis, size in enumerate(shape)
        if (size != 1 if dropped is None else axis not in dropped)
    )


def _unsqueezed(shape: tuple[int, ...], axes: Sequence[int]) -> tuple[int, ...]:
    rank = len(shape) + len(axes)
    added = {axis % rank for axis in axes} if rank else set[int]()
    if len(added) != len(axes) or rank > MAX_INDICES:
        raise ValueError("an Unsqueeze has no valid axes")
    sizes = iter(shape)
    return tuple(1 if axis in added else next(sizes) for axis in range(rank))
