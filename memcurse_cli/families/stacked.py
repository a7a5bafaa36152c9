"""Layers that are stacked along a leading axis: a scanned network's, or an ensemble's members.

Layers that share all their tensors: one layer under several names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.families.family import Found, Match
from memcurse_cli.families.module_names import split_name
from memcurse_cli.families.reading import require_size

NAMED = 5
EXPLAINED = 10


def merge_tied(
    found: list[Found], tensors: Iterable[str], aliases: Mapping[str, str]
) -> list[Found]:
    """The layers, those that have all their tensors in common as the first of them.

    A module that is registered twice, or whose parameters are those of another, is trained as one:
    a step moves both, and what is said of the first holds for all. Where one tensor is its own,
    as the input weights of a cell that shares its recurrent ones, it is a layer of its own; and so
    where its module has a tensor of its own that no layer claims, as a read-out.

    Args:
        found: the layers in the order of the file.
        tensors: the names of every tensor.
        aliases: for every further name of a tensor the name that holds it.
    """
    if not aliases:
        return found
    # A module may hold several layers, by its heads or directions: the first of one is the first
    # of the other.
    modules: dict[Hashable, dict[Hashable, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, (family, match) in enumerate(found):
        held = tuple((role, aliases.get(name, name)) for role, name in match.tensors.items())
        own = tuple(match.tensors.items())
        modules[family.name, match.place, held][own].append(index)
    claimed = {name for _, match in found for name in match.tensors.values()}
    distinct: set[str] = set()
    for name in tensors:
        if name not in aliases and name not in claimed:
            distinct |= _modules(name)
    tied: dict[int, list[str]] = {}
    merged: set[int] = set()
    for named in modules.values():
        first, *others = named.values()
        for other in others:
            module = split_name(found[other[0]][1].prefix)[0]
            if len(other) == len(first) and module not in distinct:
                merged.update(other)
                for kept, again in zip(first, other, strict=True):
                    tied.setdefault(kept, []).append(found[again][1].layer)
    return [
        (family, replace(match, tied=tuple(tied[index])) if index in tied else match)
        for index, (family, match) in enumerate(found)
        if index not in merged
    ]


def _modules(name: str) -> set[str]:
    """The modules that a tensor is in; the root only where it is in no other."""
    found = set()
    module = split_name(name)[0]
    while module:
        found.add(module)
        module = split_name(module)[0]
    return found or {""}


def tied_notes(matches: Iterable[Match]) -> Iterator[str]:
    """Which layers stand for others, in a few sentences."""
    tied = [match for match in matches if match.tied]
    for match in tied[:EXPLAINED]:
        names = [printable(name, 80) for name in match.tied[:NAMED]]
        more = len(match.tied) - len(names)
        others = ", ".join(names) + (f" and {more} more" if more else "")
        have = "has" if len(match.tied) == 1 else "have"
        yield f"{others} {have} the same tensors as {printable(match.layer, 80)}: reported once"
    if len(tied) > EXPLAINED:
        yield f"{len(tied) - EXPLAINED} more layers stand under several names: each reported once"


_MEMBER = re.compile(r"\[(\d+)\]$")
# A header that claims more is not believed.
_MOST_MEMBERS = 4096


def split_stack(
    match: Match, tensors: Mapping[str, TensorSpec], axes: Mapping[str, int]
) -> list[Match]:
    """The layers of a match: one, or each of those that a leading axis stacks.

    `jax.vmap` over an ensemble and `nn.scan` over the layers of a network put an axis before all
    others of every tensor. It is only taken for that where every tensor has it, at one size.

    Args:
        match: the layer as its names tell it.
        tensors: the checkpoint's.
        axes: how many axes a single layer has, for the roles that are looked at.
    """
    shapes = {role: tensors[match.tensors[role]].shape for role in axes if role in match.tensors}
    sizes = {shape[:1] for shape in shapes.values()}
    stacked = bool(shapes) and all(len(shape) == axes[role] + 1 for role, shape in shapes.items())
    if not stacked or len(sizes) != 1:
        return [match]
    ((size,),) = sizes
    if not 0 < size <= _MOST_MEMBERS:
        return [match]
    return [replace(match, layer=f"{match.layer}[{index}]") for index in range(size)]


def member_of(
    store: TensorStore, match: Match, axes: Mapping[str, int], others: Collection[str] = ("D",)
) -> TensorStore:
    """The checkpoint as one of the stacked layers has it; itself where nothing is stacked.

    Args:
        store: the checkpoint.
        match: one layer that `split_stack` gave.
        axes: what it was given.
        others: names beside the layer's tensors that are stacked with them.
    """
    found = _MEMBER.search(match.layer)
    roles = [role for role in axes if role in match.tensors]
    first = store.tensors[match.tensors[roles[0]]].shape
    if found is None or len(first) != axes[roles[0]] + 1:
        return store
    module, _ = split_name(match.tensors[roles[0]])
    beside = {name for name in store.tensors if split_name(name) in {(module, o) for o in others}}
    stacked = {
        name
        for name in {*match.tensors.values(), *beside}
        if store.tensors[name].shape[:1] == first[:1]
    }
    return cast(TensorStore, _Member(store, stacked, int(found[1])))


class _Member:
    """A `TensorStore` with one index of the leading axis of some tensors; all else as stored."""

    def __init__(self, store: TensorStore, stacked: Collection[str], index: int) -> None:
        self._store, self._stacked, self._index = store, stacked, index
        self.tensors = {
            name: replace(
                spec, shape=spec.shape[1:], bytes=spec.bytes // max(int(spec.shape[0]), 1)
            )
            if name in stacked
            else spec
            for name, spec in store.tensors.items()
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, name: str) -> NDArray[Any]:
        # One layer is read through the whole stack.
        require_size(self._store, name)
        values = self._store.read(name)
        return np.ascontiguousarray(values[self._index]) if name in self._stacked else values
