"""ONNX's graphs: nodes, the tensors that they name, the graphs within nodes, and functions.

The layout is that of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto. A node that calls one
of the model's own functions stands for a graph that sees only the inputs and attributes that it is
given. Each call is read anew, and only where it leads to a recurrent node or to a weight of one.

Protocol buffers are read by range without a schema: a message is a sequence of fields, each a tag
(its number and its wire type) and a varint, 4 bytes, 8 bytes, or a length and as many bytes, which
may be a message in turn (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import Array, LazyTensor, TensorSpec, decode, element_bytes
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import Bytes, Cursor, FilesBeside, naturals

VARINT, LENGTH = 0, 2
_WIDTHS = {1: 8, 5: 4}  # of the wire types that have a fixed number of bytes
MAX_FIELDS = 2_000_000
MAX_TEXT_BYTES = 100_000


class Field(NamedTuple):
    """One field: an unsigned ``value``, or for a length ``size`` bytes from ``start`` on."""

    source: Reader
    number: int
    wire: int
    value: int
    start: int
    size: int

    @property
    def signed(self) -> int:
        """The value as an ``int64``."""
        return self.value - (1 << 64) if self.value >> 63 else self.value

    def fields(self) -> Iterator[Field]:
        """The fields of the message that it holds."""
        return self.source.fields(self.start, self.size)

    def read(self, most: int = 1 << 62) -> bytes:
        """Its bytes."""
        return bytes(self.source.source.read(self.start, min(self.size, most)))

    def text(self) -> str:
        """The text that it holds."""
        if self.size > MAX_TEXT_BYTES:
            raise ValueError(f"a name has {self.size} bytes")
        return self.read().decode("utf-8", "replace")

    def varints(self) -> NDArray[np.uint64]:
        """The unsigned integers of a repeated field, packed or not."""
        if self.wire == VARINT:
            return np.array([self.value], np.uint64)
        raw: Array = np.frombuffer(self.read(), np.uint8)
        if not raw.size:
            return np.zeros(0, np.uint64)
        if raw[-1] >= 128:
            raise ValueError("a list of numbers ends within one")
        last = np.flatnonzero(raw < 128)
        first = np.concatenate(([0], last[:-1] + 1))
        place = np.arange(raw.size) - np.repeat(first, last - first + 1)
        if place.max() >= 10:  # of 64 bits, seven to a byte
            raise ValueError("a number has too many bytes")
        parts = (raw & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
        return np.bitwise_or.reduceat(parts, first)

    def integers(self) -> list[int]:
        """The same as signed ones."""
        return list(map(int, self.varints().view(np.int64)))


class Message:
    """The fields of one message by number; where one should stand once, the last counts."""

    def __init__(self, fields: Iterable[Field]) -> None:
        self._fields: dict[int, list[Field]] = {}
        for each in fields:
            self._fields.setdefault(each.number, []).append(each)

    def __getitem__(self, number: int) -> list[Field]:
        return self._fields.get(number, [])

    def text(self, number: int) -> str:
        """The text of a field; "" where it is left out."""
        return self[number][-1].text() if self[number] else ""

    def texts(self, number: int) -> list[str]:
        """The texts of a repeated field."""
        return [field.text() for field in self[number]]

    def value(self, number: int, default: int = 0) -> int:
        """The signed integer of a field."""
        return self[number][-1].signed if self[number] else default

    def inside(self, number: int) -> Iterator[Message]:
        """The messages of a repeated field."""
        return (Message(field.fields()) for field in self[number] if field.wire == LENGTH)


class Reader(Cursor):
    """Reads the messages in a file, or in any other bytes."""

    count = 0  # of the fields that were read

    def fields(self, start: int, size: int) -> Iterator[Field]:
        """The fields of the message in a range of the file."""
        position, end = start, start + size
        while position < end:
            self.count += 1
            if self.count > MAX_FIELDS:
                raise ValueError(f"it has more than {MAX_FIELDS} fields")
            self.position = position
            tag = self.varint()
            number, wire = tag >> 3, tag & 7
            value, length = 0, _WIDTHS.get(wire, 0)
            if wire == VARINT:
                value = self.varint()
            elif wire == LENGTH:
                length = self.varint()
            position = self.position
            if number == 0 or wire not in (VARINT, LENGTH, *_WIDTHS):
                raise ValueError(f"there is no field before byte {position}")
            if length > end - position:
                what = f"a field of {length} bytes at byte {position}"
                raise ValueError(f"{what} reaches beyond its end at {end}")
            if wire in _WIDTHS:
                value = self.number(length)
            yield Field(self, number, wire, value, position, length)
            position += length


def message_of(content: Bytes | bytes) -> Message:
    """The message that a whole file is."""
    reader = Reader(content)
    return Message(reader.fields(0, reader.left))


_DIMS, _TYPE, _TENSOR_NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_FLOATS, _INT32, _INT64, _DOUBLES, _UINT64 = 4, 5, 7, 10, 11

# The name of each element type, and the list that holds it where it has no raw bytes.
ELEMENTS: dict[int, tuple[str, int]] = {
    1: ("float32", _FLOATS), 2: ("uint8", _INT32), 3: ("int8", _INT32), 4: ("uint16", _INT32),
    5: ("int16", _INT32), 6: ("int32", _INT32), 7: ("int64", _INT64), 9: ("bool", _INT32),
    10: ("float16", _INT32), 11: ("float64", _DOUBLES), 12: ("uint32", _UINT64),
    13: ("uint64", _UINT64), 14: ("complex64", _FLOATS), 15: ("complex128", _DOUBLES),
    16: ("bfloat16", _INT32), 17: ("float8_e4m3fn", _INT32), 18: ("float8_e4m3fnuz", _INT32),
    19: ("float8_e5m2", _INT32), 20: ("float8_e5m2fnuz", _INT32), 24: ("float8_e8m0fnu", _INT32),
}  # fmt: skip


class Tensor:
    """One TensorProto, whose ``name`` is "" for a constant, from byte ``start`` of the file on.

    ``lazy`` is its spec and reader, None where it has elements that are not read.
    """

    def __init__(self, external: FilesBeside, place: Field) -> None:
        message = Message(place.fields())
        self.start, self.name = place.start, message.text(_TENSOR_NAME)
        self.lazy: LazyTensor | None = None
        self._label = f"tensor {printable(self.name, 80)}"
        sizes = [size for part in message[_DIMS] for size in part.integers()]
        shape = naturals(sizes, f"{self._label} has no valid shape")
        code, raw = message.value(_TYPE), message[_RAW][-1:]
        if code not in ELEMENTS:
            return
        dtype, container = ELEMENTS[code]
        spec = TensorSpec.plain(shape, dtype)
        if message.value(_LOCATION) == 1:
            pairs = {entry.text(1): entry.text(2) for entry in message.inside(_EXTERNAL)}
            self.lazy = self._external(external, pairs, spec)
        elif raw:
            spec.require(raw[0].size, self._label)
            self.lazy = LazyTensor.at(place.source.source, raw[0].start, spec)
        else:
            self.lazy = LazyTensor(spec, self._listed(message[container], container, spec))

    def _external(self, files: FilesBeside, pairs: dict[str, str], spec: TensorSpec) -> LazyTensor:
        file = files[pairs.get("location", "").removeprefix("./")]
        offset, length = (pairs.get(key, "") for key in ("offset", "length"))
        if not all(text.isascii() and (text.isdigit() or not text) for text in (offset, length)):
            raise ValueError(f"{self._label} has no valid place in its file")
        spec.require(int(length[:20] or spec.bytes), self._label)
        return LazyTensor.at(file, int(offset[:20] or 0), spec, self._label)

    def _listed(self, parts: list[Field], container: int, spec: TensorSpec) -> Callable[[], Array]:
        width = element_bytes(spec.dtype)

        def varints() -> Array:
            none = np.zeros(0, np.uint64)
            values = np.concatenate([none, *(part.varints() for part in parts)])
            spec.require(values.size * width, self._label)
            # Each is sign-extended to 64 bits; its low bits are the element, or its bit pattern.
            return decode(values.astype(f"<u{width}").tobytes(), spec.dtype, spec.shape)

        if container in (_FLOATS, _DOUBLES):
            spec.require(sum(part.size for part in parts), self._label)
            return lambda: decode(b"".join(part.read() for part in parts), spec.dtype, spec.shape)
        # A varint has at least one byte.
        least = sum(max(1, part.size) for part in parts)
        if spec.bytes > least * width:
            spec.require(least * width, self._label)
        return varints


MAX_DEPTH = 32
# Functions that call others twice, and so on, have exponentially many nodes.
MAX_NODES_INSIDE = 100_000
# The matrices of which it is looked up what they multiply; each takes a bit for every value.
MAX_REUSED = 256
_PRODUCTS = ("MatMul", "Gemm")
_MOVES = ("Transpose", "Identity", "Cast")
_MOST_MOVES = 4

RECURRENT = {("", operator, "") for operator in ("RNN", "GRU", "LSTM")}

# The domain, name and overload of an operator or function; operators' domain is "".
Key = tuple[str, str, str]


@dataclass
class Attribute:
    """The value of a node's attribute, in whichever of the fields it stands."""

    integers: list[int] = field(default_factory=list)
    floats: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tensor: Tensor | None = None


@dataclass
class Node:
    """An operator: what it takes and gives, by name; "" stands for an input that is left out."""

    operator: str
    key: Key  # what it runs, of which the operator is the name
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Attribute]
    graphs: list[Graph]
    read_body: Callable[[Node], Graph]
    function: Function | None = None  # the model's own that it calls

    @property
    def label(self) -> str:
        """What it is called, or else its first output."""
        return self.name or next(filter(None, self.outputs), self.operator)

    def input(self, index: int) -> str:
        """The name of an input; "" where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def attribute(self, name: str) -> Attribute:
        """An attribute, without a value where it is left out."""
        return self.attributes.get(name) or Attribute()

    def integer(self, name: str, default: int) -> int:
        """The integer of an attribute."""
        return next(iter(self.attribute(name).integers), default)

    @cached_property
    def body(self) -> Graph:
        """The graph that a call of a function stands for."""
        return self.read_body(self)


@dataclass
class Graph:
    """Nodes, initializers and what comes from outside."""

    parent: Graph | None  # that of the node that holds this one, whose names are known here too
    nodes: list[Node] = field(default_factory=list)  # in the order of the file
    tensors: dict[str, Tensor] = field(default_factory=dict)  # the initializers by name
    inputs: set[str] = field(default_factory=set)  # the names that are given as the graph runs
    producers: dict[str, Node] = field(default_factory=dict)  # the node that makes each name
    # of a function's body, the graph and the name there that each input stands for
    bindings: dict[str, tuple[Graph, str]] = field(default_factory=dict)
    # of a function's body, what the call gives
    attributes: dict[str, Attribute] = field(default_factory=dict)
    prefix: str = ""  # what the names of its nodes begin with

    def home(self, name: str) -> tuple[Graph | None, str]:
        """The graph that makes or holds a name, and the name there; None where none does."""
        graph: Graph | None = self
        while graph is not None and name not in graph.tensors and name not in graph.producers:
            if name in graph.bindings:
                graph, name = graph.bindings[name]
            else:
                graph = None if name in graph.inputs else graph.parent
        return graph, name

    def all_graphs(self) -> Iterator[Graph]:
        """This graph and those within its nodes, outer ones first, with calls that lead on."""
        pending = [self]
        while pending:
            graph = pending.pop()
            yield graph
            inside = [inner for node in graph.nodes for inner in node.graphs]
            calls = (node for node in graph.nodes if node.function and node.function.recurrent)
            pending += reversed([*inside, *(node.body for node in calls)])

    def fed_back(self) -> list[Tensor]:
        """The matrices that multiply what their own products led to, as in an unrolled RNN.

        Nodes stand in the order of their running. The first `MAX_REUSED` matrices are looked at.
        """
        factors = {
            id(node): [tensor for name in node.inputs[:2] if (tensor := self._matrix(name))]
            for node in self.nodes
            if node.operator in _PRODUCTS
        }
        uses = Counter(tensor for tensors in factors.values() for tensor in tensors)
        reused = islice((tensor for tensor, count in uses.items() if count > 1), MAX_REUSED)
        bits = {tensor: 1 << index for index, tensor in enumerate(reused)}
        led_to: dict[str, int] = {}
        found = 0
        for node in self.nodes if bits else ():
            before = own = 0
            for name in node.inputs:
                before |= led_to.get(name, 0)
            for tensor in factors.get(id(node), ()):
                own |= bits.get(tensor, 0)
            found |= before & own
            led_to |= dict.fromkeys(filter(None, node.outputs), before | own)
        return [tensor for tensor, bit in bits.items() if found & bit]

    def _matrix(self, name: str) -> Tensor | None:
        """The initializer of two dimensions that a name stands for, transposed or as it is."""
        graph = self
        for _ in range(_MOST_MOVES):
            home, name = graph.home(name)
            if home is None:
                break
            graph = home
            tensor = graph.tensors.get(name)
            if tensor is not None:
                shape = tensor.lazy.spec.shape if tensor.lazy else ()
                return tensor if len(shape) == 2 and min(shape) > 1 else None
            node = graph.producers[name]
            if node.operator not in _MOVES:
                break
            name = node.input(0)
        return None


@dataclass
class Function:
    """A function of the model: what it calls its inputs and outputs, and where its nodes lie."""

    inputs: list[str]
    outputs: list[str]
    nodes: list[Field]
    defaults: dict[str, Attribute]  # the attributes that a call need not give
    calls: set[Key] = field(default_factory=set)  # the operators and functions within it
    recurrent: bool = False  # whether a recurrent node is in it, or in what it calls


class GraphReader:
    """Reads a GraphProto, all graphs within it and the model's functions."""

    def __init__(self, external: FilesBeside, functions: list[Field]) -> None:
        self._external = external
        self._functions: dict[Key, Function] = {}
        self._inside = 0
        # Within a function no call is followed before all are known.
        self._functions = dict([self._function(place) for place in functions])
        callers: dict[Key, list[Key]] = {}
        for key, function in self._functions.items():
            for called in function.calls:
                callers.setdefault(called, []).append(key)
        pending = list(RECURRENT)
        while pending:
            for key in callers.get(pending.pop(), ()):
                if not self._functions[key].recurrent:
                    self._functions[key].recurrent = True
                    pending.append(key)

    def read(self, place: Field, parent: Graph | None = None, depth: int = 0) -> Graph:
        """The graph in a field."""
        if depth > MAX_DEPTH:
            raise ValueError(f"its graphs are nested more than {MAX_DEPTH} deep")
        graph = Graph(parent, prefix=parent.prefix if parent else "")
        for inner in place.fields():
            if inner.wire != LENGTH:
                continue
            if inner.number == 1:
                self._add(inner, graph, depth)
            elif inner.number == 5:
                tensor = Tensor(self._external, inner)
                graph.tensors[tensor.name] = tensor
            elif inner.number == 11:
                graph.inputs.add(Message(inner.fields()).text(1))
        return graph

    def read_nodes(self, places: list[Field], graph: Graph, depth: int) -> None:
        """Read the nodes in these fields into a graph."""
        if depth > MAX_DEPTH:
            raise ValueError(f"its functions call one another more than {MAX_DEPTH} deep")
        self._inside += len(places)
        if self._inside > MAX_NODES_INSIDE:
            raise ValueError(f"its calls of functions have more than {MAX_NODES_INSIDE} nodes")
        for place in places:
            self._add(place, graph, depth)

    def _function(self, place: Field) -> tuple[Key, Function]:
        message, template = Message(place.fields()), Graph(None)
        # A default has no graph within it.
        defaults = [self._attribute(part, template, MAX_DEPTH) for part in message[11]]
        function = Function(
            inputs=message.texts(4),
            outputs=message.texts(5),
            nodes=[part for part in message[7] if part.wire == LENGTH],
            defaults={name: attribute or Attribute() for name, attribute, _ in defaults},
        )
        self.read_nodes(function.nodes, template, 0)
        for graph in template.all_graphs():
            function.calls |= {node.key for node in graph.nodes}
        return (message.text(10), message.text(1), message.text(13)), function

    def _add(self, place: Field, graph: Graph, depth: int) -> None:
        message = Message(place.fields())
        found = [self._attribute(part, graph, depth) for part in message[5]]
        operator, domain = message.text(4), message.text(7)
        node = Node(
            operator=operator,
            key=("" if domain == "ai.onnx" else domain, operator, message.text(8)),
            name=message.text(3),
            inputs=message.texts(1),
            outputs=message.texts(2),
            attributes={name: attribute for name, attribute, _ in found if attribute is not None},
            graphs=[inner for _, _, graphs in found for inner in graphs],
            read_body=partial(self._body, graph, depth + 1),
        )
        node.function = self._functions.get(node.key)
        graph.nodes.append(node)
        graph.producers |= dict.fromkeys(filter(None, node.outputs), node)

    def _body(self, caller: Graph, depth: int, node: Node) -> Graph:
        function = self._functions[node.key]
        given = enumerate(function.inputs)
        body = Graph(
            None,
            bindings={name: (caller, node.input(index)) for index, name in given},
            attributes=function.defaults | node.attributes,
            prefix=f"{caller.prefix}{node.label}/",
        )
        self.read_nodes(function.nodes, body, depth)
        return body

    def _attribute(
        self, place: Field, graph: Graph, depth: int
    ) -> tuple[str, Attribute | None, list[Graph]]:
        """Its name, its value and the graphs in it; no value where a call leaves it out."""
        message = Message(place.fields())
        floats = b"".join(part.read() for part in (*message[2], *message[7]))
        if len(floats) % 4:
            raise ValueError("a list of numbers ends within one")
        tensors = [Tensor(self._external, part) for part in message[5]]
        attribute: Attribute | None = Attribute(
            integers=[n for part in (*message[3], *message[8]) for n in part.integers()],
            floats=np.frombuffer(floats, "<f4").tolist(),
            # A text may be of any length here, such as a table of words.
            texts=[part.read(200).decode("utf-8", "replace") for part in message[4] + message[9]],
            tensor=tensors[-1] if tensors else None,
        )
        graphs = [self.read(part, graph, depth + 1) for part in message[6] + message[11]]
        reference = message.text(21)
        if reference:
            outer: Graph | None = graph
            while outer is not None and reference not in outer.attributes:
                outer = outer.parent
            attribute = outer.attributes[reference] if outer else None
        return message.text(1), attribute, graphs
