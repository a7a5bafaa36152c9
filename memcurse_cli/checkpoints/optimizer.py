"""Adam's second moments, as torch.optim, Keras and optax keep them beside the weights."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from memcurse_cli.checkpoints.open import OPTIMIZERS, choose_file, lazy, open_file
from memcurse_cli.checkpoints.select import MAX_TENSORS, Path, collect
from memcurse_cli.checkpoints.store import LazyTensor, Shape, TensorStore
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import LocalDirectory, LocalFile
from memcurse_cli.errors import CheckpointError


class AdamSlot(Struct, frozen=True):
    """The running mean of a weight's squared gradient, and what else the optimiser stores."""

    second_moment: LazyTensor  # v, of the weight's shape
    step: float | None = None  # how many steps it has run over, which its bias is corrected by
    learning_rate: float | None = None  # of the weight's group at the last step
    beta2: float | None = None  # the decay of v
    epsilon: float | None = None  # added to √v̂


class AdamState(Struct, frozen=True):
    """Adam's state by the name of the weight."""

    library: str  # ``torch.optim``, ``optax`` or ``Keras``
    slots: dict[str, AdamSlot] = {}  # the weights whose state is known
    refused: dict[str, str] = {}  # why that of a weight is not
    reason: str | None = None  # why that of no weight is, or None


# A group, in the order of the weights, and a nameless state; None without a gradient.
Numbered = tuple[int, AdamSlot | None]


def adam_state(weights: TensorStore, source: TensorStore | None = None) -> AdamState | None:
    """Adam's state for the weights of an open checkpoint; None where there is no optimiser's state.

    ``source`` is the open file that holds it, by default the checkpoint itself.
    """
    source = source or weights
    if source.contents is None:
        return None
    if source.format.startswith("Keras"):
        return _keras_state(source.contents, weights)
    return torch_state(source.contents, weights) or optax_state(source.contents, weights)


def open_optimizer(path: str | os.PathLike[str]) -> TensorStore:
    """Open an optimiser's state without weights, or Trainer's directory, as `open_checkpoint`."""
    if not os.path.isdir(path):
        return open_file(LocalFile(path), weights=False)
    directory = LocalDirectory(path)
    kept = [name for name in OPTIMIZERS if name in directory.names]
    return open_file(directory.open(kept[0] if kept else choose_file(directory)), weights=False)


def require_state(state: AdamState | None, path: str) -> AdamState:
    """A state that was asked for; CheckpointError where the file has none."""
    if state is None:
        what = "the file holds no state of an optimiser"
        remedy = "name the file that optimizer.state_dict() was saved to"
        raise CheckpointError(what, where=path, remedy=remedy)
    return state


def number(node: object) -> float | None:
    """A stored number, plain or as a tensor of one element."""
    tensor = _tensor(node)
    with suppress(CheckpointError, ValueError, OverflowError):
        if tensor is not None and math.prod(tensor.spec.shape) == 1:
            node = float(tensor.load().reshape(-1)[0].real)
        if isinstance(node, int | float) and not isinstance(node, bool) and math.isfinite(node):
            return float(node)
    return None


def _tensor(node: object) -> LazyTensor | None:
    """An entry of a file, or an array in memory as the entry that it would be."""
    return node if isinstance(node, LazyTensor) else lazy(node)


def _match_numbers(
    library: str,
    entries: Sequence[Numbered],
    shapes: Mapping[str, Shape],
    place: Callable[[str], tuple[list[str], list[int]]] | None,
) -> AdamState:
    """Numbered states under the names of their weights, and why others are refused.

    States and weights of one shape belong together where there are as many of one as of the
    other, and either a single one or an order that both are in. That of weights is the file's where
    ``place`` is None, else that of the numbers that it gives, if the rest of each name is the same.
    """
    if len(entries) > len(shapes):
        why = f"the optimiser has {len(entries)} parameters and the file {len(shapes)} weights"
        return AdamState(library, refused=dict.fromkeys(shapes, why))
    states: dict[Shape, list[tuple[int, AdamSlot]]] = defaultdict(list)
    for group, slot in entries:
        if slot is not None:
            states[slot.second_moment.spec.shape].append((group, slot))
    weights: dict[Shape, list[str]] = defaultdict(list)
    for name, shape in shapes.items():
        weights[shape].append(name)
    state = AdamState(library)
    for shape, names in weights.items():
        same, ordered, why = states[shape], True, ""
        if len(names) > 1 and place is not None:
            ordered = all(place(name)[0] == place(names[0])[0] for name in names)
            names = sorted(names, key=lambda name: place(name)[1]) if ordered else names
        if len(same) != len(names):
            why = f"the optimiser has {len(same)} states of its shape and the file {len(names)}"
        elif not ordered:
            why = f"{len(names)} weights have its shape, and the file does not keep their order"
        elif len({group for group, _ in same}) > 1:
            why = f"{len(names)} weights have its shape, in several groups of the optimiser"
        if why:
            state.refused.update(dict.fromkeys(names, why))
        else:
            state.slots.update(zip(names, (slot for _, slot in same), strict=True))
    return state


def _match_names(library: str, called: Iterable[tuple[AdamSlot, list[str], str]]) -> AdamState:
    """States under the weights that each may belong to, refused for a reason where several may."""
    state = AdamState(library)
    for slot, names, why in called:
        if len(names) == 1:
            state.slots[names[0]] = slot
        else:
            state.refused.update(dict.fromkeys(names, why))
    return state


TORCH = "torch.optim"
ORDERED_FORMATS = ("PyTorch", "PyTorch legacy", "NeMo", "Stable-Baselines3", "pickle", "memory")
SECOND_MOMENTS = ("max_exp_avg_sq", "exp_avg_sq")  # AMSGrad divides by the first of them
MAX_OPTIMIZER_DEPTH = 4
MAX_CHILDREN = 256

Tree = Mapping[object, object]


def torch_state(contents: object, weights: TensorStore) -> AdamState | None:
    """Adam's state in what a torch file holds; None where it holds no optimiser."""
    optimizers = [
        (states, [group for group in groups if isinstance(group, Mapping)])
        for node in mappings(contents)
        if isinstance(states := node.get("state"), Mapping)
        and isinstance(groups := node.get("param_groups"), list | tuple)
    ]
    if not optimizers:
        return _gathered(contents, weights)
    groups = [(states, group) for states, param_groups in optimizers for group in param_groups]
    entries: list[tuple[int, str | None, AdamSlot | None]] = []
    for index, (states, group) in enumerate(groups):
        entries += [(index, *entry) for entry in _entries(group, states)]
        if len(entries) > MAX_TENSORS:  # one list that a hostile file refers to many times
            return AdamState(TORCH, reason=f"it has more than {MAX_TENSORS} parameters")
    if not any(slot for *_, slot in entries):
        tables = [state for states, _ in optimizers for state in states.values()]
        kept = {key for table in tables if isinstance(table, Mapping) for key in table}
        shown = ", ".join(sorted({printable(str(key), 40) for key in kept})[:4])
        keeps = f"it keeps {shown}" if kept else "it is empty"
        return AdamState(TORCH, reason=f"the optimiser's state has no exp_avg_sq: {keeps}")
    if all(name is not None for _, name, _ in entries):
        return _by_name({name: slot for _, name, slot in entries if name and slot}, weights)
    shapes = {
        name: spec.shape
        for name, spec in weights.stored.items()
        if "float" in spec.dtype or "complex" in spec.dtype
    }
    in_order = weights.format in ORDERED_FORMATS
    if in_order and len(groups) == 1 and len(entries) == len(shapes):
        # As many states as weights, in one order.
        pairs = zip(shapes, entries, strict=True)
        exact = {name: slot for name, (*_, slot) in pairs if slot is not None}
        if all(slot.second_moment.spec.shape == shapes[name] for name, slot in exact.items()):
            return AdamState(TORCH, exact)
    numbered = [(index, slot) for index, _, slot in entries]
    return _match_numbers(TORCH, numbered, shapes, None if in_order else _by_index)


def _by_name(slots: Mapping[str, AdamSlot], weights: TensorStore) -> AdamState:
    """States that have names, which may have prefixes (``model.``) that the weights lack."""
    called: dict[str, list[str]] = defaultdict(list)
    for weight in weights.stored:
        called[weight.rpartition(".")[2]].append(weight)

    candidates = []
    for name, slot in slots.items():
        shape = slot.second_moment.spec.shape
        same = [
            weight
            for weight in called.get(name.rpartition(".")[2], [])
            if weights.stored[weight].shape == shape
            and (f".{weight}".endswith(f".{name}") or f".{name}".endswith(f".{weight}"))
        ]
        why = f"several weights are called {printable(name, 80)}"
        candidates.append((slot, [name] if name in same else same, why))
    return _match_names(TORCH, candidates)


def mappings(node: object, depth: int = 0) -> Iterator[Tree]:
    """The dictionaries near the top of a tree, down to those of optimisers."""
    children: Collection[object] = node if isinstance(node, list | tuple) else ()
    if isinstance(node, Mapping):
        yield node
        children = () if "param_groups" in node else node.values()
    if depth < MAX_OPTIMIZER_DEPTH and len(children) <= MAX_CHILDREN:
        for child in children:
            yield from mappings(child, depth + 1)


def _entries(group: Tree, states: Tree) -> Iterator[tuple[str | None, AdamSlot | None]]:
    """The name, where it has one, and the state of each parameter of a group."""
    keys, names, betas = (group.get(key) for key in ("params", "param_names", "betas"))
    settings = {
        "learning_rate": number(group.get("lr")),
        "beta2": number(betas[1]) if isinstance(betas, list | tuple) and len(betas) == 2 else None,
        "epsilon": number(group.get("eps")),
    }
    keys = keys if isinstance(keys, list | tuple) else ()
    if not isinstance(names, list | tuple) or len(names) != len(keys):
        names = keys
    for key, name in zip(keys, names, strict=True):
        state = states.get(key, states.get(str(key))) if isinstance(key, int | str) else None
        slot = None
        if isinstance(state, Mapping):
            kept = (_tensor(state.get(moment)) for moment in SECOND_MOMENTS)
            moment = next((one for one in kept if one is not None), None)
            if moment is not None:
                slot = AdamSlot(moment, number(state.get("step")), **settings)
        yield name if isinstance(name, str) else None, slot


def _by_index(name: str) -> tuple[list[str], list[int]]:
    """A name without the numbers of list entries, and these numbers: the order of a ModuleList."""
    parts = name.split(".")
    kinds = [part for part in parts if not part.isdecimal()]
    return kinds, [int(part) for part in parts if part.isdecimal()]


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
BETA2, EPSILON = 0.999, 1e-7  # Keras's own defaults; a file does not keep them

ADAM = re.compile(r"adam(_?w)?(_\d+)?")  # Keras 3 calls AdamW adam_w
VARIABLES = ("optimizer", "vars")
NAMED = "optimizer_weights"
VELOCITY = re.compile(r"(.*)_(?:velocity|v)")
NUMBER = re.compile(r"_?\d+$")


def _keras_state(contents: object, weights: TensorStore) -> AdamState | None:
    """Adam's state in an HDF5 file of Keras; None where it holds no optimiser, or is another."""
    from memcurse_cli.checkpoints.hdf5.keras import Hdf5File

    if not isinstance(contents, Hdf5File):
        return None
    datasets = contents.datasets
    names = {id(weights.entries[name]): name for name in weights.tensors.keys() - weights.aliases}
    # The first path of a weight that stands under several.
    paths = {
        names.pop(id(tensor)): path for path, tensor in datasets.items() if id(tensor) in names
    }
    listed = {path: tensor for path, tensor in datasets.items() if path[:2] == VARIABLES}
    if listed:
        return _listed(listed, contents.groups.get(VARIABLES, ""), paths, weights)
    named = {path: tensor for path, tensor in datasets.items() if path[0] == NAMED}
    return _named(named, paths, weights) if named else None


def _listed(
    listed: dict[Path, LazyTensor], optimizer: str, paths: dict[str, Path], weights: TensorStore
) -> AdamState:
    """``optimizer/vars/0``, 1, …: step, rate, then momentum and velocity of each weight."""
    if not ADAM.fullmatch(optimizer.lower()):
        name = printable(optimizer, 40) or "without a name"
        return AdamState(KERAS, reason=f"the optimiser is {name}, not Adam")
    variables = [listed.get((*VARIABLES, str(index))) for index in range(len(listed))]
    step, rate = (number(variable) for variable in (*variables, None)[:2])
    pairs = list(zip(variables[2::2], variables[3::2], strict=False))
    entries = [
        (0, AdamSlot(second, step, rate, BETA2, EPSILON))
        for first, second in pairs
        if first and second and first.spec.shape == second.spec.shape
    ]
    if len(variables) % 2 or len(entries) < len(pairs):
        return AdamState(KERAS, reason="its variables are not pairs of momentum and velocity")
    shapes = {name: weights.tensors[name].shape for name in paths}
    return _match_numbers(KERAS, entries, shapes, lambda name: _numbered(paths[name]))


def _numbered(path: Path) -> tuple[list[str], list[int]]:
    """A path without the numbers of layers and variables, and these numbers."""
    kinds: list[str] = []
    numbers: list[int] = []
    for above, part in zip(("", *path), path, strict=False):
        found = NUMBER.search(part) if above in ("layers", "vars") else None
        kinds.append(part[: found.start()] if found else part)
        if above in ("layers", "vars"):
            numbers.append(int(found.group().lstrip("_")) if found else 0)
    return kinds, numbers


def _named(
    named: dict[Path, LazyTensor], paths: dict[str, Path], weights: TensorStore
) -> AdamState:
    """``adam/sequential_gru_gru_cell_kernel_velocity``, or ``Adam/gru/gru_cell/kernel/v:0``."""
    scalars = {path[-1].removesuffix(":0"): tensor for path, tensor in named.items()}
    step = number(scalars.get("iteration", scalars.get("iter")))
    rate = number(scalars.get("learning_rate"))
    flat = {
        name: f"_{'_'.join(part.removesuffix(':0') for part in path)}"
        for name, path in paths.items()
    }
    called = []
    for path, tensor in named.items():
        velocity = VELOCITY.fullmatch("_".join(path[2:]).removesuffix(":0"))
        if velocity is not None:
            same = [
                name
                for name, joined in flat.items()
                if joined.endswith(f"_{velocity[1]}")
                and weights.tensors[name].shape == tensor.spec.shape
            ]
            slot = AdamSlot(tensor, step, rate, BETA2, EPSILON)
            called.append((slot, same, "several weights have its name"))
    state = _match_names(KERAS, called)
    if not state.slots and not state.refused:
        return AdamState(KERAS, reason="the optimiser's state has no velocity: it is not Adam")
    return state


FIRST, SECOND, COUNT = "mu", "nu", "count"
OPTAX_RATE = ("hyperparams", "learning_rate")
# Named tuples, whose pickles have no names.
_FIELDS = {
    "ScaleByAdamState": (COUNT, FIRST, SECOND),
    "InjectHyperparamsState": (COUNT, "hyperparams"),
    "InjectStatefulHyperparamsState": (COUNT, "hyperparams"),
}


def optax_state(contents: object, weights: TensorStore) -> AdamState | None:
    """Adam's state among the tensors of a JAX tree; None where there is none.

    A transformation of several groups (multi_transform, masked) has a state for each.
    """
    paths = paths_of(contents)
    states: dict[Path, dict[Path, LazyTensor]] = {}
    for path, tensor in paths.items():
        for place, part in enumerate(path):
            above, below = path[:place], path[place + 1 :]
            if part == SECOND and (*above, COUNT) in paths and (*above, FIRST, *below) in paths:
                states.setdefault(above, {})[below] = tensor
                break
    if not states:
        return None
    rates = [path for path in paths if path[-2:] == OPTAX_RATE]
    rate = number(paths[rates[0]]) if len(rates) == 1 else None
    found: dict[str, AdamSlot] = {}
    refused: dict[str, str] = {}
    shapes = {tuple(name.split("/")): (name, spec.shape) for name, spec in weights.stored.items()}
    for above, tree in states.items():
        # Where the weights' tree may begin: below it lies every path of the state's tree.
        roots = set.intersection(*(
            {
                path[: len(path) - len(below)]
                for path, (_, shape) in shapes.items()
                if shape == tensor.spec.shape and path[len(path) - len(below) :] == below
            }
            for below, tensor in tree.items()
        ))  # fmt: skip
        if len(roots) != 1:
            why = "no tree of weights has" if not roots else f"{len(roots)} trees of weights have"
            why += " the paths and shapes of the optimiser's state"
            refused.update(dict.fromkeys(weights.stored, why))
            continue
        (root,) = roots
        step = number(paths[(*above, COUNT)])
        for below, tensor in tree.items():
            found[shapes[root + below][0]] = AdamSlot(tensor, step, rate)
    refused = {name: why for name, why in refused.items() if name not in found}
    return AdamState("optax", found, refused)


def paths_of(contents: object) -> Mapping[Path, LazyTensor]:
    """Every tensor by its path; a mapping that has paths already is taken as it is."""
    if isinstance(contents, dict) and contents and isinstance(next(iter(contents)), tuple):
        return contents
    with suppress(ValueError):  # what is malformed has been told when the weights were read
        return collect(contents, leaf, expand)
    return {}


def leaf(node: object) -> LazyTensor | None:
    """What a node stands for as a tensor; None where it is none."""
    from memcurse_cli.checkpoints.torch.pickled_tensors import PickledArray

    return node.tensor if isinstance(node, PickledArray) else _tensor(node)


def expand(node: object) -> object:
    """Named tuples and pickled objects by the names of their fields."""
    from memcurse_cli.checkpoints.torch.files import attributes
    from memcurse_cli.checkpoints.torch.pickle_machine import Global, Record

    fields = getattr(node, "_fields", None)
    if isinstance(node, tuple) and isinstance(fields, tuple):
        return dict(zip(fields, node, strict=True))
    if not isinstance(node, Record):
        return node
    fields = _FIELDS.get(node.function.name) if isinstance(node.function, Global) else None
    if fields:
        names = (*fields, *map(str, range(len(fields), len(node.arguments))))
        return dict(zip(names, node.arguments, strict=False))
    return attributes(node)
