"""Gated linear attention of Yang et al. 2023, arXiv 2312.06635, and the layers with its gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import UsageError
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.reading import read_vector, rows_per, stacked_rows
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.law import (
    Seen,
    Slot,
    gate_through,
    law_recurrence,
    layers_with,
)
from memcurse_cli.theory.gates.laws import Root, Write

GATE_LOGIT_NORMALIZER = Assumption(
    key="gate_logit_normalizer",
    default="16",
    choices=(),
    meaning="τ of gated linear attention's λ = σ(b)^(1/τ); gated slot attention has 8",
)


class _Layer(NamedTuple):
    """How a layer stores its gate: the bias, where it has one, and the projections.

    ``normalizer`` is the library's default of τ, or None where λ = σ(b); ``write`` the bias of a
    factor of γ, beside its weight.
    """

    required: tuple[str, ...]
    bias: str | None
    gate: tuple[str, ...]
    normalizer: str | None = "16"
    write: str | None = None


_KEY, _VALUE, _OUTPUT_GATE = "k_proj.weight", "v_proj.weight", "g_proj.weight"
_LAYERS = (
    _Layer(
        ("gk_proj.0.weight", "gk_proj.1.bias"),
        "gk_proj.1.bias",
        ("gk_proj.1.weight", "gk_proj.0.weight"),
    ),
    # Simple GLA, one λ per head.
    _Layer(
        ("gk_proj.weight", "gk_proj.bias", "q_proj.weight", _OUTPUT_GATE),
        "gk_proj.bias",
        ("gk_proj.weight",),
    ),
    # MesaNet, whose two states the gates move alike.
    _Layer(
        ("lambda_params", "a_proj.bias", "b_proj.bias", "a_proj.weight", "b_proj.weight", _KEY),
        "a_proj.bias",
        ("a_proj.weight",),
        None,
        "b_proj.bias",
    ),
    # Gated slot attention, whose gate has no bias.
    _Layer(
        ("f_proj.weight", "q_proj.weight", _KEY, _VALUE, "o_proj.weight", "g_norm.weight"),
        None,
        ("f_proj.weight",),
        "8",
    ),
)
# HGRN, gated delta nets, Raven and forgetting attention have an f_proj too.
_OTHERS = (
    "i_proj.weight",
    "A_log",
    "r_proj.weight",
    "r_proj.0.weight",
    "q_norm.weight",
    "f_proj.bias",
)

_SLOTS = (
    "the gate has no bias: at zero input λ = 2^(-1/τ); every λ drives a slot of keys and one of"
    " values, whose widths are not counted"
)


class GLA:
    """``S[t] = diag(λ) S[t-1] + k vᵀ``, ``log λ = log σ(b)/τ``, ``dλ/db = λ σ(-b)/τ``, γ = 1.

    One λ per key channel, or per head in simple GLA and MesaNet (arXiv 2506.05233), where τ = 1
    and γ = σ(b_proj.bias). In gated slot attention (arXiv 2409.07146) a λ of every slot keeps its
    key and its value, and what is written is γ = 1 - λ. The gate stands at zero input.
    """

    name = "gla"
    title = "GLA (gated linear attention)"
    recognised_by = (
        "gk_proj.0.weight and gk_proj.1.bias; gk_proj.bias beside g_proj; lambda_params beside"
        " a_proj and b_proj; or f_proj beside q_proj, k_proj, v_proj and g_norm, without i_proj"
    )
    equation = "λ = σ(gk_proj.1.bias)^(1/16), γ = 1"
    source = "flash-linear-attention; Yang et al. 2023, arXiv 2312.06635"
    assumptions = (GATE_LOGIT_NORMALIZER,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the gate of one of the layers."""
        return [
            match
            for layer in _LAYERS
            for match in layers_with(
                tensors,
                self.name,
                layer.required,
                optional=(_VALUE,) if layer.write else (),
                without=() if layer.bias else _OTHERS,
            )
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases of the gates.

        Raises:
            TensorError: NaN or inf in one of them.
            UsageError: the normaliser is not positive.
        """
        names, assumed = match.tensors, Assumed(options)
        layer = next(each for each in _LAYERS if names.keys() >= set(each.required))
        normalizer = 1.0
        if layer.normalizer is not None:
            choice = assumed.choose(GATE_LOGIT_NORMALIZER, default=layer.normalizer)
            normalizer = float(choice)
        if not 0 < normalizer < np.inf:
            raise UsageError(
                f"{normalizer:g} is not a value of {GATE_LOGIT_NORMALIZER.key}",
                where="--assume",
                remedy="give a positive number",
            )
        slots, write_at, sentences = [], None, list(assumed.sentences)
        if layer.bias is None:
            bias = np.zeros(stacked_rows(store, names[layer.gate[0]], 1))
            sentences.append(_SLOTS)
        else:
            bias = read_vector(store, names[layer.bias])
            slots.append(Slot(layer.bias, names[layer.bias], bias, "gate"))
        if layer.write is not None:
            write_at = read_vector(store, names[layer.write], bias.size)
            slots.append(Slot(layer.write, names[layer.write], write_at, "strength"))
        role = layer.required[0]

        def gates() -> Seen:
            gate = gate_through(store, bias, role, names[role], [layer.gate])
            if write_at is None:
                return gate
            return gate, gate_through(store, write_at, role, names[role], [("b_proj.weight",)])

        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Root(1 / normalizer, coupled=layer.bias is None),
            at=bias,
            slots=slots,
            gates=gates,
            write=None if layer.write is None else Write(parameter="strength"),
            write_at=write_at,
            tensors=None if slots else tuple(names.values()),
            multiplicity=_states(store, names, bias.size),
            assumptions=sentences,
        )


def _states(store: TensorStore, names: Mapping[str, str], heads: int) -> int:
    """What a λ of a whole head drives: keys × values, and keys × keys in MesaNet."""
    if _OUTPUT_GATE in names:
        queries, values = (names["q_proj.weight"], names[_OUTPUT_GATE])
        return rows_per(store, queries, heads) * rows_per(store, values, heads)
    if "lambda_params" in names:
        keys, values_of_head = (rows_per(store, names.get(role), heads) for role in (_KEY, _VALUE))
        return keys * (keys + values_of_head)
    return 1
