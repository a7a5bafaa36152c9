"""Layers whose decay is a constant of the head: retention and lightning attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Layout, Match, Shapes, setting
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.reading import LARGEST_DECAY
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer


def _retained(layer: Layer, log: Floats, multiplicity: int, assumption: str) -> Recurrence:
    """``S[t] = λ_h S[t-1] + k vᵀ``: γ = 1, and no parameter moves λ."""
    return layer.recurrence(
        np.maximum(log, -LARGEST_DECAY),
        (),
        multiplicity=multiplicity,
        stable_by_construction=bool((log < 0).all()),
        also=(assumption,),
    )


_PROJECTIONS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight")
_NORM = ("g_norm.weight", "g_norm_swish_gate.weight")
_SMALLEST_LOSS = 5
_MOST_HEADS = 1000
"""1 - 2^(-5-h) is 1 in double precision long before; no model has as many heads."""

_NOT_STORED = (
    "the decay is not stored: λ = 1 - 2^(-5-h) for head h, with as many heads as g_proj is times"
    " wider than the norm; nothing trained moves it, so no parameter is listed"
)


def _heads(shapes: Shapes) -> int:
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
            fits=lambda shapes: 0 < _heads(shapes) <= _MOST_HEADS,
        ),
    )

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with exactly a retention layer's weights: another one's gate would be extra."""
        matches = super().find(tensors)
        known = {name for match in matches for name in match.tensors.values()}
        left = {_module(match): match for match in matches}
        for name in tensors if left else ():
            parent = name
            while name not in known and parent:
                parent = split_name(parent)[0]
                left.pop(parent, None)
        return list(left.values())

    def _recurrence(self, layer: Layer) -> Recurrence:
        heads = _heads({role: layer.shape(role) for role in layer.names})
        states = layer.rows_per(heads, "q_proj.weight") * layer.rows_per(heads, "g_proj.weight")
        log = np.log1p(-np.exp2(-_SMALLEST_LOSS - np.arange(heads)))
        return _retained(layer, log, states, _NOT_STORED)


def _module(match: Match) -> str:
    """The module whose child is q_proj."""
    return split_name(split_name(match.tensors["q_proj.weight"])[0])[0]


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
            decoder = _module(match)
            while decoder and decoder not in decays:
                decoder = split_name(decoder)[0]
            if decoder in decays:
                matches.append(Match(match.layer, {**match.tensors, _DECAY: decays[decoder]}))
        return matches

    def _recurrence(self, layer: Layer) -> Recurrence:
        decay = layer.real(_DECAY, (None,))
        if np.any(decay > 0):
            raise TensorError(
                "a logarithm of λ is positive",
                where=layer.names[_DECAY],
                remedy="export the model again: retention only decays",
            )
        keys, values = (layer.rows_per(decay.size, role) for role in _PROJECTIONS[1:3])
        return _retained(layer, decay, keys * values, _CONSTANT)


_RATE, _FUSED = "slope_rate", "qkv_proj.weight"
# MiniMax's own checkpoints have no buffer, and are known by the gate and the norm of the output.
_UNSTORED = (_FUSED, "output_gate.weight", "norm.weight", "out_proj.weight")
_LARGEST_COUNT = 10**4
"""Of heads and layers that a configuration may claim."""

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
        kept = {role: layer.names[role] for role in (_RATE, _FUSED) if role in layer.names}
        found = _retained(layer, -rate, width**2, _BUFFER if stored else _COMPUTED)
        return replace(found, tensors=tuple(kept.values()))


def _slope_rate(layer: Layer) -> Floats:
    """``2^(-8(h+1)/H) (1 - l/(L-1+ε) + ε)`` of head h in layer l of L, with ε = 1e-5.

    `MiniMaxLightningAttention.get_slope_rate` in transformers.
    """
    place, config = layer.match.place, layer.store.config
    heads, layers = (setting(config, key) for key in ("num_attention_heads", "num_hidden_layers"))
    counts = all(isinstance(n, int) and 0 < n <= _LARGEST_COUNT for n in (heads, layers))
    if not counts or place is None or place >= layers:
        raise TensorError(
            "the slope_rate beside it is not stored",
            where=layer.names[_FUSED],
            remedy="put the model's config.json, which tells the heads and layers, beside the file",
        )
    head = np.arange(1, heads + 1)
    depth = 1 - place / (layers - 1 + 1e-5) + 1e-5
    return np.asarray(2.0 ** (-8 * head / heads) * depth)
