"""RWKV-4, 5 and 6 of Peng et al. 2023 and 2024, arXiv 2305.13048 and 2404.05892."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import GateDrive, NoDrive
from memcurse_cli.recurrences.projections import beside
from memcurse_cli.recurrences.reading import (
    LARGEST_DECAY,
    group_by_module,
    log_of_eigenvalues,
    one_to_one,
)
from memcurse_cli.recurrences.recurrence import Complexes, Floats, Recurrence
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
_CONVERTED = (
    "time_decay is {stored}, as the converter of the rwkv package has stored it; training moves w,"
    " not what is stored"
)


class RWKV:
    """``S[t] = diag(λ) S[t-1] + k vᵀ``, ``λ = exp(-e^{time_decay})``, γ = 1, dλ/dω = -e^ω λ.

    RWKV-4 has one λ per channel, which the numerator and the denominator of its average share.
    RWKV-5 and 6 have one per key channel, which drives a row of a head's matrix state. Only in
    RWKV-6 does λ depend on the input. The bonus of the current token does not enter the state.

    The converter of the rwkv package (rwkv/model.py) stores ``-exp(w)`` for the w of RWKV-4, λ
    itself as (heads, any, 1) for RWKV-5, and leaves RWKV-6 as it is.
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
            TensorError: NaN or inf in it, or values that a converter cannot have written.
        """
        role = next(role for role in _DECAY if role in match.tensors)
        tensor = match.tensors[role]
        log_rate = read_vector(store, tensor)
        selective = first_name(match.tensors, _LOW_RANK) is not None
        converted = role == _DECAY[0] and not selective and _is_converted(store, tensor)
        if converted:
            log_eigenvalues, derivative, sentence = _read_converted(store, tensor, log_rate)
        else:
            decay = exponential_decay(log_rate)
            log_eigenvalues, derivative = -decay.astype(np.complex128), -decay * np.exp(-decay)
            sentence = _NOMINAL
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=(tensor,),
            log_eigenvalues=log_eigenvalues,
            log_gain=np.zeros(log_rate.size, dtype=np.complex128),
            parameters=(
                one_to_one(role, tensor, log_rate, store.tensors[tensor].dtype, derivative),
            ),
            multiplicity=_multiplicity(store, match.tensors, log_rate.size),
            input_dependent=selective,
            stable_by_construction=not converted,
            assumptions=(sentence,) if selective or converted else (),
            gate=_drive(store, role, tensor, log_rate) if selective and options.gates else None,
        )


def _is_converted(store: TensorStore, tensor: str) -> bool:
    """Whether the file has the converter's mark, or the transposed weights that outlive it."""
    hidden = beside(store, tensor, "ffn.key.weight", above=1)
    shape = () if hidden is None else store.tensors[hidden].shape
    return "_strategy" in store.metadata or (len(shape) == 2 and shape[0] < shape[1])


def _read_converted(
    store: TensorStore, tensor: str, values: Floats
) -> tuple[Complexes, Floats, str]:
    """log λ, its λ's derivative by what is stored, and what that is.

    Raises:
        TensorError: the values cannot be what the converter stores under this shape.
    """
    if len(store.tensors[tensor].shape) == 3:
        stored, low, high = "λ = exp(-exp(w))", 0.0, 1.0
        log_eigenvalues, derivative = log_of_eigenvalues(values), np.ones_like(values)
    else:
        stored, low, high = "-exp(w)", -np.inf, 0.0
        kept = np.clip(values, -LARGEST_DECAY, 0)
        log_eigenvalues, derivative = kept.astype(np.complex128), np.exp(kept)
    if values.min() < low or values.max() > high:
        raise TensorError(
            f"the rwkv package has converted this file, and its values are not those of {stored}",
            where=tensor,
            remedy="name the checkpoint from before it was converted",
        )
    return log_eigenvalues, derivative, _CONVERTED.format(stored=stored)


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
