"""ONNX's model-local functions: a node that calls one stands for a graph of its own.

A function sees nothing of the graph that calls it but the inputs and attributes that it is given
(https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, message FunctionProto). Each call is read
anew, and only where it leads to a recurrent node or to a weight of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from memcurse_cli.checkpoints.onnx_graph import Attribute, Graph, GraphReader, Key, Node
from memcurse_cli.checkpoints.protobuf import LENGTH, Field, Messages

RECURRENT = {("", operator, "") for operator in ("RNN", "GRU", "LSTM")}
_NAME, _INPUT, _OUTPUT, _NODE, _DOMAIN, _DEFAULT, _OVERLOAD = 1, 4, 5, 7, 10, 11, 13


@dataclass
class Function:
    """A function as the model defines it.

    Attributes:
        inputs: what it calls its inputs, in order.
        outputs: what it calls its outputs.
        nodes: where its nodes lie.
        defaults: the attributes that a call need not give.
        calls: the operators and functions within it.
        recurrent: whether a recurrent node is in it, or in what it calls.
    """

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Field] = field(default_factory=list)
    defaults: dict[str, Attribute] = field(default_factory=dict)
    calls: set[Key] = field(default_factory=set)
    recurrent: bool = False


class Call:
    """A node that calls a function.

    Attributes:
        function: what it calls.
    """

    def __init__(
        self, function: Function, reader: GraphReader, node: Node, graph: Graph, depth: int
    ) -> None:
        self.function = function
        self._reader, self._node, self._graph, self._depth = reader, node, graph, depth

    @property
    def recurrent(self) -> bool:
        """Whether it leads to a recurrent node."""
        return self.function.recurrent

    @cached_property
    def body(self) -> Graph:
        """What the call stands for.

        Raises:
            ValueError: it is damaged, or calls lead into one another too deeply.
        """
        node, function = self._node, self.function
        given = [*node.inputs, *[""] * len(function.inputs)]
        body = Graph(
            None,
            bindings={
                name: (self._graph, outside)
                for name, outside in zip(function.inputs, given, strict=False)
            },
            attributes=function.defaults | node.attributes,
            prefix=f"{self._graph.prefix}{node.label}/",
        )
        self._reader.read_nodes(function.nodes, body, self._depth + 1)
        return body

    def source(self, output: str) -> tuple[Graph, str]:
        """The graph and the name of what an output of the node is within the function."""
        index = self._node.outputs.index(output)
        outputs = self.function.outputs
        return self.body, outputs[index] if index < len(outputs) else ""


class Functions:
    """The functions of a model.

    Raises:
        ValueError: one is damaged.
    """

    def __init__(self, messages: Messages, places: list[Field], reader: GraphReader) -> None:
        self._messages, self._reader = messages, reader
        self._functions = dict(self._read(place) for place in places)
        self._mark()

    def call(self, node: Node, graph: Graph, depth: int) -> Call | None:
        """The call that a node is, or None where it is an operator."""
        function = self._functions.get(node.key)
        return None if function is None else Call(function, self._reader, node, graph, depth)

    def _read(self, place: Field) -> tuple[Key, Function]:
        function, messages = Function(), self._messages
        texts = {_NAME: "", _DOMAIN: "", _OVERLOAD: ""}
        template = Graph(None)
        for inner in messages.fields(place.start, place.size):
            if inner.wire != LENGTH:
                continue
            if inner.number in texts:
                texts[inner.number] = messages.text(inner)
            elif inner.number == _INPUT:
                function.inputs.append(messages.text(inner))
            elif inner.number == _OUTPUT:
                function.outputs.append(messages.text(inner))
            elif inner.number == _NODE:
                function.nodes.append(inner)
            elif inner.number == _DEFAULT:
                name, attribute = self._reader.read_attribute(inner)
                function.defaults[name] = attribute
        self._reader.read_nodes(function.nodes, template, 0)
        for graph in template.all_graphs():
            function.calls |= {node.key for node in graph.nodes}
        return (texts[_DOMAIN], texts[_NAME], texts[_OVERLOAD]), function

    def _mark(self) -> None:
        """Mark the functions that lead to a recurrent node."""
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
