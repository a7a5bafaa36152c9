"""Adam's second moments beside a checkpoint's weights, each under the name of its weight."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from memcurse_cli.checkpoints.store import LazyTensor
from memcurse_cli.errors import CheckpointError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class AdamSlot:
    """The running mean of a weight's squared gradient, and what else the optimiser says."""

    second_moment: LazyTensor  # v, of the weight's shape
    # how many steps it has run over, which its bias is corrected by; None if not stored
    step: float | None = None
    learning_rate: float | None = None  # of the weight's group at the last step; None if not stored
    beta2: float | None = None  # the decay of v; None if not stored
    epsilon: float | None = None  # added to √v̂; None if not stored


@dataclass(frozen=True)
class AdamState:
    """Adam's state by the name of the weight."""

    library: str  # ``torch.optim``, ``optax`` or ``Keras``
    slots: Mapping[str, AdamSlot] = field(default_factory=dict)  # the weights whose state is known
    refused: Mapping[str, str] = field(default_factory=dict)  # why that of a weight is not
    reason: str | None = None  # why that of no weight is, or None


@dataclass(frozen=True)
class Numbered:
    """A state that has a number and no name, in a group whose order is that of the weights.

    Its slot is None where the parameter has had no gradient.
    """

    group: int
    slot: AdamSlot | None


def number(node: object) -> float | None:
    """A stored number, plain or as a tensor of one element."""
    if isinstance(node, LazyTensor):
        if math.prod(node.spec.shape) != 1:
            return None
        try:
            node = float(node.load().reshape(-1)[0].real)
        except CheckpointError:
            return None
    if isinstance(node, bool) or not isinstance(node, int | float):
        return None
    try:
        return float(node) if math.isfinite(node) else None
    except OverflowError:
        return None


def match_numbers(
    entries: Sequence[Numbered],
    shapes: Mapping[str, Shape],
    order: Callable[[Sequence[str]], Sequence[str] | None],
) -> tuple[dict[str, AdamSlot], dict[str, str]]:
    """Numbered states under the names of their weights, and why others are refused.

    States and weights of one shape belong together where there are as many of one as of the
    other, and either a single one or an order that both are in. ``order`` puts weights of one
    shape into that in which a model registers them; None where the file does not keep it.
    """
    if len(entries) > len(shapes):
        why = f"the optimiser has {len(entries)} parameters and the file {len(shapes)} weights"
        return {}, dict.fromkeys(shapes, why)
    states: dict[Shape, list[Numbered]] = defaultdict(list)
    for entry in entries:
        if entry.slot is not None:
            states[entry.slot.second_moment.spec.shape].append(entry)
    weights: dict[Shape, list[str]] = defaultdict(list)
    for name, shape in shapes.items():
        weights[shape].append(name)
    found: dict[str, AdamSlot] = {}
    refused: dict[str, str] = {}
    for shape, names in weights.items():
        same = states.get(shape, [])
        ordered = names if len(names) == 1 else order(names)
        why = ""
        if len(same) != len(names):
            why = f"the optimiser has {len(same)} states of its shape and the file {len(names)}"
        elif ordered is None:
            why = f"{len(names)} weights have its shape, and the file does not keep their order"
        elif len({entry.group for entry in same}) > 1:
            why = f"{len(names)} weights have its shape, in several groups of the optimiser"
        if why or ordered is None:
            refused.update(dict.fromkeys(names, why))
            continue
        for name, entry in zip(ordered, same, strict=True):
            if entry.slot is not None:
                found[name] = entry.slot
    return found, refused
