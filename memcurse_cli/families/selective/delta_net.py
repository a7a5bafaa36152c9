"""The delta rule of DeltaNet, Yang et al. 2024, arXiv 2406.06484, once or more in a step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.family import Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, NoDrive
from memcurse_cli.families.gate_weights import projected_gate
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import rows_per, stacked_rows
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.rank_one import NEGATIVE_EIGENVALUES, RANDOM_KEYS, delta_rule
from memcurse_cli.theory.gates.laws import Overwrite

_REQUIRED = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "b_proj.weight", "o_norm.weight")
# Each of these gives the state a decay of its own: gated delta nets, KDA, Comba, RWKV-7.
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
_PRODUCT = NoDrive("a step writes several times in a row, which no law of gates has")


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
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, _REQUIRED + _GATED).items()
            if names.keys() == set(_REQUIRED) and len(tensors[names["b_proj.weight"]].shape) == 2
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Count the heads; b_proj is read where its band is asked for.

        Raises:
            TensorError: shapes do not fit together, or NaN or inf in what is read.
        """
        queries, keys, values, strengths = (match.tensors[role] for role in _REQUIRED[:4])
        count = stacked_rows(store, keys, stacked_rows(store, queries, 1))
        heads = stacked_rows(store, strengths, count)
        assumed = Assumed(options, store.config)
        # The library lets the β of a DeltaProduct reach 2 unless told otherwise.
        default = "true" if count > 1 else None
        negative = assumed.choose(NEGATIVE_EIGENVALUES, default=default) == "true"
        width = rows_per(store, queries, heads)
        gate: GateDrive | NoDrive | None = None
        if options.gates:
            gate = _drive(store, match, heads, width, negative=negative) if count == 1 else _PRODUCT
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(match.tensors.values()),
            log_eigenvalues=np.zeros(heads, dtype=np.complex128),
            log_gain=np.full(heads, 0.0 if negative else np.log(0.5), dtype=np.complex128),
            parameters=(),
            multiplicity=width * rows_per(store, values, count * heads),
            input_dependent=True,
            assumptions=(
                *assumed.sentences,
                *((RANDOM_KEYS,) if isinstance(gate, GateDrive) else ()),
            ),
            rank_one=delta_rule(negative=negative, count=count),
            gate=gate,
        )


def _drive(
    store: TensorStore, match: Match, heads: int, keys: int, *, negative: bool
) -> GateDrive | None:
    """What moves β, and with it how much a step overwrites."""
    gate = projected_gate(store, np.zeros(heads), match.tensors["b_proj.weight"])
    factor = 2.0 if negative else 1.0
    if gate is None:
        return None
    return GateDrive(Overwrite(keys, factor), gate, nominal=Overwrite(np.inf, factor))
