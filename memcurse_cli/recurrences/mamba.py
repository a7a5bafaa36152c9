"""Mamba (selective state space, S6) of Gu & Dao 2023, arXiv 2312.00752, at its nominal input."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.assumptions import setting
from memcurse_cli.recurrences.discretization import apply_transform
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import GateInput
from memcurse_cli.recurrences.law import Slot, law_recurrence
from memcurse_cli.recurrences.mamba_names import BIAS, DIRECTIONS_BIAS, RATE, find_mixers
from memcurse_cli.recurrences.projected_gates import low_rank_gate, repeated
from memcurse_cli.recurrences.reading import read_real
from memcurse_cli.recurrences.recurrence import Floats, Recurrence
from memcurse_cli.recurrences.vectors import read_vector
from memcurse_cli.theory.gate_laws import StepSize

_NOMINAL = (
    "Δ = softplus(dt_proj.bias) is the step at a zero input; what the bias of the convolution adds"
    " to it through x_proj is left out"
)
_SHARED_STEP = "the backward direction has the step sizes of the forward one: its bias moves both"

# What MambaBEAT calls x_proj, with the rows B, C, Δ instead of Δ, B, C.
_SELECTION = "selection"


class Mamba:
    """``λ = exp(-Δ e^{A_log})``, ``γ = Δ`` and ``Δ = softplus(dt_proj.bias)``.

    ``h[t] = λ h[t-1] + Δ B x[t]``: mamba_ssm/modules/mamba_simple.py, `Mamba.step`. A_log is
    (channels, state), or (heads, head dimension, state) in Zamba; one bias moves the whole state
    of its channel, and Δ is the gain as well. B and C depend on the input. Each direction of a
    Vision Mamba is a layer; VMamba stores all of them as one, A_logs (directions × channels,
    state) beside dt_projs_bias (directions, channels).
    """

    name = "mamba"
    title = "Mamba (S6)"
    recognised_by = (
        "A_log (channels, state) beside dt_proj.bias (channels), or A_logs beside dt_projs_bias"
    )
    equation = "λ = exp(-Δ e^A_log), Δ = softplus(dt_proj.bias)"
    source = "mamba_ssm and transformers; Gu & Dao 2023, arXiv 2312.00752"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every ``A_log`` of two or more dimensions that has a step-size bias beside it."""
        return find_mixers(tensors, self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read A_log and the bias.

        Raises:
            TensorError: NaN or inf, or a bias that has not one entry per channel.
        """
        rate_name, bias_name = match.tensors[RATE], match.tensors[BIAS]
        rate_spec, bias_spec = store.tensors[rate_name], store.tensors[bias_name]
        log_rate = read_real(store, rate_name, rate_spec.shape)
        # One rate for each head, as Mamba-2 has it, in the m0 form of VMamba.
        by_head = rate_spec.shape == bias_spec.shape
        state = 1 if by_head else log_rate.shape[-1]
        if bias_name.endswith(DIRECTIONS_BIAS):
            bias = read_vector(store, bias_name, log_rate.size // state)
        else:
            bias = read_real(store, bias_name, rate_spec.shape[:-1]).ravel()

        shared = match.layer.endswith("(backward)") and not bias_name.endswith("_b.bias")
        channel = np.repeat(np.arange(bias.size), state)
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=StepSize(apply_transform(log_rate.ravel(), "exp").value),
            at=bias[channel],
            slots=[
                Slot(RATE, rate_name, log_rate.ravel(), "A_log"),
                Slot(BIAS, bias_name, bias, "dt_bias", scalar=channel),
            ],
            gates=lambda: _step(store, bias_name, bias, state),
            sees="what x_proj sees, the convolution's output",
            multiplicity=_head_size(store, match.tensors) if by_head else 1,
            assumptions=(_NOMINAL, *([_SHARED_STEP] if shared else [])),
        )


def _head_size(store: TensorStore, names: Mapping[str, str]) -> int:
    """Head dimension × state of a head, from Ds (K, heads, dimension) and the rows of x_proj.

    x_proj_weight (K, heads + 2 state, inputs) makes Δ, B and C.
    """
    if "Ds" not in names or "x_proj_weight" not in names:
        return 1
    direct, projection = (store.tensors[names[role]].shape for role in ("Ds", "x_proj_weight"))
    if len(direct) != 3 or len(projection) != 3:
        return 1
    return max(direct[2] * ((projection[1] - direct[1]) // 2), 1)


def _step(store: TensorStore, bias_name: str, bias: Floats, state: int) -> GateInput | None:
    """The step's projection beside its bias: dt_proj (x_proj u), with Jamba's norm between."""
    outer = f"{bias_name[:-4]}weight"
    inner = outer.replace("dt_projs", "dt_proj").replace("dt_proj", "x_proj")
    selection = outer.replace("dt_proj", _SELECTION)
    last = inner not in store.tensors and selection in store.tensors
    if last:
        inner = selection
    norm = re.sub(r"dt_proj(\.\d+)?\.weight$", "dt_layernorm.weight", outer)
    normalised = None
    if norm != outer and norm in store.tensors:
        normalised = read_vector(store, norm)
    elif setting(store.config, "model_type") == "falcon_mamba":
        normalised = np.ones(1)  # its norm has no scale
    gate = low_rank_gate(store, bias, outer, inner, normalised=normalised, last=last)
    return None if gate is None else repeated(gate, state)
