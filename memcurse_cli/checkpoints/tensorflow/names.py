"""What TensorFlow's tensors are called, and which of them are weights.

TensorFlow 1 saves variables by their names. TensorFlow 2 saves objects: a key is the path of
attributes that leads to a variable, ``opt/_trainable_variables/0/.ATTRIBUTES/VARIABLE_VALUE``, and
a TrackableObjectGraph beside the tensors has each variable's own name
(tensorflow/core/protobuf/trackable_object_graph.proto).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from memcurse_cli.checkpoints.onnx.protobuf import LENGTH, Messages
from memcurse_cli.checkpoints.select import (
    OPTIMIZER_SLOTS,
    TENSORFLOW_SLOT,
    select_flat,
)
from memcurse_cli.checkpoints.untrusted.names import printable

Leaf = TypeVar("Leaf")

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
SLOT = "/.OPTIMIZER_SLOT/"
# What Keras's export keeps a second copy of every variable in.
COPIES = "_all_variables/"
# An optimiser is known by what it has beside its moments; the weights that it trains are in a list.
OPTIMIZER_MARKS = ("_learning_rate", "learning_rate", "_iterations", "iter", "beta_1")
TRAINED = "_trainable_variables"


def name_tensorflow(
    tensors: Mapping[str, Leaf], graph: Messages, size: int
) -> tuple[dict[str, Leaf], list[str]]:
    """The weights by readable names, and notes on what is left out.

    Args:
        tensors: every tensor by its key.
        graph: the graph of objects, of ``size`` bytes; none where that is 0.

    Raises:
        ValueError: the graph is damaged.
    """
    given = _given_names(graph, size)
    optimizers = {
        prefix
        for key in tensors
        if key.endswith(VALUE)
        for prefix, _, last in [key.removesuffix(VALUE).rpartition("/")]
        if prefix and last in OPTIMIZER_MARKS
    }
    state = {key for key in tensors if _is_state(key, optimizers, tensors)}
    rest = {key: tensor for key, tensor in tensors.items() if key not in state}
    owned = {given.get(key) for key in rest if not key.startswith(COPIES)}
    rest = {
        key: tensor
        for key, tensor in rest.items()
        if not (key.startswith(COPIES) and given.get(key) in owned)
    }
    counted = Counter(given.get(key, "") for key in rest)
    plain = {key.removesuffix(VALUE) for key in rest}
    named = {}
    for key, tensor in rest.items():
        own, path = given.get(key, ""), key.removesuffix(VALUE)
        unique = own and counted[own] == 1 and (own == path or own not in plain)
        named[own if unique else path] = tensor
    notes = []
    if state:
        shown = printable(min(state).removesuffix(VALUE), 80)
        notes = [f"{len(state)} tensors of optimiser state (such as {shown}): left out"]
    weights, others = select_flat(named)
    return weights, [*notes, *others]


def _is_state(key: str, optimizers: set[str], known: Iterable[str]) -> bool:
    if SLOT in key:
        return True
    if key.endswith(VALUE):
        parts = key.split("/")
        return any(
            "/".join(parts[:depth]) in optimizers and parts[depth] != TRAINED
            for depth in range(1, len(parts))
        )
    # A slot made in a scope has the scope before its variable: OptimizeLoss/rnn/kernel/Adam.
    variable, _, last = key.rpartition("/")
    if not TENSORFLOW_SLOT.fullmatch(last):
        return last in OPTIMIZER_SLOTS
    while variable:
        if variable in known:
            return True
        variable = variable.partition("/")[2]
    return False


def _given_names(graph: Messages, size: int) -> dict[str, str]:
    """The full name of each variable by its key; nodes=1, attributes=2, full_name=2, key=3."""
    names: dict[str, str] = {}
    for node in graph.fields(0, size):
        if node.number != 1 or node.wire != LENGTH:
            continue
        for attribute in graph.fields(node.start, node.size):
            if attribute.number != 2 or attribute.wire != LENGTH:
                continue
            texts = {
                field.number: graph.text(field)
                for field in graph.fields(attribute.start, attribute.size)
                if field.wire == LENGTH and field.number in (2, 3)
            }
            if texts.get(2) and texts.get(3):
                names[texts[3]] = texts[2]
    return names
