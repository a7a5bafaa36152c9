"""RWKV-4 to 7 of Peng et al., arXiv 2305.13048, 2404.05892 and 2503.14456."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from memcurse_cli.families.family import Layout
from memcurse_cli.families.gate_inputs import GateInput, NoDrive
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    beside,
    log_of_eigenvalues,
    misfit,
    read_finite,
)
from memcurse_cli.families.recurrence import Floats, RankOneCorrection, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Slot
from memcurse_cli.theory.gates.laws import Exponential, OpenedDecay
from memcurse_cli.theory.gates.moments import normal_nodes

_HIGHEST_ORDER = 15  # of the Hermite functions that two different units share


@dataclass(frozen=True)
class _Bottleneck:
    """``V tanh(W y)`` of ``y[t] = x[t] + μ (x[t-1] - x[t])``: what a decay sees of its input."""

    outer: Floats  # (n, rank) V
    inner: Floats  # (rank, inputs) W
    mixing: Floats  # (inputs,) μ, how much of the previous input each component takes
    moving: _Bottleneck | None = None  # what the input adds to μ at every step (RWKV-6)

    def variance(self, input_second_moment: float) -> Floats:
        """(n,) E of the square, for independent components of x, white in time.

        y has the variance ``((1-μ)² + μ² + 2 E m²) E x²``, with m what moves μ, an odd function of
        the input whose components are taken as independent of those that it multiplies.
        """
        mixed = (1 - self.mixing) ** 2 + self.mixing**2
        if self.moving is not None:
            mixed = mixed + 2 * self.moving.variance(input_second_moment)
        gram = (self.inner * (mixed * input_second_moment)) @ self.inner.T
        variance: Floats = np.sum((self.outer @ _tanh_covariance(gram)) * self.outer, axis=1)
        return np.maximum(variance, 0.0)


def _tanh_covariance(covariance: Floats) -> Floats:
    """E tanh(a) tanh(b) of centred Gaussians a, b with a given covariance (rank, rank).

    Mehler: with ``c_k(σ) = E tanh(σ g) He_k(g) / √k!`` of a standard normal g it is
    ``Σ_k c_k(σ_a) c_k(σ_b) ρᵏ`` over odd k. The diagonal, where the sum converges slowly, is
    E tanh² itself.
    """
    spread = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    nodes, weights = normal_nodes(np.zeros_like(spread), spread)
    bent = np.tanh(spread * nodes[:, None])
    alive = np.where(spread > 0, spread, 1.0)
    correlation = np.clip(covariance / alive / alive[:, None], -1.0, 1.0)
    result: Floats = np.zeros_like(correlation)
    before, hermite = np.zeros_like(nodes), np.ones_like(nodes)  # He_k / √k!
    for order in range(1, _HIGHEST_ORDER + 1):
        following = (nodes * hermite - math.sqrt(order - 1) * before) / math.sqrt(order)
        before, hermite = hermite, following
        if order % 2:
            coefficient = (weights * hermite) @ bent
            result += coefficient * coefficient[:, None] * correlation**order
    np.fill_diagonal(result, weights @ bent**2)
    return result


# How many parts of an RWKV-6 layer have a mixing μ of their own: r, w, k, v, g in
# flash-linear-attention and w, k, v, r, g elsewhere.
_MIXED = 5


class _LowRank(NamedTuple):
    """How a library stores the low-rank layer ``V tanh(W y)`` of a decay: W, V and μ by name.

    ``moving`` are the W, V and μ of what moves the mixing of RWKV-6: five low-rank layers in one,
    in the order of the μ.
    """

    inner: str
    outer: str
    mixing: tuple[str, ...]
    part: int = 0  # which of several μ in a row is the decay's
    transposed: bool = False  # (inputs, rank) and (rank, n), unlike torch's modules
    moving: tuple[str, str, str] | None = None


# By the base of the decay: the authors' names and transformers', flash-linear-attention's and
# llama.cpp's, of RWKV-6 and then of RWKV-7.
_LOW_RANK = {
    "time_decay": _LowRank(
        "time_decay_w1",
        "time_decay_w2",
        ("time_maa_w",),
        transposed=True,
        moving=("time_maa_w1", "time_maa_w2", "time_maa_x"),
    ),
    "w_proj.linear.lora.2.bias": _LowRank(
        "w_proj.linear.lora.0.weight",
        "w_proj.linear.lora.2.weight",
        ("x_bias",),
        part=1,
        moving=("x_proj.0.linear.weight", "x_proj.2.weight", "x_proj.0.mu"),
    ),
    "time_mix_decay.weight": _LowRank(
        "time_mix_decay_w1.weight",
        "time_mix_decay_w2.weight",
        ("time_mix_lerp_fused.weight", "time_mix_lerp_w.weight"),
        moving=("time_mix_w1.weight", "time_mix_w2.weight", "time_mix_lerp_x.weight"),
    ),
    "w0": _LowRank("w1", "w2", ("x_w",), transposed=True),
    "w_lora.lora.2.bias": _LowRank("w_lora.lora.0.weight", "w_lora.lora.2.weight", ("x_w",)),
    "time_mix_w0.weight": _LowRank(
        "time_mix_w1.weight", "time_mix_w2.weight", ("time_mix_lerp_fused.weight",), part=1
    ),
}
_BASES = tuple(_LOW_RANK)
MISSING = NoDrive("the low-rank layer of its decay, or what mixes its inputs, is not in the file")


def _decay_gate(layer: Layer, role: str, base: Floats) -> GateInput | NoDrive:
    """``z = w0 + V tanh(W y)`` of ``y[t] = x[t] + μ (x[t-1] - x[t])``.

    In RWKV-6 μ is moved by ``V' tanh(W' y')``, with a y' of a μ' of its own.
    """
    names, moving = _LOW_RANK[role], None
    inner, outer = (_matrix(layer, role, name) for name in names[:2])
    if inner is None or outer is None or outer.shape != (base.size, len(inner)):
        return MISSING
    inputs = inner.shape[1]
    if names.moving is not None:
        moving = _moving(layer, role, *names.moving)
        if moving is None or len(moving.outer) != inputs:
            return MISSING
    found = (_mixing(layer, role, name, names.part, inputs) for name in names.mixing)
    mixing = next((each for each in found if each is not None), None)
    if mixing is None:
        return MISSING
    bottleneck = _Bottleneck(outer, inner, mixing, moving)
    return GateInput(base, further=bottleneck.variance)


def _moving(layer: Layer, role: str, inner: str, outer: str, mixing: str) -> _Bottleneck | None:
    """The part of the five low-rank layers that moves the mixing of the decay."""
    below, above = _matrix(layer, role, inner), layer.beside(role, outer)
    if below is None or above is None:
        return None
    part, transposed = _LOW_RANK[role].part, _LOW_RANK[role].transposed
    rank, inputs = below.shape[0] // _MIXED, below.shape[1]
    shape = layer.store.tensors[above].shape
    if below.shape[0] != _MIXED * rank or sorted(shape) != sorted(
        (inputs, _MIXED * rank) if len(shape) == 2 else (_MIXED, rank, inputs)
    ):
        return None
    values = read_finite(layer.store, above)
    if len(shape) == 2:  # (inputs, 5 rank)
        own = values.reshape(inputs, _MIXED, rank)[:, part]
    else:  # (5, rank, inputs), or (5, inputs, rank) in llama.cpp
        own = values[part].T if transposed else values[part]
    mixed = _mixing(layer, role, mixing, 0, inputs)
    if mixed is None or own.shape != (inputs, rank):
        return None
    return _Bottleneck(own, below[part * rank : (part + 1) * rank], mixed)


def _matrix(layer: Layer, role: str, name: str) -> Floats | None:
    """(outputs, inputs) of a linear layer."""
    tensor = layer.beside(role, name)
    if tensor is None or len(layer.store.tensors[tensor].shape) != 2:
        return None
    values: Floats = read_finite(layer.store, tensor)
    return values.T if _LOW_RANK[role].transposed else values


def _mixing(layer: Layer, role: str, name: str, part: int, inputs: int) -> Floats | None:
    """One of several vectors μ in a row, of any shape, or the only one."""
    tensor = layer.beside(role, name)
    count = 0 if tensor is None else math.prod(layer.store.tensors[tensor].shape)
    if count == inputs:
        part = 0
    if tensor is None or inputs < 1 or count % inputs or count < (part + 1) * inputs:
        return None
    values: Floats = read_finite(layer.store, tensor).reshape(-1, inputs)[part]
    return values


_NOMINAL = "the low-rank part of the decay stands at a zero input, where only its base is left"

REMOVAL = RankOneCorrection(
    "-κ (a∘κ)ᵀ (κ of norm 1, 0 < a < 1)", lowest=math.expm1(-math.exp(-0.5))
)
"""``diag(λ) - κ (a∘κ)ᵀ`` is similar to the symmetric ``diag(λ) - uuᵀ`` with ``u = a^½∘κ``,
‖u‖ < 1: Weyl's inequality gives min λ - 1, where λ > exp(-e^(-1/2)) for any input, and interlacing
holds the others."""

_DECAY_7 = _BASES[3:]
_HEADS = ("r_k", "time_mix_r_k.weight")
_VALUE = ("value.weight", "v_proj.linear.weight", "v_proj.weight", "time_mix_value.weight")


class RWKV7(LawFamily):
    """``S[t] = S[t-1] (diag(λ) - κ (a∘κ)ᵀ) + v kᵀ``, with a λ ≥ 0.545 for each key channel."""

    name = "rwkv7"
    title = "RWKV-7"
    recognised_by = "w0 or w_lora.lora.2.bias beside k_k; time_mix_w0 beside time_mix_k_k"
    equation = "λ = exp(-e^(-1/2) σ(w0)), γ = 1, w0 the base of the decay"
    source = "RWKV-LM and flash-linear-attention; Peng et al. 2025, arXiv 2503.14456"
    layouts = (Layout((_DECAY_7, ("k_k", "time_mix_k_k.weight")), optional=_HEADS + _VALUE),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        role = layer.first(_DECAY_7)
        base = layer.vector(role)
        shape = next((layer.shape(each) for each in _HEADS if each in layer.names), ())
        return layer.gated(
            OpenedDecay(math.exp(-0.5)),
            base,
            [Slot(role, base, "bias")],
            gates=lambda: _decay_gate(layer, role, base),
            multiplicity=layer.rows_per(shape[0], *_VALUE) if len(shape) == 2 else 1,
            assumptions=(_NOMINAL,),
            rank_one=REMOVAL,
        )


_DECAY = _BASES[:3]
_BONUS = ("time_first", "time_faaaa", "bonus", "time_mix_first.weight")
# What makes the decay of RWKV-6 depend on the input.
_SELECTIVE = tuple(_LOW_RANK[role].inner for role in _DECAY)
_KEY = ("key.weight", "k_proj.linear.weight", "time_mix_key.weight")

_CONVERTED = (
    "time_decay is {stored}, as the converter of the rwkv package has stored it; training moves w,"
    " not what is stored"
)


class RWKV(LawFamily):
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
    layouts = (Layout((_DECAY, _BONUS), optional=_SELECTIVE + _KEY + _VALUE),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        role = layer.first(_DECAY)
        stored = layer.vector(role)
        selective = not layer.names.keys().isdisjoint(_SELECTIVE)
        recurrence = layer.gated(
            OpenedDecay(1.0, "base", opening=Exponential()),
            stored,
            [Slot(role, stored, "base")],
            gates=lambda: _decay_gate(layer, role, stored) if selective else None,
            multiplicity=_multiplicity(layer, stored.size),
            assumptions=(_NOMINAL,) if selective else (),
            input_dependent=selective,
        )
        if role != _DECAY[0] or selective:
            return recurrence
        hidden = beside(layer.store, layer.names[role], "ffn.key.weight", above=1)
        shape = () if hidden is None else layer.store.tensors[hidden].shape
        # The converter's mark, or the transposed weights that outlive it.
        if "_strategy" in layer.store.metadata or (len(shape) == 2 and shape[0] < shape[1]):
            return _converted(layer, recurrence, stored)
        return recurrence


def _converted(layer: Layer, recurrence: Recurrence, values: Floats) -> Recurrence:
    """With log λ from what the converter stores under the tensor's shape."""
    if len(layer.shape(_DECAY[0])) == 3:
        stored, low, high = "λ = exp(-exp(w))", 0.0, 1.0
        log, derivative = log_of_eigenvalues(values), np.ones_like(values)
    else:
        stored, low, high = "-exp(w)", -np.inf, 0.0
        kept = np.clip(values, -LARGEST_DECAY, 0)
        log, derivative = kept.astype(np.complex128), np.exp(kept)
    if values.min() < low or values.max() > high:
        what = f"the rwkv package has converted this file, and its values are not those of {stored}"
        raise misfit(
            what, layer.names[_DECAY[0]], "name the checkpoint from before it was converted"
        )
    return replace(
        recurrence,
        log_eigenvalues=log,
        parameters=(layer.group(_DECAY[0], values, derivative),),
        stable_by_construction=False,
        assumptions=(_CONVERTED.format(stored=stored),),
    )


def _multiplicity(layer: Layer, size: int) -> int:
    """How many states share a λ, from the shapes of the bonus and of the projections."""
    bonus = layer.shape(layer.first(_BONUS))
    keys = layer.rows_per(size, *_KEY)
    if len(bonus) < 2 and keys == 1 and math.prod(bonus) == size:
        return 2  # RWKV-4: numerator and denominator
    # The first RWKV-5 has one decay per head, and with it all of the head's key channels.
    return keys * layer.rows_per(bonus[0] if bonus else size, *_VALUE)
