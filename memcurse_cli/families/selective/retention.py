"""Layers whose decay is a constant of the head: retention and lightning attention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Assumption, Match, ReadOptions, setting
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.reading import LARGEST_DECAY, read_real, read_vector, rows_per
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import layers_with


def _retained(
    match: Match,
    names: Mapping[str, str],
    family: str,
    log_eigenvalues: Floats,
    multiplicity: int,
    assumption: str,
) -> Recurrence:
    """``S[t] = λ_h S[t-1] + k vᵀ``: γ = 1, and no parameter moves λ."""
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(names.values()),
        log_eigenvalues=np.maximum(log_eigenvalues, -LARGEST_DECAY).astype(np.complex128),
        log_gain=np.zeros(log_eigenvalues.size, dtype=np.complex128),
        parameters=(),
        multiplicity=multiplicity,
        stable_by_construction=bool((log_eigenvalues < 0).all()),
        assumptions=(assumption,),
    )


_PROJECTIONS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight")
_NORM = ("g_norm.weight", "g_norm_swish_gate.weight")
_CONVOLUTIONS = ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight")
_SMALLEST_LOSS = 5
_MOST_HEADS = 1000
"""1 - 2^(-5-h) is 1 in double precision long before; no model has as many heads."""

_NOT_STORED = (
    "the decay is not stored: λ = 1 - 2^(-5-h) for head h, with as many heads as g_proj is times"
    " wider than the norm; nothing trained moves it, so no parameter is listed"
)


class RetNet:
    """``S[t] = λ_h S[t-1] + k vᵀ`` with the constant ``λ_h = 1 - 2^{-5-h}``, h = 0, 1, …; γ = 1.

    The norm after the state is as wide as the values of one head, and the output gate as wide as
    those of all heads: their ratio is the number of heads.
    """

    name = "retnet"
    title = "RetNet (multi-scale retention)"
    recognised_by = "q_proj, k_proj, v_proj, o_proj, g_proj and g_norm.weight, and nothing else"
    equation = "λ = 1 - 2^(-5-h) for head h"
    source = "flash-linear-attention; Sun et al. 2023, arXiv 2307.08621"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with exactly a retention layer's weights: another one's gate would be extra."""
        found = layers_with(
            tensors,
            self.name,
            (*_PROJECTIONS, "o_proj.weight", _NORM),
            optional=_CONVOLUTIONS,
            fits=lambda shapes: 0 < _heads(shapes) <= _MOST_HEADS,
        )
        return _with_nothing_else(found, tensors)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Count the heads; no element is read."""
        names = match.tensors
        heads = _heads({role: store.tensors[name].shape for role, name in names.items()})
        states = rows_per(store, names["q_proj.weight"], heads) * rows_per(
            store, names["g_proj.weight"], heads
        )
        log = np.log1p(-np.exp2(-_SMALLEST_LOSS - np.arange(heads)))
        return _retained(match, names, self.name, log, states, _NOT_STORED)


def _heads(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The number of heads, or 0 if the widths do not fit."""
    gate = shapes["g_proj.weight"]
    norm = next(shapes[role] for role in _NORM if role in shapes)
    if len(gate) != 2 or len(norm) != 1 or not norm[0] or gate[0] % norm[0]:
        return 0
    return gate[0] // norm[0]


def _with_nothing_else(matches: list[Match], tensors: Iterable[str]) -> list[Match]:
    """The layers in whose module every tensor has a role."""
    known = {name for match in matches for name in match.tensors.values()}
    left = {
        split_name(split_name(match.tensors["q_proj.weight"])[0])[0]: match for match in matches
    }
    for name in tensors if left else ():
        parent = name
        while name not in known and parent:
            parent = split_name(parent)[0]
            left.pop(parent, None)
    return list(left.values())


_DECAY = "retnet_rel_pos.decay"
_CONSTANT = (
    "the decays are a buffer that nothing trains, so that no parameter is listed; the state is"
    " taken in the frame that turns with its rotary positions"
)


class TorchscaleRetNet:
    """``S[t] = λ_h S[t-1] + k vᵀ``, ``log λ_h = retnet_rel_pos.decay`` of the decoder; γ = 1."""

    name = "torchscale_retnet"
    title = "RetNet (torchscale)"
    recognised_by = (
        "q_proj, k_proj, v_proj, g_proj, out_proj and the decoder's retnet_rel_pos.decay"
    )
    equation = "log λ = retnet_rel_pos.decay (heads)"
    source = "microsoft/torchscale, architecture/retnet.py; Sun et al. 2023, arXiv 2307.08621"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Retention layers below a decoder that keeps their decays."""
        decays = {
            module: names[_DECAY]
            for module, names in group_by_module(tensors, (_DECAY,)).items()
            if len(tensors[names[_DECAY]].shape) == 1 and tensors[names[_DECAY]].shape[0] > 0
        }
        matches = []
        for match in layers_with(tensors, self.name, (*_PROJECTIONS, "out_proj.weight")):
            decoder = split_name(split_name(match.tensors["q_proj.weight"])[0])[0]
            while decoder and decoder not in decays:
                decoder = split_name(decoder)[0]
            if decoder in decays:
                matches.append(Match(match.layer, {**match.tensors, _DECAY: decays[decoder]}))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the decays.

        Raises:
            TensorError: NaN or inf, or a decay that grows.
        """
        tensor = match.tensors[_DECAY]
        decay = read_real(store, tensor, (None,))
        if np.any(decay > 0):
            raise TensorError(
                "a logarithm of λ is positive",
                where=tensor,
                remedy="export the model again: retention only decays",
            )
        keys, values = (
            rows_per(store, match.tensors[role], decay.size) for role in _PROJECTIONS[1:3]
        )
        return _retained(match, match.tensors, self.name, decay, keys * values, _CONSTANT)


_RATE, _FUSED = "slope_rate", "qkv_proj.weight"
# MiniMax's own checkpoints have no buffer, and are known by the gate and the norm of the output.
_UNSTORED = (_FUSED, "output_gate.weight", "norm.weight", "out_proj.weight")
_LAYER = re.compile(r"(?:.*[./])?layers[./](\d{1,6})[./]")
_LARGEST_COUNT = 10**4
"""Of heads and layers that a configuration may claim."""

_COMPUTED = (
    "slope_rate is not stored and is computed as the library does, from the number of the layer and"
    " num_attention_heads and num_hidden_layers of config.json"
)
_BUFFER = "slope_rate is a buffer that no training moves, so no parameter is listed"


class LightningAttention:
    """``S[t] = λ_h S[t-1] + k vᵀ`` with the constant ``λ_h = exp(-slope_rate_h)``, γ = 1.

    λ is that of the stored buffer, which a checkpoint in half precision has rounded.
    """

    name = "lightning_attention"
    title = "Lightning attention (MiniMax)"
    recognised_by = "slope_rate, or output_gate and norm.weight, beside qkv_proj.weight"
    equation = "λ = exp(-slope_rate)"
    source = "transformers (minimax); MiniMax 2025, arXiv 2501.08313"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the fused projection and the buffer, or with all else that they have."""
        return [
            Match(module or self.name, names, None if _RATE in names else _place(names[_FUSED]))
            for module, names in group_by_module(tensors, (_RATE, *_UNSTORED)).items()
            if _FUSED in names
            and len(tensors[names[_FUSED]].shape) == 2
            and (_RATE in names or names.keys() == set(_UNSTORED))
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the buffer, or compute what it would hold.

        Raises:
            TensorError: NaN or inf in it, or no configuration to compute it from.
        """
        names = {role: match.tensors[role] for role in (_RATE, _FUSED) if role in match.tensors}
        stored = _RATE in names
        rate = read_vector(store, names[_RATE]) if stored else _slope_rate(store, match)
        width = max(store.tensors[names[_FUSED]].shape[0] // 3 // rate.size, 1)
        sentence = _BUFFER if stored else _COMPUTED
        return _retained(match, names, self.name, -rate, width**2, sentence)


def _place(tensor: str) -> int | None:
    """The layer's number, from which a decay that is not stored is computed."""
    layer = _LAYER.match(tensor)
    return None if layer is None else int(layer[1])


def _slope_rate(store: TensorStore, match: Match) -> Floats:
    """``2^(-8(h+1)/H) (1 - l/(L-1+ε) + ε)`` of head h in layer l of L, with ε = 1e-5.

    `MiniMaxLightningAttention.get_slope_rate` in transformers.

    Raises:
        TensorError: the configuration or the tensor's name does not say which layer of how many.
    """
    heads, layers = (
        setting(store.config, key) for key in ("num_attention_heads", "num_hidden_layers")
    )
    counts = all(isinstance(n, int) and 0 < n <= _LARGEST_COUNT for n in (heads, layers))
    if not counts or match.place is None or match.place >= layers:
        raise TensorError(
            "the slope_rate beside it is not stored",
            where=match.tensors[_FUSED],
            remedy="put the model's config.json, which tells the heads and layers, beside the file",
        )
    head = np.arange(1, heads + 1)
    depth = 1 - match.place / (layers - 1 + 1e-5) + 1e-5
    return np.asarray(2.0 ** (-8 * head / heads) * depth)
