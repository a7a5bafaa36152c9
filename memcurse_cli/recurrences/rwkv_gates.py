"""What the decays of RWKV-6 and RWKV-7 see: two inputs in a row, mixed, behind a low-rank layer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.recurrences.bottleneck import Bottleneck
from memcurse_cli.recurrences.gate_drive import GateInput, NoDrive, RowNorms
from memcurse_cli.recurrences.projections import beside
from memcurse_cli.recurrences.reading import read_finite
from memcurse_cli.recurrences.recurrence import Floats

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
