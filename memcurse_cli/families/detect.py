"""Which recurrent layers a checkpoint holds, by names and shapes alone."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from fnmatch import fnmatchcase

from memcurse_cli.checkpoints.rewrites import adapter_alone
from memcurse_cli.checkpoints.safetensors import sibling_shards
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.names import printable, shown_place
from memcurse_cli.errors import NoRecurrenceError, UsageError
from memcurse_cli.families.family import Assumption, Family, Found, Match
from memcurse_cli.families.module_names import IndexedTensors, split_name
from memcurse_cli.families.neighbours import with_neighbours
from memcurse_cli.families.reading import shown_shape
from memcurse_cli.families.registry import all_families, families_marked
from memcurse_cli.families.stacked import merge_tied

SHOWN_NAMES = 5
SHOWN_LAYERS = 10
COMPARED_NAMES = 200
ALIKE = 0.6
"""The similarity from which difflib calls a match a close one."""

# What every kind of layer has says nothing of recurrence.
_COMMON = frozenset({"weight", "bias", "kernel", "scale"})
_PARTS = re.compile(r"[./,]")
# What a family is recognised by names last what must not be there.
_WITHOUT = re.compile(r",? (?:without|and no) ")


def detect(
    tensors: Mapping[str, TensorSpec],
    family: str | None = None,
    layers: Sequence[str] = (),
    *,
    path: str = "",
    aliases: Mapping[str, str] | None = None,
) -> list[Found]:
    """The recurrent layers among the tensors, in the order of the file.

    A tensor belongs to one family only: where two recognise it, the more specific one has it. A
    family may find several layers that are stacked in the same tensors.

    Args:
        tensors: every tensor's name, shape and type.
        family: the name of the only family to look for, or None for all of them.
        layers: glob patterns of layer names, ``*`` also across separators; all layers if empty.
        path: of the checkpoint, for messages.
        aliases: for every further name of a tensor the name that holds it; layers that have all
            their tensors in common are one.

    Raises:
        NoRecurrenceError: no layer is recognised.
        UsageError: no family has this name, or a pattern matches no layer.
    """
    tensors = IndexedTensors(tensors)
    named = None if family is None else named_family(family)
    # Layers of other families than the one asked for explain what stands beside its own.
    found = layers_of_every_family(tensors, first=named)
    if not any(named in (None, candidate) for candidate, _ in found):
        raise nothing_found(tensors, all_families() if named is None else (named,), path)
    claimed = {name for _, match in found for name in match.tensors.values()}
    position = {name: index for index, name in enumerate(tensors)}
    found.sort(key=lambda pair: min(position[name] for name in pair[1].tensors.values()))
    aliases = aliases or {}
    found = merge_tied(found, tensors, aliases)
    found = with_neighbours(found, tensors, claimed | aliases.keys())
    return select_layers([pair for pair in found if named in (None, pair[0])], layers)


def layers_of_every_family(
    tensors: Mapping[str, TensorSpec], first: Family | None = None
) -> list[Found]:
    """The layers among the tensors, each tensor with the first family that recognises it.

    Args:
        tensors: every tensor's name, shape and type.
        first: the family to ask before the others, if any.
    """
    tensors = tensors if isinstance(tensors, IndexedTensors) else IndexedTensors(tensors)
    claimed: set[str] = set()
    found: list[Found] = []
    families = families_marked(tensors)
    for family in families if first is None else dict.fromkeys((first, *families)):
        own = [m for m in family.find(tensors) if claimed.isdisjoint(m.tensors.values())]
        claimed.update(name for match in own for name in match.tensors.values())
        found += [(family, match) for match in own]
    return found


def named_family(name: str) -> Family:
    """The family of this name.

    Raises:
        UsageError: there is none.
    """
    families = all_families()
    for family in families:
        if family.name == name:
            return family
    raise UsageError(
        f"no family is called {shown_place(name)}",
        where="--family",
        remedy=f"choose one of {', '.join(family.name for family in families)}",
    )


def select_layers(found: list[Found], patterns: Sequence[str]) -> list[Found]:
    """The layers of which a name matches any of the patterns; all where there is no pattern.

    Raises:
        UsageError: a pattern matches no layer.
    """
    for pattern in patterns:
        if not any(_called(match, pattern) for _, match in found):
            names = [printable(match.layer, 80) for _, match in found[:SHOWN_LAYERS]]
            more = len(found) - len(names)
            raise UsageError(
                f"no layer matches {shown_place(pattern)}",
                where="--layer",
                remedy=f"the layers are {', '.join(names)}" + (f" and {more} more" if more else ""),
            )
    if not patterns:
        return found
    return [
        (family, match)
        for family, match in found
        if any(_called(match, pattern) for pattern in patterns)
    ]


def _called(match: Match, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (match.layer, *match.tied))


def validate_assumptions(assume: Mapping[str, str]) -> None:
    """Check what the user gave with ``--assume`` before anything is read.

    Raises:
        UsageError: no family knows the key, or none that knows it understands the value.
    """
    if not assume:
        return
    known: dict[str, list[Assumption]] = {}
    for family in all_families():
        for assumption in family.assumptions:
            known.setdefault(assumption.key, []).append(assumption)
    for key, value in assume.items():
        if key not in known:
            raise UsageError(
                f"nothing is assumed under the name {shown_place(key)}",
                where="--assume",
                remedy=f"choose one of {', '.join(sorted(known))}; memcurse families explains them",
            )
        if not any(understood(assumption, value) for assumption in known[key]):
            choices = dict.fromkeys(
                choice
                for assumption in known[key]
                for choice in assumption.choices or ("a number",)
            )
            raise UsageError(
                f"{shown_place(value)} is not a value of {key}",
                where="--assume",
                remedy=f"choose one of {', '.join(choices)}",
            )


def understood(assumption: Assumption, value: str) -> bool:
    """Whether an assumption's value is one of its choices, or a number where it has none."""
    if assumption.choices:
        return value in assumption.choices
    try:
        float(value)
    except ValueError:
        return False
    return True


def characteristic_names(family: Family) -> tuple[str, ...]:
    """The tensor names in a family's ``recognised_by``: words with an underscore in them."""
    return tuple(dict.fromkeys(re.findall(r"\w+_\w+(?:\.\w+)*", family.recognised_by)))


def nothing_found(
    tensors: Mapping[str, TensorSpec], families: Sequence[Family], path: str
) -> NoRecurrenceError:
    """What was looked for, and the tensor names that come nearest to it."""
    what = f"no recurrent layer is recognised among its {len(tensors)} tensors"
    known = sibling_shards(path) or adapter_alone(tensors)
    strangers = in_the_way(tensors, families[0]) if len(families) == 1 and not known else []
    if strangers:
        shown = ", ".join(printable(name, 80) for name in strangers[:SHOWN_NAMES])
        more = f" and {len(strangers) - SHOWN_NAMES} more" if strangers[SHOWN_NAMES:] else ""
        name = families[0].name
        return NoRecurrenceError(
            f"{what}: {shown}{more} would stand beside those of {name}, which has no such tensor",
            where=path,
            remedy="leave --family out, since another family may have it",
        )
    if len(families) == 1:
        looked_for = f"{families[0].name} is recognised by {families[0].recognised_by}"
    else:
        looked_for = f"looked for {len(families)} families, which memcurse families lists"
    roles = {name for family in families for name in characteristic_names(family)}
    nearest = ", ".join(
        f"{printable(name, 80)} {shown_shape(tensors[name].shape)}"
        if len(families) == 1
        else printable(name, 80)
        for name in nearest_names(tensors, roles)
    )
    return NoRecurrenceError(
        what,
        where=path,
        remedy=(known or looked_for) + (f"; the nearest names are {nearest}" if nearest else ""),
    )


def in_the_way(tensors: Mapping[str, TensorSpec], family: Family) -> list[str]:
    """The tensors but for which a layer would be one of the family.

    They are those of the layer's module that what the family is recognised by does not name, and
    that beside it leave nothing found.
    """
    rule = _WITHOUT.split(family.recognised_by)[0]
    words = set(re.findall(r"\w+", rule)) - _COMMON
    kept = {
        name: spec
        for name, spec in tensors.items()
        if not words.isdisjoint([part for part in _PARTS.split(name) if not part.isdigit()][-2:])
    }
    found = family.find(kept)
    if not found:
        return []
    own = list(found[0].tensors.values())
    module, _ = split_name(own[0])
    while not all(name.startswith(module) for name in own):
        module, _ = split_name(module)
    inside = [name for name in tensors if name.startswith(module)]
    kept = {name: kept[name] for name in inside if name in kept}
    strangers = []
    for name in inside[:COMPARED_NAMES]:
        if family.find(kept | {name: tensors[name]}):
            kept[name] = tensors[name]
        else:
            strangers.append(name)
    return strangers


def nearest_names(names: Iterable[str], roles: Iterable[str]) -> list[str]:
    """The names whose last part is much like one of the roles, the most alike first.

    Only the first name of each last part counts. Letter triples choose whom difflib compares, so
    that 10⁵ names take a fraction of a second.
    """
    roles = list(roles)
    triples = set().union(*map(_triples, roles)) if roles else set()
    first: dict[str, str] = {}
    for name in names:
        last = re.sub(r"\d+", "0", split_name(name)[1])[:80]
        if last not in _COMMON:
            first.setdefault(last, name)
    candidates = heapq.nlargest(
        COMPARED_NAMES, first, key=lambda last: len(_triples(last) & triples)
    )

    def likeness(last: str) -> float:
        return max((SequenceMatcher(None, last, role).ratio() for role in roles), default=0.0)

    alike = {last: likeness(last) for last in candidates}
    nearest = heapq.nlargest(SHOWN_NAMES, candidates, key=alike.__getitem__)
    return [first[last] for last in nearest if alike[last] >= ALIKE]


def _triples(text: str) -> set[str]:
    return {text[index : index + 3] for index in range(max(len(text) - 2, 1))}
