"""Nested containers of tensors, as checkpoints of every framework hold them, become flat names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from memcurse_cli.checkpoints.lazy import LazyTensor
from memcurse_cli.checkpoints.select import Path, select
from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH

Leaf = TypeVar("Leaf")
Tensor = TypeVar("Tensor", bound=LazyTensor)

MAX_DEPTH = 64
MAX_NODES = 1_000_000
MAX_TENSORS = 500_000


def collect(
    root: object,
    leaf: Callable[[object], Leaf | None],
    expand: Callable[[object], object] = lambda node: node,
) -> dict[Path, Leaf]:
    """Every leaf of a tree of mappings, lists and tuples, by the keys that lead to it.

    Args:
        root: the tree. It may hold anything else, which is passed over.
        leaf: what a node stands for as a tensor, or None where it is none.
        expand: the container that a node of another type stands for.

    Raises:
        ValueError: with the fault as a clause; the tree is cyclic, nested too deeply or too large.
    """
    found: dict[Path, Leaf] = {}
    path: list[str] = []
    pending: list[Iterator[tuple[str, object]]] = [iter([("", root)])]
    visited = 0
    while pending:
        key, node = next(pending[-1], (None, None))
        if key is None:
            pending.pop()
            if path:
                path.pop()
            continue
        visited += 1
        # A container that holds another twice, and so on, has exponentially many paths.
        if visited > MAX_NODES or len(found) > MAX_TENSORS:
            raise ValueError(f"it holds more than {MAX_NODES} entries or {MAX_TENSORS} tensors")
        here = (*path, key)[1:]
        tensor = leaf(node)
        if tensor is not None:
            if sum(map(len, here)) > MAX_NAME_LENGTH:
                raise ValueError(f"a tensor's name has more than {MAX_NAME_LENGTH} characters")
            found[here] = tensor
            continue
        children = _children(expand(node))
        if children is not None:
            if len(path) > MAX_DEPTH:
                raise ValueError(f"its containers are nested more than {MAX_DEPTH} deep")
            path.append(key)
            pending.append(children)
    return found


def _children(node: object) -> Iterator[tuple[str, object]] | None:
    if isinstance(node, Mapping):
        # What torch.optim saves, under whatever key: its moments carry no names of their own.
        if "param_groups" in node and "state" in node:
            return ((f"optimizer.{_key(key)}", child) for key, child in node.items())
        return ((_key(key), child) for key, child in node.items())
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

    Raises:
        ValueError: two tensors have the same name.
    """
    selected, notes = select(tensors)
    matrices = [path for path, tensor in selected.items() if len(tensor.spec.shape) > 1]
    paths = matrices or list(selected)
    common = 0
    while paths and all(
        len(path) > common + 1 and path[common] == paths[0][common] for path in paths
    ):
        common += 1
    key = paths[0][:common] if paths else ()
    shortened = {
        path[common:] if path[:common] == key else path: tensor for path, tensor in selected.items()
    }
    return _join(shortened if len(shortened) == len(selected) else selected, "."), notes


def name_jax(tensors: Mapping[Path, Leaf]) -> tuple[dict[str, Leaf], list[str]]:
    """Names that join a JAX tree's keys with ``/``, every container kept, and notes.

    Raises:
        ValueError: two tensors have the same name.
    """
    selected, notes = select(tensors)
    return _join(selected, "/"), notes


def _join(tensors: Mapping[Path, Leaf], separator: str) -> dict[str, Leaf]:
    named = {separator.join(path): tensor for path, tensor in tensors.items()}
    if len(named) < len(tensors):
        raise ValueError("two of its tensors have the same name")
    return named
