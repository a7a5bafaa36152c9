"""ONNX models: their initializers, and the weights of their RNN, LSTM and GRU nodes.

Nothing is run. Exporters reorder a framework's gates by nodes of the graph: the few that only move
a weight's elements about are followed; what depends on an input of the graph has no value here.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from msgspec import Struct

from memcurse_cli.checkpoints.onnx.graph import (
    ELEMENTS,
    LENGTH,
    VARINT,
    Graph,
    GraphReader,
    Node,
    Reader,
    Tensor,
    message_of,
)
from memcurse_cli.checkpoints.select import counted, select_flat
from memcurse_cli.checkpoints.store import (
    Array,
    LazyTensor,
    Shape,
    TensorSpec,
    TensorStore,
    element_bytes,
    element_type,
    to_double,
)
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import File, FilesBeside
from memcurse_cli.errors import CheckpointError

MAX_DEPTH = 64
MAX_INDICES = 1024
# What a fold may grow to beyond the tensors that it is made of.
MAX_GROWTH = 16
SLACK_BYTES = 4096


class Value(Struct, frozen=True, eq=False):
    """A tensor that the graph computes without any input, not yet computed."""

    key: int  # the same number for the same computation on the same initializers
    shape: Shape
    dtype: str
    sources: frozenset[Tensor]  # the initializers and constants that it is made of
    inputs: tuple[Value, ...]  # the values that it is computed from
    compute: Callable[..., Array]

    def load(self, known: dict[int, Array] | None = None) -> Array:
        """Compute it, each part once, as float64 or complex128."""
        known = {} if known is None else known
        if self.key not in known:
            known[self.key] = self.compute(*(value.load(known) for value in self.inputs))
        return known[self.key]


class Folder:
    """Finds the values of names."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, str], Value | None] = {}
        self._keys: dict[tuple[Any, ...], int] = {}

    def value(self, graph: Graph, name: str, depth: int = 0) -> Value | None:
        """The value of a name in a graph; None where it depends on an input or is not followed."""
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
        if node.function is not None:
            inside = dict(zip(node.outputs, node.function.outputs, strict=False))
            return self.value(node.body, inside.get(name, ""), depth)
        if node.key[0]:  # not an operator of ONNX's own
            return None
        if node.operator == "Constant":
            return self._leaf(node.attribute("value").tensor)
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
            order = tuple(node.attribute("perm").integers or reversed(range(len(data.shape))))
            if sorted(order) != list(range(len(data.shape))):
                raise ValueError("a Transpose does not fit its tensor")
            shape = tuple(data.shape[axis] for axis in order)
            return self._made(
                ("Transpose", order), shape, (data,), lambda array: array.transpose(order)
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
        starts, ends, axes, steps = (
            self._indices(graph, node, index, name, depth)
            for index, name in enumerate(("starts", "ends", "axes", "steps"), 1)
        )
        if starts is None or ends is None or len(starts) != len(ends):
            return None
        if (axes is None and node.input(3)) or (steps is None and node.input(4)):
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
        ranges = [s.indices(n) for s, n in zip(cut, data.shape, strict=True)]
        shape = tuple(len(range(*indices)) for indices in ranges)
        return self._made(("Slice", *ranges), shape, (data,), lambda array: array[cut])

    def _reshape(self, graph: Graph, node: Node, data: Value, depth: int) -> Value | None:
        name = "shape" if node.operator == "Reshape" else "axes"
        given = self._indices(graph, node, 1, name, depth)
        if given is None and (node.operator != "Squeeze" or node.input(1)):
            return None
        if node.operator == "Reshape":
            shape = _reshaped(data.shape, given or [], bool(node.integer("allowzero", 0)))
        else:
            alike = np.broadcast_to(0.0, data.shape)
            axes = None if given is None else tuple(given)
            try:
                if node.operator == "Squeeze":
                    shape = alike.squeeze(axes).shape
                else:
                    shape = np.expand_dims(alike, axes or ()).shape
            except (ValueError, OverflowError) as error:
                raise ValueError(f"a {node.operator} does not fit its tensor") from error
        if math.prod(shape) != math.prod(data.shape):
            raise ValueError(f"a {node.operator} does not fit its tensor")
        return self._made(("Reshape", shape), shape, (data,), lambda array: array.reshape(shape))

    def _indices(
        self, graph: Graph, node: Node, index: int, name: str, depth: int
    ) -> list[int] | None:
        """The integers of an input, or of the attribute that it was before opset 10 and 13."""
        if name in node.attributes:
            return node.attributes[name].integers
        value = self.value(graph, node.input(index), depth)
        if value is None or len(value.shape) > 1 or math.prod(value.shape) > MAX_INDICES:
            return None
        numbers = value.load().ravel()
        return [int(number) for number in numbers] if np.isrealobj(numbers) else None

    def _made(
        self,
        key: tuple[Any, ...],
        shape: Shape,
        inputs: tuple[Value, ...],
        compute: Callable[..., Array],
        dtype: str = "",
    ) -> Value:
        dtype = dtype or inputs[0].dtype
        sources = frozenset[Tensor]().union(*(value.sources for value in inputs))
        stored = sum(tensor.lazy.spec.bytes for tensor in sources if tensor.lazy)
        if math.prod(shape) * element_bytes(dtype) > MAX_GROWTH * stored + SLACK_BYTES:
            raise ValueError("its nodes make a tensor much larger than those that it is made of")
        number = self._key(*key, *(value.key for value in inputs))
        return Value(number, shape, dtype, sources, inputs, compute)

    def _key(self, *parts: Any) -> int:
        return self._keys.setdefault(parts, len(self._keys))


def _reshaped(shape: Shape, given: Sequence[int], keeps_zero: bool) -> Shape:
    """The shape with 0 for "as before" and one -1 for "the rest" filled in."""
    filled = [
        shape[axis] if size == 0 and not keeps_zero and axis < len(shape) else size
        for axis, size in enumerate(given)
    ]
    if filled.count(-1) == 1:
        rest = math.prod(size for size in filled if size != -1)
        filled[filled.index(-1)] = math.prod(shape) // rest if rest > 0 else 0
    if any(size < 0 for size in filled):
        raise ValueError("a Reshape has no valid shape")
    return tuple(filled)


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# The inputs of each operator that are weights: P are an LSTM's peepholes.
WEIGHTS = {"W": 1, "R": 2, "B": 3, "P": 7}
DIRECTIONS = ("forward", "reverse")
QUANTISED = ("DynamicQuantizeLSTM", "QLinearLSTM")
MAX_ATTRIBUTES = 10_000
_IR_VERSION, _PRODUCER, _GRAPH, _FUNCTIONS = 1, 2, 7, 25
# Every field that a ModelProto may have before its graph, and the wire type of each.
_FIELDS = {1: VARINT, 2: LENGTH, 3: LENGTH, 4: LENGTH, 5: VARINT, 6: LENGTH, 8: LENGTH, 14: LENGTH}
_LATEST_IR_VERSION = 100


def recognises(head: bytes, file: File) -> bool:
    """The fields of a ModelProto up to its graph, whose own length may be wrong."""
    with suppress(ValueError, CheckpointError):
        # The end is not that of the file, so that a graph which is cut off is one still.
        for field in islice(Reader(file).fields(0, 1 << 62), 100):
            if field.number == _GRAPH:
                return field.wire == LENGTH
            if _FIELDS.get(field.number) != field.wire:
                return False
            if field.number == _IR_VERSION and not 0 < field.value < _LATEST_IR_VERSION:
                return False
    return False


def open_file(file: File) -> TensorStore:
    """Read the graph, and fold what its recurrent nodes take."""
    external = FilesBeside(file.directory())
    model = _Model(file, external)
    tensors, notes = select_flat(model.tensors)
    size = file.size + external.size
    return TensorStore(file, tensors, [*model.notes, *notes], size=size, metadata=model.metadata)


class _Model:
    """The tensors of a model, each direction of a node as ``NODE/LSTM_R``, ``NODE/reverse/LSTM_R``.

    The initializers that they are made of are not listed again.
    """

    def __init__(self, file: File, external: FilesBeside) -> None:
        self.tensors: dict[str, LazyTensor] = {}
        self.metadata: dict[str, str] = {}
        self.notes: list[str] = []
        self._folder = Folder()
        self._names: Counter[str] = Counter()
        self._consumed: set[Tensor] = set()
        message = message_of(file)
        functions, graphs = (
            [field for field in message[number] if field.wire == LENGTH]
            for number in (_FUNCTIONS, _GRAPH)
        )
        if message[_PRODUCER]:
            self.metadata["producer"] = message.text(_PRODUCER)
        if not graphs:
            raise ValueError("it has no graph")
        graph = GraphReader(external, functions).read(graphs[-1])
        recurrent = dict(self._recurrent(graph))
        unread = []
        unrolled: dict[str, None] = {}
        for inner in graph.all_graphs():
            unrolled |= dict.fromkeys(tensor.name for tensor in inner.fed_back())
            for name, tensor in inner.tensors.items():
                if tensor.lazy is None:
                    unread.append(name)
                elif tensor not in self._consumed:
                    self.tensors[self._unique(name)] = tensor.lazy
        for name, lazy in recurrent.items():
            self.tensors[self._unique(name)] = lazy
        if unrolled:
            matrices = "matrix is" if len(unrolled) == 1 else "matrices are"
            self.notes.append(
                f"{len(unrolled)} {matrices} multiplied with what came of their own products (such "
                f"as {printable(next(iter(unrolled)), 80)}), as in an RNN that is unrolled: left "
                "out, unless the name is that of a known cell's weight"
            )
        self.notes += counted(unread, "of 4-bit numbers or text", "left out")

    def _unique(self, name: str) -> str:
        # Two graphs within one may use the same name.
        self._names[name] += 1
        count = self._names[name]
        return name if count == 1 else f"{name}#{count}"

    def _recurrent(self, graph: Graph) -> Iterator[tuple[str, LazyTensor]]:
        seen: set[tuple[Any, ...]] = set()
        shared, computed, quantised = [], [], []
        for inner in graph.all_graphs():
            for node in inner.nodes:
                name = f"{inner.prefix}{node.label}"
                if node.operator in QUANTISED:
                    quantised.append(name)
                if node.operator not in GATES or node.key[0]:
                    continue
                weights = {
                    role: self._folder.value(inner, node.input(index))
                    for role, index in WEIGHTS.items()
                    if inner.home(node.input(index))[1]
                }
                found = {role: value for role, value in weights.items() if value is not None}
                if len(found) < len(weights) or "R" not in found:
                    computed.append(name)
                    continue
                attributes = _attributes(node)
                identity = (attributes, *((role, value.key) for role, value in found.items()))
                # Both branches of an If may run the same layer, by nodes of their own.
                if identity in seen:
                    shared.append(name)
                    continue
                seen.add(identity)
                self._consumed |= {source for value in found.values() for source in value.sources}
                yield from self._layers(name, node, found, attributes)
        self._note(shared, "with the weights of another", "counted once")
        self._note(computed, "with weights that are computed as the model runs", "left out")
        self._note(quantised, "with quantised weights", "left out")

    def _layers(
        self, name: str, node: Node, weights: dict[str, Value], attributes: str
    ) -> Iterator[tuple[str, LazyTensor]]:
        gates, name = GATES[node.operator], self._unique(name)
        direction = (node.attribute("direction").texts or ["forward"])[0]
        directions = (direction,) if direction in DIRECTIONS else DIRECTIONS
        shape = weights["R"].shape
        if len(shape) != 3 or shape[0] != len(directions) or shape[1] != gates * shape[2]:
            raise ValueError(f"the weights of {printable(name, 80)} do not fit a {node.operator}")
        for index, direction in enumerate(directions):
            layer = name if len(directions) == 1 else f"{name}/{direction}"
            self.metadata[f"{layer}/{node.operator}"] = attributes
            for role, value in weights.items():
                if len(value.shape) < 2 or value.shape[0] != len(directions):
                    raise ValueError(f"{role} of {printable(name, 80)} has no valid shape")
                spec = TensorSpec.plain(value.shape[1:], value.dtype)
                part = partial(_part, value, index)
                yield f"{layer}/{node.operator}_{role}", LazyTensor(spec, part)

    def _note(self, names: list[str], what: str, verdict: str) -> None:
        if names:
            nodes = "recurrent node" if len(names) == 1 else "recurrent nodes"
            self.notes.append(
                f"{len(names)} {nodes} (such as {printable(names[0], 80)}) {what}: {verdict}"
            )


def _part(value: Value, index: int) -> Array:
    return np.asarray(value.load()[index])


def _attributes(node: Node) -> str:
    """What the node's attributes say, as JSON."""
    values = {
        name: found.texts or found.floats or found.integers
        for name, found in sorted(node.attributes.items())
        if name != "hidden_size"
    }
    text = json.dumps(values, allow_nan=False)
    if len(text) > MAX_ATTRIBUTES:
        raise ValueError(f"the attributes of {printable(node.label, 80)} are too long")
    return text
