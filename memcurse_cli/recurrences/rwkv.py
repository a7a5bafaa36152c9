"""RWKV-4, 5 and 6 of Peng et al. 2023 and 2024, arXiv 2305.13048 and 2404.05892."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import GateDrive, NoDrive
from memcurse_cli.recurrences.reading import group_by_module, one_to_one
from memcurse_cli.recurrences.recurrence import Floats, Recurrence
from memcurse_cli.recurrences.rwkv_gates import rwkv6_gate
from memcurse_cli.recurrences.vectors import (
    element_count,
    exponential_decay,
    first_name,
    read_vector,
    rows_per,
)
from memcurse_cli.theory.decay_laws import ExponentialDecay

# The authors' names and transformers', flash-linear-attention's, llama.cpp's.
_DECAY = ("time_decay", "w_proj.linear.lora.2.bias", "time_mix_decay.weight")
_BONUS = ("time_first", "time_faaaa", "bonus", "time_mix_first.weight")
# What makes the decay of RWKV-6 depend on the input.
_LOW_RANK = ("time_decay_w1", "w_proj.linear.lora.0.weight", "time_mix_decay_w1.weight")
_KEY = ("key.weight", "k_proj.linear.weight", "time_mix_key.weight")
_VALUE = ("value.weight", "v_proj.linear.weight", "v_proj.weight", "time_mix_value.weight")

_NOMINAL = "the low-rank part of the decay stands at a zero input, where only its base is left"


class RWKV:
    """``S[t] = diag(λ) S[t-1] + k vᵀ``, ``λ = exp(-e^{time_decay})``, γ = 1, dλ/dω = -e^ω λ.

    RWKV-4 has one λ per channel, which the numerator and the denominator of its average share.
    RWKV-5 and 6 have one per key channel, which drives a row of a head's matrix state. Only in
    RWKV-6 does λ depend on the input. The bonus of the current token does not enter the state.
    """

    name = "rwkv"
    title = "RWKV-4, RWKV-5 and RWKV-6"
    recognised_by = (
        "time_decay beside time_first or time_faaaa; w_proj.linear.lora.2.bias beside bonus;"
        " time_mix_decay beside time_mix_first"
    )
    equation = "λ = exp(-exp(time_decay)), γ = 1"
    source = "RWKV-LM, transformers and flash-linear-attention; Peng et al., arXiv 2305.13048"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a decay and the bonus of the current token."""
        modules = group_by_module(tensors, _DECAY + _BONUS + _LOW_RANK + _KEY + _VALUE)
        return [
            Match(module or self.name, names)
            for module, names in modules.items()
            if first_name(names, _DECAY) and first_name(names, _BONUS)
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the decay alone.

        Raises:
            TensorError: NaN or inf in it.
        """
        role = next(role for role in _DECAY if role in match.tensors)
        tensor = match.tensors[role]
        log_rate = read_vector(store, tensor)
        decay = exponential_decay(log_rate)
        selective = first_name(match.tensors, _LOW_RANK) is not None
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=(tensor,),
            log_eigenvalues=-decay.astype(np.complex128),
            log_gain=np.zeros(log_rate.size, dtype=np.complex128),
            parameters=(
                one_to_one(
                    role, tensor, log_rate, store.tensors[tensor].dtype, -decay * np.exp(-decay)
                ),
            ),
            multiplicity=_multiplicity(store, match.tensors, log_rate.size),
            input_dependent=selective,
            stable_by_construction=True,
            assumptions=(_NOMINAL,) if selective else (),
            gate=_drive(store, role, tensor, log_rate) if selective and options.gates else None,
        )


def _drive(store: TensorStore, role: str, tensor: str, base: Floats) -> GateDrive | NoDrive:
    gate = rwkv6_gate(store, role, tensor, base)
    if isinstance(gate, NoDrive):
        return gate
    return GateDrive(law=ExponentialDecay("base"), gate=gate, motions={role: ("base", 1.0)})


def _multiplicity(store: TensorStore, names: Mapping[str, str], size: int) -> int:
    """How many states share a λ, from the shapes of the bonus and of the projections."""
    bonus = store.tensors[names[next(role for role in _BONUS if role in names)]]
    keys = rows_per(store, first_name(names, _KEY), size)
    if len(bonus.shape) < 2 and keys == 1 and element_count(bonus) == size:
        return 2  # RWKV-4: numerator and denominator
    # The first RWKV-5 has one decay per head, and with it all of the head's key channels.
    heads = bonus.shape[0] if bonus.shape else size
    return keys * rows_per(store, first_name(names, _VALUE), heads)
