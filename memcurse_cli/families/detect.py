"""Which recurrent layers a checkpoint holds, by names and shapes alone; and its attention."""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from fnmatch import fnmatchcase

from memcurse_cli.checkpoints.rewrites import adapter_alone
from memcurse_cli.checkpoints.safetensors import sibling_shards
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.names import printable, shown_place
from memcurse_cli.errors import NoRecurrenceError, UsageError
from memcurse_cli.families.family import Assumption, Family, Found, Match
from memcurse_cli.families.layers import merge_tied, with_neighbours
from memcurse_cli.families.reading import IndexedTensors, ancestors, listed, shown_shape, split_name
from memcurse_cli.families.registry import all_families, families_marked

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

    A tensor belongs to one family only: where two recognise it, the more specific one has it.

    ``family`` is the name of the only one to look for, ``layers`` are glob patterns of layer names,
    ``*`` also across separators, and all if empty, ``path`` is for messages, and ``aliases`` has
    for every further name of a tensor the one that holds it.

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
    """The layers, each tensor with the first family that recognises it, ``first`` before others."""
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
    """The family of this name, or a UsageError."""
    families = {family.name: family for family in all_families()}
    if name not in families:
        what = f"no family is called {shown_place(name)}"
        remedy = f"choose one of {', '.join(families)}"
        raise UsageError(what, where="--family", remedy=remedy)
    return families[name]


def select_layers(found: list[Found], patterns: Sequence[str]) -> list[Found]:
    """The layers, or those of which a name matches a pattern; a UsageError where one has none."""
    for pattern in patterns:
        if not any(_called(match, pattern) for _, match in found):
            names = listed([match.layer for _, match in found], SHOWN_LAYERS)
            what, remedy = f"no layer matches {shown_place(pattern)}", f"the layers are {names}"
            raise UsageError(what, where="--layer", remedy=remedy)
    if not patterns:
        return found
    return [pair for pair in found if any(_called(pair[1], pattern) for pattern in patterns)]


def _called(match: Match, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (match.layer, *match.tied))


def validate_assumptions(assume: Mapping[str, str]) -> None:
    """Raise a UsageError where no family knows a key of ``--assume``, or understands its value."""
    if not assume:
        return
    known: dict[str, list[Assumption]] = {}
    for family in all_families():
        for assumption in family.assumptions:
            known.setdefault(assumption.key, []).append(assumption)
    for key, value in assume.items():
        if key not in known:
            what = f"nothing is assumed under the name {shown_place(key)}"
            remedy = f"choose one of {', '.join(sorted(known))}; memcurse families explains them"
            raise UsageError(what, where="--assume", remedy=remedy)
        if not any(_understood(assumption, value) for assumption in known[key]):
            choices = [each for one in known[key] for each in one.choices or ("a number",)]
            what = f"{shown_place(value)} is not a value of {key}"
            remedy = f"choose one of {', '.join(dict.fromkeys(choices))}"
            raise UsageError(what, where="--assume", remedy=remedy)


def _understood(assumption: Assumption, value: str) -> bool:
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
        shown, name = listed(strangers, SHOWN_NAMES), families[0].name
        what = f"{what}: {shown} would stand beside those of {name}, which has no such tensor"
        remedy = "leave --family out, since another family may have it"
        return NoRecurrenceError(what, where=path, remedy=remedy)
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
    remedy = (known or looked_for) + (f"; the nearest names are {nearest}" if nearest else "")
    return NoRecurrenceError(what, where=path, remedy=remedy)


def in_the_way(tensors: Mapping[str, TensorSpec], family: Family) -> list[str]:
    """The tensors of a module that the family does not name, and but for which it would be one."""
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
    module = next(each for each in ancestors(own[0]) if all(name.startswith(each) for name in own))
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

    Letter triples choose whom difflib compares, so that 10⁵ names take a fraction of a second.
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


# The projections by which an attention layer is known, as the libraries spell them.
_SPELLINGS = (
    {"q_proj", "k_proj", "v_proj"},
    {"linear_q", "linear_k", "linear_v"},
    {"query", "key", "value"},
    {"query_dense", "key_dense", "value_dense"},  # Keras
    {"to_q", "to_k", "to_v"},
    {"wq", "wk", "wv"},
    {"Wqkv"},
    {"qkv"},
    {"qkv_proj"},
    {"query_key_value"},
    {"c_attn"},
    {"att_proj"},
    {"in_proj_weight"},  # torch.nn.MultiheadAttention
)
# What else such a layer may hold. Anything more, and it may be a linear attention whose state
# decays by a rule that is not known here: it is then not called attention.
_BESIDE = {
    *("o_proj", "out_proj", "out", "to_out", "wo", "dense", "c_proj", "proj", "in_proj_bias"),
    *("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_norm", "key_norm", "rotary_emb"),
    *("linear_q_adapter_list", "linear_k_adapter_list", "linear_v_adapter_list"),  # Zamba2
    *("sinks", "bias", "masked_bias"),
    *("output_dense", "attention_output"),
    "indexer",  # Qwen4-Exp: it chooses the tokens that are attended to, and keeps no state
    # Relative positions, of Conformers and of the image encoder of SAM.
    *("relative_k_proj", "bias_u", "bias_v", "linear_out", "linear_pos", "pos_bias_u"),
    *("pos_bias_v", "rel_pos_h", "rel_pos_w"),
}
# Multi-head latent attention is known by the matrix that expands its cache, whatever is beside it.
_LATENT = {"kv_a_proj_with_mqa", "kv_b_proj"}
# mamba_ssm calls the projections of its attention as those of its mixers, and both a mixer.
_MIXER = "mixer"
# A layer of a Keras archive keeps its tensors in a folder of their own, by number.
_KERAS_VARIABLES = re.compile(r"/vars/(?=\d+$)")
_KNOWN = (*_SPELLINGS, {"in_proj"}, {"in_proj", "conv1d"})


def attention_layers(
    tensors: Mapping[str, TensorSpec], claimed: Iterable[str], aliases: Collection[str] = ()
) -> tuple[str, ...]:
    """The names of the attention layers, in the order of the file.

    A layer is a module with the projections of queries, keys and values and nothing that attention
    does not have. One that holds a ``claimed`` tensor, which a recurrent layer was read from, is
    none; one of nothing but ``aliases``, further names of tensors, is another's.
    """
    parts: dict[str, set[str]] = {}
    names = [_KERAS_VARIABLES.sub("/", name) for name in tensors]
    for name in names:
        module, last = split_name(name)
        parent, child = split_name(module)
        parts.setdefault(module, set()).add(last)
        parts.setdefault(parent, set()).add(child)
    found = {module: own for module, own in parts.items() if _projects(own, module, tensors)}
    if not found:
        return ()
    # Now with what lies deeper in them.
    for name in names:
        module, part = split_name(name)
        while module:
            if module in found:
                found[module].add(part)
            module, part = split_name(module)
    recurrent = {ancestor for name in claimed for ancestor in ancestors(name)}
    if aliases:
        stored = {
            ancestor for name in tensors if name not in aliases for ancestor in ancestors(name)
        }
        found = {module: own for module, own in found.items() if module in stored}
    return tuple(
        module
        for module, own in found.items()
        if module not in recurrent and (own >= _LATENT or own - _BESIDE in _KNOWN)
    )


def _projects(parts: set[str], module: str, tensors: Mapping[str, TensorSpec]) -> bool:
    """Whether a module has the projections of an attention layer."""
    if parts >= _LATENT or any(parts >= spelling for spelling in _SPELLINGS):
        return True
    if split_name(module)[1] != _MIXER:
        return False
    weights = [tensors.get(f"{module}.{part}.weight") for part in ("in_proj", "out_proj")]
    if not all(weights):
        return False
    projected, put_out = (spec.shape for spec in weights if spec is not None)
    # Queries, keys and values together have more rows than the heads put out.
    return len(projected) == len(put_out) == 2 and projected[0] > put_out[1]
