"""What optax.adam keeps: ``count``, ``mu`` and ``nu``, the latter two trees like the weights'."""

from __future__ import annotations

from collections.abc import Mapping

from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.optimizer.adam import AdamSlot, AdamState, number
from memcurse_cli.checkpoints.optimizer.training_state import Path

LIBRARY = "optax"
FIRST, SECOND, COUNT = "mu", "nu", "count"


def optax_state(paths: Mapping[Path, LazyTensor], weights: LazyStore) -> AdamState | None:
    """Adam's state among the tensors of a JAX tree; None where there is none.

    A transformation of several groups (multi_transform, masked) has a state for each.
    """
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
