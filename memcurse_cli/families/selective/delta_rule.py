"""Delta rules, which overwrite what a key stands for: DeltaNet, gated delta nets and KDA.

``S[t] = diag(λ) (I - β k kᵀ) S[t-1] + β k vᵀ`` with a key of norm 1. ssm_a of GGUF is
-e^A_log (llama.cpp, conversion/qwen.py and conversion/kimi_linear.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import UsageError
from memcurse_cli.families.assumptions import Assumed, setting
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateInput, NoDrive, RowNorms, projected_gate, repeated
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    element_count,
    exponential_decay,
    first_name,
    read_vector,
    rows_per,
    stacked_rows,
)
from memcurse_cli.families.recurrence import Floats, RankOneCorrection, Recurrence
from memcurse_cli.families.selective.law import (
    Seen,
    Slot,
    gate_through,
    law_recurrence,
    layers_with,
)
from memcurse_cli.families.selective.mamba import CONVERTED
from memcurse_cli.theory.gates.laws import OpenedDecay, Overwrite, StepSize, Write

NEGATIVE_EIGENVALUES = Assumption(
    key="negative_eigenvalues",
    default="false",
    choices=("false", "true"),
    meaning="whether a delta rule's write strength β reaches 2 rather than 1 (allow_neg_eigval)",
    config_keys=("allow_neg_eigval", "linear_allow_neg_eigval"),
)

RANDOM_KEYS = (
    "for --gates keys are of norm 1, drawn anew at every step from all directions alike: a step"
    " forgets what it overwrites"
)
PRODUCT = NoDrive("a step writes several times in a row, which no law of gates has")
_UNSCALED = NoDrive("what it overwrites does not decay before, which no law of gates has")
_BY_VALUE = NoDrive("it erases by the key and writes by the value, which no law of gates has")


def delta_rule(*, negative: bool, count: int = 1) -> RankOneCorrection:
    """The eigenvalues of ``diag(λ) (I - β k kᵀ)`` with a unit k, λ in (0, 1] and β below 1, or 2.

    It is similar to the symmetric ``diag(λ) - β v vᵀ`` with ``v = diag(λ)^½ k``. By interlacing
    all eigenvalues but the smallest stay between min λ and max λ, and by Ostrowski's theorem the
    smallest is at least ``(1 - β) max λ`` where that is negative, and positive otherwise. The same
    holds where every channel of the key has a β of its own.

    Args:
        negative: β reaches 2.
        count: how many of them a step multiplies.
    """
    if negative:
        return RankOneCorrection("I - β k kᵀ (k of norm 1, 0 < β < 2)", lowest=-1.0, count=count)
    return RankOneCorrection("I - β k kᵀ (k of norm 1, 0 < β < 1)", lowest=0.0, count=count)


_UNSCALED_RULE = RankOneCorrection("-β k kᵀ (k of norm 1, 0 < β < 1)", lowest=-1.0)
"""Of ``λ I - β k kᵀ``, whose one eigenvalue is λ - β."""

_PROJECTIONS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "b_proj.weight")
# Each of these gives the state a decay of its own: gated delta nets, KDA, Comba, MesaNet, RWKV-7.
_GATED = (
    "A_log",
    "dt_bias",
    "forget_gate.A_log",
    "a_proj.weight",
    "gk_proj.weight",
    "gk_proj.1.bias",
    "f_proj.weight",
    "f_proj.0.weight",
    "f_a_proj.weight",
    "k_k",
)


class DeltaNet:
    """``S[t] = (I - β k kᵀ) S[t-1] + β k vᵀ``: λ = 1 at zero input, where k vanishes.

    β = σ(b_proj x) is 1/2 there, or 1 where it reaches 2, and is the gain γ. Nothing decays by
    itself: the eigenvalue is 1 - β along the key and 1 across it.

    DeltaProduct (Siems et al. 2025, arXiv 2502.10297) without a forget gate does so n times in a
    step, with n keys, values and β for each head: k_proj has n times the rows of q_proj.
    """

    name = "delta_net"
    title = "DeltaNet and DeltaProduct"
    recognised_by = "q_proj, k_proj, v_proj, b_proj.weight and o_norm.weight, without A_log"
    equation = "λ = 1 at zero input, γ = β = 1/2"
    source = "flash-linear-attention; Yang et al. 2024, arXiv 2406.06484; Siems et al. 2025"
    assumptions = (NEGATIVE_EIGENVALUES,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a write strength and no decay."""
        return layers_with(
            tensors,
            self.name,
            (*_PROJECTIONS, "o_norm.weight"),
            without=_GATED,
            fits=lambda shapes: len(shapes["b_proj.weight"]) == 2,
        )

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Count the heads; b_proj is read where its band is asked for.

        Raises:
            TensorError: shapes do not fit together, or NaN or inf in what is read.
        """
        queries, keys, values, strengths = (match.tensors[role] for role in _PROJECTIONS)
        count = stacked_rows(store, keys, stacked_rows(store, queries, 1))
        heads = stacked_rows(store, strengths, count)
        assumed = Assumed(options, store.config)
        # The library lets the β of a DeltaProduct reach 2 unless told otherwise.
        default = "true" if count > 1 else None
        negative = assumed.choose(NEGATIVE_EIGENVALUES, default=default) == "true"
        factor, width = 2.0 if negative else 1.0, rows_per(store, queries, heads)
        still = np.zeros(heads)
        gate: Seen = None
        if options.gates:
            gate = PRODUCT if count > 1 else projected_gate(store, still, strengths)
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Overwrite(width, factor),
            nominal=Overwrite(np.inf, factor),
            at=still,
            slots=(),
            gates=lambda: gate,
            tensors=tuple(match.tensors.values()),
            multiplicity=width * rows_per(store, values, count * heads),
            assumptions=(
                *assumed.sentences,
                *((RANDOM_KEYS,) if isinstance(gate, GateInput) else ()),
            ),
            rank_one=delta_rule(negative=negative, count=count),
            stable=False,
        )


# What a library calls the rate and the bias of the step: flash-linear-attention and transformers,
# which keeps KDA's in a module that only its `save_pretrained` undoes; llama.cpp.
_DECAY = ("A_log", "dt_bias")
_GGUF_DECAY = ("ssm_a", "ssm_dt.bias")
_ROLES = {f"{module}{role}": role for module in ("", "forget_gate.") for role in _DECAY}
_ROLES |= dict(zip(_GGUF_DECAY, _DECAY, strict=True))
_OTHER_RULES = ("Mu_log", "A_log_atk", "d_proj.weight")
"""Tensors beside A_log and a write strength of layers with another transition: momentum and
preconditioned delta rules."""


LARGEST_COUNT = 10**6
"""Of key heads and channels that a configuration may claim."""


def _gated_layers(
    tensors: Mapping[str, TensorSpec], default: str, roles: tuple[str, ...]
) -> list[tuple[Match, int, int]]:
    """Modules with a rate and a step bias, by the roles of `_DECAY`, and how many there are."""
    found = []
    for module, names in group_by_module(tensors, (*_ROLES, *roles, *_OTHER_RULES)).items():
        renamed = {_ROLES.get(role, role): name for role, name in names.items()}
        if renamed.keys() >= set(_DECAY) and not renamed.keys() & set(_OTHER_RULES):
            counts = [element_count(tensors[renamed[role]]) for role in _DECAY]
            found.append((Match(module or default, renamed), counts[0], counts[1]))
    return found


def _step_law(
    store: TensorStore, names: Mapping[str, str], log_rate: Floats, bias: Floats
) -> tuple[StepSize, list[Slot]]:
    """``λ = exp(-e^A_log softplus(dt_bias))``, or ``exp(ssm_a softplus(ssm_dt.bias))``."""
    stored = names["A_log"].endswith(_GGUF_DECAY[0])
    head = np.arange(bias.size) // (bias.size // log_rate.size)
    rate = -log_rate if stored else exponential_decay(log_rate)
    labels = _GGUF_DECAY if stored else _DECAY
    return StepSize(rate[head], writes=False, negated=stored), [
        Slot(labels[0], names["A_log"], log_rate, "A_log", scalar=head),
        Slot(labels[1], names["dt_bias"], bias, "dt_bias", keeps_stable=stored),
    ]


def _configured(store: TensorStore, key: str, metadata: str) -> int | None:
    """A count of the configuration, or of GGUF's metadata for any architecture."""
    value = setting(store.config, key)
    if value is None:
        texts = (text for name, text in store.metadata.items() if name.endswith(metadata))
        value = next((int(text) for text in texts if re.fullmatch(r"[0-9]{1,9}", text)), None)
    return value if type(value) is int and 0 < value <= LARGEST_COUNT else None


# The write strength β: flash-linear-attention and OLMo-Hybrid; Qwen3.5; Qwen3-Next, beside the
# step; llama.cpp.
_MIXED = ("in_proj_ba.weight", "ssm_ba.weight")
_STRENGTHS = ("b_proj.weight", "in_proj_b.weight", "ssm_beta.weight", *_MIXED)
_INPUTS = (("a_proj.weight",), ("in_proj_a.weight",), ("ssm_alpha.weight",))
_SHAPES = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "norm.weight", "ssm_norm.weight")
_UNKNOWN_ORDER = NoDrive(
    "in_proj_ba orders step and strength by key heads, whose number is in the configuration alone"
    " (linear_num_key_heads)"
)
_KEY_WIDTH = "keys are taken to be as wide as values, since the number of key heads is not stored"


class GatedDeltaNet:
    """``S[t] = λ (I - β k kᵀ) S[t-1] + β k vᵀ``, ``log λ = -e^{A_log} softplus(dt_bias)``.

    One λ per value head. The gain β = σ(0) is 1/2 at zero input, or 1 where it reaches 2; no
    parameter moves it there. Gated DeltaProduct (Siems et al. 2025, arXiv 2502.10297) overwrites n
    times in a step and has n β for each head; Comba (Hu et al. 2025, arXiv 2506.02475) overwrites
    what has not decayed, ``λ I - β k kᵀ``.
    """

    name = "gated_delta_net"
    title = "Gated DeltaNet (Qwen3-Next, Qwen3.5, OLMo-Hybrid)"
    recognised_by = (
        "A_log and dt_bias (heads) beside b_proj, in_proj_ba or in_proj_b; ssm_a and ssm_dt.bias"
        " beside ssm_ba, or ssm_alpha and ssm_beta"
    )
    equation = "λ = exp(-e^A_log softplus(dt_bias)), γ = β = 1/2"
    source = (
        "flash-linear-attention, transformers and llama.cpp; Yang et al. 2024, arXiv 2412.06464"
    )
    assumptions = (NEGATIVE_EIGENVALUES,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a decay rate and a step bias of one entry per head and a write strength."""
        roles = (*_STRENGTHS, *_SHAPES, "a_proj.weight", "w_proj.weight", "D", "decay")
        matches = []
        for match, heads, biases in _gated_layers(tensors, self.name, roles):
            strength = next((role for role in _STRENGTHS if role in match.tensors), None)
            if strength is None or not biases == heads > 0 or "w_proj.weight" in match.tensors:
                continue
            rows, *_ = *tensors[match.tensors[strength]].shape, 0
            several = strength == "b_proj.weight" and rows % heads == 0
            if rows and (several or rows == (2 * heads if strength in _MIXED else heads)):
                matches.append(match)
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read A_log and dt_bias.

        Raises:
            TensorError: NaN or inf in one of them.
        """
        assumed = Assumed(options, store.config)
        names = match.tensors
        log_rate = read_vector(store, names["A_log"])
        bias = read_vector(store, names["dt_bias"], log_rate.size)
        heads = log_rate.size
        count = rows_per(store, names.get("b_proj.weight"), heads)
        comba = "decay" in names or "D" in names
        # OLMo-Hybrid, known by its module's name, and DeltaProducts let β reach 2 by default.
        olmo = split_name(match.layer)[1] == "linear_attn" and "a_proj.weight" in names
        default = "true" if olmo or count > 1 else "false"
        negative = assumed.choose(NEGATIVE_EIGENVALUES, default=default) == "true"
        widths, sentences = _widths(store, names, heads, count)
        # Of keys whose width is not known nothing is said.
        width = widths[0] if widths[0] > 1 else math.inf
        gates: Seen = None
        if options.gates:
            gates = PRODUCT if count > 1 else _UNSCALED if comba else _gates(store, names, bias)
        if width < math.inf and isinstance(gates, tuple) and None not in gates:
            sentences = (*sentences, RANDOM_KEYS)
        law, slots = _step_law(store, names, log_rate, bias)
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=law,
            at=bias,
            slots=slots,
            gates=lambda: gates,
            write=Write(parameter="strength", factor=2.0 if negative else 1.0, width=width),
            multiplicity=math.prod(widths),
            assumptions=(*assumed.sentences, *sentences, *((CONVERTED,) if law.negated else ())),
            rank_one=_UNSCALED_RULE if comba else delta_rule(negative=negative, count=count),
            stable=not law.negated,
        )


def _gates(store: TensorStore, names: Mapping[str, str], bias: Floats) -> Seen:
    """The projections of the step and of β, apart or mixed by key heads."""
    still, heads = np.zeros_like(bias), bias.size
    mixed = first_name(names, _MIXED)
    if mixed is None:
        gate = gate_through(store, bias, "A_log", names["A_log"], _INPUTS)
        return gate, projected_gate(store, still, first_name(names, _STRENGTHS))
    # For every key head the rows of β and then those of the step of its value heads.
    keys = _configured(store, "linear_num_key_heads", ".ssm.group_count")
    if keys is None or heads % keys:
        return _UNKNOWN_ORDER
    rows = np.arange(2 * heads, dtype=np.intp).reshape(keys, 2, heads // keys)
    write, gate = (
        projected_gate(store, of, mixed, rows=rows[:, part].ravel())
        for part, of in enumerate((still, bias))
    )
    return gate, write


def _widths(
    store: TensorStore, names: Mapping[str, str], heads: int, count: int
) -> tuple[tuple[int, int], tuple[str, ...]]:
    """Key and value dimension of a value head, and what had to be assumed for them."""
    stored = _configured(store, "linear_key_head_dim", ".ssm.state_size")
    if "v_proj.weight" in names:
        # That there are fewer key heads than value heads shows in the configuration alone.
        stored = setting(store.config, "head_dim") if stored is None else stored
        keys, values = (
            rows_per(store, names.get(role), count * heads)
            for role in ("k_proj.weight", "v_proj.weight")
        )
        shared = isinstance(stored, int) and stored > keys and stored % keys == 0
        fits = shared and heads % (stored // keys) == 0
        return (stored if fits else keys, values), ()
    values = rows_per(store, first_name(names, ("norm.weight", "ssm_norm.weight")), 1)
    return ((stored, values), ()) if stored else ((values, values), (_KEY_WIDTH,))


LOWER_BOUND = Assumption(
    key="kda_lower_bound",
    default="0",
    choices=(),
    meaning="lower bound of log λ of a safe gate (-5 in GLM and Bailing); 0 where there is none",
)

# What a configuration calls the lower bound, and whether the gate is a safe one.
_BOUNDS = {
    "kda_lower_bound": "kda_safe_gate",
    "lower_bound": "safe_gate",
    "linear_lower_bound": "safe_gate",
    "linear_attn_config.gate_lower_bound": "linear_attn_config.safe_gate",
}
_KDA_STRENGTHS = ("b_proj.weight", "ssm_beta.weight")
_KDA_INPUTS = (
    ("f_proj.weight",),
    ("f_proj.1.weight", "f_proj.0.weight"),
    ("f_b_proj.weight", "f_a_proj.weight"),
    ("ssm_f_b.weight", "ssm_f_a.weight"),
)


class KDA:
    """``S[t] = (I - β k kᵀ) diag(λ) S[t-1] + β k vᵀ``, one λ per key channel.

    ``log λ = -e^a softplus(b)`` with a = A_log of the head and b = dt_bias of the channel, or
    ``log λ = L σ(e^a b)`` with a safe gate of lower bound L, whose tensors have the same names.
    A_log moves the λ of all the channels of its head. The gain β is 1/2 at zero input, or 1.
    Gated DeltaNet-2 erases with a β of every key channel and writes with one of every value, w.
    """

    name = "kda"
    title = "KDA (Kimi delta attention)"
    recognised_by = (
        "A_log (heads) and dt_bias (heads · key dimension) beside b_proj.weight; ssm_a and"
        " ssm_dt.bias beside ssm_beta"
    )
    equation = "λ = exp(-e^A_log softplus(dt_bias)), or exp(L σ(e^A_log dt_bias)) with a safe gate"
    source = "flash-linear-attention, transformers and llama.cpp; Kimi Team 2025, arXiv 2510.26692"
    assumptions = (LOWER_BOUND, NEGATIVE_EIGENVALUES)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a decay rate per head, a step bias per key channel and a write strength."""
        roles = (*_KDA_STRENGTHS, "v_proj.weight", "ssm_g_b.weight", "w_proj.weight", "D")
        matches = []
        for match, heads, channels in _gated_layers(tensors, self.name, roles):
            strength = first_name(match.tensors, _KDA_STRENGTHS)
            if strength is None or "D" in match.tensors or not 0 < heads < channels:
                continue
            by_channel = tensors[strength].shape[:1] == (channels,)
            if channels % heads == 0 and ("w_proj.weight" not in match.tensors or by_channel):
                matches.append(match)
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read A_log and dt_bias.

        Raises:
            TensorError: NaN or inf in one of them.
            UsageError: the lower bound is positive.
        """
        assumed = Assumed(options, store.config)
        names = match.tensors
        configured = _configured_bound(store.config)
        lower_bound = float(assumed.choose(LOWER_BOUND, configured=configured))
        if not -np.inf < lower_bound <= 0:
            raise UsageError(
                f"{lower_bound:g} is not a value of {LOWER_BOUND.key}",
                where="--assume",
                remedy="give a negative number, or 0 for no bound",
            )
        negative = assumed.choose(NEGATIVE_EIGENVALUES) == "true"
        log_rate, bias = (read_vector(store, names[role]) for role in _DECAY)
        channels = bias.size // log_rate.size
        step, slots = _step_law(store, names, log_rate, bias)
        law: StepSize | OpenedDecay = step
        factor = np.ones_like(bias)
        if lower_bound < 0:
            # A safe gate opens with e^A_log times what its projection and dt_bias add up to.
            law, factor = OpenedDecay(-lower_bound, "dt_bias", "A_log"), np.asarray(step.rate)
            slots[1] = Slot("dt_bias", names["dt_bias"], bias, "dt_bias", factor)

        def gates() -> Seen:
            if "w_proj.weight" in names:
                return _BY_VALUE
            gate = gate_through(store, bias, "A_log", names["A_log"], _KDA_INPUTS)
            strength = first_name(names, _KDA_STRENGTHS)
            write = projected_gate(store, np.zeros(log_rate.size), strength)
            if gate is not None:
                norms = RowNorms(gate.norms.inputs * factor**2, gate.norms.hidden)
                gate = GateInput(gate.bias * factor, norms)
            return gate, None if write is None else repeated(write, channels)

        values = names.get("v_proj.weight", names.get("ssm_g_b.weight"))
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=law,
            at=factor * bias,
            slots=slots,
            gates=gates,
            # Gated DeltaNet-2 writes with a w that stays below 1.
            write=Write(
                parameter="strength",
                factor=2.0 if negative and "w_proj.weight" not in names else 1.0,
            ),
            multiplicity=rows_per(store, values, log_rate.size),
            assumptions=(*assumed.sentences, *((CONVERTED,) if step.negated else ())),
            rank_one=delta_rule(negative=negative),
            stable=not step.negated,
        )


def _configured_bound(config: Mapping[str, Any]) -> str | None:
    """The lower bound as the configurations of Bailing, flash-linear-attention and GLM have it."""
    for key, flag in _BOUNDS.items():
        value = setting(config, key)
        if isinstance(value, int | float) and -LARGEST_DECAY < value < 0:
            return "0" if setting(config, flag) is False else f"{value:.17g}"
    return None
