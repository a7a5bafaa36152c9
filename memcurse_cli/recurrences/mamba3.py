"""Mamba-3 of Lahoti et al. 2026, arXiv 2603.15569, at its nominal input."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.discretization import apply_transform
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import NoDrive
from memcurse_cli.recurrences.reading import (
    LARGEST_DECAY,
    group_by_module,
    one_to_one,
    read_real,
    require_shape,
    shown_shape,
)
from memcurse_cli.recurrences.recurrence import Recurrence

# -A at a projection of zero.
_RATES = {"heavy_tail": 1.0, "softplus": float(np.log(2))}

RATE_FUNCTION = Assumption(
    key="rate_function",
    default="heavy_tail",
    choices=tuple(_RATES),
    meaning="the map from Mamba-3's projection to -A: 1 at zero, or log 2 with softplus",
)

_REQUIRED = ("dt_bias", "B_bias", "C_bias", "in_proj.weight", "out_proj.weight")

_NOMINAL = (
    "the trapezoid puts half of an input's gain on its own step, the rest on the next; λ does not"
    " turn at a zero input, where the rotation of B and C stands still"
)

_TWO_GATES = NoDrive(
    "its λ is moved by two projections, those of the step and of the rate, not by one gate"
)


class Mamba3:
    """``λ = exp(-a Δ)``, ``γ = Δ = softplus(dt_bias)``, one per head; the input projects to A.

    ``h[t] = λ h[t-1] + Δ/2 (λ B[t-1] x[t-1] + B[t] x[t])`` at a trapezoid weight of σ(0) = 1/2, so
    that k ≥ 1 steps after an input its state is ``Δ λᵏ``: mamba_ssm/modules/mamba3.py and its
    reference step. a is 1 in version 2.3.2, and log 2 where A is a softplus.
    """

    name = "mamba3"
    title = "Mamba-3"
    recognised_by = "dt_bias (heads) beside B_bias and C_bias (heads, rank, state), without A_log"
    equation = "λ = exp(-a Δ), γ = Δ = softplus(dt_bias), a = 1 or log 2"
    source = "mamba_ssm 2.3.2; Lahoti et al. 2026, arXiv 2603.15569"
    assumptions = (RATE_FUNCTION,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with biases of the step, of B and of C, and no rate."""
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, (*_REQUIRED, "A_log")).items()
            if names.keys() == set(_REQUIRED)
            and len(tensors[names["dt_bias"]].shape) == 1
            and len(tensors[names["B_bias"]].shape) == 3
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read dt_bias.

        Raises:
            TensorError: NaN or inf, or shapes that do not make a mixer.
        """
        assumed = Assumed(options, store.config)
        rate = _RATES[assumed.choose(RATE_FUNCTION)]
        tensor = match.tensors["dt_bias"]
        bias = read_real(store, tensor, (None,))
        step = apply_transform(bias, "softplus")
        decay = rate * step.value
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=(tensor,),
            log_eigenvalues=-np.minimum(decay, LARGEST_DECAY).astype(np.complex128),
            log_gain=step.log,
            parameters=(
                one_to_one(
                    "dt_bias",
                    tensor,
                    bias,
                    store.tensors[tensor].dtype,
                    -np.exp(-decay) * rate * step.slope,
                    step.log_slope,
                ),
            ),
            multiplicity=_multiplicity(store, match.tensors, bias.size),
            input_dependent=True,
            stable_by_construction=True,
            assumptions=(*assumed.sentences, _NOMINAL),
            gate=_TWO_GATES if options.gates else None,
        )


def _multiplicity(store: TensorStore, names: Mapping[str, str], heads: int) -> int:
    """Head dimension × state.

    Raises:
        TensorError: the heads of the biases and of the output projection do not agree.
    """
    require_shape(store, names["B_bias"], (heads, None, None))
    require_shape(store, names["out_proj.weight"], (None, None))
    shape = store.tensors[names["out_proj.weight"]].shape
    if shape[1] < 1 or shape[1] % heads:
        raise TensorError(
            f"its shape {shown_shape(shape)} does not fit {heads} heads",
            where=names["out_proj.weight"],
            remedy="name the right family with --family, or export the layer again",
        )
    return shape[1] // heads * store.tensors[names["B_bias"]].shape[2]
