"""ONNX's graphs: nodes, the tensors that they name, and the graphs within nodes.

The layout is that of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from memcurse_cli.checkpoints.onnx_tensors import ExternalFiles, Tensor
from memcurse_cli.checkpoints.protobuf import LENGTH, Field, Messages

MAX_DEPTH = 32


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

    operator: str = ""
    domain: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, Attribute] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)

    def input(self, index: int) -> str:
        """The name of an input; "" where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def integer(self, name: str, default: int) -> int:
        """The integer of an attribute."""
        found = self.attributes.get(name)
        return found.integers[0] if found and found.integers else default

    def text(self, name: str, default: str) -> str:
        """The text of an attribute."""
        found = self.attributes.get(name)
        return found.texts[0] if found and found.texts else default


@dataclass
class Graph:
    """Nodes, initializers and what comes from outside.

    Attributes:
        parent: the graph of the node that holds this one, whose names are known here too.
        nodes: in the order of the file.
        tensors: the initializers by name.
        inputs: the names that are given from outside when the graph runs.
        producers: the node that makes each name.
    """

    parent: Graph | None
    nodes: list[Node] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    inputs: set[str] = field(default_factory=set)
    producers: dict[str, Node] = field(default_factory=dict)

    def all_graphs(self) -> Iterator[Graph]:
        """This graph and those within its nodes, outer ones first."""
        pending = [self]
        while pending:
            graph = pending.pop()
            yield graph
            pending += reversed([inner for node in graph.nodes for inner in node.graphs])


class GraphReader:
    """Reads a GraphProto and all graphs within it.

    Args:
        messages: the file.
        external: the files beside it.
    """

    def __init__(self, messages: Messages, external: ExternalFiles) -> None:
        self._messages, self._external = messages, external

    def read(self, place: Field, parent: Graph | None = None, depth: int = 0) -> Graph:
        """The graph in a field.

        Raises:
            CheckpointError: external data cannot be opened.
            ValueError: the graph is damaged, or nested too deeply.
        """
        if depth > MAX_DEPTH:
            raise ValueError(f"its graphs are nested more than {MAX_DEPTH} deep")
        graph = Graph(parent)
        for inner in self._messages.fields(place.start, place.size):
            if inner.wire != LENGTH:
                continue
            if inner.number == 1:
                node = self._node(inner, graph, depth)
                graph.nodes.append(node)
                graph.producers |= dict.fromkeys(filter(None, node.outputs), node)
            elif inner.number == 5:
                tensor = Tensor(self._messages, self._external, inner)
                graph.tensors[tensor.name] = tensor
            elif inner.number == 11:
                names = self._messages.fields(inner.start, inner.size)
                graph.inputs |= {self._messages.text(name) for name in names if name.number == 1}
        return graph

    def _node(self, place: Field, graph: Graph, depth: int) -> Node:
        node = Node()
        for inner in self._messages.fields(place.start, place.size):
            if inner.number == 1:
                node.inputs.append(self._messages.text(inner))
            elif inner.number == 2:
                node.outputs.append(self._messages.text(inner))
            elif inner.number == 3:
                node.name = self._messages.text(inner)
            elif inner.number == 4:
                node.operator = self._messages.text(inner)
            elif inner.number == 5:
                name, attribute, graphs = self._attribute(inner, graph, depth)
                node.attributes[name] = attribute
                node.graphs += graphs
            elif inner.number == 7:
                node.domain = self._messages.text(inner)
        return node

    def _attribute(
        self, place: Field, graph: Graph, depth: int
    ) -> tuple[str, Attribute, list[Graph]]:
        name, attribute = "", Attribute()
        graphs: list[Graph] = []
        for inner in self._messages.fields(place.start, place.size):
            if inner.number == 1:
                name = self._messages.text(inner)
            elif inner.number in (3, 8):
                attribute.integers += self._messages.integers(inner)
            elif inner.number in (2, 7):
                content = self._messages.read(inner.start, inner.size)
                if len(content) % 4:
                    raise ValueError("a list of numbers ends within one")
                attribute.floats += np.frombuffer(content, "<f4").tolist()
            elif inner.number in (4, 9):
                # A text may be of any length here, such as a table of words.
                length = min(inner.size, 200)
                content = self._messages.read(inner.start, length)
                attribute.texts.append(content.decode("utf-8", "replace"))
            elif inner.number == 5:
                attribute.tensor = Tensor(self._messages, self._external, inner)
            elif inner.number in (6, 11):
                graphs.append(self.read(inner, graph, depth + 1))
        return name, attribute, graphs
