"""What torch.optim saves: states by number, and the numbers of each group.

The numbers follow ``model.parameters()``, whose order is that of the state dict without its
buffers. A torch file keeps that order; safetensors sorts the names. An optimiser that was given
named parameters, and one that FSDP or DCP has gathered, says the names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.memory import lazy
from memcurse_cli.checkpoints.optimizer.adam import (
    AdamSlot,
    AdamState,
    Numbered,
    match_numbers,
    number,
)
from memcurse_cli.checkpoints.tree import MAX_TENSORS
from memcurse_cli.checkpoints.untrusted.names import printable

LIBRARY = "torch.optim"
ORDERED_FORMATS = ("PyTorch", "PyTorch legacy", "NeMo", "pickle", "memory")
SECOND_MOMENTS = ("max_exp_avg_sq", "exp_avg_sq")
"""AMSGrad divides by the first of them."""

MAX_DEPTH = 4
MAX_CHILDREN = 256


def state_in(contents: object, weights: LazyStore) -> AdamState | None:
    """Adam's state in what a torch file holds; None where it holds no optimiser."""
    optimizers = list(_optimizers(contents, 0))
    if not optimizers:
        return _gathered(contents, weights)
    entries: list[tuple[str | None, Numbered]] = []
    groups = 0
    for states, param_groups in optimizers:
        for group in param_groups:
            entries += _entries(group, states, groups)
            groups += 1
            if len(entries) > MAX_TENSORS:  # one list that a hostile file refers to many times
                return AdamState(LIBRARY, reason=f"it has more than {MAX_TENSORS} parameters")
    if not any(entry.slot for _, entry in entries):
        kept = sorted(
            {
                printable(str(key), 40)
                for states, _ in optimizers
                for state in states.values()
                if isinstance(state, Mapping)
                for key in state
            }
        )
        keeps = f"it keeps {', '.join(kept[:4])}" if kept else "it is empty"
        return AdamState(LIBRARY, reason=f"the optimiser's state has no exp_avg_sq: {keeps}")
    shapes = {
        name: spec.shape
        for name, spec in weights.stored.items()
        if "float" in spec.dtype or "complex" in spec.dtype
    }
    if all(name is not None for name, _ in entries):
        named = {name: entry.slot for name, entry in entries if name and entry.slot}
        return _by_name(named, weights)
    numbered = [entry for _, entry in entries]
    in_order = weights.format in ORDERED_FORMATS
    if in_order and groups == 1 and len(numbered) == len(shapes):
        exact = _one_to_one(numbered, shapes)
        if exact is not None:
            return AdamState(LIBRARY, exact)
    found, refused = match_numbers(
        numbered, shapes, lambda names: names if in_order else _by_index(names)
    )
    return AdamState(LIBRARY, found, refused)


def _by_name(named: Mapping[str, AdamSlot], weights: LazyStore) -> AdamState:
    """States that have names, which may have prefixes (``model.``) that the weights lack."""
    found: dict[str, AdamSlot] = {}
    refused: dict[str, str] = {}
    called: dict[str, list[str]] = defaultdict(list)
    for weight in weights.stored:
        called[weight.rpartition(".")[2]].append(weight)
    for name, slot in named.items():
        shape = slot.second_moment.spec.shape
        same = [
            weight
            for weight in called.get(name.rpartition(".")[2], [])
            if weights.stored[weight].shape == shape
            and (f".{weight}".endswith(f".{name}") or f".{name}".endswith(f".{weight}"))
        ]
        exact = [weight for weight in same if weight == name] or same
        if len(exact) == 1:
            found[exact[0]] = slot
        refused.update(
            dict.fromkeys(exact[1:] and exact, f"several weights are called {printable(name, 80)}")
        )
    return AdamState(LIBRARY, found, refused)


Tree = Mapping[object, object]


def _optimizers(node: object, depth: int) -> Iterator[tuple[Tree, list[Tree]]]:
    """The ``state`` and ``param_groups`` of every optimiser in a tree, in order."""
    if isinstance(node, Mapping):
        state, groups = node.get("state"), node.get("param_groups")
        if isinstance(state, Mapping) and isinstance(groups, list | tuple):
            yield state, [group for group in groups if isinstance(group, Mapping)]
            return
        children: Sequence[object] = list(node.values())
    elif isinstance(node, list | tuple):
        children = list(node)
    else:
        return
    if depth < MAX_DEPTH and len(children) <= MAX_CHILDREN:
        for child in children:
            yield from _optimizers(child, depth + 1)


def _entries(group: Tree, states: Tree, index: int) -> Iterator[tuple[str | None, Numbered]]:
    keys = group.get("params")
    names = group.get("param_names")
    betas = group.get("betas")
    beta2 = betas[1] if isinstance(betas, list | tuple) and len(betas) == 2 else None
    settings = {
        "learning_rate": number(_tensor(group.get("lr"))),
        "beta2": number(_tensor(beta2)),
        "epsilon": number(_tensor(group.get("eps"))),
    }
    keys = list(keys) if isinstance(keys, list | tuple) else []
    named = isinstance(names, list | tuple) and len(names) == len(keys)
    for place, key in enumerate(keys):
        name = names[place] if named and isinstance(names, list | tuple) else key
        state = states.get(key, states.get(str(key))) if isinstance(key, int | str) else None
        slot = None
        if isinstance(state, Mapping):
            kept = [_tensor(state.get(moment)) for moment in SECOND_MOMENTS]
            moment = next((one for one in kept if isinstance(one, LazyTensor)), None)
            if moment is not None:
                slot = AdamSlot(moment, number(_tensor(state.get("step"))), **settings)
        yield (name if isinstance(name, str) else None), Numbered(index, slot)


def _tensor(node: object) -> object:
    """A node, an array in memory as the entry that it would be in a file."""
    return node if isinstance(node, LazyTensor) else lazy(node) or node


def _one_to_one(
    entries: Sequence[Numbered], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, AdamSlot] | None:
    """As many states as weights, in one order, every shape right."""
    found = {}
    for (name, shape), entry in zip(shapes.items(), entries, strict=True):
        if entry.slot is None:
            continue
        if entry.slot.second_moment.spec.shape != shape:
            return None
        found[name] = entry.slot
    return found


def _by_index(names: Sequence[str]) -> Sequence[str] | None:
    """Names that differ in the numbers of list entries alone, in the order of a ModuleList."""
    keys = [[part for part in name.split(".") if not part.isdecimal()] for name in names]
    if any(key != keys[0] for key in keys):
        return None
    return sorted(
        names, key=lambda name: [int(part) for part in name.split(".") if part.isdecimal()]
    )


def _gathered(contents: object, weights: LazyStore) -> AdamState | None:
    """The paths of torch.distributed.checkpoint: …, state, name of the weight, exp_avg_sq."""
    if not isinstance(contents, dict):
        return None
    named: dict[str, AdamSlot] = {}
    for path, tensor in contents.items():
        if isinstance(path, tuple) and len(path) > 2 and path[-1] in SECOND_MOMENTS:
            step = contents.get((*path[:-1], "step"))
            named.setdefault(path[-2], AdamSlot(tensor, number(step)))
    return _by_name(named, weights) if named else None
