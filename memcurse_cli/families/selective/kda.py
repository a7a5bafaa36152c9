"""Kimi delta attention, Kimi Team 2025, arXiv 2510.26692: Kimi-Linear, GLM and Bailing hybrids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import UsageError
from memcurse_cli.families.assumptions import Assumed, setting
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateInput, RowNorms
from memcurse_cli.families.gate_weights import low_rank_gate, projected_gate, repeated
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    element_count,
    exponential_decay,
    read_vector,
    rows_per,
)
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import Seen, Slot, law_recurrence
from memcurse_cli.families.selective.rank_one import NEGATIVE_EIGENVALUES, OTHER_RULES, delta_rule
from memcurse_cli.theory.gates.laws import OpenedDecay, StepSize, Write

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
_DECAY = ("A_log", "dt_bias")
_REQUIRED = (*_DECAY, "b_proj.weight")
_SHAPES = ("v_proj.weight",)
# transformers keeps both in a module of their own, which only its `save_pretrained` undoes.
_NESTED = {f"forget_gate.{role}": role for role in _DECAY}


class KDA:
    """``S[t] = (I - β k kᵀ) diag(λ) S[t-1] + β k vᵀ``, one λ per key channel.

    ``log λ = -e^a softplus(b)`` with a = A_log of the head and b = dt_bias of the channel, or
    ``log λ = L σ(e^a b)`` with a safe gate of lower bound L, whose tensors have the same names.
    A_log moves the λ of all the channels of its head. The gain β is 1/2 at zero input, or 1.
    """

    name = "kda"
    title = "KDA (Kimi delta attention)"
    recognised_by = "A_log (heads) and dt_bias (heads · key dimension) beside b_proj.weight"
    equation = "λ = exp(-e^A_log softplus(dt_bias)), or exp(L σ(e^A_log dt_bias)) with a safe gate"
    source = "flash-linear-attention and transformers; Kimi Team 2025, arXiv 2510.26692"
    assumptions = (LOWER_BOUND, NEGATIVE_EIGENVALUES)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a decay rate per head, a step bias per key channel and a write strength."""
        matches = []
        roles = (*_REQUIRED, *_SHAPES, *OTHER_RULES, *_NESTED)
        for module, found in group_by_module(tensors, roles).items():
            names = {_NESTED.get(role, role): name for role, name in found.items()}
            if names.keys() >= set(_REQUIRED) and not names.keys() & set(OTHER_RULES):
                heads, channels = (element_count(tensors[names[role]]) for role in _DECAY)
                if heads and channels > heads and channels % heads == 0:
                    matches.append(Match(module or self.name, names))
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
        log_rate = read_vector(store, names["A_log"])
        bias = read_vector(store, names["dt_bias"])
        channels = np.arange(bias.size)
        head = channels // (bias.size // log_rate.size)
        rate = exponential_decay(log_rate)[head]
        # A safe gate opens with e^A_log times what its projection and dt_bias add up to.
        safe = lower_bound < 0
        law = (
            OpenedDecay(-lower_bound, "dt_bias", "A_log") if safe else StepSize(rate, writes=False)
        )
        factor = rate if safe else np.ones_like(rate)

        def gates() -> Seen:
            gate = _gate(store, names["A_log"], bias)
            write = projected_gate(store, np.zeros(log_rate.size), names["b_proj.weight"])
            return (
                _scaled(gate, factor) if safe and gate is not None else gate,
                None if write is None else repeated(write, bias.size // log_rate.size),
            )

        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=law,
            at=factor * bias,
            slots=[
                Slot("A_log", names["A_log"], log_rate, "A_log", scalar=head),
                Slot("dt_bias", names["dt_bias"], bias, "dt_bias", factor),
            ],
            gates=gates,
            write=Write(parameter="strength", factor=2.0 if negative else 1.0),
            multiplicity=rows_per(store, names.get("v_proj.weight"), log_rate.size),
            assumptions=assumed.sentences,
            rank_one=delta_rule(negative=negative),
        )


def _gate(store: TensorStore, log_rate: str, bias: Floats) -> GateInput | None:
    """What the decay sees; transformers keeps the projections beside A_log too."""
    whole = projected_gate(store, bias, beside(store, log_rate, "f_proj.weight"))
    if whole is not None:
        return whole
    for outer, inner in (
        ("f_proj.1.weight", "f_proj.0.weight"),
        ("f_b_proj.weight", "f_a_proj.weight"),
    ):
        layers = beside(store, log_rate, outer), beside(store, log_rate, inner)
        if layers[0] is not None and layers[1] is not None:
            gate = low_rank_gate(store, bias, layers[0], layers[1])
            if gate is not None:
                return gate
    return None


def _scaled(gate: GateInput, factor: Floats) -> GateInput:
    norms = RowNorms(gate.norms.inputs * factor**2, gate.norms.hidden)
    return GateInput(gate.bias * factor, norms)


def _configured_bound(config: Mapping[str, Any]) -> str | None:
    """The lower bound as the configurations of Bailing, flash-linear-attention and GLM have it."""
    for key, flag in _BOUNDS.items():
        value = setting(config, key)
        if isinstance(value, int | float) and -LARGEST_DECAY < value < 0:
            return "0" if setting(config, flag) is False else f"{value:.17g}"
    return None
