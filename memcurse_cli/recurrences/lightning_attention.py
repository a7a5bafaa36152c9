"""Lightning attention of MiniMax-01, MiniMax 2025, arXiv 2501.08313."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.reading import group_by_module
from memcurse_cli.recurrences.recurrence import Recurrence
from memcurse_cli.recurrences.vectors import read_vector

_RATE, _PROJECTION = "slope_rate", "qkv_proj.weight"

_BUFFER = "slope_rate is a buffer that no training moves, so no parameter is listed"


class LightningAttention:
    """``S[t] = λ_h S[t-1] + k vᵀ`` with the constant ``λ_h = exp(-slope_rate_h)``, γ = 1.

    λ is that of the stored buffer, which a checkpoint in half precision has rounded.
    """

    name = "lightning_attention"
    title = "Lightning attention (MiniMax)"
    recognised_by = "slope_rate beside qkv_proj.weight"
    equation = "λ = exp(-slope_rate)"
    source = "transformers (minimax); MiniMax 2025, arXiv 2501.08313"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the buffer and the fused projection."""
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, (_RATE, _PROJECTION)).items()
            if len(names) == 2 and len(tensors[names[_PROJECTION]].shape) == 2
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the buffer.

        Raises:
            TensorError: NaN or inf in it.
        """
        tensor, projection = match.tensors[_RATE], match.tensors[_PROJECTION]
        rate = read_vector(store, tensor)
        width = store.tensors[projection].shape[0] // 3 // rate.size
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=(tensor, projection),
            log_eigenvalues=-rate.astype(np.complex128),
            log_gain=np.zeros(rate.size, dtype=np.complex128),
            parameters=(),
            multiplicity=max(width, 1) ** 2,
            stable_by_construction=bool((rate > 0).all()),
            assumptions=(_BUFFER,),
        )
