"""The delta rule of DeltaNet, Yang et al. 2024, arXiv 2406.06484."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.family import Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import GateDrive
from memcurse_cli.recurrences.projected_gates import projected_gate
from memcurse_cli.recurrences.rank_one import NEGATIVE_EIGENVALUES, RANDOM_KEYS, delta_rule
from memcurse_cli.recurrences.reading import group_by_module
from memcurse_cli.recurrences.recurrence import Recurrence
from memcurse_cli.recurrences.vectors import rows_per
from memcurse_cli.theory.delta_rule import Overwrite

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


class DeltaNet:
    """``S[t] = (I - β k kᵀ) S[t-1] + β k vᵀ``: λ = 1 at zero input, where k vanishes.

    β = σ(b_proj x) is 1/2 there, or 1 where it reaches 2, and is the gain γ. Nothing decays by
    itself: the eigenvalue is 1 - β along the key and 1 across it.
    """

    name = "delta_net"
    title = "DeltaNet"
    recognised_by = "q_proj, k_proj, v_proj, b_proj.weight and o_norm.weight, without A_log"
    equation = "λ = 1 at zero input, γ = β = 1/2"
    source = "flash-linear-attention; Yang et al. 2024, arXiv 2406.06484"
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
            TensorError: the layer has no head, or NaN or inf in what is read.
        """
        assumed = Assumed(options, store.config)
        negative = assumed.choose(NEGATIVE_EIGENVALUES) == "true"
        heads = store.tensors[match.tensors["b_proj.weight"]].shape[0]
        if heads < 1:
            raise TensorError(
                "the tensor is empty",
                where=match.tensors["b_proj.weight"],
                remedy="use another checkpoint",
            )
        keys, values = (
            rows_per(store, match.tensors[role], heads)
            for role in ("k_proj.weight", "v_proj.weight")
        )
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(match.tensors.values()),
            log_eigenvalues=np.zeros(heads, dtype=np.complex128),
            log_gain=np.full(heads, 0.0 if negative else np.log(0.5), dtype=np.complex128),
            parameters=(),
            multiplicity=keys * values,
            input_dependent=True,
            assumptions=(*assumed.sentences, *((RANDOM_KEYS,) if options.gates else ())),
            rank_one=delta_rule(negative=negative),
            gate=_drive(store, match, heads, keys, negative=negative) if options.gates else None,
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
