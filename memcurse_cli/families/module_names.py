"""Which module holds which tensors, by their names, split once for all families."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.names import printable


def split_name(name: str) -> tuple[str, str]:
    """The name of the module and of the tensor in it; ``.``, ``/`` and ``,`` join names."""
    end = max(name.rfind("."), name.rfind("/"), name.rfind(","))
    return (name[:end], name[end + 1 :]) if end >= 0 else ("", name)


def ancestors(name: str) -> Iterator[str]:
    """The modules that something of this name is in, from the innermost, and the root."""
    while name:
        name, _ = split_name(name)
        yield name


def listed(names: Sequence[str], most: int) -> str:
    """The first of some names as they may be shown, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(printable(name, 80) for name in names[:most]) + more


def shared_module(modules: Iterable[str]) -> str:
    """The innermost module that all of these are or stand in."""
    shared, *others = modules
    for module in others:
        while shared and not re.match(rf"{re.escape(shared)}(?:[./,]|\Z)", module):
            shared = split_name(shared)[0]
    return shared


class IndexedTensors(dict[str, TensorSpec]):
    """The tensors of a checkpoint, and where each last part of a name stands among them.

    Every family looks for its own few roles: what it asks for is found without another walk over
    all names, of which a checkpoint may have 10⁵. It must not change once it is made.
    """

    def __init__(self, tensors: Mapping[str, TensorSpec]) -> None:
        super().__init__(tensors)
        self._names = tuple(tensors)
        self._ends: dict[str, list[int]] = {}
        for position, name in enumerate(self._names):
            self._ends.setdefault(split_name(name)[1], []).append(position)
        self._children: dict[str, dict[str, list[int]]] = {}

    def ending(self, last: str) -> list[tuple[int, str]]:
        """Position and name of the tensors with this last part."""
        return [(position, self._names[position]) for position in self._ends.get(last, ())]

    def under(self, child: str, last: str) -> list[tuple[int, str]]:
        """Position and name of the tensors with this last part in a module of this last part."""
        # Most tensors are called weight: these are split by their modules when first asked for.
        children = self._children.get(last)
        if children is None:
            children = self._children[last] = {}
            for position, name in self.ending(last):
                module = split_name(split_name(name)[0])[1]
                children.setdefault(module, []).append(position)
        return [(position, self._names[position]) for position in children.get(child, ())]


def group_by_module(
    tensors: Mapping[str, TensorSpec], roles: Iterable[str]
) -> dict[str, dict[str, str]]:
    """For every module that holds a tensor named after a role: the full name of each role.

    Roles with a dot (``in_proj.weight``) are names of tensors in a child module. Modules come in
    the order of the file, and so do the roles of each.
    """
    index = tensors if isinstance(tensors, IndexedTensors) else IndexedTensors(tensors)
    found: list[tuple[int, str, str, str]] = []
    for role in sorted(dict.fromkeys(roles), key=lambda role: "." in role):
        above, _, last = role.rpartition(".")
        if not above:
            found += [(at, split_name(name)[0], role, name) for at, name in index.ending(last)]
            continue
        rest, _, child = above.rpartition(".")
        for at, name in index.under(child, last):
            module = _ancestor(split_name(split_name(name)[0])[0], rest)
            if module is not None:
                found.append((at, module, role, name))
    modules: dict[str, dict[str, str]] = {}
    for _, module, role, name in sorted(found, key=itemgetter(0)):
        modules.setdefault(module, {})[role] = name
    return modules


def _ancestor(module: str, parts: str) -> str | None:
    """The module without the parts that its name must end with; None where it does not."""
    while parts:
        parts, _, part = parts.rpartition(".")
        module, last = split_name(module)
        if last != part:
            return None
    return module
