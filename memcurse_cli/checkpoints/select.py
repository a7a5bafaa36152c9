"""What a training checkpoint holds beside the weights: optimiser state and averaged copies.

Adam's moments and an exponential moving average (EMA) repeat the names and shapes of the
weights, so that they would be reported as layers. This is the one place that tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import TypeVar

from memcurse_cli.checkpoints.untrusted.names import printable

Leaf = TypeVar("Leaf")
Path = tuple[str, ...]

OPTIMIZER_CONTAINERS = frozenset(
    {
        "acc_grads",
        "grads",
        "gradients",
        "inner_opt_state",
        "optim",
        "optim_state",
        "optim_state_dict",
        "optimizer",
        "optimizer_slots",
        "optimizer_state",
        "optimizer_state_dict",
        "optimizer_states",
        "optimizer_weights",
        "optimizers",
        "optimizers_state_dict",
        "opt_state",
        "opt_states",
        "param_states",
    }
)
OPTIMIZER_SLOTS = frozenset(
    {
        "acc_delta",
        "beta1_power",
        "beta2_power",
        "exp_avg",
        "exp_avg_sq",
        "exp_inf",
        "grad_avg",
        "max_exp_avg_sq",
        "momentum_buffer",
        "square_avg",
    }
)
# TensorFlow names a slot after the variable and the optimiser: W_rec/Adam, W_rec/Adam_1.
TENSORFLOW_SLOT = re.compile(
    r"(Adam|AdamW|AMSGrad|Adagrad|Adadelta|Adamax|Nadam|Ftrl|Momentum|RMSProp)(_\d+)?"
)
AVERAGED_COPIES = frozenset(
    {
        "average_model_state",
        "averaged_model",
        "averaged_params",
        "ema_model",
        "ema_model_state_dict",
        "ema_params",
        "ema_state",
        "ema_state_dict",
        "ema_weights",
        "ExponentialMovingAverage",
        "model_ema",
        "model_ema_state_dict",
        "model_state_dict_ema",
        "params_ema",
        "shadow_params",
        "state_dict_ema",
        "swa_model",
        "swa_params",
        "swa_state_dict",
    }
)
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
_DEEPEST_ROOT = 4
"""Keys that may lead to the weights, of which a state has none."""
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
    """The weights among ``tensors``, and notes on what is left out.

    An averaged copy is left out where the weights that it averages are in the file too; where it
    is all there is, it is read and the note says so.

    Args:
        tensors: by their path, outermost container first; a part may itself join several names.
    """
    parts = {path: tuple(p for part in path for p in _SEPARATORS.split(part)) for path in tensors}
    known = set(parts.values())
    optimizer = {path for path in tensors if is_optimizer_state(parts[path], known)}
    roots = _moments(known) | _optax_fields(known)
    if roots:
        optimizer |= {
            path
            for path in tensors
            if any(parts[path][:length] in roots for length in range(1, len(parts[path])))
        }
    rest = [path for path in tensors if path not in optimizer]
    averaged = _averaged({path: parts[path] for path in rest})
    left_out = set(optimizer)
    notes = _counted(optimizer, "of optimiser state", "left out")
    if len(averaged) < len(rest):
        left_out |= averaged
        notes += _counted(averaged, "of an averaged (EMA) copy", "left out")
    else:
        notes += _counted(averaged, "of an averaged (EMA) copy", "read: the file has no other")
    return {path: tensor for path, tensor in tensors.items() if path not in left_out}, notes


def is_optimizer_state(parts: Path, known: Set[Path]) -> bool:
    """Whether the tensor with these parts of its name is an optimiser's, given all the others."""
    if not OPTIMIZER_CONTAINERS.isdisjoint(parts[:-1]):
        return True
    if not OPTIMIZER_SLOTS.isdisjoint(parts) or _is_optax_moment(parts, known):
        return True
    return bool(TENSORFLOW_SLOT.fullmatch(parts[-1])) and parts[:-1] in known


def _is_optax_moment(parts: Path, known: Set[Path]) -> bool:
    """Whether this is in a ``mu`` or ``nu`` of optax, which a ``count`` stands beside."""
    return any(
        part in ("mu", "nu") and (*parts[:index], "count") in known
        for index, part in enumerate(parts[:-1])
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
    marked = {
        path
        for path, name in parts.items()
        if not AVERAGED_COPIES.isdisjoint((*name[:3], name[-1]))
    }
    known = set(parts.values())
    marked |= {path for path, name in parts.items() if _repeats_without_ema(name, known)}
    elsewhere = {name[1:] for name in known if name[0].lower() not in _COPIES}
    marked |= {
        path
        for path, name in parts.items()
        if name[0].lower() in _COPIES and (name[1:] in elsewhere or name[1:] in known)
    }
    if any(name[0] == _WEIGHTS_BESIDE_AVERAGE for name in known):
        marked |= {path for path, name in parts.items() if name[0] == "state_dict"}
    # A layer may be called ema as well (Mega has one); a copy repeats the names of the weights.
    called_ema = {path for path, name in parts.items() if "ema" in name[:2]} - marked
    others = {name[-1] for path, name in parts.items() if path not in marked | called_ema}
    if not others or all(parts[path][-1] in others for path in called_ema):
        marked |= called_ema
    return marked


def _repeats_without_ema(name: Path, known: Set[Path]) -> bool:
    """Whether one of the outer parts is called EMA, and the same name without that is there."""
    for index, part in enumerate(name[:2]):
        called = _CALLED_EMA.fullmatch(part)
        if (
            called
            and (*name[:index], called["after"] or called["before"], *name[index + 1 :]) in known
        ):
            return True
    return False


def _counted(paths: set[Path], what: str, verdict: str) -> list[str]:
    if not paths:
        return []
    tensors = "1 tensor" if len(paths) == 1 else f"{len(paths)} tensors"
    return [f"{tensors} {what} (such as {printable('.'.join(min(paths)), 80)}): {verdict}"]
