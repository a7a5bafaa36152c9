"""Layers that share all their tensors: one layer under several names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace

from memcurse_cli.checkpoints.names import printable
from memcurse_cli.recurrences.family import Family, Match
from memcurse_cli.recurrences.module_names import split_name

Found = tuple[Family, Match]

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
