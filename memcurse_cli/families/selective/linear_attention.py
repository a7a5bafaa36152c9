"""Linear attention whose state a gate decays, GLA and its relatives, HGRN, or turns, GateLoop; or
whose decay is a constant of the head: retention and lightning attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.family import NUMBERED, Assumption, Layout, Match, Shapes, setting
from memcurse_cli.families.gate_inputs import JointDrive, inner_products, read_rows
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    ancestors,
    group_by_module,
    misfit,
    shown_shape,
)
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Seen, Slot
from memcurse_cli.theory.gates.laws import Bounded, Root, Turn, Write

GATE_LOGIT_NORMALIZER = Assumption(
    key="gate_logit_normalizer",
    default="16",
    meaning="τ of gated linear attention's λ = σ(b)^(1/τ); gated slot attention has 8",
)

_KEY, _VALUE, _OUTPUT_GATE = "k_proj.weight", "v_proj.weight", "g_proj.weight"
# HGRN, gated delta nets, Raven and forgetting attention have an f_proj too.
_OTHERS = (
    *("i_proj.weight", "A_log", "r_proj.weight", "r_proj.0.weight"),
    *("q_norm.weight", "f_proj.bias"),
)


class _Gate(NamedTuple):
    """How a layer stores its gate: the bias, where it has one, the projections, and what tells it.

    ``normalizer`` is the default of τ, None where λ = σ(b); ``write`` the bias of a factor of γ.
    """

    bias: str | None
    projections: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    normalizer: str | None = "16"
    write: str | None = None


_GATES = (
    _Gate("gk_proj.1.bias", ("gk_proj.1.weight", "gk_proj.0.weight"), ("gk_proj.0.weight",)),
    # Simple GLA, one λ per head.
    _Gate("gk_proj.bias", ("gk_proj.weight",), ("gk_proj.weight", "q_proj.weight", _OUTPUT_GATE)),
    # MesaNet, whose two states the gates move alike.
    _Gate(
        "a_proj.bias",
        ("a_proj.weight",),
        ("lambda_params", "a_proj.weight", "b_proj.bias", "b_proj.weight", _KEY),
        (_VALUE,),
        normalizer=None,
        write="b_proj.bias",
    ),
    # Gated slot attention, whose gate has no bias.
    _Gate(
        None,
        ("f_proj.weight",),
        ("f_proj.weight", "q_proj.weight", _KEY, _VALUE, "o_proj.weight", "g_norm.weight"),
        without=_OTHERS,
        normalizer="8",
    ),
)

_SLOTS = (
    "the gate has no bias: at zero input λ = 2^(-1/τ); every λ drives a slot of keys and one of"
    " values, whose widths are not counted"
)


class GLA(LawFamily):
    """``S[t] = diag(λ) S[t-1] + k vᵀ``, ``log λ = log σ(b)/τ``, γ = 1; one λ per key channel.

    One per head in simple GLA and MesaNet (arXiv 2506.05233), where τ = 1 and γ = σ(b_proj.bias).
    One of every slot keeps key and value in gated slot attention (arXiv 2409.07146); γ is 1 - λ.
    """

    name = "gla"
    title = "GLA (gated linear attention)"
    recognised_by = (
        "gk_proj.0.weight and gk_proj.1.bias; gk_proj.bias beside g_proj; lambda_params beside"
        " a_proj and b_proj; or f_proj beside q_proj, k_proj, v_proj and g_norm, without i_proj"
    )
    equation = "λ = σ(gk_proj.1.bias)^(1/16), γ = 1"
    source = "flash-linear-attention; Yang et al. 2023, arXiv 2312.06635"
    assumptions = (GATE_LOGIT_NORMALIZER,)
    layouts = tuple(
        Layout((*gate.required, *filter(None, [gate.bias])), gate.optional, gate.without)
        for gate in _GATES
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        gate = next(gate for gate in _GATES if layer.names.keys() >= set(gate.required))
        normalizer = 1.0
        if gate.normalizer is not None:
            normalizer = layer.positive(GATE_LOGIT_NORMALIZER, default=gate.normalizer)
        if gate.bias is None:
            bias, slots = np.zeros(layer.stacked_rows(gate.projections[0])), []
        else:
            bias = layer.vector(gate.bias)
            slots = [Slot(gate.bias, bias, "gate")]
        if gate.write is not None:
            slots.append(Slot(gate.write, layer.vector(gate.write, bias.size), "strength"))

        def gates() -> Seen:
            seen = layer.gate_through(bias, gate.bias or gate.projections[0], [gate.projections])
            if gate.write is None:
                return seen
            return seen, layer.projected(slots[1].values, "b_proj.weight")

        return layer.gated(
            Root(1 / normalizer, coupled=gate.bias is None),
            bias,
            slots,
            gates=gates,
            write=None if gate.write is None else Write(parameter="strength"),
            multiplicity=_states(layer, bias.size),
            assumptions=() if slots else (_SLOTS,),
        )


def _states(layer: Layer, heads: int) -> int:
    """What a λ of a whole head drives: keys × values, and keys × keys in MesaNet."""
    if _OUTPUT_GATE in layer.names:
        return layer.rows_per(heads, "q_proj.weight") * layer.rows_per(heads, _OUTPUT_GATE)
    if "lambda_params" in layer.names:
        keys = layer.rows_per(heads, _KEY)
        return keys * (keys + layer.rows_per(heads, _VALUE))
    return 1


_BOUNDS = "lower_bounds"

_WITHOUT_BIAS = (
    "the forget gate has no bias: at zero input it stands halfway between its lower bound and 1"
)
_UNBOUNDED = "its lower bound is 0, as in the first layer or without a tensor lower_bounds"
_EXPANDED = (
    "every λ drives one row of the matrix state; how many values a row has (expand_ratio) is not"
    " stored"
)


class HGRN(LawFamily):
    """``h[t] = λ h[t-1] + (1-λ) x[t]``, ``λ = β + (1-β) σ(0) = (1+β)/2``.

    The lower bound β of layer l is ``Σ_{0<m≤l} p_m`` with p the softmax over layers of the
    model's ``lower_bounds`` (layers, n): zero in the first layer. Every layer's row moves β:
    ``dβ_l/dω_k = p_k ([0<k≤l] - β_l)``, so that one scalar moves the λ of all layers; each layer
    reports its own share. HGRN2 has the same λ on the rows of a matrix state.
    """

    name = "hgrn"
    title = "HGRN and HGRN2"
    recognised_by = "f_proj.weight and i_proj.weight beside g_norm, with the model's lower_bounds"
    equation = "λ = (1 + β)/2, γ = 1 - λ, β = Σ_(0<m≤l) softmax(lower_bounds)_m"
    source = "flash-linear-attention; Qin et al., arXiv 2311.04823 and 2404.07904"
    layouts = (
        Layout(
            ("f_proj.weight", "i_proj.weight", "o_proj.weight", "g_norm.weight"),
            optional=("q_proj.weight",),
            without=(_KEY, _VALUE, "A_log"),
            fits=lambda shapes: len(shapes["f_proj.weight"]) == 2,
            numbered=True,
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        size, place = layer.stacked_rows("f_proj.weight"), layer.match.place
        sentences, slots, complement = [_WITHOUT_BIAS], list[Slot](), np.ones(size)
        numbered = NUMBERED.match(layer.match.layer)
        model = numbered["model"] if numbered else ""
        names = (f"{model}{joint}{_BOUNDS}" for joint in ("./," if model else ("",)))
        tensor = next((name for name in names if name in layer.store.tensors), None)
        if tensor is None or not place:
            sentences.append(_UNBOUNDED)
        else:
            bounds = layer.real(tensor, (None, size))
            if place >= len(bounds):
                what = f"its shape {shown_shape(bounds.shape)} has no row for layer {place}"
                raise misfit(what, tensor, "use a checkpoint of the whole model")
            share = np.exp(bounds - bounds.max(axis=0))
            # A share that underflows would have no logarithm.
            share = np.maximum(share / share.sum(axis=0), 1e-300)
            counted = np.zeros(bounds.shape)
            counted[1 : place + 1] = 1.0
            # 1 - β, summed without cancellation where β is close to 1.
            complement = np.sum(share * (1 - counted), axis=0)
            slope = share * np.where(counted > 0, complement, complement - 1)
            each = np.tile(np.arange(size), len(bounds))
            slots.append(
                Slot(_BOUNDS, bounds.ravel(), "bound", slope.ravel(), None, each, tensor=tensor)
            )
        if "q_proj.weight" in layer.names:
            sentences.append(_EXPANDED)
        return layer.gated(
            Bounded(complement),
            np.zeros(size),
            slots,
            gates=lambda: layer.projected(np.zeros(size), "f_proj.weight"),
            tensors=(*layer.names.values(), *(slot.tensor for slot in slots)),
            assumptions=sentences,
        )


_PROJECTION = "to_qkva.0.weight"
_HALF = "the gate has no bias: at zero input λ = σ(0) = 1/2, which no parameter moves"


class SimpleGateLoop(LawFamily):
    """``h[t] = σ(W_a x) h[t-1] + W_kv x``, ``y = (W_q x) h``, one state per channel; γ = 1.

    The rows of one projection are W_q, W_kv and W_a, in which alone is what the layer remembers.
    """

    name = "gateloop_simple"
    title = "Simple GateLoop"
    recognised_by = "to_qkva.0.weight (3 D, D)"
    equation = "λ = σ(0) = 1/2, γ = 1"
    source = "gateloop-transformer, simplified_gate_loop.py; Katsch 2023, arXiv 2311.01927"
    layouts = (
        Layout(
            (_PROJECTION,),
            fits=lambda of: (
                len(of[_PROJECTION]) == 2 and 0 < of[_PROJECTION][0] == 3 * of[_PROJECTION][1]
            ),
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        still = np.zeros(layer.shape(_PROJECTION)[1])
        rows = slice(2 * still.size, None)
        return layer.gated(
            Root(1.0),
            still,
            [],
            gates=lambda: layer.projected(still, _PROJECTION, rows=rows),
            assumptions=(_HALF,),
        )


_QKV, _TURN, _BIAS = "to_qkv.weight", "to_a.0.weight", "to_a.0.bias"

ANGLE_AT_ZERO = (
    "E|dλ/db|² is infinite where a = W x + b can come near 0, since dλ/db grows as 1/|a|"
)
_AT_ZERO = (
    "the first components of to_a are the real parts of a head's transition and the second ones"
    " its imaginary parts, as gateloop-transformer interleaves them"
)


def _heads(shapes: Shapes) -> int:
    """The number of heads, or 0 where the shapes are not those of a layer."""
    qkv, weight, bias = (shapes[role] for role in (_QKV, _TURN, _BIAS))
    if len(qkv) != 2 or len(weight) != 2 or bias != weight[:1] or weight[1] != qkv[1]:
        return 0
    heads = bias[0] // 2
    fits = heads and bias[0] == 2 * heads and qkv[0] and qkv[0] % (3 * heads) == 0
    return heads if fits else 0


class GateLoop(LawFamily):
    """``S[t] = λ S[t-1] + k vᵀ`` with ``λ = σ(|a|) e^{i arg a}``, a = W x + b complex; γ = 1.

    One λ per head, at zero input that of the bias. Its derivatives, as of `Turn`, grow without
    bound as the bias comes to 0, where the angle is undefined.
    """

    name = "gateloop"
    title = "GateLoop"
    recognised_by = "to_qkv.weight (3 D, dim) beside to_a.0.weight and to_a.0.bias (2 heads)"
    equation = "λ = σ(|b|) e^(i arg b), b = to_a.0.bias in pairs; γ = 1"
    source = "gateloop-transformer; Katsch 2023, arXiv 2311.01927"
    layouts = (Layout((_QKV, _TURN, _BIAS), fits=_heads),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        heads, law, tensor = layer.shape(_BIAS)[0] // 2, Turn(), layer.names[_BIAS]
        parts = layer.real(_BIAS, (2 * heads,)).reshape(heads, 2)
        apart = np.hypot(parts[:, 0], parts[:, 1])
        if np.any(apart == 0):
            what = f"head {int(np.argmin(apart))} has a bias of 0, where λ has no angle"
            remedy = "inspect a checkpoint from after the first steps of training"
            raise misfit(what, tensor, remedy)
        recurrence = layer.gated(
            law,
            parts,
            [],
            gates=lambda: _drive(layer, law, parts),
            tensors=(tensor,),
            multiplicity=(layer.shape(_QKV)[0] // (3 * heads)) ** 2,
            assumptions=(_AT_ZERO,),
        )
        motions = law(parts).nominal.motions
        moved = [motions[name].eigenvalue for name in (law.real, law.imaginary)]
        # Real and imaginary parts alternate in one tensor.
        each, slopes = np.arange(heads)[:, None], np.stack(moved, axis=1)
        group = layer.group(_BIAS, parts, slopes, eigenvalue=each)
        return replace(recurrence, parameters=(group,))


def _drive(layer: Layer, law: Turn, parts: Floats) -> JointDrive | None:
    """The rows of both parts of a, which alternate as those (heads, 2) of its bias do."""
    rows = read_rows(layer.store, [layer.names[_TURN]])
    if rows is None:
        return None
    return JointDrive(law, parts, inner_products(rows[0][::2], rows[0][1::2]), reason=ANGLE_AT_ZERO)


def _retained(
    layer: Layer, log: Floats, multiplicity: int, assumption: str, **fields: Any
) -> Recurrence:
    """``S[t] = λ_h S[t-1] + k vᵀ``: γ = 1, and no parameter moves λ."""
    return layer.recurrence(
        np.maximum(log, -LARGEST_DECAY),
        (),
        multiplicity=multiplicity,
        stable_by_construction=bool((log < 0).all()),
        also=(assumption,),
        **fields,
    )


_PROJECTIONS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight")
_NORM = ("g_norm.weight", "g_norm_swish_gate.weight")
_MOST_HEADS = 1000  # 1 - 2^(-5-h) is 1 in double precision long before

_NOT_STORED = (
    "the decay is not stored: λ = 1 - 2^(-5-h) for head h, with as many heads as g_proj is times"
    " wider than the norm; nothing trained moves it, so no parameter is listed"
)


def _retention_heads(shapes: Shapes) -> int:
    """The number of heads, or 0 if the widths do not fit."""
    gate, norm = shapes["g_proj.weight"], next(shapes[role] for role in _NORM if role in shapes)
    if len(gate) != 2 or len(norm) != 1 or not norm[0] or gate[0] % norm[0]:
        return 0
    return gate[0] // norm[0]


class RetNet(LawFamily):
    """``S[t] = λ_h S[t-1] + k vᵀ`` with the constant ``λ_h = 1 - 2^{-5-h}``, h = 0, 1, …; γ = 1.

    The norm after the state is as wide as the values of one head, and the output gate as wide as
    those of all heads: their ratio is the number of heads.
    """

    name = "retnet"
    title = "RetNet (multi-scale retention)"
    recognised_by = "q_proj, k_proj, v_proj, o_proj, g_proj and g_norm.weight, and nothing else"
    equation = "λ = 1 - 2^(-5-h) for head h"
    source = "flash-linear-attention; Sun et al. 2023, arXiv 2307.08621"
    layouts = (
        Layout(
            (*_PROJECTIONS, "o_proj.weight", _NORM),
            optional=("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"),
            fits=lambda shapes: 0 < _retention_heads(shapes) <= _MOST_HEADS,
            alone=True,  # another layer's gate would be extra
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        heads = _retention_heads({role: layer.shape(role) for role in layer.names})
        states = layer.rows_per(heads, "q_proj.weight") * layer.rows_per(heads, "g_proj.weight")
        log = np.log1p(-np.exp2(-5 - np.arange(heads)))
        return _retained(layer, log, states, _NOT_STORED)


_DECAY = "retnet_rel_pos.decay"
_CONSTANT = (
    "the decays are a buffer that nothing trains, so that no parameter is listed; the state is"
    " taken in the frame that turns with its rotary positions"
)


class TorchscaleRetNet(LawFamily):
    """``S[t] = λ_h S[t-1] + k vᵀ``, ``log λ_h = retnet_rel_pos.decay`` of the decoder; γ = 1."""

    name = "torchscale_retnet"
    title = "RetNet (torchscale)"
    recognised_by = (
        "q_proj, k_proj, v_proj, g_proj, out_proj and the decoder's retnet_rel_pos.decay"
    )
    equation = "log λ = retnet_rel_pos.decay (heads)"
    source = "microsoft/torchscale, architecture/retnet.py; Sun et al. 2023, arXiv 2307.08621"
    layouts = (Layout((*_PROJECTIONS, "out_proj.weight")),)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Retention layers below a decoder that keeps their decays."""
        decays = {
            module: names[_DECAY]
            for module, names in group_by_module(tensors, (_DECAY,)).items()
            if len(tensors[names[_DECAY]].shape) == 1 and tensors[names[_DECAY]].shape[0] > 0
        }
        matches = []
        for match in super().find(tensors):
            above = ancestors(match.tensors["q_proj.weight"])
            decay = next((decays[module] for module in above if module in decays), None)
            if decay is not None:
                matches.append(replace(match, tensors={**match.tensors, _DECAY: decay}))
        return matches

    def _recurrence(self, layer: Layer) -> Recurrence:
        decay = layer.real(_DECAY, (None,))
        if np.any(decay > 0):
            remedy = "export the model again: retention only decays"
            raise misfit("a logarithm of λ is positive", layer.names[_DECAY], remedy)
        keys, values = (layer.rows_per(decay.size, role) for role in _PROJECTIONS[1:3])
        return _retained(layer, decay, keys * values, _CONSTANT)


_RATE, _FUSED = "slope_rate", "qkv_proj.weight"
# MiniMax's own checkpoints have no buffer, and are known by the gate and the norm of the output.
_UNSTORED = (_FUSED, "output_gate.weight", "norm.weight", "out_proj.weight")
_LARGEST_COUNT = 10**4  # of heads and layers that a configuration may claim

_COMPUTED = (
    "slope_rate is not stored and is computed as the library does, from the number of the layer and"
    " num_attention_heads and num_hidden_layers of config.json"
)
_BUFFER = "slope_rate is a buffer that no training moves, so no parameter is listed"


class LightningAttention(LawFamily):
    """``S[t] = λ_h S[t-1] + k vᵀ`` with the constant ``λ_h = exp(-slope_rate_h)``, γ = 1.

    λ is that of the stored buffer, which a checkpoint in half precision has rounded.
    """

    name = "lightning_attention"
    title = "Lightning attention (MiniMax)"
    recognised_by = "slope_rate, or output_gate and norm.weight, beside qkv_proj.weight"
    equation = "λ = exp(-slope_rate)"
    source = "transformers (minimax); MiniMax 2025, arXiv 2501.08313"
    layouts = (
        Layout((_RATE, _FUSED), optional=_UNSTORED[1:], fits=lambda of: len(of[_FUSED]) == 2),
        # A decay that is not stored is computed from the layer's number.
        Layout(_UNSTORED, (), (_RATE,), fits=lambda of: len(of[_FUSED]) == 2, numbered=True),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        stored = _RATE in layer.names
        rate = layer.vector(_RATE) if stored else _slope_rate(layer)
        width = max(layer.shape(_FUSED)[0] // 3 // rate.size, 1)
        read = [layer.names[role] for role in (_RATE, _FUSED) if role in layer.names]
        sentence = _BUFFER if stored else _COMPUTED
        return _retained(layer, -rate, width**2, sentence, tensors=read)


def _slope_rate(layer: Layer) -> Floats:
    """``2^(-8(h+1)/H) (1 - l/(L-1+ε) + ε)`` of head h in layer l of L, with ε = 1e-5."""
    place, config = layer.match.place, layer.store.config
    heads, layers = (setting(config, key) for key in ("num_attention_heads", "num_hidden_layers"))
    counts = all(isinstance(n, int) and 0 < n <= _LARGEST_COUNT for n in (heads, layers))
    if not counts or place is None or place >= layers:
        remedy = "put the model's config.json, which tells the heads and layers, beside the file"
        raise misfit("the slope_rate beside it is not stored", layer.names[_FUSED], remedy)
    head = np.arange(1, heads + 1)
    depth = 1 - place / (layers - 1 + 1e-5) + 1e-5
    return np.asarray(2.0 ** (-8 * head / heads) * depth)
