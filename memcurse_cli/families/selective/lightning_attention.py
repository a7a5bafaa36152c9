"""Lightning attention of MiniMax-01, MiniMax 2025, arXiv 2501.08313."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.assumptions import setting
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_vector
from memcurse_cli.families.recurrence import Floats, Recurrence

_RATE, _PROJECTION = "slope_rate", "qkv_proj.weight"

# MiniMax's own checkpoints have no buffer, and are known by the gate and the norm of the output.
_UNSTORED = (_PROJECTION, "output_gate.weight", "norm.weight", "out_proj.weight")
_LAYER = re.compile(r"(?:.*[./])?layers[./](\d{1,6})[./]")
_LARGEST_COUNT = 10**4

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
            Match(module or self.name, names, _place(names))
            for module, names in group_by_module(tensors, (_RATE, *_UNSTORED)).items()
            if _PROJECTION in names
            and len(tensors[names[_PROJECTION]].shape) == 2
            and (_RATE in names or names.keys() == set(_UNSTORED))
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the buffer, or compute what it would hold.

        Raises:
            TensorError: NaN or inf in it, or no configuration to compute it from.
        """
        tensor, projection = match.tensors.get(_RATE), match.tensors[_PROJECTION]
        rate = _slope_rate(store, projection) if tensor is None else read_vector(store, tensor)
        width = store.tensors[projection].shape[0] // 3 // rate.size
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=(projection,) if tensor is None else (tensor, projection),
            log_eigenvalues=-rate.astype(np.complex128),
            log_gain=np.zeros(rate.size, dtype=np.complex128),
            parameters=(),
            multiplicity=max(width, 1) ** 2,
            stable_by_construction=bool((rate > 0).all()),
            assumptions=(_COMPUTED if tensor is None else _BUFFER,),
        )


def _place(names: Mapping[str, str]) -> int | None:
    """The layer's number, where the decay must be computed from it."""
    layer = None if _RATE in names else _LAYER.match(names[_PROJECTION])
    return None if layer is None else int(layer[1])


def _slope_rate(store: TensorStore, projection: str) -> Floats:
    """``2^(-8(h+1)/H) (1 - l/(L-1+ε) + ε)`` of head h in layer l of L, with ε = 1e-5.

    `MiniMaxLightningAttention.get_slope_rate` in transformers.

    Raises:
        TensorError: the configuration or the tensor's name does not say which layer of how many.
    """
    heads, layers = (
        setting(store.config, key) for key in ("num_attention_heads", "num_hidden_layers")
    )
    layer = _LAYER.match(projection)
    counts = all(isinstance(n, int) and 0 < n <= _LARGEST_COUNT for n in (heads, layers))
    if not counts or layer is None or int(layer[1]) >= layers:
        raise TensorError(
            "the slope_rate beside it is not stored",
            where=projection,
            remedy="put the model's config.json, which tells the heads and layers, beside the file",
        )
    head = np.arange(1, heads + 1)
    depth = 1 - int(layer[1]) / (layers - 1 + 1e-5) + 1e-5
    return np.asarray(2.0 ** (-8 * head / heads) * depth)
