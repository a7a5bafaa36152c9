"""Multi-scale retention as its authors' torchscale stores it: the decays once for all layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.reading import (
    LARGEST_DECAY,
    group_by_module,
    read_real,
    split_name,
)
from memcurse_cli.recurrences.recurrence import Recurrence
from memcurse_cli.recurrences.vectors import rows_per

_DECAY = "retnet_rel_pos.decay"
_REQUIRED = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight", "out_proj.weight")

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
        for module, names in group_by_module(tensors, _REQUIRED).items():
            decoder = module
            while decoder and decoder not in decays:
                decoder = split_name(decoder)[0]
            if len(names) == len(_REQUIRED) and decoder in decays:
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
