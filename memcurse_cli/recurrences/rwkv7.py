"""RWKV-7 of Peng et al. 2025, arXiv 2503.14456."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.law import Slot, law_recurrence
from memcurse_cli.recurrences.rank_one import REMOVAL
from memcurse_cli.recurrences.reading import group_by_module
from memcurse_cli.recurrences.recurrence import Recurrence
from memcurse_cli.recurrences.rwkv_gates import rwkv7_gate
from memcurse_cli.recurrences.vectors import first_name, read_vector, rows_per
from memcurse_cli.theory.decay_laws import OpenedDecay

FASTEST_DECAY = np.exp(-0.5)
"""-log λ of a gate that is fully open: λ is never below 0.545."""

# The authors' names, flash-linear-attention's and transformers', llama.cpp's.
_DECAY = ("w0", "w_lora.lora.2.bias", "time_mix_w0.weight")
_REMOVAL_KEY = ("k_k", "time_mix_k_k.weight")
_HEADS = ("r_k", "time_mix_r_k.weight")
_VALUE = ("value.weight", "v_proj.weight", "time_mix_value.weight")

_NOMINAL = "the low-rank part of the decay stands at a zero input, where only its base is left"


class RWKV7:
    """``S[t] = S[t-1] (diag(λ) - κ (a∘κ)ᵀ) + v kᵀ``, ``log λ = -e^{-1/2} σ(w0)``, γ = 1.

    ``d log λ/dw0 = log λ σ(-w0)``. λ is one per key channel and drives a column of the head's
    matrix state. Next to 1 it rounds to 1 even in double precision long before its time constant
    ends to grow, so that only log λ is carried.
    """

    name = "rwkv7"
    title = "RWKV-7"
    recognised_by = "w0 or w_lora.lora.2.bias beside k_k; time_mix_w0 beside time_mix_k_k"
    equation = "λ = exp(-e^(-1/2) σ(w0)), γ = 1, w0 the base of the decay"
    source = "RWKV-LM and flash-linear-attention; Peng et al. 2025, arXiv 2503.14456"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the base of the decay and the scale of the removal key."""
        modules = group_by_module(tensors, _DECAY + _REMOVAL_KEY + _HEADS + _VALUE)
        return [
            Match(module or self.name, names)
            for module, names in modules.items()
            if first_name(names, _DECAY) and first_name(names, _REMOVAL_KEY)
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the base of the decay alone.

        Raises:
            TensorError: NaN or inf in it.
        """
        role = next(role for role in _DECAY if role in match.tensors)
        tensor = match.tensors[role]
        base = read_vector(store, tensor)
        heads = first_name(match.tensors, _HEADS)
        shape = () if heads is None else store.tensors[heads].shape
        values = first_name(match.tensors, _VALUE)
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=OpenedDecay(float(FASTEST_DECAY)),
            at=base,
            slots=[Slot(role, tensor, base, "bias")],
            gates=lambda: rwkv7_gate(store, role, tensor, base),
            multiplicity=rows_per(store, values, shape[0]) if len(shape) == 2 else 1,
            assumptions=(_NOMINAL,),
            rank_one=REMOVAL,
        )
