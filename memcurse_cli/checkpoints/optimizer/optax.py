"""What optax.adam keeps: ``count``, ``mu`` and ``nu``, the latter two trees like the weights'."""

from __future__ import annotations

from collections.abc import Mapping

from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.memory import lazy
from memcurse_cli.checkpoints.optimizer.adam import AdamSlot, AdamState, number
from memcurse_cli.checkpoints.select import Path
from memcurse_cli.checkpoints.torch.pickle_machine import Global, Record
from memcurse_cli.checkpoints.torch.pickled_tensors import PickledArray
from memcurse_cli.checkpoints.tree import collect
from memcurse_cli.checkpoints.untrusted.names import printable

LIBRARY = "optax"
FIRST, SECOND, COUNT = "mu", "nu", "count"
_ADAM = "ScaleByAdamState"  # a named tuple, whose pickle has no names


def state_in(contents: object, weights: LazyStore) -> AdamState | None:
    """Adam's state among the tensors of a JAX tree; None where there is none.

    A transformation of several groups (multi_transform, masked) has a state for each.
    """
    paths = _paths(contents)
    states: dict[Path, dict[Path, LazyTensor]] = {}
    for path, tensor in paths.items():
        for place, part in enumerate(path):
            above, below = path[:place], path[place + 1 :]
            if part == SECOND and (*above, COUNT) in paths and (*above, FIRST, *below) in paths:
                states.setdefault(above, {})[below] = tensor
                break
    if not states:
        return None
    rates = [path for path in paths if path[-2:] == ("hyperparams", "learning_rate")]
    rate = number(paths[rates[0]]) if len(rates) == 1 else None
    found: dict[str, AdamSlot] = {}
    refused: dict[str, str] = {}
    shapes = {tuple(name.split("/")): (name, spec.shape) for name, spec in weights.stored.items()}
    for above, tree in states.items():
        roots = _roots(tree, shapes)
        if len(roots) != 1:
            why = "no tree of weights has" if not roots else f"{len(roots)} trees of weights have"
            why += " the paths and shapes of the optimiser's state"
            refused.update(dict.fromkeys(weights.stored, why))
            continue
        (root,) = roots
        step = number(paths[(*above, COUNT)])
        for below, tensor in tree.items():
            found[shapes[root + below][0]] = AdamSlot(tensor, step, rate)
    return AdamState(
        LIBRARY, found, {name: why for name, why in refused.items() if name not in found}
    )


def _roots(
    tree: Mapping[Path, LazyTensor], shapes: Mapping[Path, tuple[str, tuple[int, ...]]]
) -> set[Path]:
    """Where the weights' tree may begin: below it lies every path of the state's tree."""
    roots: set[Path] | None = None
    for below, tensor in tree.items():
        here = {
            path[: len(path) - len(below)]
            for path, (_, shape) in shapes.items()
            if shape == tensor.spec.shape and path[len(path) - len(below) :] == below
        }
        roots = here if roots is None else roots & here
    return roots or set()


def _paths(contents: object) -> Mapping[Path, LazyTensor]:
    """Every tensor by its path; a mapping that has paths already is taken as it is."""
    if isinstance(contents, dict) and contents and isinstance(next(iter(contents)), tuple):
        return contents
    try:
        return collect(contents, _leaf, _expand)
    except ValueError:  # what is malformed has been told when the weights were read
        return {}


def _leaf(node: object) -> LazyTensor | None:
    if isinstance(node, PickledArray):
        return node.tensor
    return node if isinstance(node, LazyTensor) else lazy(node)


def _expand(node: object) -> object:
    """Named tuples and pickled objects by the names of their fields."""
    fields = getattr(node, "_fields", None)
    if isinstance(node, tuple) and isinstance(fields, tuple):
        return dict(zip(fields, node, strict=True))
    if not isinstance(node, Record):
        return node
    if isinstance(node.function, Global) and node.function.name == _ADAM:
        return dict(zip((COUNT, FIRST, SECOND), node.arguments, strict=False))
    if isinstance(node.state, dict):
        return {printable(str(key), 100): child for key, child in node.state.items()}
    return node if node.state else node.arguments
