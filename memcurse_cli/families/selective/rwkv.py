"""RWKV-4 to 7 of Peng et al., arXiv 2305.13048, 2404.05892 and 2503.14456."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import Bottleneck, GateInput, NoDrive, RowNorms
from memcurse_cli.families.projections import beside
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    element_count,
    first_name,
    log_of_eigenvalues,
    one_to_one,
    read_finite,
    read_vector,
    rows_per,
)
from memcurse_cli.families.recurrence import Floats, RankOneCorrection, Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence, layers_with
from memcurse_cli.theory.gates.laws import Exponential, OpenedDecay

_MIXED = 5
"""How many parts of an RWKV-6 layer have a mixing μ of their own: r, w, k, v, g in
flash-linear-attention and w, k, v, r, g elsewhere."""


class _Moving(NamedTuple):
    """How a library stores what moves the mixing of RWKV-6: five low-rank layers in one.

    ``mixing`` is that of what they see, and ``part`` the decay's place among them.
    """

    inner: str
    outer: str
    mixing: str
    part: int


class _Layout(NamedTuple):
    """How a library stores the low-rank layer of a decay.

    ``mixing`` are the names of μ, of which it may be the ``part``-th of several in a row.
    ``transposed`` holds (inputs, rank) and (rank, n), where torch's modules hold the transposes.
    """

    inner: str
    outer: str
    mixing: tuple[str, ...]
    part: int = 0
    transposed: bool = False
    moving: _Moving | None = None


# By the base of the decay: the authors' names and transformers', flash-linear-attention's and
# llama.cpp's, of RWKV-6 and then of RWKV-7.
_LAYOUTS = {
    "time_decay": _Layout(
        "time_decay_w1",
        "time_decay_w2",
        ("time_maa_w",),
        transposed=True,
        moving=_Moving("time_maa_w1", "time_maa_w2", "time_maa_x", 0),
    ),
    "w_proj.linear.lora.2.bias": _Layout(
        "w_proj.linear.lora.0.weight",
        "w_proj.linear.lora.2.weight",
        ("x_bias",),
        part=1,
        moving=_Moving("x_proj.0.linear.weight", "x_proj.2.weight", "x_proj.0.mu", 1),
    ),
    "time_mix_decay.weight": _Layout(
        "time_mix_decay_w1.weight",
        "time_mix_decay_w2.weight",
        ("time_mix_lerp_fused.weight", "time_mix_lerp_w.weight"),
        moving=_Moving("time_mix_w1.weight", "time_mix_w2.weight", "time_mix_lerp_x.weight", 0),
    ),
    "w0": _Layout("w1", "w2", ("x_w",), transposed=True),
    "w_lora.lora.2.bias": _Layout("w_lora.lora.0.weight", "w_lora.lora.2.weight", ("x_w",)),
    "time_mix_w0.weight": _Layout(
        "time_mix_w1.weight", "time_mix_w2.weight", ("time_mix_lerp_fused.weight",), part=1
    ),
}
_BASES = tuple(_LAYOUTS)
MISSING = NoDrive("the low-rank layer of its decay, or what mixes its inputs, is not in the file")


def decay_gate(store: TensorStore, role: str, tensor: str, base: Floats) -> GateInput | NoDrive:
    """``z = w0 + V tanh(W y)`` of ``y[t] = x[t] + μ (x[t-1] - x[t])``.

    In RWKV-6 μ is moved by ``V' tanh(W' y')``, with a y' of a μ' of its own.

    Args:
        store: the open checkpoint.
        role: which of the libraries' names w0 has.
        tensor: its whole name.
        base: (n,) its values.

    Raises:
        TensorError: NaN or inf in one of the others.
    """
    layout = _LAYOUTS[role]
    names = {
        other: beside(store, tensor, other, above=role.count("."))
        for other in (*layout[:2], *layout.mixing, *(layout.moving or ())[:3])
    }
    inner, outer = (_matrix(store, names[other]) for other in layout[:2])
    if inner is None or outer is None:
        return MISSING
    if layout.transposed:
        inner, outer = inner.T, outer.T
    inputs, moving = inner.shape[1], None
    if layout.moving is not None:
        moving = _moving(store, names, layout.moving, transposed=layout.transposed)
        if moving is None or len(moving.outer) != inputs:
            return MISSING
    found = (_mixing(store, names[name], layout.part, inputs) for name in layout.mixing)
    mixing = next((each for each in found if each is not None), None)
    if mixing is None or outer.shape != (base.size, inner.shape[0]):
        return MISSING
    still = np.zeros_like(base)
    bottleneck = Bottleneck(outer, inner, mixing, moving)
    return GateInput(base, RowNorms(still, still), bottleneck=bottleneck)


def _moving(
    store: TensorStore, names: Mapping[str, str | None], moving: _Moving, *, transposed: bool
) -> Bottleneck | None:
    """The part of the five low-rank layers that moves the mixing of the decay."""
    inner, outer = _matrix(store, names[moving.inner]), names[moving.outer]
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
        part = values.reshape(inputs, _MIXED, rank)[:, moving.part]
    else:  # (5, rank, inputs), or (5, inputs, rank) in llama.cpp
        part = values[moving.part].T if transposed else values[moving.part]
    mixing = _mixing(store, names[moving.mixing], 0, inputs)
    if mixing is None or part.shape != (inputs, rank):
        return None
    return Bottleneck(part, inner[moving.part * rank : (moving.part + 1) * rank], mixing)


def _matrix(store: TensorStore, tensor: str | None) -> Floats | None:
    if tensor is None or len(store.tensors[tensor].shape) != 2:
        return None
    values: Floats = read_finite(store, tensor)
    return values


def _mixing(store: TensorStore, tensor: str | None, part: int, inputs: int) -> Floats | None:
    """One of several vectors μ in a row, of any shape, or the only one."""
    if tensor is None:
        return None
    count = element_count(store.tensors[tensor])
    if count == inputs:
        part = 0
    if inputs < 1 or count % inputs or count < (part + 1) * inputs:
        return None
    values: Floats = read_finite(store, tensor).reshape(-1, inputs)[part]
    return values


_NOMINAL = "the low-rank part of the decay stands at a zero input, where only its base is left"

REMOVAL = RankOneCorrection(
    "-κ (a∘κ)ᵀ (κ of norm 1, 0 < a < 1)", lowest=math.expm1(-math.exp(-0.5))
)
"""``diag(λ) - κ (a∘κ)ᵀ`` is similar to the symmetric ``diag(λ) - uuᵀ`` with ``u = a^½∘κ``,
‖u‖ < 1: Weyl's inequality gives min λ - 1, where λ > exp(-e^(-1/2)) for any input, and interlacing
holds the others."""

_DECAY_7 = _BASES[3:]
_REMOVAL_KEY = ("k_k", "time_mix_k_k.weight")
_HEADS = ("r_k", "time_mix_r_k.weight")
_VALUE = ("value.weight", "v_proj.linear.weight", "v_proj.weight", "time_mix_value.weight")


class RWKV7:
    """``S[t] = S[t-1] (diag(λ) - κ (a∘κ)ᵀ) + v kᵀ``, ``log λ = -e^{-1/2} σ(w0)``, γ = 1.

    λ is one per key channel, never below 0.545, and drives a column of the head's matrix state.
    """

    name = "rwkv7"
    title = "RWKV-7"
    recognised_by = "w0 or w_lora.lora.2.bias beside k_k; time_mix_w0 beside time_mix_k_k"
    equation = "λ = exp(-e^(-1/2) σ(w0)), γ = 1, w0 the base of the decay"
    source = "RWKV-LM and flash-linear-attention; Peng et al. 2025, arXiv 2503.14456"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the base of the decay and the scale of the removal key."""
        return layers_with(tensors, self.name, (_DECAY_7, _REMOVAL_KEY), optional=_HEADS + _VALUE)

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
        values = first_name(match.tensors, _VALUE)
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=OpenedDecay(math.exp(-0.5)),
            at=base,
            slots=[Slot(role, tensor, base, "bias")],
            gates=lambda: decay_gate(store, role, tensor, base),
            multiplicity=rows_per(store, values, shape[0]) if len(shape) == 2 else 1,
            assumptions=(_NOMINAL,),
            rank_one=REMOVAL,
        )


_DECAY = _BASES[:3]
_BONUS = ("time_first", "time_faaaa", "bonus", "time_mix_first.weight")
# What makes the decay of RWKV-6 depend on the input.
_LOW_RANK = tuple(_LAYOUTS[role].inner for role in _DECAY)
_KEY = ("key.weight", "k_proj.linear.weight", "time_mix_key.weight")

_CONVERTED = (
    "time_decay is {stored}, as the converter of the rwkv package has stored it; training moves w,"
    " not what is stored"
)


class RWKV:
    """``S[t] = diag(λ) S[t-1] + k vᵀ``, ``λ = exp(-e^{time_decay})``, γ = 1.

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
        return layers_with(tensors, self.name, (_DECAY, _BONUS), optional=_LOW_RANK + _KEY + _VALUE)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the decay alone.

        Raises:
            TensorError: NaN or inf in it, or values that a converter cannot have written.
        """
        role = next(role for role in _DECAY if role in match.tensors)
        tensor = match.tensors[role]
        stored = read_vector(store, tensor)
        selective = first_name(match.tensors, _LOW_RANK) is not None
        recurrence = law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=OpenedDecay(1.0, "base", opening=Exponential()),
            at=stored,
            slots=[Slot(role, tensor, stored, "base")],
            gates=lambda: decay_gate(store, role, tensor, stored) if selective else None,
            multiplicity=_multiplicity(store, match.tensors, stored.size),
            assumptions=(_NOMINAL,) if selective else (),
            input_dependent=selective,
        )
        if role == _DECAY[0] and not selective and _is_converted(store, tensor):
            return _converted(store, recurrence, tensor, stored)
        return recurrence


def _is_converted(store: TensorStore, tensor: str) -> bool:
    """Whether the file has the converter's mark, or the transposed weights that outlive it."""
    hidden = beside(store, tensor, "ffn.key.weight", above=1)
    shape = () if hidden is None else store.tensors[hidden].shape
    return "_strategy" in store.metadata or (len(shape) == 2 and shape[0] < shape[1])


def _converted(
    store: TensorStore, recurrence: Recurrence, tensor: str, values: Floats
) -> Recurrence:
    """With log λ from what the converter stores under the tensor's shape.

    Raises:
        TensorError: the values cannot be that.
    """
    spec = store.tensors[tensor]
    if len(spec.shape) == 3:
        stored, low, high = "λ = exp(-exp(w))", 0.0, 1.0
        log, derivative = log_of_eigenvalues(values), np.ones_like(values)
    else:
        stored, low, high = "-exp(w)", -np.inf, 0.0
        kept = np.clip(values, -LARGEST_DECAY, 0)
        log, derivative = kept.astype(np.complex128), np.exp(kept)
    if values.min() < low or values.max() > high:
        raise TensorError(
            f"the rwkv package has converted this file, and its values are not those of {stored}",
            where=tensor,
            remedy="name the checkpoint from before it was converted",
        )
    return replace(
        recurrence,
        log_eigenvalues=log,
        parameters=(one_to_one(_DECAY[0], tensor, values, spec.dtype, derivative),),
        stable_by_construction=False,
        assumptions=(_CONVERTED.format(stored=stored),),
    )


def _multiplicity(store: TensorStore, names: Mapping[str, str], size: int) -> int:
    """How many states share a λ, from the shapes of the bonus and of the projections."""
    bonus = store.tensors[names[next(role for role in _BONUS if role in names)]]
    keys = rows_per(store, first_name(names, _KEY), size)
    if len(bonus.shape) < 2 and keys == 1 and element_count(bonus) == size:
        return 2  # RWKV-4: numerator and denominator
    # The first RWKV-5 has one decay per head, and with it all of the head's key channels.
    heads = bonus.shape[0] if bonus.shape else size
    return keys * rows_per(store, first_name(names, _VALUE), heads)
