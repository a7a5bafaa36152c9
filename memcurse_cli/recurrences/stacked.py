"""Layers that are stacked along a leading axis: a scanned network's, or an ensemble's members."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.bounds import require_size
from memcurse_cli.recurrences.family import Match
from memcurse_cli.recurrences.reading import split_name

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
    return _Member(store, stacked, int(found[1]))


class _Member:
    """One index of the leading axis of some tensors; all else as it is stored."""

    def __init__(self, store: TensorStore, stacked: Collection[str], index: int) -> None:
        self._store = store
        self._stacked = stacked
        self._index = index
        self._tensors = {
            name: replace(
                spec, shape=spec.shape[1:], bytes=spec.bytes // max(int(spec.shape[0]), 1)
            )
            if name in stacked
            else spec
            for name, spec in store.tensors.items()
        }

    @property
    def path(self) -> str:
        return self._store.path

    @property
    def format(self) -> str:
        return self._store.format

    @property
    def bytes(self) -> int:
        return self._store.bytes

    @property
    def bytes_read(self) -> int:
        return self._store.bytes_read

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._store.metadata

    @property
    def config(self) -> Mapping[str, Any]:
        return self._store.config

    @property
    def notes(self) -> tuple[str, ...]:
        return self._store.notes

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        return self._tensors

    def read(self, name: str) -> NDArray[Any]:
        # One layer is read through the whole stack.
        require_size(self._store, name)
        values = self._store.read(name)
        return np.ascontiguousarray(values[self._index]) if name in self._stacked else values

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
