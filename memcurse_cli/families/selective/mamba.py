"""Mamba (selective state space, S6) of Gu & Dao 2023, arXiv 2312.00752, at its nominal input.

What libraries call the rates and the step sizes of a Mamba mixer, direction by direction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.assumptions import setting
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateInput
from memcurse_cli.families.gate_weights import low_rank_gate, repeated
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_real, read_vector
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence
from memcurse_cli.families.state_space.discretization import apply_transform
from memcurse_cli.theory.gates.laws import StepSize

RATE, BIAS = "A_log", "dt_proj.bias"
DIRECTIONS_RATE, DIRECTIONS_BIAS = "A_logs", "dt_projs_bias"

# A_b_log of Vision Mamba, A_log_b of mamba.py, A_log_0 of LocalVim and A_log.0 of Hymba.
_RATE_NAME = re.compile(r"(?:^|[./,])(?:A_([a-z]{1,2})_log|A_log[._/]([a-z]{1,2}|\d{1,3}))$")
_BACKWARD = "b"


def find_mixers(tensors: Mapping[str, TensorSpec], default: str) -> list[Match]:
    """Every rate of two or more dimensions beside its step-size bias, as roles `RATE` and `BIAS`.

    A second direction without a step size of its own shares the first one's (Vision Mamba's
    ``bimamba_type="v1"``). `DIRECTIONS_RATE` holds the rates of all directions of an image at once
    (VMamba), in one layer.

    Args:
        tensors: every tensor's name, shape and type.
        default: the name of a mixer whose tensors have no module.
    """
    matches = []
    for module, names in group_by_module(tensors, _roles(tensors)).items():
        rates = {_tag(role): role for role in names if _tag(role) is not None}
        for tag, role in rates.items():
            bias = next((names[each] for each in _biases(tag or "") if each in names), None)
            if bias is None or len(tensors[names[role]].shape) < 2:
                continue
            direction = _shown(tag or "", alone=len(rates) == 1)
            matches.append(Match((module or default) + direction, {RATE: names[role], BIAS: bias}))
        if DIRECTIONS_RATE in names and DIRECTIONS_BIAS in names:
            kept = {RATE: names[DIRECTIONS_RATE], BIAS: names[DIRECTIONS_BIAS]}
            kept |= {role: names[role] for role in ("Ds", "x_proj_weight") if role in names}
            if len(tensors[kept[RATE]].shape) == len(tensors[kept[BIAS]].shape) == 2:
                matches.append(Match(module or default, kept))
    return matches


def _roles(tensors: Mapping[str, TensorSpec]) -> dict[str, None]:
    """The names of rates and biases that may be there."""
    roles = dict.fromkeys((RATE, DIRECTIONS_RATE, DIRECTIONS_BIAS, "Ds", "x_proj_weight"))
    # The first test spares 10⁵ other names the expression.
    candidates = (_tag(name) for name in tensors if "A_" in name)
    for tag in {"", *(found for found in candidates if found is not None)}:
        rates = (f"A_{tag}_log", f"A_log_{tag}", f"A_log.{tag}") if tag else ()
        roles |= dict.fromkeys((*rates, *_biases(tag)))
    return roles


def _tag(name: str) -> str | None:
    """The direction that the name of a rate says, empty for the only one; None for other names."""
    if name == RATE:
        return ""
    found = _RATE_NAME.search(name)
    return (found[1] or found[2]) if found else None


def _biases(tag: str) -> tuple[str, ...]:
    """The names of a direction's step-size bias."""
    if not tag:
        return BIAS, "dt_proj_bias"
    own = (f"dt_proj_{tag}.bias", f"dt_proj.{tag}.bias")
    return (*own, BIAS) if tag == _BACKWARD else own


def _shown(tag: str, *, alone: bool) -> str:
    """The direction in the name of a layer."""
    if not tag or (tag.isdigit() and alone):
        return ""
    return " (backward)" if tag == _BACKWARD else f" ({tag})"


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
