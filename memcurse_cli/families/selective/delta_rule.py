"""Delta rules, which overwrite what a key stands for: DeltaNet, gated delta nets and KDA.

ssm_a of GGUF is -e^A_log (llama.cpp, conversion/qwen.py and conversion/kimi_linear.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Assumption, Layout, Match, setting
from memcurse_cli.families.gate_inputs import GateInput, NoDrive, repeated
from memcurse_cli.families.reading import LARGEST_DECAY, group_by_module, split_name
from memcurse_cli.families.recurrence import Floats, RankOneCorrection, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Seen, Slot, step_size
from memcurse_cli.theory.gates.laws import OpenedDecay, Overwrite, StepSize, Write

NEGATIVE_EIGENVALUES = Assumption(
    key="negative_eigenvalues",
    default="false",
    choices=("false", "true"),
    meaning="whether a delta rule's write strength β reaches 2 rather than 1 (allow_neg_eigval)",
    config_keys=("allow_neg_eigval", "linear_allow_neg_eigval"),
)

PRODUCT = NoDrive("a step writes several times in a row, which no law of gates has")
_UNSCALED = NoDrive("what it overwrites does not decay before, which no law of gates has")
_BY_VALUE = NoDrive("it erases by the key and writes by the value, which no law of gates has")


def delta_rule(*, negative: bool, count: int = 1) -> RankOneCorrection:
    """The eigenvalues of ``diag(λ) (I - β k kᵀ)`` with a unit k, λ in (0, 1] and β below 1, or 2.

    A step multiplies ``count`` of them. Each is similar to the symmetric ``diag(λ) - β v vᵀ`` with
    ``v = diag(λ)^½ k``. By interlacing all eigenvalues but the smallest stay between min λ and
    max λ, and by Ostrowski's theorem the smallest is at least ``(1 - β) max λ`` where that is
    negative, and positive otherwise; so too where every channel of the key has a β of its own.
    """
    largest, lowest = (2, -1.0) if negative else (1, 0.0)
    term = f"I - β k kᵀ (k of norm 1, 0 < β < {largest})"
    return RankOneCorrection(term, lowest=lowest, count=count)


# Of ``λ I - β k kᵀ``, whose one eigenvalue is λ - β.
_UNSCALED_RULE = RankOneCorrection("-β k kᵀ (k of norm 1, 0 < β < 1)", lowest=-1.0)


def _reaches_two(layer: Layer, default: str | None = None) -> bool:
    return layer.choose(NEGATIVE_EIGENVALUES, default=default) == "true"


_PROJECTIONS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "b_proj.weight")
# Each of these gives the state a decay of its own: gated delta nets, KDA, Comba, MesaNet, RWKV-7.
_GATED = (
    *("A_log", "dt_bias", "forget_gate.A_log", "a_proj.weight", "gk_proj.weight"),
    *("gk_proj.1.bias", "f_proj.weight", "f_proj.0.weight", "f_a_proj.weight", "k_k"),
)


class DeltaNet(LawFamily):
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
    layouts = (
        Layout(
            (*_PROJECTIONS, "o_norm.weight"),
            without=_GATED,
            fits=lambda shapes: len(shapes["b_proj.weight"]) == 2,
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        queries, keys, values, strengths = _PROJECTIONS
        count = layer.stacked_rows(keys, layer.stacked_rows(queries))
        heads = layer.stacked_rows(strengths, count)
        # The library lets the β of a DeltaProduct reach 2 unless told otherwise.
        negative = _reaches_two(layer, "true" if count > 1 else None)
        width, still = layer.rows_per(heads, queries), np.zeros(heads)
        return layer.gated(
            Overwrite(width, 1.0 + negative),
            still,
            [],
            nominal=Overwrite(np.inf, 1.0 + negative),
            gates=lambda: PRODUCT if count > 1 else layer.projected(still, strengths),
            multiplicity=width * layer.rows_per(count * heads, values),
            rank_one=delta_rule(negative=negative, count=count),
            stable=False,
        )


# What a library calls the rate and the bias of the step: flash-linear-attention and transformers,
# which keeps KDA's in a module that only its `save_pretrained` undoes; llama.cpp.
_DECAY = ("A_log", "dt_bias")
_GGUF_DECAY = ("ssm_a", "ssm_dt.bias")
_ROLES = {f"{module}{role}": role for module in ("", "forget_gate.") for role in _DECAY}
_ROLES |= dict(zip(_GGUF_DECAY, _DECAY, strict=True))
# Of momentum and preconditioned delta rules, whose transition is another.
_OTHER_RULES = ("Mu_log", "A_log_atk", "d_proj.weight")


class _GatedDelta(LawFamily):
    """A delta rule with a decay, by the projections of β and what else tells it or its size."""

    strengths: tuple[str, ...]
    others: tuple[str, ...]

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a rate, a step bias and a write strength whose shapes fit each other."""
        matches = []
        roles = (*_ROLES, *self.strengths, *self.others, *_OTHER_RULES)
        for module, found in group_by_module(tensors, roles).items():
            names = {_ROLES.get(role, role): name for role, name in found.items()}
            strength = next((role for role in self.strengths if role in names), None)
            if strength and names.keys() >= {*_DECAY} and names.keys().isdisjoint(_OTHER_RULES):
                heads, biases = (math.prod(tensors[names[role]].shape) for role in _DECAY)
                rows, *_ = *tensors[names[strength]].shape, 0
                if _kind(names, strength, heads, biases, rows) == self.name:
                    matches.append(Match(module or self.name, names))
        return matches


def _kind(names: Mapping[str, str], strength: str, heads: int, biases: int, rows: int) -> str:
    """The family of as many rates, step biases and rows of β, or nothing."""
    by_value = "w_proj.weight" in names
    if biases == heads > 0 and rows and not by_value:
        several = strength == "b_proj.weight" and rows % heads == 0
        fits = several or rows == (2 * heads if strength in _MIXED else heads)
        return GatedDeltaNet.name if fits else ""
    if 0 < heads < biases and biases % heads == 0 and "D" not in names:
        return KDA.name if not by_value or rows == biases else ""
    return ""


def _step_law(layer: Layer) -> tuple[StepSize, Floats, list[Slot]]:
    """``λ = exp(-e^A_log softplus(dt_bias))``, or ``exp(ssm_a softplus(ssm_dt.bias))``."""
    stored = layer.names[_DECAY[0]].endswith(_GGUF_DECAY[0])
    labels = _GGUF_DECAY if stored else _DECAY
    slots = (
        Slot(label, layer.vector(role), role, tensor=layer.names[role])
        for label, role in zip(labels, _DECAY, strict=True)
    )
    return step_size(*slots, writes=False, stored=stored)


def _configured(store: TensorStore, key: str, metadata: str) -> int | None:
    """A count of the configuration, or of GGUF's metadata for any architecture."""
    value = setting(store.config, key)
    if value is None:
        texts = (text for name, text in store.metadata.items() if name.endswith(metadata))
        value = next((int(text) for text in texts if re.fullmatch(r"[0-9]{1,9}", text)), None)
    return value if type(value) is int and 0 < value <= 10**6 else None


# Of Qwen3-Next, beside the step.
_MIXED = ("in_proj_ba.weight", "ssm_ba.weight")
_INPUTS = (("a_proj.weight",), ("in_proj_a.weight",), ("ssm_alpha.weight",))
_NORMS = ("norm.weight", "ssm_norm.weight")
_UNKNOWN_ORDER = NoDrive(
    "in_proj_ba orders step and strength by key heads, whose number is in the configuration alone"
    " (linear_num_key_heads)"
)
_KEY_WIDTH = "keys are taken to be as wide as values, since the number of key heads is not stored"


class GatedDeltaNet(_GatedDelta):
    """``S[t] = λ (I - β k kᵀ) S[t-1] + β k vᵀ``, one λ per value head, γ = β.

    β = σ(0) is 1/2 at zero input, or 1 where it reaches 2; no parameter moves it there. Gated
    DeltaProduct (Siems et al. 2025, arXiv 2502.10297) overwrites n times in a step and has n β for
    each head; Comba (Hu et al. 2025, arXiv 2506.02475) overwrites what has not decayed,
    ``λ I - β k kᵀ``.
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
    # flash-linear-attention and OLMo-Hybrid; Qwen3.5; llama.cpp; Qwen3-Next.
    strengths = ("b_proj.weight", "in_proj_b.weight", "ssm_beta.weight", *_MIXED)
    others = (*_PROJECTIONS[:3], *_NORMS, "a_proj.weight", "w_proj.weight", "D", "decay")

    def _recurrence(self, layer: Layer) -> Recurrence:
        names, (law, bias, slots) = layer.names, _step_law(layer)
        heads = bias.size
        count = layer.rows_per(heads, "b_proj.weight")
        comba = "decay" in names or "D" in names
        # OLMo-Hybrid, known by its module's name, and DeltaProducts let β reach 2 by default.
        olmo = split_name(layer.match.layer)[1] == "linear_attn" and "a_proj.weight" in names
        negative = _reaches_two(layer, "true" if olmo or count > 1 else "false")
        (keys, values), sentences = _widths(layer, heads, count)
        width = keys if keys > 1 else math.inf  # where that is not known nothing is said
        return layer.gated(
            law,
            bias,
            slots,
            gates=lambda: (
                PRODUCT if count > 1 else _UNSCALED if comba else _step_and_strength(layer, bias)
            ),
            write=Write(parameter="strength", factor=1.0 + negative, width=width),
            multiplicity=keys * values,
            assumptions=sentences,
            converted=law.negated,
            rank_one=_UNSCALED_RULE if comba else delta_rule(negative=negative, count=count),
        )


def _step_and_strength(layer: Layer, bias: Floats) -> Seen:
    """The projections of the step and of β, apart or mixed by key heads."""
    still, heads = np.zeros_like(bias), bias.size
    if layer.names.keys().isdisjoint(_MIXED):
        gate = layer.gate_through(bias, "A_log", _INPUTS)
        return gate, layer.projected(still, *GatedDeltaNet.strengths)
    # For every key head the rows of β and then those of the step of its value heads.
    keys = _configured(layer.store, "linear_num_key_heads", ".ssm.group_count")
    if keys is None or heads % keys:
        return _UNKNOWN_ORDER
    rows = np.arange(2 * heads, dtype=np.intp).reshape(keys, 2, heads // keys)
    write, gate = (
        layer.projected(of, *_MIXED, rows=rows[:, part].ravel())
        for part, of in enumerate((still, bias))
    )
    return gate, write


def _widths(layer: Layer, heads: int, count: int) -> tuple[tuple[int, int], list[str]]:
    """Key and value dimension of a value head, and what had to be assumed for them."""
    stored = _configured(layer.store, "linear_key_head_dim", ".ssm.state_size")
    if "v_proj.weight" in layer.names:
        # That there are fewer key heads than value heads shows in the configuration alone.
        stored = setting(layer.store.config, "head_dim") if stored is None else stored
        keys, values = (layer.rows_per(count * heads, role) for role in _PROJECTIONS[1:3])
        shared = isinstance(stored, int) and stored > keys and stored % keys == 0
        fits = shared and heads % (stored // keys) == 0
        return (stored if fits else keys, values), []
    values = layer.rows_per(1, *_NORMS)
    return ((stored, values), []) if stored else ((values, values), [_KEY_WIDTH])


LOWER_BOUND = Assumption(
    key="kda_lower_bound",
    default="0",
    meaning="lower bound of log λ of a safe gate (-5 in GLM and Bailing); 0 where there is none",
)

# What a configuration calls the lower bound, and whether the gate is a safe one.
_BOUNDS = {
    "kda_lower_bound": "kda_safe_gate",
    "lower_bound": "safe_gate",
    "linear_lower_bound": "safe_gate",
    "linear_attn_config.gate_lower_bound": "linear_attn_config.safe_gate",
}
_KDA_INPUTS = (
    ("f_proj.weight",),
    ("f_proj.1.weight", "f_proj.0.weight"),
    ("f_b_proj.weight", "f_a_proj.weight"),
    ("ssm_f_b.weight", "ssm_f_a.weight"),
)


class KDA(_GatedDelta):
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
    strengths = ("b_proj.weight", "ssm_beta.weight")
    others = ("v_proj.weight", "ssm_g_b.weight", "w_proj.weight", "D")

    def _recurrence(self, layer: Layer) -> Recurrence:
        configured = _configured_bound(layer.store.config)
        lower_bound = float(layer.choose(LOWER_BOUND, configured=configured))
        if not -np.inf < lower_bound <= 0:
            remedy = "give a negative number, or 0 for no bound"
            raise layer.unknown(LOWER_BOUND, f"{lower_bound:g}", remedy)
        negative = _reaches_two(layer)
        by_value = "w_proj.weight" in layer.names
        step, bias, slots = _step_law(layer)
        heads = slots[0].values.size
        law: StepSize | OpenedDecay = step
        factor = np.ones_like(bias)
        if lower_bound < 0:
            # A safe gate opens with e^A_log times what its projection and dt_bias add up to.
            law, factor = OpenedDecay(-lower_bound, "dt_bias", "A_log"), np.asarray(step.rate)
            slots[1] = slots[1]._replace(name="dt_bias", scale=factor, keeps_stable=False)

        def gates() -> Seen:
            if by_value:
                return _BY_VALUE
            gate = layer.gate_through(bias, "A_log", _KDA_INPUTS)
            write = layer.projected(np.zeros(heads), *self.strengths)
            if gate is not None:
                gate = GateInput(gate.bias * factor, gate.inputs * factor**2, gate.hidden)
            return gate, None if write is None else repeated(write, bias.size // heads)

        return layer.gated(
            law,
            factor * bias,
            slots,
            gates=gates,
            # Gated DeltaNet-2 writes with a w that stays below 1.
            write=Write(parameter="strength", factor=1.0 + (negative and not by_value)),
            multiplicity=layer.rows_per(heads, "v_proj.weight", "ssm_g_b.weight"),
            converted=step.negated,
            rank_one=delta_rule(negative=negative),
        )


def _configured_bound(config: Mapping[str, Any]) -> str | None:
    """The lower bound as the configurations of Bailing, flash-linear-attention and GLM have it."""
    for key, flag in _BOUNDS.items():
        value = setting(config, key)
        if isinstance(value, int | float) and -LARGEST_DECAY < value < 0:
            return "0" if setting(config, flag) is False else f"{value:.17g}"
    return None
