"""The gated delta net of Yang et al. 2024, arXiv 2412.06464: Qwen3-Next, OLMo-Hybrid and others."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.assumptions import Assumed, setting
from memcurse_cli.families.family import Match, ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive
from memcurse_cli.families.gate_weights import projected_gate
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.projections import beside
from memcurse_cli.families.reading import element_count, exponential_decay, read_vector, rows_per
from memcurse_cli.families.recurrence import Floats, Integers, Recurrence
from memcurse_cli.families.selective.law import Seen, Slot, law_recurrence
from memcurse_cli.families.selective.rank_one import (
    NEGATIVE_EIGENVALUES,
    OTHER_RULES,
    RANDOM_KEYS,
    delta_rule,
)
from memcurse_cli.theory.gates.laws import StepSize, Write

_DECAY = ("A_log", "dt_bias")
# The write strength β and its rows per head: flash-linear-attention and OLMo-Hybrid; Qwen3.5;
# Qwen3-Next, beside the step. Gated DeltaProduct has several β per head.
_IN_PROJ_B = "in_proj_b.weight"
_MIXED_ROLE = "in_proj_ba.weight"
_STRENGTH = {"b_proj.weight": 1, _IN_PROJ_B: 1, _MIXED_ROLE: 2}
_SHAPES = ("k_proj.weight", "v_proj.weight", "conv1d.weight", "norm.weight", "a_proj.weight")

LARGEST_KEY_WIDTH = 10**6
_MIXED = NoDrive(
    "in_proj_ba orders step and strength by key heads, whose number is in the configuration alone"
    " (linear_num_key_heads)"
)
_KEY_WIDTH = "keys are taken to be as wide as values, since the number of key heads is not stored"


class GatedDeltaNet:
    """``S[t] = λ (I - β k kᵀ) S[t-1] + β k vᵀ``, ``log λ = -e^{A_log} softplus(dt_bias)``.

    One λ per value head, with ``d log λ/dA_log = log λ`` and ``d log λ/d dt_bias = -e^{A_log}
    σ(dt_bias)``. The gain β = σ(0) is 1/2 at zero input, or 1 where it reaches 2; no parameter
    moves it there.
    """

    name = "gated_delta_net"
    title = "Gated DeltaNet (Qwen3-Next, Qwen3.5, OLMo-Hybrid)"
    recognised_by = "A_log and dt_bias (heads) beside b_proj, in_proj_ba or in_proj_b"
    equation = "λ = exp(-e^A_log softplus(dt_bias)), γ = β = 1/2"
    source = "flash-linear-attention and transformers; Yang et al. 2024, arXiv 2412.06464"
    assumptions = (NEGATIVE_EIGENVALUES,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a decay rate and a step bias of one entry per head and a write strength."""
        matches = []
        roles = (*_DECAY, *_STRENGTH, *_SHAPES, *OTHER_RULES)
        for module, names in group_by_module(tensors, roles).items():
            strength = next((role for role in _STRENGTH if role in names), None)
            if strength is None or not names.keys() >= set(_DECAY):
                continue
            heads, biases = (element_count(tensors[names[role]]) for role in _DECAY)
            rows = tensors[names[strength]].shape[:1]
            fits = biases == heads and rows == (_STRENGTH[strength] * heads,)
            if fits and not names.keys() & set(OTHER_RULES):
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read A_log and dt_bias.

        Raises:
            TensorError: NaN or inf in one of them.
        """
        assumed = Assumed(options, store.config)
        names = match.tensors
        # OLMo-Hybrid, known by its module's name, is the one that lets β reach 2 by default.
        olmo = split_name(match.layer)[1] == "linear_attn" and "a_proj.weight" in names
        negative = (
            assumed.choose(NEGATIVE_EIGENVALUES, default="true" if olmo else "false") == "true"
        )
        log_rate = read_vector(store, names["A_log"])
        bias = read_vector(store, names["dt_bias"], log_rate.size)
        widths, sentences = _widths(store, names, log_rate.size)
        # Of keys whose width is not known nothing is said.
        width = widths[0] if widths[0] > 1 else math.inf
        gates = _gates(store, names, bias) if options.gates else None
        if width < math.inf and isinstance(gates, tuple) and None not in gates:
            sentences = (*sentences, RANDOM_KEYS)
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=StepSize(exponential_decay(log_rate), writes=False),
            at=bias,
            slots=[
                Slot(role, names[role], values, role)
                for role, values in zip(_DECAY, (log_rate, bias), strict=True)
            ],
            gates=lambda: gates,
            write=Write(parameter="strength", factor=2.0 if negative else 1.0, width=width),
            multiplicity=math.prod(widths),
            assumptions=(*assumed.sentences, *sentences),
            rank_one=delta_rule(negative=negative),
        )


def _gates(store: TensorStore, names: Mapping[str, str], bias: Floats) -> Seen:
    """The projections of the step and of β, apart or mixed by key heads."""
    still = np.zeros_like(bias)
    if _MIXED_ROLE in names:
        rows = _mixed_rows(store, bias.size)
        if rows is None:
            return _MIXED
        write, gate = (
            projected_gate(store, of, names[_MIXED_ROLE], rows=part)
            for of, part in zip((still, bias), rows, strict=True)
        )
        return gate, write
    for step, strength in (("a_proj.weight", "b_proj.weight"), ("in_proj_a.weight", _IN_PROJ_B)):
        gate = projected_gate(store, bias, beside(store, names["A_log"], step))
        write = projected_gate(store, still, names.get(strength))
        if gate is not None and write is not None:
            return gate, write
    return None


def _mixed_rows(store: TensorStore, heads: int) -> tuple[Integers, Integers] | None:
    """Which rows of in_proj_ba are β and which the step: for every key head, those of its values.

    None where the number of key heads is not known.
    """
    keys = setting(store.config, "linear_num_key_heads")
    if not isinstance(keys, int) or isinstance(keys, bool) or keys < 1 or heads % keys:
        return None
    rows = np.arange(2 * heads, dtype=np.intp).reshape(keys, 2, heads // keys)
    return rows[:, 0].ravel(), rows[:, 1].ravel()


def _widths(
    store: TensorStore, names: Mapping[str, str], heads: int
) -> tuple[tuple[int, int], tuple[str, ...]]:
    """Key and value dimension of a value head, and what had to be assumed for them."""
    stored = setting(store.config, "linear_key_head_dim")
    if "v_proj.weight" in names:
        # That there are fewer key heads than value heads shows in the configuration alone.
        stored = setting(store.config, "head_dim") if stored is None else stored
        keys, values = (
            rows_per(store, names.get(role), heads) for role in ("k_proj.weight", "v_proj.weight")
        )
        shared = isinstance(stored, int) and stored > keys and stored % keys == 0
        fits = shared and heads % (stored // keys) == 0
        return (stored if fits else keys, values), ()
    values = rows_per(store, names.get("norm.weight"), 1)
    if isinstance(stored, int) and 0 < stored <= LARGEST_KEY_WIDTH:
        return (stored, values), ()
    return (values, values), (_KEY_WIDTH,)
