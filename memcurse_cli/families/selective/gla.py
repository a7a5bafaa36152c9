"""Gated linear attention of Yang et al. 2023, arXiv 2312.06635."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import UsageError
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_weights import low_rank_gate
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_vector
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence
from memcurse_cli.theory.gates.laws import Root

GATE_LOGIT_NORMALIZER = Assumption(
    key="gate_logit_normalizer",
    default="16",
    choices=(),
    meaning="τ of gated linear attention's λ = σ(b)^(1/τ)",
)

_BIAS = "gk_proj.1.bias"


class GLA:
    """``S[t] = diag(λ) S[t-1] + k vᵀ``, ``log λ = log σ(b)/τ``, ``dλ/db = λ σ(-b)/τ``, γ = 1.

    One λ per key channel. The gate stands at zero input, where only the bias of its second layer
    is left.
    """

    name = "gla"
    title = "GLA (gated linear attention)"
    recognised_by = "gk_proj.0.weight and gk_proj.1.bias"
    equation = "λ = σ(gk_proj.1.bias)^(1/16), γ = 1"
    source = "flash-linear-attention; Yang et al. 2023, arXiv 2312.06635"
    assumptions = (GATE_LOGIT_NORMALIZER,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the low-rank gate on the keys."""
        return [
            Match(module or self.name, {_BIAS: names[_BIAS]})
            for module, names in group_by_module(tensors, (_BIAS, "gk_proj.0.weight")).items()
            if len(names) == 2
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias of the gate.

        Raises:
            TensorError: NaN or inf in it.
            UsageError: the normaliser is not positive.
        """
        assumed = Assumed(options)
        normalizer = float(assumed.choose(GATE_LOGIT_NORMALIZER))
        if not 0 < normalizer < np.inf:
            raise UsageError(
                f"{normalizer:g} is not a value of {GATE_LOGIT_NORMALIZER.key}",
                where="--assume",
                remedy="give a positive number",
            )
        tensor = match.tensors[_BIAS]
        bias = read_vector(store, tensor)
        module = tensor.removesuffix("1.bias")
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Root(1 / normalizer),
            at=bias,
            slots=[Slot(_BIAS, tensor, bias, "gate")],
            # The gate has two layers, the first of low rank.
            gates=lambda: low_rank_gate(store, bias, f"{module}1.weight", f"{module}0.weight"),
            assumptions=assumed.sentences,
        )
