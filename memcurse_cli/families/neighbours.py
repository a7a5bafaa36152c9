"""The tensors beside a layer's own in its module that nothing explains.

A family reads the tensors that its library has. What a variant adds to them (a norm inside the
cell, an imaginary part, a leak) may change λ without a trace in the numbers. So a tensor in a
layer's module that no layer reads, and that is not known to leave λ alone, is named in the report;
where it is known to change λ, the layer is refused.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from fnmatch import translate
from functools import cache

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Family, Found, Match
from memcurse_cli.families.recurrence import Recurrence

NAMED = 3

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
    """The layers, each with the unexplained tensors of its module.

    A tensor belongs to the innermost module around it that holds a layer. What several layers of
    a module hold together, as heads or directions do, stands beside each of them.

    Args:
        found: the layers.
        tensors: every tensor of the checkpoint.
        claimed: the tensors that layers read, and further names of tensors.
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
        start, end = 0, len(names)
        if prefix:
            start = bisect_left(names, prefix)
            end = bisect_left(names, f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}")
        for name in names[start:end]:
            if name in placed:
                continue
            placed.add(name)
            role = re.sub("[/,]", ".", name[len(prefix) :])
            for family_name, beside in groups[prefix].items():
                explained = _leaves_alone(family_name).fullmatch(role)
                if not explained or _changes(family_name).fullmatch(role):
                    beside[role] = name
    return [
        (family, replace(match, beside=beside) if beside else match)
        for family, match, beside in layers
    ]


@cache
def _leaves_alone(family: str) -> re.Pattern[str]:
    return _roles(*_OUTSIDE, *_OF_FAMILY.get(family, ()))


@cache
def _changes(family: str) -> re.Pattern[str]:
    globs = _CHANGING.get(family, ())
    # Keras's cell is a module of its own within the layer's.
    return _roles(*globs, *(f"*cell*.{glob}" for glob in globs))


def _roles(*globs: str) -> re.Pattern[str]:
    parts = (f"{translate(glob)}|{translate(f'{glob}.*')}" for glob in globs)
    return re.compile("|".join(parts) or "(?!)")


def note_neighbours(family: Family, match: Match, recurrence: Recurrence) -> Recurrence:
    """The recurrence, with a sentence that names what stands unread beside the layer.

    Raises:
        TensorError: one of these tensors is known to change λ.
    """
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
    names = ", ".join(printable(role, 80) for role in list(unread)[:NAMED])
    more = f" and {len(unread) - NAMED} more" if len(unread) > NAMED else ""
    sentence = (
        f"λ is taken without what is beside it: {names}{more}, which this family does not read"
    )
    return replace(recurrence, assumptions=(*recurrence.assumptions, sentence))
