"""Nested containers of tensors, as checkpoints of every framework hold them, become flat names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from memcurse_cli.checkpoints.training_state import Path, select

Leaf = TypeVar("Leaf")

MAX_DEPTH = 64
MAX_NODES = 2_000_000


def collect(root: object, leaf: Callable[[object], Leaf | None]) -> dict[Path, Leaf]:
    """Every leaf of a tree of mappings, lists and tuples, by the keys that lead to it.

    Args:
        root: the tree. It may hold anything else, which is passed over.
        leaf: what a node stands for as a tensor, or None where it is none.

    Raises:
        ValueError: with the fault as a clause; the tree is cyclic, nested too deeply or too large.
    """
    found: dict[Path, Leaf] = {}
    pending: list[tuple[Path, object]] = [((), root)]
    visited = 0
    while pending:
        path, node = pending.pop()
        visited += 1
        if len(path) > MAX_DEPTH:
            raise ValueError(f"its containers are nested more than {MAX_DEPTH} deep")
        # A container that holds another twice, and so on, has exponentially many paths.
        if visited > MAX_NODES:
            raise ValueError(f"it holds more than {MAX_NODES} entries")
        tensor = leaf(node)
        if tensor is not None:
            found[path] = tensor
        elif isinstance(node, Mapping):
            children = [((*path, str(key)), child) for key, child in node.items()]
            pending.extend(reversed(children))
        elif isinstance(node, list | tuple):
            pending.extend(((*path, str(i)), node[i]) for i in reversed(range(len(node))))
    return found


def name_torch(tensors: Mapping[Path, Leaf]) -> tuple[dict[str, Leaf], list[str]]:
    """Names as a state_dict has them, and notes.

    The keys that lead to the only model of a training checkpoint are dropped; those of several
    models (an encoder and a decoder, several agents) stay as prefixes.
    """
    selected, notes = select(tensors)
    common = 0
    while selected and all(
        len(path) > common + 1 and path[: common + 1] == first[: common + 1]
        for first in [next(iter(selected))]
        for path in selected
    ):
        common += 1
    return _join({path[common:]: tensor for path, tensor in selected.items()}, "."), notes


def name_jax(tensors: Mapping[Path, Leaf]) -> tuple[dict[str, Leaf], list[str]]:
    """Names that join a JAX tree's keys with ``/``, every container kept, and notes."""
    selected, notes = select(tensors)
    return _join(selected, "/"), notes


def _join(tensors: Mapping[Path, Leaf], separator: str) -> dict[str, Leaf]:
    named = {separator.join(path): tensor for path, tensor in tensors.items()}
    if len(named) < len(tensors):
        raise ValueError("two of its tensors have the same name")
    return named
