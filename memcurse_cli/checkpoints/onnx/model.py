"""ONNX models: their initializers, and the weights of their RNN, LSTM and GRU nodes.

The file is read without the onnx package, by range, so that a model of any size opens at once.
Nothing is run; the few nodes that only move a weight's elements about are followed
(`folding`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from numpy.typing import NDArray

from memcurse_cli.checkpoints.elements import element_bytes, element_count
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.onnx.folding import Folder, Value
from memcurse_cli.checkpoints.onnx.graph import Functions, Graph, GraphReader, Node
from memcurse_cli.checkpoints.onnx.protobuf import LENGTH, VARINT, Field, Messages
from memcurse_cli.checkpoints.onnx.tensors import ExternalFiles, Tensor
from memcurse_cli.checkpoints.select import select_flat
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import File
from memcurse_cli.errors import CheckpointError

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# The inputs of each operator that are weights: P are an LSTM's peepholes.
WEIGHTS = {"W": 1, "R": 2, "B": 3, "P": 7}
DIRECTIONS = {"forward": ("forward",), "reverse": ("reverse",)}
BOTH = ("forward", "reverse")
QUANTISED = ("DynamicQuantizeLSTM", "QLinearLSTM")
MAX_ATTRIBUTES = 10_000
_IR_VERSION, _PRODUCER, _GRAPH, _FUNCTIONS = 1, 2, 7, 25
# Every field that a ModelProto may have before its graph, and the wire type of each.
_FIELDS = {1: VARINT, 2: LENGTH, 3: LENGTH, 4: LENGTH, 5: VARINT, 6: LENGTH, 8: LENGTH, 14: LENGTH}
_LATEST_IR_VERSION = 100
_UNBOUNDED = 1 << 62
_FIELDS_BEFORE_THE_GRAPH = 100


def recognises(head: bytes, file: File) -> bool:
    """The fields of a ModelProto up to its graph, whose own length may be wrong."""
    try:
        # The end is not that of the file, so that a graph which is cut off is one still.
        for field in islice(Messages(file).fields(0, _UNBOUNDED), _FIELDS_BEFORE_THE_GRAPH):
            if field.number == _GRAPH:
                return field.wire == LENGTH
            if _FIELDS.get(field.number) != field.wire:
                return False
            if field.number == _IR_VERSION and not 0 < field.value < _LATEST_IR_VERSION:
                return False
    except (ValueError, CheckpointError):
        return False
    return False


def open_file(file: File) -> LazyStore:
    """Read the graph, and fold what its recurrent nodes take."""
    external = ExternalFiles(file)
    try:
        model = _Model(file, external)
    except BaseException:
        external.close()
        raise
    tensors, notes = select_flat(model.tensors)
    return LazyStore(
        path=file.path,
        bytes=file.size + external.bytes,
        tensors=tensors,
        metadata=model.metadata,
        notes=[*model.notes, *notes],
        resources=[file, external],
    )


class _Model:
    """The tensors of a model.

    Each direction of a recurrent node is a layer of its own: ``NODE/LSTM_R``, or
    ``NODE/reverse/LSTM_R`` where the node has both directions. The initializers that they are made
    of are not listed again.
    """

    def __init__(self, file: File, external: ExternalFiles) -> None:
        self._file = file
        self.tensors: dict[str, LazyTensor] = {}
        self.metadata: dict[str, str] = {}
        self.notes: list[str] = []
        self._folder = Folder()
        self._names: Counter[str] = Counter()
        self._consumed: set[Tensor] = set()
        graph = self._graph(external)
        recurrent = dict(self._recurrent(graph))
        unread = []
        unrolled: dict[str, None] = {}
        for inner in graph.all_graphs():
            unrolled |= dict.fromkeys(tensor.name for tensor in inner.fed_back())
            for name, tensor in inner.tensors.items():
                if tensor.lazy is None:
                    unread.append(name)
                elif tensor not in self._consumed:
                    self._add(name, tensor.lazy)
        for name, lazy in recurrent.items():
            self._add(name, lazy)
        if unrolled:
            matrices = "matrix is" if len(unrolled) == 1 else "matrices are"
            self.notes.append(
                f"{len(unrolled)} {matrices} multiplied with what came of their own products (such "
                f"as {printable(next(iter(unrolled)), 80)}), as in an RNN that is unrolled: left "
                "out, unless the name is that of a known cell's weight"
            )
        if unread:
            self.notes.append(
                f"{len(unread)} tensors of 4-bit numbers or text "
                f"(such as {printable(unread[0], 80)}): left out"
            )

    def _graph(self, external: ExternalFiles) -> Graph:
        messages = Messages(self._file)
        place: Field | None = None
        functions: list[Field] = []
        for field in messages.fields(0, self._file.size):
            if field.number == _GRAPH and field.wire == LENGTH:
                place = field
            elif field.number == _FUNCTIONS and field.wire == LENGTH:
                functions.append(field)
            elif field.number == _PRODUCER and field.wire == LENGTH:
                self.metadata["producer"] = messages.text(field)
        if place is None:
            raise ValueError("it has no graph")
        reader = GraphReader(messages, external)
        reader.functions = Functions(messages, functions, reader)
        return reader.read(place)

    def _add(self, name: str, lazy: LazyTensor) -> None:
        # Two graphs within one may use the same name.
        self._names[name] += 1
        count = self._names[name]
        self.tensors[name if count == 1 else f"{name}#{count}"] = lazy

    def _recurrent(self, graph: Graph) -> Iterator[tuple[str, LazyTensor]]:
        seen: set[tuple[Any, ...]] = set()
        shared, computed, quantised = [], [], []
        for inner in graph.all_graphs():
            for node in inner.nodes:
                if node.operator in QUANTISED:
                    quantised.append(_named(inner, node))
                if node.operator not in GATES or node.domain not in ("", "ai.onnx"):
                    continue
                weights = {
                    role: self._folder.value(inner, node.input(index))
                    for role, index in WEIGHTS.items()
                    if inner.home(node.input(index))[1]
                }
                if any(value is None for value in weights.values()) or "R" not in weights:
                    computed.append(_named(inner, node))
                    continue
                found = {role: value for role, value in weights.items() if value is not None}
                attributes = _attributes(node)
                identity = (attributes, *((role, value.key) for role, value in found.items()))
                # Both branches of an If may run the same layer, by nodes of their own.
                if identity in seen:
                    shared.append(_named(inner, node))
                    continue
                seen.add(identity)
                self._consumed |= {source for value in found.values() for source in value.sources}
                yield from self._layers(_named(inner, node), node, found, attributes)
        self._note(shared, "with the weights of another", "counted once")
        self._note(computed, "with weights that are computed as the model runs", "left out")
        self._note(quantised, "with quantised weights", "left out")

    def _layers(
        self, name: str, node: Node, weights: dict[str, Value], attributes: str
    ) -> Iterator[tuple[str, LazyTensor]]:
        gates = GATES[node.operator]
        self._names[name] += 1
        if self._names[name] > 1:
            name = f"{name}#{self._names[name]}"
        directions = DIRECTIONS.get(node.text("direction", "forward"), BOTH)
        shape = weights["R"].shape
        if len(shape) != 3 or shape[0] != len(directions) or shape[1] != gates * shape[2]:
            raise ValueError(f"the weights of {printable(name, 80)} do not fit a {node.operator}")
        for index, direction in enumerate(directions):
            layer = name if len(directions) == 1 else f"{name}/{direction}"
            self.metadata[f"{layer}/{node.operator}"] = attributes
            for role, value in weights.items():
                if len(value.shape) < 2 or value.shape[0] != len(directions):
                    raise ValueError(f"{role} of {printable(name, 80)} has no valid shape")
                part = value.shape[1:]
                size = element_count(part) * element_bytes(value.dtype)
                spec = TensorSpec(part, value.dtype, size)
                yield f"{layer}/{node.operator}_{role}", LazyTensor(spec, _part(value, index))

    def _note(self, names: list[str], what: str, verdict: str) -> None:
        if names:
            nodes = "recurrent node" if len(names) == 1 else "recurrent nodes"
            self.notes.append(
                f"{len(names)} {nodes} (such as {printable(names[0], 80)}) {what}: {verdict}"
            )


def _part(value: Value, index: int) -> Callable[[], NDArray[Any]]:
    def load() -> NDArray[Any]:
        part: NDArray[Any] = value.load()[index]
        return part

    return load


def _named(graph: Graph, node: Node) -> str:
    return f"{graph.prefix}{node.label}"


def _attributes(node: Node) -> str:
    """What the node's attributes say, as JSON.

    Raises:
        ValueError: one is not finite, or they are longer than any recurrent node's.
    """
    values = {
        name: found.texts or found.floats or found.integers
        for name, found in sorted(node.attributes.items())
        if name != "hidden_size"
    }
    text = json.dumps(values, allow_nan=False)
    if len(text) > MAX_ATTRIBUTES:
        raise ValueError(f"the attributes of {printable(node.label, 80)} are too long")
    return text
