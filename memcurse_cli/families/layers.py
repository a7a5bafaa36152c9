"""A layer among others of its file: stacked, tied, what stands beside it unread, how large it is.

What a variant adds to the tensors of a family (a norm inside the cell, a leak) may change λ without
a trace in the numbers. So a tensor in a layer's module that no layer reads, and that is not known
to leave λ alone, is named in the report; where it is known to change λ, the layer is refused.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import translate
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.errors import CheckpointError, TensorError
from memcurse_cli.families.family import Family, Found, Match, ReadOptions
from memcurse_cli.families.reading import (
    ancestors,
    listed,
    require_eigenvalues,
    require_size,
    split_name,
)
from memcurse_cli.families.recurrence import Floats, Recurrence

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
        spec = store.tensors.get(tensor)
        parts = 2 if spec is not None and spec.dtype.startswith("complex") else 1
        if spec is None or parts * math.prod(spec.shape) <= values.size:
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


_NAMED_TIED = 5
_EXPLAINED = 10


def merge_tied(
    found: list[Found], tensors: Iterable[str], aliases: Mapping[str, str]
) -> list[Found]:
    """The layers, those that have all their tensors in common as the first of them.

    A module whose parameters are those of another is trained as one: what is said of the first
    holds for all. It is a layer of its own where one tensor of the layer is, or one of its module
    that no layer claims, as a read-out. ``aliases`` has for every further name of a tensor the one
    that holds it.
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
            # The root only where it is in no other.
            distinct.update(filter(None, ancestors(name)) if split_name(name)[0] else [""])
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


def tied_notes(matches: Iterable[Match]) -> Iterator[str]:
    """Which layers stand for others, in a few sentences."""
    tied = [match for match in matches if match.tied]
    for match in tied[:_EXPLAINED]:
        others, have = listed(match.tied, _NAMED_TIED), "has" if len(match.tied) == 1 else "have"
        yield f"{others} {have} the same tensors as {printable(match.layer, 80)}: reported once"
    if len(tied) > _EXPLAINED:
        yield f"{len(tied) - _EXPLAINED} more layers stand under several names: each reported once"


_MEMBER = re.compile(r"\[(\d+)\]$")
# A header that claims more is not believed.
_MOST_MEMBERS = 4096


def split_stack(
    match: Match, tensors: Mapping[str, TensorSpec], axes: Mapping[str, int]
) -> list[Match]:
    """The layers of a match: one, or each of those that a leading axis stacks.

    `jax.vmap` and `nn.scan` put an axis before all others of every tensor: every one must have it,
    at one size. ``axes`` tells how many a single layer has, for the roles that are looked at.
    """
    shapes = {role: tensors[match.tensors[role]].shape for role in axes if role in match.tensors}
    sizes = {shape[0] if len(shape) == axes[role] + 1 else None for role, shape in shapes.items()}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None or not 0 < size <= _MOST_MEMBERS:
        return [match]
    return [replace(match, layer=f"{match.layer}[{index}]") for index in range(size)]


def member_of(
    store: TensorStore, match: Match, axes: Mapping[str, int], others: Collection[str] = ("D",)
) -> TensorStore:
    """The checkpoint as one layer of `split_stack` has it; itself where nothing is stacked.

    ``others`` are names beside the layer's tensors that are stacked with them.
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
        self.tensors = dict(store.tensors)
        for name in stacked:
            spec = store.tensors[name]
            size, *shape = spec.shape
            held = spec.bytes // max(int(size), 1)
            self.tensors[name] = replace(spec, shape=tuple(shape), bytes=held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, name: str) -> NDArray[Any]:
        # One layer is read through the whole stack.
        require_size(self._store, name)
        values = self._store.read(name)
        return np.ascontiguousarray(values[self._index]) if name in self._stacked else values


_NAMED_BESIDE = 3

# Counters and masks, which no optimizer moves.
_COUNTS = frozenset({"bool", "int16", "int32", "int64", "uint16", "uint32", "uint64"})

# Roles are globs with dots between modules, and stand for what lies inside as well.
_OUTSIDE = (
    # What leads into the layer and out of it, and the state that it starts from.
    *("D", "Ds", "D_?", "in_proj", "out_proj", "[goqrv]_proj", "k_proj.weight", "to_out*"),
    *("conv", "*conv[12]d*", "rotary_emb", "input", "output", "out", "readout", "head", "fc*"),
    *("classifier", "emb*", "*_emb"),
    *("h0", "c0", "init_state*", "initial_state*"),
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


def with_neighbours(
    found: Iterable[Found], tensors: Mapping[str, TensorSpec], claimed: Collection[str]
) -> list[Found]:
    """The layers, each with the unexplained tensors of its module, the innermost with a layer.

    What several layers of a module hold together, as heads or directions do, stands beside each of
    them. ``claimed`` are the tensors that layers read, and further names of tensors.
    """
    # What stands beside the layers of one prefix, of each family.
    groups: dict[str, dict[str, dict[str, str]]] = {}
    layers = []
    for family, match in found:
        group = groups.setdefault(match.prefix, {})
        layers.append((family, match, group.setdefault(family.name, {})))
    names = sorted(
        name for name, spec in tensors.items() if name not in claimed and spec.dtype not in _COUNTS
    )
    placed: set[str] = set()
    for prefix in sorted(groups, key=len, reverse=True):
        patterns = [
            (beside, _roles(*_OUTSIDE, *_OF_FAMILY.get(family, ())), _changes(family))
            for family, beside in groups[prefix].items()
        ]
        start, end = 0, len(names)
        if prefix:
            start = bisect_left(names, prefix)
            end = bisect_left(names, f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}")
        for name in names[start:end]:
            if name in placed:
                continue
            placed.add(name)
            role = re.sub("[/,]", ".", name[len(prefix) :])
            for beside, explained, changing in patterns:
                if not explained.fullmatch(role) or changing.fullmatch(role):
                    beside[role] = name
    return [
        (family, replace(match, beside=beside) if beside else match)
        for family, match, beside in layers
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
