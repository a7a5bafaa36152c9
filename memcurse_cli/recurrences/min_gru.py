"""The minGRU of Feng et al. 2024, arXiv 2410.01201."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gated_layer import WITHOUT_BIAS
from memcurse_cli.recurrences.law import Slot, law_recurrence
from memcurse_cli.recurrences.projected_gates import projected_gate
from memcurse_cli.recurrences.reading import (
    group_by_module,
)
from memcurse_cli.recurrences.recurrence import Recurrence
from memcurse_cli.recurrences.vectors import read_vector, stacked_rows
from memcurse_cli.theory.gate_laws import Mix

# minGRU-pytorch, whose rows are the candidate and the gate; the paper's listing.
_FUSED = "to_hidden_and_gate"
_GATE, _CANDIDATE = "linear_z", "linear_h"
# A layer with any of these has more gates.
_STRANGERS = tuple(f"linear_{gate}.weight" for gate in "rfioc")


class MinGRU:
    """``h[t] = (1 - z) h[t-1] + z x̃[t]``, z = σ(b): ``λ = σ(-b)``, coupled to ``γ = σ(b)``.

    dλ/db = -λ(1-λ) and d log γ/db = λ. The gate stands at zero input; without a bias λ = 1/2.
    """

    name = "min_gru"
    title = "minGRU"
    recognised_by = "to_hidden_and_gate.weight (2n, d); or linear_z.weight beside linear_h.weight"
    equation = "λ = 1 - σ(b_z), γ = σ(b_z)"
    source = "minGRU-pytorch; Feng et al. 2024, arXiv 2410.01201"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the fused projection, or with those of the gate and the candidate alone."""
        weights = tuple(f"{layer}.weight" for layer in (_FUSED, _GATE, _CANDIDATE))
        roles = (*weights, f"{_FUSED}.bias", f"{_GATE}.bias", *_STRANGERS)
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            separate = names.keys() >= set(weights[1:]) and not names.keys() & set(_STRANGERS)
            if separate and tensors[names[weights[1]]].shape != tensors[names[weights[2]]].shape:
                continue
            if weights[0] in names or separate:
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the gate's bias, if there is one; the weight only gives the size.

        Raises:
            TensorError: NaN or inf, or a bias that does not fit the weight.
        """
        names = match.tensors
        fused = f"{_FUSED}.weight" in names
        role = f"{_FUSED if fused else _GATE}.bias"
        weight = names[f"{_FUSED if fused else _GATE}.weight"]
        parts = 2 if fused else 1
        size = stacked_rows(store, weight, parts)
        bias, tensor = np.zeros(size), names.get(role)
        if tensor is not None:
            bias = read_vector(store, tensor, parts * size)[-size:]
        name = f"{role}[gate]" if fused else role
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Mix(keeps=False),
            at=bias,
            slots=[] if tensor is None else [Slot(name, tensor, bias, "update")],
            # The gate's rows are the last ones of a fused projection.
            gates=lambda: projected_gate(store, bias, weight, rows=slice(-size, None)),
            tensors=tuple(names.values()),
            assumptions=(WITHOUT_BIAS,) if tensor is None else (),
        )
