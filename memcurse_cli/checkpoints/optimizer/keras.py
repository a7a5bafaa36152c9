"""What Keras's Adam keeps: in archives a list of variables, in older HDF5 files their names.

The list is iterations, learning rate, then momentum and velocity of each trainable variable, in
the order of the model's layers. Layers of one class are numbered in that order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from memcurse_cli.checkpoints.hdf5.file import Hdf5File
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.optimizer.adam import (
    AdamSlot,
    AdamState,
    Numbered,
    match_numbers,
    number,
)
from memcurse_cli.checkpoints.select import Path
from memcurse_cli.checkpoints.untrusted.names import printable

LIBRARY = "Keras"
BETA2, EPSILON = 0.999, 1e-7
"""Keras's own defaults; a file does not keep them."""

ADAM = re.compile(r"(adam|adamw)(_\d+)?")
VARIABLES = ("optimizer", "vars")
NAMED = "optimizer_weights"
VELOCITY = re.compile(r"(.*)_(?:velocity|v)")
NUMBER = re.compile(r"_?\d+$")


def state_in(contents: object, weights: LazyStore) -> AdamState | None:
    """Adam's state in an HDF5 file of Keras; None where it holds no optimiser, or is another."""
    if not isinstance(contents, Hdf5File):
        return None
    datasets = contents.datasets
    names = {id(weights.entries[name]): name for name in weights.tensors.keys() - weights.aliases}
    # The first path of a weight that stands under several.
    paths = {
        path: names.pop(id(tensor)) for path, tensor in datasets.items() if id(tensor) in names
    }
    listed = {path: tensor for path, tensor in datasets.items() if path[:2] == VARIABLES}
    if listed:
        return _listed(listed, contents.groups.get(VARIABLES, ""), paths, weights)
    named = {path: tensor for path, tensor in datasets.items() if path[0] == NAMED}
    return _named(named, paths, weights) if named else None


def _listed(
    listed: dict[Path, LazyTensor], optimizer: str, paths: dict[Path, str], weights: LazyStore
) -> AdamState:
    if not ADAM.fullmatch(optimizer.lower()):
        name = printable(optimizer, 40) or "without a name"
        return AdamState(LIBRARY, reason=f"the optimiser is {name}, not Adam")
    count = len(listed)
    variables = [listed.get((*VARIABLES, str(index))) for index in range(count)]
    moments = variables[2:]
    pairs = list(zip(moments[::2], moments[1::2], strict=False))
    if count % 2 or any(
        first is None or second is None or first.spec.shape != second.spec.shape
        for first, second in pairs
    ):
        return AdamState(LIBRARY, reason="its variables are not pairs of momentum and velocity")
    step, rate = number(variables[0]), number(variables[1])
    entries = [
        Numbered(0, AdamSlot(second, step, rate, BETA2, EPSILON))
        for _, second in pairs
        if second is not None
    ]
    names = {name: path for path, name in paths.items()}
    found, refused = match_numbers(
        entries,
        {name: weights.tensors[name].shape for name in names},
        lambda same: _in_layers(same, names),
    )
    return AdamState(LIBRARY, found, refused)


def _in_layers(same: Sequence[str], paths: dict[str, Path]) -> Sequence[str] | None:
    """Weights of layers of one class, by the number of the layer and of its variable."""
    keys = {name: _numbered(paths[name]) for name in same}
    classes = {kind for kind, _ in keys.values()}
    return sorted(same, key=lambda name: keys[name][1]) if len(classes) == 1 else None


def _numbered(path: Path) -> tuple[Path, list[int]]:
    """A path without the numbers of layers and variables, and these numbers."""
    kinds: list[str] = []
    numbers: list[int] = []
    for above, part in zip(("", *path), path, strict=False):
        found = NUMBER.search(part) if above in ("layers", "vars") else None
        kinds.append(part[: found.start()] if found else part)
        if above in ("layers", "vars"):
            numbers.append(int(found.group().lstrip("_")) if found else 0)
    return tuple(kinds), numbers


def _named(named: dict[Path, LazyTensor], paths: dict[Path, str], weights: LazyStore) -> AdamState:
    """``adam/sequential_gru_gru_cell_kernel_velocity``, or ``Adam/gru/gru_cell/kernel/v:0``."""
    found: dict[str, AdamSlot] = {}
    refused: dict[str, str] = {}
    scalars = {path[-1].removesuffix(":0"): tensor for path, tensor in named.items()}
    step = number(scalars.get("iteration", scalars.get("iter")))
    rate = number(scalars.get("learning_rate"))
    flat = {
        name: f"_{'_'.join(part.removesuffix(':0') for part in path)}"
        for path, name in paths.items()
    }
    for path, tensor in named.items():
        velocity = VELOCITY.fullmatch("_".join(path[2:]).removesuffix(":0"))
        if velocity is None:
            continue
        same = [
            name
            for name, joined in flat.items()
            if joined.endswith(f"_{velocity[1]}")
            and weights.tensors[name].shape == tensor.spec.shape
        ]
        if len(same) == 1:
            found[same[0]] = AdamSlot(tensor, step, rate, BETA2, EPSILON)
        else:
            refused.update(dict.fromkeys(same, "several weights have its name"))
    if not found and not refused:
        return AdamState(LIBRARY, reason="the optimiser's state has no velocity: it is not Adam")
    return AdamState(LIBRARY, found, refused)
