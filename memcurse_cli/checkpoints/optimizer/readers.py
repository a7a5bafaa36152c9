"""What torch.optim, Keras and optax keep of Adam, for the weights of an open checkpoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from memcurse_cli.checkpoints.hdf5.keras import Hdf5File
from memcurse_cli.checkpoints.memory import lazy
from memcurse_cli.checkpoints.optimizer.state import (
    AdamSlot,
    AdamState,
    Numbered,
    match_numbers,
    number,
)
from memcurse_cli.checkpoints.select import MAX_TENSORS, Path, collect
from memcurse_cli.checkpoints.store import LazyTensor, TensorStore
from memcurse_cli.checkpoints.torch.pickle_machine import Global, Record
from memcurse_cli.checkpoints.torch.pickled_tensors import PickledArray
from memcurse_cli.checkpoints.untrusted.names import printable

TORCH = "torch.optim"
ORDERED_FORMATS = ("PyTorch", "PyTorch legacy", "NeMo", "pickle", "memory")
SECOND_MOMENTS = ("max_exp_avg_sq", "exp_avg_sq")
"""AMSGrad divides by the first of them."""

MAX_OPTIMIZER_DEPTH = 4
MAX_CHILDREN = 256


def torch_state(contents: object, weights: TensorStore) -> AdamState | None:
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
                return AdamState(TORCH, reason=f"it has more than {MAX_TENSORS} parameters")
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
        return AdamState(TORCH, reason=f"the optimiser's state has no exp_avg_sq: {keeps}")
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
            return AdamState(TORCH, exact)
    found, refused = match_numbers(
        numbered, shapes, lambda names: names if in_order else _by_index(names)
    )
    return AdamState(TORCH, found, refused)


def _by_name(named: Mapping[str, AdamSlot], weights: TensorStore) -> AdamState:
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
    return AdamState(TORCH, found, refused)


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
    if depth < MAX_OPTIMIZER_DEPTH and len(children) <= MAX_CHILDREN:
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


def _gathered(contents: object, weights: TensorStore) -> AdamState | None:
    """The paths of torch.distributed.checkpoint: …, state, name of the weight, exp_avg_sq."""
    if not isinstance(contents, dict):
        return None
    named: dict[str, AdamSlot] = {}
    for path, tensor in contents.items():
        if isinstance(path, tuple) and len(path) > 2 and path[-1] in SECOND_MOMENTS:
            step = contents.get((*path[:-1], "step"))
            named.setdefault(path[-2], AdamSlot(tensor, number(step)))
    return _by_name(named, weights) if named else None


KERAS = "Keras"
BETA2, EPSILON = 0.999, 1e-7
"""Keras's own defaults; a file does not keep them."""

ADAM = re.compile(r"(adam|adamw)(_\d+)?")
VARIABLES = ("optimizer", "vars")
NAMED = "optimizer_weights"
VELOCITY = re.compile(r"(.*)_(?:velocity|v)")
NUMBER = re.compile(r"_?\d+$")


def keras_state(contents: object, weights: TensorStore) -> AdamState | None:
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
    listed: dict[Path, LazyTensor], optimizer: str, paths: dict[Path, str], weights: TensorStore
) -> AdamState:
    if not ADAM.fullmatch(optimizer.lower()):
        name = printable(optimizer, 40) or "without a name"
        return AdamState(KERAS, reason=f"the optimiser is {name}, not Adam")
    count = len(listed)
    variables = [listed.get((*VARIABLES, str(index))) for index in range(count)]
    moments = variables[2:]
    pairs = list(zip(moments[::2], moments[1::2], strict=False))
    if count % 2 or any(
        first is None or second is None or first.spec.shape != second.spec.shape
        for first, second in pairs
    ):
        return AdamState(KERAS, reason="its variables are not pairs of momentum and velocity")
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
    return AdamState(KERAS, found, refused)


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


def _named(
    named: dict[Path, LazyTensor], paths: dict[Path, str], weights: TensorStore
) -> AdamState:
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
        return AdamState(KERAS, reason="the optimiser's state has no velocity: it is not Adam")
    return AdamState(KERAS, found, refused)


OPTAX = "optax"
FIRST, SECOND, COUNT = "mu", "nu", "count"
_ADAM = "ScaleByAdamState"  # a named tuple, whose pickle has no names


def optax_state(contents: object, weights: TensorStore) -> AdamState | None:
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
        OPTAX, found, {name: why for name, why in refused.items() if name not in found}
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
