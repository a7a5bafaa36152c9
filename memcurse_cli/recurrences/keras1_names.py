"""Keras 1's names of a cell's weights, ``lstm_1/lstm_1_U_f``: one for each gate, or of all gates.

They are those of keras/layers/recurrent.py until 1.2.2: W for the kernel, U for the recurrent
kernel, b for the bias; with consume_less='gpu', and in a SimpleRNN, without a gate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memcurse_cli.checkpoints.store import TensorSpec

LETTERS = {"W": "kernel", "U": "recurrent_kernel", "b": "bias"}
LSTM_LETTERS = {"input": "i", "forget": "f", "cell": "c", "output": "o"}
GRU_LETTERS = {"update": "z", "reset": "r", "new": "h"}
GATES = {letter: gate for gates in (LSTM_LETTERS, GRU_LETTERS) for gate, letter in gates.items()}
_NAME = re.compile(
    r"(?P<group>(?:.*/)?)(?P<layer>[^/]+)_(?P<letter>[WUb])(?:_(?P<gate>[ifcozrh]))?"
)
_RECURRENT = re.compile(r"lstm|gru|rnn")

Shape = tuple[int, ...]


def keras1_cells(tensors: Mapping[str, TensorSpec]) -> Iterator[tuple[str, int, dict[str, str]]]:
    """The layer, how many gates it has, and the role of each of its tensors.

    The roles are kernel, recurrent_kernel and bias where they are of all gates, else
    ``recurrent_kernel_forget`` and the like.
    """
    layers: dict[str, dict[str, str]] = {}
    for name in tensors:
        found = _NAME.fullmatch(name)
        if found is None:
            continue
        # A layer's group has its name; in a wrapper it is named after its class.
        group = found["group"][:-1]
        inside = group.rpartition("/")[2]
        if not inside or not (found["layer"] == inside or _RECURRENT.search(found["layer"])):
            continue
        layer = group if found["layer"] == inside else f"{group}/{found['layer']}"
        gate = f"_{GATES[found['gate']]}" if found["gate"] else ""
        layers.setdefault(layer, {})[LETTERS[found["letter"]] + gate] = name
    for layer, roles in layers.items():
        gates = _gates({role: tensors[name].shape for role, name in roles.items()})
        if gates:
            yield layer, gates, roles


def is_keras1_name(name: str) -> bool:
    """Whether a recurrent cell's tensor has a name of Keras 1."""
    return _NAME.fullmatch(name) is not None


def _gates(shapes: Mapping[str, Shape]) -> int:
    """How many gates a cell of these shapes has; 0 where it is none."""
    if "recurrent_kernel" in shapes:
        kernel, recurrent = shapes.get("kernel", ()), shapes["recurrent_kernel"]
        if len(kernel) != 2 or len(recurrent) != 2 or not recurrent[0]:
            return 0
        gates, rest = divmod(recurrent[1], recurrent[0])
        return gates if gates in (1, 3, 4) and not rest and kernel[1] == recurrent[1] else 0
    for letters in (LSTM_LETTERS, GRU_LETTERS):
        if {f"{role}_{gate}" for role in LETTERS.values() for gate in letters} == shapes.keys():
            units = shapes[f"bias_{next(iter(letters))}"]
            square = all(shapes[f"recurrent_kernel_{gate}"] == units * 2 for gate in letters)
            wide = all(shapes[f"kernel_{gate}"][-1:] == units for gate in letters)
            biases = all(shapes[f"bias_{gate}"] == units for gate in letters)
            return len(letters) if len(units) == 1 and square and wide and biases else 0
    return 0
