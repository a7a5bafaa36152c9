"""RWKV-4, 5 and 6 of Peng et al. 2023 and 2024, arXiv 2305.13048 and 2404.05892.

What the decays of RWKV-6 and RWKV-7 see: two inputs in a row, mixed, behind a low-rank layer.

RWKV-7 of Peng et al. 2025, arXiv 2503.14456.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import Bottleneck, GateDrive, GateInput, NoDrive, RowNorms
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside
from memcurse_cli.families.reading import LARGEST_DECAY, log_of_eigenvalues, one_to_one, read_finite
from memcurse_cli.families.recurrence import Complexes, Floats, RankOneCorrection, Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence
from memcurse_cli.families.vectors import (
    element_count,
    exponential_decay,
    first_name,
    read_vector,
    rows_per,
)
from memcurse_cli.theory.gates.laws import ExponentialDecay, OpenedDecay

MISSING = NoDrive("the low-rank layer of its decay, or what mixes its inputs, is not in the file")

# r, w, k, v, g in flash-linear-attention, w, k, v, r, g elsewhere; r, w, k, v, a, g in RWKV-7.
_MIXED = 5
_FIRST, _SECOND = 0, 1


class _Layout(NamedTuple):
    """How a library stores the low-rank layer of a decay.

    ``transposed`` holds (inputs, rank) and (rank, n), where torch's modules hold the transposes.
    """

    base: str
    inner: str
    outer: str
    mixing: tuple[tuple[str, int], ...]
    transposed: bool


class _Moving(NamedTuple):
    """How a library stores what moves the mixing of RWKV-6: five low-rank layers in one."""

    inner: str
    outer: str
    mixing: str
    part: int


_LAYOUTS6 = (
    (
        _Layout("time_decay", "time_decay_w1", "time_decay_w2", (("time_maa_w", _FIRST),), True),
        _Moving("time_maa_w1", "time_maa_w2", "time_maa_x", _FIRST),
    ),
    (
        _Layout(
            "w_proj.linear.lora.2.bias",
            "w_proj.linear.lora.0.weight",
            "w_proj.linear.lora.2.weight",
            (("x_bias", _SECOND),),
            False,
        ),
        _Moving("x_proj.0.linear.weight", "x_proj.2.weight", "x_proj.0.mu", _SECOND),
    ),
    (
        _Layout(
            "time_mix_decay.weight",
            "time_mix_decay_w1.weight",
            "time_mix_decay_w2.weight",
            (("time_mix_lerp_fused.weight", _FIRST), ("time_mix_lerp_w.weight", _FIRST)),
            False,
        ),
        _Moving("time_mix_w1.weight", "time_mix_w2.weight", "time_mix_lerp_x.weight", _FIRST),
    ),
)
_LAYOUTS7 = (
    _Layout("w0", "w1", "w2", (("x_w", _FIRST),), True),
    _Layout(
        "w_lora.lora.2.bias",
        "w_lora.lora.0.weight",
        "w_lora.lora.2.weight",
        (("x_w", _FIRST),),
        False,
    ),
    _Layout(
        "time_mix_w0.weight",
        "time_mix_w1.weight",
        "time_mix_w2.weight",
        (("time_mix_lerp_fused.weight", _SECOND),),
        False,
    ),
)


def rwkv7_gate(store: TensorStore, role: str, tensor: str, base: Floats) -> GateInput | NoDrive:
    """``z = w0 + V tanh(W y)`` of ``y[t] = x[t] + μ (x[t-1] - x[t])``.

    Args:
        store: the open checkpoint.
        role: which of the libraries' names w0 has.
        tensor: its whole name.
        base: (n,) its values.

    Raises:
        TensorError: NaN or inf in one of the others.
    """
    layout = next(layout for layout in _LAYOUTS7 if layout.base == role)
    return _gate(base, _bottleneck(store, tensor, layout, base.size, None))


def rwkv6_gate(store: TensorStore, role: str, tensor: str, base: Floats) -> GateInput | NoDrive:
    """As `rwkv7_gate`, with a μ that is moved by ``V' tanh(W' y')`` of a y' of a μ' of its own.

    Raises:
        TensorError: NaN or inf in one of the tensors.
    """
    layout, moving = next(pair for pair in _LAYOUTS6 if pair[0].base == role)
    moved = _moving(store, tensor, role, moving, transposed=layout.transposed)
    if moved is None:
        return MISSING
    return _gate(base, _bottleneck(store, tensor, layout, base.size, moved))


def _gate(base: Floats, bottleneck: Bottleneck | None) -> GateInput | NoDrive:
    if bottleneck is None:
        return MISSING
    zeros = np.zeros_like(base)
    return GateInput(base, RowNorms(zeros, zeros), bottleneck=bottleneck)


def _bottleneck(
    store: TensorStore, tensor: str, layout: _Layout, size: int, moving: Bottleneck | None
) -> Bottleneck | None:
    inner = _matrix(store, _beside(store, tensor, layout.base, layout.inner))
    outer = _matrix(store, _beside(store, tensor, layout.base, layout.outer))
    if inner is None or outer is None:
        return None
    if layout.transposed:
        inner, outer = inner.T, outer.T
    inputs = inner.shape[1]
    for name, part in layout.mixing:
        mixing = _mixing(store, _beside(store, tensor, layout.base, name), part, inputs)
        fits = outer.shape == (size, inner.shape[0])
        if mixing is not None and fits and (moving is None or len(moving.outer) == inputs):
            return Bottleneck(outer, inner, mixing, moving)
    return None


def _moving(
    store: TensorStore, tensor: str, base: str, names: _Moving, *, transposed: bool
) -> Bottleneck | None:
    """The part of the five low-rank layers that moves the mixing of the decay."""
    inner = _matrix(store, _beside(store, tensor, base, names.inner))
    outer = _beside(store, tensor, base, names.outer)
    if inner is None or outer is None:
        return None
    if transposed:
        inner = inner.T
    rank, inputs = inner.shape[0] // _MIXED, inner.shape[1]
    shape = store.tensors[outer].shape
    if inner.shape[0] != _MIXED * rank or sorted(shape) != sorted(
        (inputs, _MIXED * rank) if len(shape) == 2 else (_MIXED, rank, inputs)
    ):
        return None
    values = read_finite(store, outer)
    if len(shape) == 2:  # (inputs, 5 rank)
        part = values.reshape(inputs, _MIXED, rank)[:, names.part]
    else:  # (5, rank, inputs), or (5, inputs, rank) in llama.cpp
        part = values[names.part].T if transposed else values[names.part]
    mixing = _mixing(store, _beside(store, tensor, base, names.mixing), 0, inputs)
    if mixing is None or part.shape != (inputs, rank):
        return None
    return Bottleneck(part, inner[names.part * rank : (names.part + 1) * rank], mixing)


def _beside(store: TensorStore, tensor: str, role: str, other: str) -> str | None:
    """The tensor that another role of the same module has."""
    return beside(store, tensor, other, above=role.count("."))


def _matrix(store: TensorStore, tensor: str | None) -> Floats | None:
    if tensor is None or len(store.tensors[tensor].shape) != 2:
        return None
    values: Floats = read_finite(store, tensor)
    return values


def _mixing(store: TensorStore, tensor: str | None, part: int, inputs: int) -> Floats | None:
    """One of several vectors μ in a row, of any shape, or the only one."""
    if tensor is None:
        return None
    count = int(np.prod(store.tensors[tensor].shape))
    if count == inputs:
        part = 0
    if inputs < 1 or count % inputs or count < (part + 1) * inputs:
        return None
    values: Floats = read_finite(store, tensor).reshape(-1, inputs)[part]
    return values


REMOVAL = RankOneCorrection(
    "-κ (a∘κ)ᵀ (κ of norm 1, 0 < a < 1)", lowest=math.expm1(-math.exp(-0.5))
)
"""``diag(λ) - κ (a∘κ)ᵀ`` is similar to the symmetric ``diag(λ) - uuᵀ`` with ``u = a^½∘κ``,
‖u‖ < 1: Weyl's inequality gives min λ - 1, where λ > exp(-e^(-1/2)) for any input, and interlacing
holds the others."""

FASTEST_DECAY = np.exp(-0.5)
"""-log λ of a gate that is fully open: λ is never below 0.545."""

# The authors' names, flash-linear-attention's and transformers', llama.cpp's.
_DECAY_7 = ("w0", "w_lora.lora.2.bias", "time_mix_w0.weight")
_REMOVAL_KEY = ("k_k", "time_mix_k_k.weight")
_HEADS = ("r_k", "time_mix_r_k.weight")
_VALUE_7 = ("value.weight", "v_proj.weight", "time_mix_value.weight")

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
        modules = group_by_module(tensors, _DECAY_7 + _REMOVAL_KEY + _HEADS + _VALUE_7)
        return [
            Match(module or self.name, names)
            for module, names in modules.items()
            if first_name(names, _DECAY_7) and first_name(names, _REMOVAL_KEY)
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the base of the decay alone.

        Raises:
            TensorError: NaN or inf in it.
        """
        role = next(role for role in _DECAY_7 if role in match.tensors)
        tensor = match.tensors[role]
        base = read_vector(store, tensor)
        heads = first_name(match.tensors, _HEADS)
        shape = () if heads is None else store.tensors[heads].shape
        values = first_name(match.tensors, _VALUE_7)
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


# The authors' names and transformers', flash-linear-attention's, llama.cpp's.
_DECAY = ("time_decay", "w_proj.linear.lora.2.bias", "time_mix_decay.weight")
_BONUS = ("time_first", "time_faaaa", "bonus", "time_mix_first.weight")
# What makes the decay of RWKV-6 depend on the input.
_LOW_RANK = ("time_decay_w1", "w_proj.linear.lora.0.weight", "time_mix_decay_w1.weight")
_KEY = ("key.weight", "k_proj.linear.weight", "time_mix_key.weight")
_VALUE = ("value.weight", "v_proj.linear.weight", "v_proj.weight", "time_mix_value.weight")


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
