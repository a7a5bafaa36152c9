"""Which recurrent layers a checkpoint holds, by names and shapes alone; what is beside each.

What a variant adds to a family's tensors may change λ without a trace in the numbers. So one that
no layer reads, and that is not known to leave λ alone, is named; one known to change λ is refused.
"""

from __future__ import annotations

import heapq
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from fnmatch import fnmatchcase, translate
from functools import cache

import numpy as np
from msgspec.structs import replace

from memcurse_cli.checkpoints.rewrites import adapter_alone
from memcurse_cli.checkpoints.safetensors import sibling_shards
from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import printable, shown_place
from memcurse_cli.errors import CheckpointError, NoRecurrenceError, TensorError, UsageError
from memcurse_cli.families.family import Assumption, Family, Found, Match, ReadOptions
from memcurse_cli.families.reading import (
    IndexedTensors,
    ancestors,
    listed,
    require_eigenvalues,
    shown_shape,
    split_name,
)
from memcurse_cli.families.recurrence import Floats, Recurrence
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
    ``family`` is the only one to look for, ``layers`` are glob patterns of layer names, ``*`` also
    across separators, and all if empty, ``path`` is for messages, and ``aliases`` has for every
    further name of a tensor the one that holds it.
    Raises NoRecurrenceError: no layer is found; UsageError: no such family, or none of a pattern.
    """
    named = None if family is None else named_family(family)
    # Layers of other families than the one asked for explain what stands beside its own.
    found = layers_of_every_family(tensors, first=named)
    if not any(named in (None, candidate) for candidate, _ in found):
        raise nothing_found(tensors, all_families() if named is None else (named,), path)
    position = {name: index for index, name in enumerate(tensors)}
    found.sort(key=lambda pair: min(position[name] for name in pair[1].tensors.values()))
    known = {name for _, match in found for name in match.tensors.values()}.union(aliases or ())
    unread = [name for name in tensors if name not in known]
    if aliases:
        found = merge_tied(found, unread, aliases)
    found = with_neighbours(found, [name for name in unread if tensors[name].dtype not in _COUNTS])
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
    chosen = [pair for pair in found if any(_called(pair[1], pattern) for pattern in patterns)]
    return chosen if patterns else found


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
    known, alone = sibling_shards(path) or adapter_alone(tensors), len(families) == 1
    strangers = in_the_way(tensors, families[0]) if alone and not known else []
    if strangers:
        shown, name = listed(strangers, SHOWN_NAMES), families[0].name
        what = f"{what}: {shown} would stand beside those of {name}, which has no such tensor"
        remedy = "leave --family out, since another family may have it"
        return NoRecurrenceError(what, where=path, remedy=remedy)
    if alone:
        looked_for = f"{families[0].name} is recognised by {families[0].recognised_by}"
    else:
        looked_for = f"looked for {len(families)} families, which memcurse families lists"
    roles = {name for family in families for name in characteristic_names(family)}
    nearest = ", ".join(
        printable(name, 80) + (f" {shown_shape(tensors[name].shape)}" if alone else "")
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
    triples: set[str] = set().union(*map(_triples, roles))
    first: dict[str, str] = {}
    for name in names:
        last = re.sub(r"\d+", "0", split_name(name)[1])[:80]
        if last not in _COMMON:
            first.setdefault(last, name)
    candidates = heapq.nlargest(
        COMPARED_NAMES, first, key=lambda last: len(_triples(last) & triples)
    )
    alike = {
        last: max((SequenceMatcher(None, last, role).ratio() for role in roles), default=0.0)
        for last in candidates
    }
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

    A layer has the projections of queries, keys and values and nothing that attention has not, is
    not ``claimed`` as a recurrent one, and holds more than ``aliases``, further names of tensors.
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
    others = {ancestor for name in tensors if name not in aliases for ancestor in ancestors(name)}
    others -= {ancestor for name in claimed for ancestor in ancestors(name)}
    return tuple(
        module
        for module, own in found.items()
        if module in others and (own >= _LATENT or own - _BESIDE in _KNOWN)
    )


def _projects(parts: set[str], module: str, tensors: Mapping[str, TensorSpec]) -> bool:
    if parts >= _LATENT or any(parts >= spelling for spelling in _SPELLINGS):
        return True
    weights = [tensors.get(f"{module}.{part}.weight") for part in ("in_proj", "out_proj")]
    shapes = [spec.shape for spec in weights if spec is not None]
    if split_name(module)[1] != _MIXER or [len(shape) for shape in shapes] != [2, 2]:
        return False
    # Queries, keys and values together have more rows than the heads put out.
    return shapes[0][0] > shapes[1][1]


MOST_LAYERS = 10_000
"""Layers of one report, of which the smallest takes some 2 ms; known models have hundreds."""


def read_layer(
    family: Family, store: TensorStore, match: Match, options: ReadOptions
) -> Recurrence:
    """The layer; a TensorError where it is too large or unreadable, or one beside changes λ."""
    recurrence = family.read(store, match, options)
    require_eigenvalues(recurrence.size, match.layer)

    @cache
    def largest(tensor: str) -> float:
        whole = store.read(tensor)
        return float(max(np.abs(whole.real).max(), np.abs(whole.imag).max()))

    def beyond(tensor: str, values: Floats) -> float | None:
        """The largest |ω| of a tensor of which a group holds a part, if it is not in that part."""
        spec = store.tensors[tensor]
        parts = 2 if spec.dtype.startswith("complex") else 1
        if parts * math.prod(spec.shape) <= values.size:
            return None
        held = np.abs(values).max(initial=0.0)
        return largest(tensor) if held < largest(tensor) < math.inf else None

    groups = tuple(
        replace(group, tensor_largest=beyond(group.tensor, group.values))
        for group in recurrence.parameters
    )
    dense = recurrence.dense
    if dense is not None:
        dense = replace(dense, tensor_largest=beyond(dense.tensor, dense.matrix))
    return note_neighbours(family, match, replace(recurrence, parameters=groups, dense=dense))


def require_layers(count: int, path: str) -> None:
    """Raise a CheckpointError where a report is to be made of more than `MOST_LAYERS`."""
    if count > MOST_LAYERS:
        what = f"{count} recurrent layers are more than the {MOST_LAYERS} of one report"
        remedy = "choose some of them with --layer GLOB"
        raise CheckpointError(what, where=path, remedy=remedy)


def merge_tied(
    found: list[Found], unread: Iterable[str], aliases: Mapping[str, str]
) -> list[Found]:
    """The layers, those that have all their tensors in common as the first of them.

    A module whose parameters are those of another is trained as one. It is a layer of its own where
    one tensor of the layer is, or one of its module that is ``unread``, as of a read-out.
    """
    # A module may hold several layers, by its heads or directions: the first of one is the first
    # of the other.
    before: Counter[Hashable] = Counter()
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, (family, match) in enumerate(found):
        own = tuple(match.tensors.items())
        held = tuple((role, aliases.get(name, name)) for role, name in own)
        alike[family.name, match.place, held, before[own]].append(index)
        before[own] += 1
    distinct: set[str] = set()
    for name in unread:
        # The root only where it is in no other.
        distinct.update(filter(None, ancestors(name)) if split_name(name)[0] else [""])
    tied: dict[int, tuple[str, ...]] = {}
    merged: set[int] = set()
    for first, *others in alike.values():
        again = [index for index in others if split_name(found[index][1].prefix)[0] not in distinct]
        tied[first] = tuple(found[index][1].layer for index in again)
        merged.update(again)
    return [
        (family, replace(match, tied=tied.get(index, ())))
        for index, (family, match) in enumerate(found)
        if index not in merged
    ]


def tied_notes(matches: Iterable[Match]) -> Iterator[str]:
    """Which layers stand for others, in a few sentences."""
    tied = [match for match in matches if match.tied]
    for match in tied[:SHOWN_LAYERS]:
        others, have = listed(match.tied, SHOWN_NAMES), "has" if len(match.tied) == 1 else "have"
        yield f"{others} {have} the same tensors as {printable(match.layer, 80)}: reported once"
    if len(tied) > SHOWN_LAYERS:
        more = len(tied) - SHOWN_LAYERS
        yield f"{more} more layers stand under several names: each reported once"


_NAMED_BESIDE = 3

# Counters and masks, which no optimizer moves.
_COUNTS = frozenset({"bool", "int16", "int32", "int64", "uint16", "uint32", "uint64"})

# Roles are globs with dots between modules, and stand for what lies inside as well.
_OUTSIDE = (
    # What leads into the layer and out of it, and the state that it starts from.
    *("D", "Ds", "D_?", "in_proj", "out_proj", "[goqrv]_proj", "k_proj.weight", "to_out*"),
    *("conv", "*conv[12]d*", "rotary_emb", "input", "output", "out", "readout", "head", "fc*"),
    *("classifier", "emb*", "*_emb"),
    *("h0", "h0_re", "h0_im", "c0", "init_state*", "initial_state*"),
    # Norms of what leaves it.
    *("[go]_norm*", "out_norm", "output_norm", "multihead_norm", "ln_x"),
    # What training adds.
    *("*mask", "*.Adam*", "*.RMSProp*", "*.Momentum", "*.ExponentialMovingAverage"),
)

# The same cells under their own names beside those of their network.
_PADDLE = ("[0-9]*.cell*",)
# What else a block of llama.cpp holds.
_BLOCK = ("attn_*", "channel_mix_*", "exp_probs*", "ffn*", "layer_out_norm", "post_*")
_READOUTS = ("*_h[oqy]",)

# What each library's layer has besides, which moves gates, inputs or outputs and is nothing at
# zero input, or is computed from what is read.
_OF_FAMILY: dict[str, tuple[str, ...]] = {
    "rg_lru": ("a_gate.w", "input_gate.w", "input_gate_weight", "recurrent_gate_weight"),
    "rwkv": (
        *("time_maa_*", "time_mix_*", "time_decay_w[12]", "w_proj*.weight", "x_proj", "x_bias"),
        *("receptance", "gate", *_BLOCK),
    ),
    "rwkv7": (
        *("time_mix_*", "[agvw][0-2]", "[agv]_lora", "w_lora*.weight", "k_a", "x_[agkrvw]"),
        *("key", "receptance", *_BLOCK),
    ),
    "mlstm": ("*gate_preact.weight", "igate.weight", "q"),
    "gated_delta_net": ("in_proj_*.weight", "a_proj.weight", "b_proj.weight"),
    "kda": ("f_*proj*.weight", "forget_gate*.weight", "g_*proj"),
    "gla": ("gk_proj*.weight",),
    **dict.fromkeys(("gateloop", "gateloop_simple"), ("norm",)),
    "lightning_attention": ("*_decay",),
    "min_lstm": ("linear_h",),
    "sru": ("transform_module",),
    "liquid_ltc": ("*erev", "input_w", "output_w", "output_b"),
    "multiplicative_lstm": ("g", "gx", "gh", "gmx", "gmh"),
    **dict.fromkeys(("lstm", "gru"), (*_PADDLE, *_READOUTS)),
    "dense_rnn": (*_PADDLE, *_READOUTS, "b_[hoqy]"),
    "haste_lstm": ("gamma_h", "beta_h"),
    "light_gru": ("layer_norm.weight",),
    "dense_linear": ("W_u", "W_h"),
    "linear_system": ("Q", "R"),
    "ind_rnn": ("bias*", "weight_ih*"),
    "annotated_s4": ("C",),
    "annotated_s4d": ("B_*",),
    "parcae": ("input_norm",),
    "s4_dplr": ("C", "L", "l_kernel", "nodes", "omega", "z"),
    "s4d": ("A",),
    "striped_hyena": ("short_filter_*",),
    "mamba": ("*_layernorm.weight", "dt_proj*weight", "x_proj*weight", "selection.weight"),
    "mamba3": ("B_norm", "C_norm", "mimo_?", "norm"),
    "gguf_mamba": ("ssm_*.weight", "ssm_d", *_BLOCK),
    "leaky_rnn": (
        *("Dale_out", "b", "b_out", "b_rec", "output_connectivity", "so"),
        *("brec", "bout", "x0"),
    ),
    "low_rank_rnn": ("b",),
    "co_rnn": ("i2h.bias",),
    "orthogonal_rnn": ("bias_*", "nonlinearity.b", "recurrent_kernel._B"),
}

_NORMS = ("recurrent_norm", "state_norm", "layernorm", "layer_norm")
_LEAKS = ("leak", "leak_rate", "alpha", "dt", "tau", "taus", "log_tau")
_STEPS = ("dt", "tau", "log_tau", "[dD]elta", "log_[dD]elta")
# What changes λ in a variant that the family does not read.
_CHANGING: dict[str, tuple[str, ...]] = {
    # A bias of what leads into a gate moves the gate at zero input.
    "gated_delta_net": ("a_proj.bias", "in_proj_[ab]*.bias"),
    "kda": ("f_*proj*.bias",),
    "gla": ("gk_proj.0.bias",),
    "hgrn": ("f_proj.bias",),
    "mamba": ("x_proj*bias",),
    "mamba3": ("in_proj.bias",),
    # Those of TensorFlow Addons have their cells' names and norms or peepholes.
    "keras_lstm": (*_NORMS, "kernel_norm", "*_peephole_weights"),
    "keras_gru": _NORMS,
    # The norms of lnlstm beside wx and wh, and the product of a multiplicative LSTM.
    "tf_lstm": ("[bg][chx]", "wm[hx]"),
    "keras_simple_rnn": (*_NORMS, *_LEAKS),
    **dict.fromkeys(("leaky_rnn", "low_rank_rnn", "tf_rnn", "flax_simple", "haiku_rnn"), _LEAKS),
    **dict.fromkeys(
        ("dense_linear", "linear_system", "block_diagonal", "complex_diagonal"), _STEPS
    ),
}


def with_neighbours(found: list[Found], unread: Iterable[str]) -> list[Found]:
    """The layers, each with the unexplained tensors of its module, the innermost with a layer.

    What several layers of a module hold together, as heads or directions do, stands beside each of
    them.
    """
    keys = [(match.prefix, family.name) for family, match in found]
    # What stands beside the layers of one prefix, of each family.
    groups: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for prefix, family in keys:
        groups[prefix][family] = {}
    names = sorted(unread)
    placed: set[str] = set()
    for prefix in sorted(groups, key=len, reverse=True):
        patterns = [
            (beside, _roles(*_OUTSIDE, *_OF_FAMILY.get(family, ())), _changes(family))
            for family, beside in groups[prefix].items()
        ]
        start = bisect_left(names, prefix)
        end = bisect_right(names, prefix, key=lambda name: name[: len(prefix)])
        for name in names[start:end]:
            if name in placed:
                continue
            placed.add(name)
            role = re.sub("[/,]", ".", name[len(prefix) :])
            for beside, explained, changing in patterns:
                if not explained.fullmatch(role) or changing.fullmatch(role):
                    beside[role] = name
    return [
        (family, replace(match, beside=groups[prefix][name]))
        for (family, match), (prefix, name) in zip(found, keys, strict=True)
    ]


def _changes(family: str) -> re.Pattern[str]:
    globs = _CHANGING.get(family, ())
    # Keras's cell is a module of its own within the layer's.
    return _roles(*globs, *(f"*cell*.{glob}" for glob in globs))


def _roles(*globs: str) -> re.Pattern[str]:
    parts = (f"{translate(glob)}|{translate(f'{glob}.*')}" for glob in globs)
    return re.compile("|".join(parts) or "(?!)")


def note_neighbours(family: Family, match: Match, recurrence: Recurrence) -> Recurrence:
    """The recurrence, and what stands unread beside the layer; a TensorError where it changes λ."""
    unread = {role: name for role, name in match.beside.items() if name not in recurrence.tensors}
    if not unread:
        return recurrence
    for role, name in unread.items():
        if _changes(family.name).fullmatch(role):
            raise TensorError(
                f"it changes λ of the layer that it stands in, and {family.name} does not read it",
                where=name,
                remedy="remove it from the checkpoint if the layer does not use it",
            )
    names = listed(list(unread), _NAMED_BESIDE)
    sentence = f"λ is taken without what is beside it: {names}, which this family does not read"
    return replace(recurrence, assumptions=(*recurrence.assumptions, sentence))
