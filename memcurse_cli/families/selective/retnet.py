"""Multi-scale retention of RetNet, Sun et al. 2023, arXiv 2307.08621.

Multi-scale retention as its authors' torchscale stores it: the decays once for all layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.reading import LARGEST_DECAY, first_name, read_real, rows_per
from memcurse_cli.families.recurrence import Recurrence

_DECAY = "retnet_rel_pos.decay"
_TORCHSCALE_REQUIRED = (
    "q_proj.weight",
    "k_proj.weight",
    "v_proj.weight",
    "g_proj.weight",
    "out_proj.weight",
)

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
        for module, names in group_by_module(tensors, _TORCHSCALE_REQUIRED).items():
            decoder = module
            while decoder and decoder not in decays:
                decoder = split_name(decoder)[0]
            if len(names) == len(_TORCHSCALE_REQUIRED) and decoder in decays:
                matches.append(Match(module or self.name, {**names, _DECAY: decays[decoder]}))
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
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(match.tensors.values()),
            log_eigenvalues=np.maximum(decay, -LARGEST_DECAY).astype(np.complex128),
            log_gain=np.zeros(decay.size, dtype=np.complex128),
            parameters=(),
            multiplicity=rows_per(store, match.tensors["k_proj.weight"], decay.size)
            * rows_per(store, match.tensors["v_proj.weight"], decay.size),
            stable_by_construction=True,
            assumptions=(_CONSTANT,),
        )


_NORM = ("g_norm.weight", "g_norm_swish_gate.weight")
_REQUIRED = (
    "q_proj.weight",
    "k_proj.weight",
    "v_proj.weight",
    "o_proj.weight",
    "g_proj.weight",
)
_OTHERS = ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight")
_SMALLEST_LOSS = 5
# 1 - 2^(-5-h) is 1 in double precision past this; no model has as many heads.
_MOST_HEADS = 1000

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
        roles = (*_REQUIRED, *_NORM, *_OTHERS)
        modules = {
            module: names
            for module, names in group_by_module(tensors, roles).items()
            if names.keys() >= set(_REQUIRED) and first_name(names, _NORM)
        }
        return [
            Match(module or self.name, modules[module])
            for module in _with_nothing_else(modules, tensors)
            if 0 < _heads(tensors, modules[module]) <= _MOST_HEADS
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Count the heads; no element is read."""
        names = match.tensors
        heads = _heads(store.tensors, names)
        keys = rows_per(store, names["q_proj.weight"], heads)
        values = rows_per(store, names["g_proj.weight"], heads)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names.values()),
            log_eigenvalues=np.log1p(-np.exp2(-_SMALLEST_LOSS - np.arange(heads))).astype(
                np.complex128
            ),
            log_gain=np.zeros(heads, dtype=np.complex128),
            parameters=(),
            multiplicity=keys * values,
            stable_by_construction=True,
            assumptions=(_NOT_STORED,),
        )


def _heads(tensors: Mapping[str, TensorSpec], names: Mapping[str, str]) -> int:
    """The number of heads, or 0 if the widths do not fit."""
    gate = tensors[names["g_proj.weight"]].shape
    norm = tensors[names[next(role for role in _NORM if role in names)]].shape
    if len(gate) != 2 or len(norm) != 1 or not norm[0] or gate[0] % norm[0]:
        return 0
    return gate[0] // norm[0]


def _with_nothing_else(
    modules: Mapping[str, Mapping[str, str]], tensors: Iterable[str]
) -> list[str]:
    """The modules in which every tensor has a role."""
    if not modules:
        return []
    known = {name for names in modules.values() for name in names.values()}
    left = dict.fromkeys(modules)
    for name in tensors:
        parent = name
        while name not in known and parent:
            parent = split_name(parent)[0]
            left.pop(parent, None)
    return list(left)
