"""Which of a file's tensors are weights, and what they are called.

Adam's moments and an exponential moving average (EMA) repeat the names and shapes of the weights,
so that they would be reported as layers. This is the one place that tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import takewhile
from typing import TypeVar

from memcurse_cli.checkpoints.store import LazyTensor
from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH, printable

Leaf = TypeVar("Leaf")
Name = TypeVar("Name", str, tuple[str, ...])
Tensor = TypeVar("Tensor", bound=LazyTensor)
Path = tuple[str, ...]

OPTIMIZER_CONTAINERS = frozenset({
    "acc_grads", "grads", "gradients", "inner_opt_state", "optim", "optim_state",
    "optim_state_dict", "optimizer", "optimizer_slots", "optimizer_state", "optimizer_state_dict",
    "optimizer_states", "optimizer_weights", "optimizers", "optimizers_state_dict", "opt_state",
    "opt_states", "param_states",
})  # fmt: skip
OPTIMIZER_SLOTS = frozenset({
    "acc_delta", "beta1_power", "beta2_power", "exp_avg", "exp_avg_sq", "exp_inf", "grad_avg",
    "max_exp_avg_sq", "momentum_buffer", "square_avg",
})  # fmt: skip
# TensorFlow names a slot after the variable and the optimiser: W_rec/Adam, W_rec/Adam_1.
TENSORFLOW_SLOT = re.compile(
    r"(Adam|AdamW|AMSGrad|Adagrad|Adadelta|Adamax|Nadam|Ftrl|Momentum|RMSProp)(_\d+)?"
)
AVERAGED_COPIES = frozenset({
    "average_model_state", "averaged_model", "averaged_params", "ema_model",
    "ema_model_state_dict", "ema_params", "ema_state", "ema_state_dict", "ema_weights",
    "ExponentialMovingAverage", "model_ema", "model_ema_state_dict", "model_state_dict_ema",
    "params_ema", "shadow_params", "state_dict_ema", "swa_model", "swa_params", "swa_state_dict",
})  # fmt: skip
# Outermost keys of an averaged copy, in lower case, where another key holds the same names.
_COPIES = frozenset(
    {"average", "averaged", "ema", "model_avg", "polyak", "polyak_average", "shadow", "swa"}
)
# The same of optimiser state: both moments, or one.
_MOMENT_PAIRS = (("mu", "nu"), ("m", "v"))
_MOMENTS = frozenset({"momentum", "momentums", "velocity", "velocities"})
_OPTAX_FIELDS = frozenset(
    {"grad_acc", "m", "momentum", "mu", "nu", "sum_of_squares", "trace", "v", "v_col", "v_row"}
)
_DEEPEST_ROOT = 4  # keys that may lead to the weights, of which a state has none
# `net_ema` beside `net`.
_CALLED_EMA = re.compile(r"(?i:ema)_(?P<after>.+)|(?P<before>.+)_(?i:ema)")
# Lightning's WeightAveraging puts the average where the weights were, and these here.
_WEIGHTS_BESIDE_AVERAGE = "current_model_state"
_SEPARATORS = re.compile(r"[./\\,]")


def select_flat(tensors: Mapping[str, Leaf]) -> tuple[dict[str, Leaf], list[str]]:
    """The weights among tensors whose names join their path, and notes on what is left out."""
    weights, notes = select({(name,): tensor for name, tensor in tensors.items()})
    return {path[0]: tensor for path, tensor in weights.items()}, notes


def select(tensors: Mapping[Path, Leaf]) -> tuple[dict[Path, Leaf], list[str]]:
    """The weights among tensors by their paths, and notes on what is left out.

    A part of a path may itself join several names. An averaged copy is left out where the weights
    that it averages are in the file too; where it is all there is, it is read and the note says so.
    """
    parts = {path: tuple(p for part in path for p in _SEPARATORS.split(part)) for path in tensors}
    known = set(parts.values())
    roots = _moments(known) | _optax_fields(known)
    optimizer = {
        path
        for path, name in parts.items()
        if _is_optimizer_state(name, known)
        or (roots and any(name[:length] in roots for length in range(1, len(name))))
    }
    rest = {path: name for path, name in parts.items() if path not in optimizer}
    averaged = _averaged(rest)
    only = len(averaged) == len(rest)
    verdict = "read: the file has no other" if only else "left out"
    notes = [
        *counted(map(".".join, sorted(optimizer)), "of optimiser state", "left out"),
        *counted(map(".".join, sorted(averaged)), "of an averaged (EMA) copy", verdict),
    ]
    left_out = optimizer if only else optimizer | averaged
    return {path: tensor for path, tensor in tensors.items() if path not in left_out}, notes


def counted(names: Iterable[str], what: str, verdict: str) -> list[str]:
    """A note on tensors of one kind and what becomes of them, or none where there are none."""
    found = list(names)
    if not found:
        return []
    count = "1 tensor" if len(found) == 1 else f"{len(found)} tensors"
    return [f"{count} {what} (such as {printable(found[0], 80)}): {verdict}"]


def _is_optimizer_state(parts: Path, known: Set[Path]) -> bool:
    return (
        not OPTIMIZER_CONTAINERS.isdisjoint(parts[:-1])
        or not OPTIMIZER_SLOTS.isdisjoint(parts)
        # A mu or nu of optax stands beside a count.
        or any(
            part in ("mu", "nu") and (*parts[:index], "count") in known
            for index, part in enumerate(parts[:-1])
        )
        or (TENSORFLOW_SLOT.fullmatch(parts[-1]) is not None and parts[:-1] in known)
    )


def _moments(known: Set[Path]) -> set[Path]:
    """The outermost keys under which a tree of weights is repeated for an optimiser's moments."""
    trees: dict[str, set[Path]] = {}
    for name in known:
        if len(name) > 1:
            trees.setdefault(name[0], set()).add(name[1:])
    pairs = [pair for pair in _MOMENT_PAIRS if set(pair) <= trees.keys()]
    called = {key for pair in pairs for key in pair} | (_MOMENTS & trees.keys())
    weights = [tree for key, tree in trees.items() if key not in called]
    return {(key,) for key in called if any(trees[key] <= tree for tree in weights)}


def _optax_fields(known: Set[Path]) -> set[Path]:
    """Where a field of one of optax's states, which stand in tuples, repeats a tree of weights."""
    trees: dict[Path, set[Path]] = {}
    others: list[Path] = []
    for name in known:
        for index in range(1, len(name) - 1):
            if name[index] in _OPTAX_FIELDS and name[index - 1].isdigit():
                trees.setdefault(name[: index + 1], set()).add(name[index + 1 :])
                break
        else:
            others.append(name)
    if not trees:
        return set()
    weights = {name[start:] for name in others for start in range(min(len(name), _DEEPEST_ROOT))}
    return {root for root, tree in trees.items() if tree <= weights}


def _averaged(parts: Mapping[Path, Path]) -> set[Path]:
    known = set(parts.values())
    elsewhere = {name[1:] for name in known if name[0].lower() not in _COPIES} | known
    beside = any(name[0] == _WEIGHTS_BESIDE_AVERAGE for name in known)
    marked = {
        path
        for path, name in parts.items()
        if not AVERAGED_COPIES.isdisjoint((*name[:3], name[-1]))
        or _repeats_without_ema(name, known)
        or (name[0].lower() in _COPIES and name[1:] in elsewhere)
        or (beside and name[0] == "state_dict")
    }
    # A layer may be called ema as well (Mega has one); a copy repeats the names of the weights.
    called_ema = {path for path, name in parts.items() if "ema" in name[:2]} - marked
    others = {name[-1] for path, name in parts.items() if path not in marked | called_ema}
    if not others or all(parts[path][-1] in others for path in called_ema):
        marked |= called_ema
    return marked


def _repeats_without_ema(name: Path, known: Set[Path]) -> bool:
    """Whether one of the outer parts is called EMA, and the same name without that is there."""
    called = [_CALLED_EMA.fullmatch(part) for part in name[:2]]
    return any(
        ema and (*name[:index], ema["after"] or ema["before"], *name[index + 1 :]) in known
        for index, ema in enumerate(called)
    )


MAX_DEPTH = 64
MAX_NODES = 1_000_000
MAX_TENSORS = 500_000


def collect(
    root: object,
    leaf: Callable[[object], Leaf | None],
    expand: Callable[[object], object] = lambda node: node,
) -> dict[Path, Leaf]:
    """Every leaf of a tree of mappings, lists and tuples, by the keys that lead to it.

    ``leaf`` says what a node stands for as a tensor, ``expand`` as a container; anything else is
    passed over. ValueError: the tree is cyclic, nested too deeply or too large.
    """
    found: dict[Path, Leaf] = {}
    visited = 0

    def visit(path: Path, node: object) -> None:
        nonlocal visited
        visited += 1
        # A container that holds another twice, and so on, has exponentially many paths.
        if visited > MAX_NODES or len(found) > MAX_TENSORS:
            raise ValueError(f"it holds more than {MAX_NODES} entries or {MAX_TENSORS} tensors")
        tensor = leaf(node)
        if tensor is not None:
            if sum(map(len, path)) > MAX_NAME_LENGTH:
                raise ValueError(f"a tensor's name has more than {MAX_NAME_LENGTH} characters")
            found[path] = tensor
            return
        children = _children(expand(node))
        if children is not None and len(path) > MAX_DEPTH:
            raise ValueError(f"its containers are nested more than {MAX_DEPTH} deep")
        for key, child in children or ():
            visit((*path, key), child)

    visit((), root)
    return found


def _children(node: object) -> Iterator[tuple[str, object]] | None:
    if isinstance(node, Mapping):
        # What torch.optim saves, under whatever key: its moments carry no names of their own.
        prefix = "optimizer." if "param_groups" in node and "state" in node else ""
        return ((f"{prefix}{_key(key)}", child) for key, child in node.items())
    if isinstance(node, list | tuple):
        return ((str(index), child) for index, child in enumerate(node))
    return None


def _key(key: object) -> str:
    if isinstance(key, bytes):
        return key.decode("utf-8", "replace")
    # Any other key's own text could be of any length.
    return str(key) if isinstance(key, str | int) else type(key).__name__


def texts(root: object) -> dict[str, str]:
    """The texts at the top of a tree, beside its tensors, such as the mark of a converter."""
    entries = root.items() if isinstance(root, Mapping) else ()
    return {key: value for key, value in entries if isinstance(key, str) and isinstance(value, str)}


def name_torch(tensors: Mapping[Path, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Names as a state_dict has them, and notes.

    The keys that lead to the only model of a training checkpoint are dropped; those of several
    models (an encoder and a decoder, several agents) stay as prefixes. A model is told by its
    matrices, so that a loss history or a random-number state beside it is not taken for another.
    """
    selected, notes = select(tensors)
    matrices = [path for path, tensor in selected.items() if len(tensor.spec.shape) > 1]
    paths = matrices or list(selected)
    levels = zip(*(path[:-1] for path in paths), strict=False)
    key = tuple(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
    shortened = {
        path[len(key) :] if path[: len(key)] == key else path: tensor
        for path, tensor in selected.items()
    }
    return _join(shortened if len(shortened) == len(selected) else selected, "."), notes


def name_jax(tensors: Mapping[Path, Leaf]) -> tuple[dict[str, Leaf], list[str]]:
    """Names that join a JAX tree's keys with ``/``, every container kept, and notes."""
    selected, notes = select(tensors)
    return _join(selected, "/"), notes


def _join(tensors: Mapping[Path, Leaf], separator: str) -> dict[str, Leaf]:
    return unique((separator.join(path), tensor) for path, tensor in tensors.items())


def unique(named: Iterable[tuple[Name, Leaf]]) -> dict[Name, Leaf]:
    """Tensors by names or paths; ValueError where two have the same."""
    found: dict[Name, Leaf] = {}
    for name, tensor in named:
        if name in found:
            raise ValueError("two of its tensors have the same name")
        found[name] = tensor
    return found
