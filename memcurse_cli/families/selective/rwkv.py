"""RWKV-4 to 7 of Peng et al., arXiv 2305.13048, 2404.05892 and 2503.14456."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.polynomial.hermite_e import hermevander

from memcurse_cli.families.family import Layout
from memcurse_cli.families.gate_inputs import GateInput, NoDrive
from memcurse_cli.families.reading import LARGEST_DECAY, log_of_eigenvalues, misfit
from memcurse_cli.families.recurrence import Floats, RankOneCorrection, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Slot
from memcurse_cli.theory.gates.laws import Exponential, OpenedDecay
from memcurse_cli.theory.gates.moments import normal_nodes

_HIGHEST_ORDER = 15  # of the Hermite functions that two different units share


class _Bottleneck(Struct, frozen=True):
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
    ``Σ_k c_k(σ_a) c_k(σ_b) ρᵏ`` over odd k; on the diagonal, where that is slow, E tanh² itself.
    """
    spread = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    nodes, weights = normal_nodes(np.zeros_like(spread), spread)
    bent = np.tanh(spread * nodes[:, None])
    alive = np.where(spread > 0, spread, 1.0)
    correlation = np.clip(covariance / alive / alive[:, None], -1.0, 1.0)
    orders = range(1, _HIGHEST_ORDER + 1, 2)
    norms = np.sqrt([float(math.factorial(order)) for order in orders])
    hermite = hermevander(nodes, _HIGHEST_ORDER)[:, orders] / norms
    coefficients = (weights[:, None] * hermite).T @ bent
    powers = correlation ** np.array(orders)[:, None, None]
    result: Floats = np.einsum("oi,oj,oij->ij", coefficients, coefficients, powers)
    np.fill_diagonal(result, weights @ bent**2)
    return result


# How many parts of an RWKV-6 layer have a mixing μ of their own: r, w, k, v, g in
# flash-linear-attention and w, k, v, r, g elsewhere.
_MIXED = 5


class _LowRank(NamedTuple):
    """How a library stores the low-rank layer ``V tanh(W y)`` of a decay."""

    names: tuple[str, ...]  # of W, V and μ, for which there may be several
    moving: tuple[str, ...] = ()  # those of what moves the μ of RWKV-6: five such layers in one
    part: int = 0  # which of several μ in a row, and of the five layers, is the decay's
    transposed: bool = False  # (inputs, rank) and (rank, n), unlike torch's modules


_LLAMA_FUSED = "time_mix_lerp_fused.weight"
# By the base of the decay: the authors' names and transformers', flash-linear-attention's and
# llama.cpp's, of RWKV-6 and then of RWKV-7.
_LOW_RANK = {
    "time_decay": _LowRank(
        ("time_decay_w1", "time_decay_w2", "time_maa_w"),
        ("time_maa_w1", "time_maa_w2", "time_maa_x"),
        transposed=True,
    ),
    "w_proj.linear.lora.2.bias": _LowRank(
        ("w_proj.linear.lora.0.weight", "w_proj.linear.lora.2.weight", "x_bias"),
        ("x_proj.0.linear.weight", "x_proj.2.weight", "x_proj.0.mu"),
        part=1,
    ),
    "time_mix_decay.weight": _LowRank(
        (
            *("time_mix_decay_w1.weight", "time_mix_decay_w2.weight"),
            *(_LLAMA_FUSED, "time_mix_lerp_w.weight"),
        ),
        ("time_mix_w1.weight", "time_mix_w2.weight", "time_mix_lerp_x.weight"),
    ),
    "w0": _LowRank(("w1", "w2", "x_w"), transposed=True),
    "w_lora.lora.2.bias": _LowRank(("w_lora.lora.0.weight", "w_lora.lora.2.weight", "x_w")),
    "time_mix_w0.weight": _LowRank(
        ("time_mix_w1.weight", "time_mix_w2.weight", _LLAMA_FUSED), part=1
    ),
}
_BASES = tuple(_LOW_RANK)
MISSING = NoDrive("the low-rank layer of its decay, or what mixes its inputs, is not in the file")


def _decay_gate(layer: Layer, role: str, base: Floats) -> GateInput | NoDrive:
    """``z = w0 + V tanh(W y)`` of ``y[t] = x[t] + μ (x[t-1] - x[t])``.

    In RWKV-6 μ is moved by ``V' tanh(W' y')``, with a y' of a μ' of its own.
    """
    naming = _LOW_RANK[role]
    found = _bottleneck(layer, role, naming.names, base.size)
    if found is not None and naming.moving:
        moving = _bottleneck(layer, role, naming.moving, found.mixing.size, _MIXED)
        fits = moving is not None and moving.mixing.size == found.mixing.size
        found = replace(found, moving=moving) if fits else None
    if found is None:
        return MISSING
    return GateInput(base, further=found.variance)


def _bottleneck(
    layer: Layer, role: str, names: Sequence[str], outputs: int, parts: int = 1
) -> _Bottleneck | None:
    """The decay's one of ``parts`` equal low-rank layers; None where it is not there or unfit.

    V is (outputs, parts · rank), or (parts, outputs, rank).
    """
    _, _, part, transposed = _LOW_RANK[role]
    found = [layer.beside(role, name) for name in names]
    inner, outer, *mixings = (None if of is None else layer.finite(of) for of in found)
    if inner is None or outer is None or inner.ndim != 2 or outer.ndim not in (2, 3):
        return None
    if transposed:
        inner, outer = inner.T, outer.swapaxes(-1, -2)
    rank, inputs = len(inner) // parts, inner.shape[1]
    shapes = (outputs, parts * rank), (parts, outputs, rank)
    fitting = (each for each in mixings if each is not None and each.size % inputs == 0)
    rows = (each.reshape(-1, inputs) for each in fitting)
    mixing = next((each for each in rows if len(each) == 1 or len(each) > part), None)
    if mixing is None or len(inner) != parts * rank or outer.shape not in shapes:
        return None
    own = part if parts > 1 else 0
    if outer.ndim == 2:
        outer = outer.reshape(outputs, parts, rank).swapaxes(0, 1)
    inner = inner.reshape(parts, rank, inputs)
    return _Bottleneck(outer[own], inner[own], mixing[part if len(mixing) > 1 else 0])


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
_SELECTIVE = tuple(_LOW_RANK[role].names[0] for role in _DECAY)
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
        multiplicity = _multiplicity(layer, stored.size)
        hidden = layer.beside(role, "ffn.key.weight", above=1)
        shape = () if hidden is None else layer.shape(hidden)
        # The converter's mark, or the transposed weights that outlive it.
        marked = "_strategy" in layer.store.metadata or (len(shape) == 2 and shape[0] < shape[1])
        if marked and role == _DECAY[0] and not selective:
            return _converted(layer, stored, multiplicity)
        return layer.gated(
            OpenedDecay(1.0, "base", opening=Exponential()),
            stored,
            [Slot(role, stored, "base")],
            gates=lambda: _decay_gate(layer, role, stored) if selective else None,
            multiplicity=multiplicity,
            assumptions=(_NOMINAL,) if selective else (),
            input_dependent=selective,
        )


def _converted(layer: Layer, values: Floats, multiplicity: int) -> Recurrence:
    """With log λ from what the converter stores under the tensor's shape."""
    role = _DECAY[0]
    if len(layer.shape(role)) == 3:
        stored, low, high = "λ = exp(-exp(w))", 0.0, 1.0
        log, derivative = log_of_eigenvalues(values), np.ones_like(values)
    else:
        stored, low, high = "-exp(w)", -np.inf, 0.0
        log = np.clip(values, -LARGEST_DECAY, 0)
        derivative = np.exp(log)
    if values.min() < low or values.max() > high:
        what = f"the rwkv package has converted this file, and its values are not those of {stored}"
        raise misfit(what, layer.names[role], "name the checkpoint from before it was converted")
    return layer.recurrence(
        log,
        (layer.group(role, values, derivative),),
        tensors=(layer.names[role],),
        multiplicity=multiplicity,
        also=(_CONVERTED.format(stored=stored),),
    )


def _multiplicity(layer: Layer, size: int) -> int:
    """How many states share a λ, from the shapes of the bonus and of the projections."""
    bonus = layer.shape(layer.first(_BONUS))
    keys = layer.rows_per(size, *_KEY)
    if len(bonus) < 2 and keys == 1 and math.prod(bonus) == size:
        return 2  # RWKV-4: numerator and denominator
    # The first RWKV-5 has one decay per head, and with it all of the head's key channels.
    return keys * layer.rows_per(bonus[0] if bonus else size, *_VALUE)
