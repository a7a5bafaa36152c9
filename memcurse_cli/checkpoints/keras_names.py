"""What Keras's tensors are called: the layers' own names in place of their classes'.

Keras 3 stores ``layers/lstm_1/cell/vars/2`` by the layer's class, and the name that the user gave
the layer in the attribute ``name`` of its group ``vars``. Older versions store
``model_weights/encoder/encoder/lstm_cell/kernel:0``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from memcurse_cli.checkpoints.training_state import Path, select

Leaf = TypeVar("Leaf")

# The lists that Keras itself keeps a model's layers in.
LAYER_LISTS = ("layers", "_layer_checkpoint_dependencies")
WEIGHTS = "model_weights"
VARIABLES = "vars"


def name_keras(
    datasets: Mapping[Path, Leaf], groups: Mapping[Path, str]
) -> tuple[dict[str, Leaf], list[str]]:
    """The model's tensors by useful names, without the optimiser's, and notes.

    A name that two tensors would share is given up for their paths in the file.

    Args:
        datasets: every dataset by its path.
        groups: every group by its path, and its ``name`` attribute.

    Raises:
        ValueError: two tensors have the same path.
    """
    # Keras on Windows writes `layers\lstm\cell` as the name of one group.
    split = {_split(path): dataset for path, dataset in datasets.items()}
    selected, notes = select(split)
    given = {
        _split(path)[:-1]: name
        for path, name in groups.items()
        if name and _split(path)[-1:] == (VARIABLES,)
    }
    layers = {_split(path)[:-1] for path in groups if _split(path)[-1:] == (VARIABLES,)}
    names = {path: "/".join(_renamed(path, given, layers)) for path in selected}
    shared = {name for name, count in Counter(names.values()).items() if count > 1}
    named = {
        "/".join(path) if names[path] in shared else names[path]: dataset
        for path, dataset in selected.items()
    }
    if len(split) < len(datasets) or len(named) < len(selected):
        raise ValueError("two of its tensors have the same name")
    return named, notes


def _split(path: Path) -> Path:
    return tuple(part for key in path for part in key.split("\\"))


def _renamed(path: Path, given: Mapping[Path, str], layers: set[Path]) -> list[str]:
    if VARIABLES not in path[:-1]:
        return _legacy(path)
    parts: list[str] = []
    for index, part in enumerate(path):
        here = path[: index + 1]
        if part in LAYER_LISTS and here not in layers:
            continue
        # Below a layer stand its attributes, whose names are the user's; in a list only classes.
        in_list = path[:index] not in layers
        parts.append(given.get(here, part) if in_list else part)
    return parts


def _legacy(path: Path) -> list[str]:
    parts = list(path[1:] if path[0] == WEIGHTS and len(path) > 1 else path)
    # A layer's group holds the full names of its weights, and so the layer's own once more.
    again = [index for index in range(1, len(parts) - 1) if parts[index] == parts[0]]
    if again:
        del parts[: again[0]]
    name, colon, index = parts[-1].rpartition(":")
    if colon and index.isdigit():
        parts[-1] = name
    return parts
