"""Mamba of Gu & Dao 2023, arXiv 2312.00752, under PyTorch's names and llama.cpp's.

All of it at its nominal input: ``λ = exp(-Δ e^{A_log})``, ``γ = Δ`` and Δ the softplus of a bias.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.assumptions import setting
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateInput, low_rank_gate, projected_gate, repeated
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside
from memcurse_cli.families.reading import read_real, read_vector, shown_shape
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence, layers_with
from memcurse_cli.families.state_space.discretization import apply_transform
from memcurse_cli.theory.gates.laws import StepSize

RATE, BIAS = "A_log", "dt_proj.bias"
DIRECTIONS_RATE, DIRECTIONS_BIAS = "A_logs", "dt_projs_bias"
# A_b_log of Vision Mamba, A_log_b of mamba.py, A_log_0 of LocalVim and A_log.0 of Hymba.
_RATE_NAME = re.compile(r"(?:^|[./,])(?:A_([a-z]{1,2})_log|A_log[._/]([a-z]{1,2}|\d{1,3}))$")
_BACKWARD = "b"
# What MambaBEAT calls x_proj, with the rows B, C, Δ instead of Δ, B, C.
_SELECTION = "selection"

_NOMINAL = (
    "Δ = softplus(dt_proj.bias) is the step at a zero input; what the bias of the convolution adds"
    " to it through x_proj is left out"
)
_SHARED_STEP = "the backward direction has the step sizes of the forward one: its bias moves both"


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
        """Every rate of two or more dimensions that has a step-size bias, as `RATE` and `BIAS`.

        A second direction without a step size of its own shares the first one's (Vision Mamba's
        ``bimamba_type="v1"``).
        """
        # The first test spares 10⁵ other names the expression.
        candidates = (_direction(name) for name in tensors if "A_" in name)
        directions = {"", *(found for found in candidates if found is not None)}
        roles = [RATE, DIRECTIONS_RATE, DIRECTIONS_BIAS, "Ds", "x_proj_weight"]
        for each in directions:
            rates = (f"A_{each}_log", f"A_log_{each}", f"A_log.{each}") if each else ()
            roles += (*rates, *_biases(each))
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            by_direction = {_direction(role): role for role in names}
            by_direction.pop(None, None)
            for tag, role in by_direction.items():
                bias = next((names[each] for each in _biases(tag or "") if each in names), None)
                if bias is None or len(tensors[names[role]].shape) < 2:
                    continue
                alone = not tag or (tag.isdigit() and len(by_direction) == 1)
                shown = "" if alone else f" ({'backward' if tag == _BACKWARD else tag})"
                layer = (module or self.name) + shown
                matches.append(Match(layer, {RATE: names[role], BIAS: bias}))
            if DIRECTIONS_RATE in names and DIRECTIONS_BIAS in names:
                kept = {RATE: names[DIRECTIONS_RATE], BIAS: names[DIRECTIONS_BIAS]}
                kept |= {role: names[role] for role in ("Ds", "x_proj_weight") if role in names}
                if len(tensors[kept[RATE]].shape) == len(tensors[kept[BIAS]].shape) == 2:
                    matches.append(Match(module or self.name, kept))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read A_log and the bias.

        Raises:
            TensorError: NaN or inf, or a bias that has not one entry per channel.
        """
        rate_name, bias_name = match.tensors[RATE], match.tensors[BIAS]
        rate_shape = store.tensors[rate_name].shape
        log_rate = read_real(store, rate_name, rate_shape)
        # One rate for each head, as Mamba-2 has it, in the m0 form of VMamba.
        by_head = rate_shape == store.tensors[bias_name].shape
        state = 1 if by_head else log_rate.shape[-1]
        if bias_name.endswith(DIRECTIONS_BIAS):
            bias = read_vector(store, bias_name, log_rate.size // state)
        else:
            bias = read_real(store, bias_name, rate_shape[:-1]).ravel()
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


def _direction(name: str) -> str | None:
    """The direction that the name of a rate says, empty for the only one; None for other names."""
    found = _RATE_NAME.search(name)
    return "" if name == RATE else (found[1] or found[2]) if found else None


def _biases(tag: str) -> tuple[str, ...]:
    """The names of a direction's step-size bias."""
    if not tag:
        return BIAS, "dt_proj_bias"
    own = (f"dt_proj_{tag}.bias", f"dt_proj.{tag}.bias")
    return (*own, BIAS) if tag == _BACKWARD else own


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
    norm = re.sub(r"dt_proj(\.\d+)?\.weight$", "dt_layernorm.weight", outer)
    normalised = None
    if norm != outer and norm in store.tensors:
        normalised = read_vector(store, norm)
    elif setting(store.config, "model_type") == "falcon_mamba":
        normalised = np.ones(1)  # its norm has no scale
    gate = low_rank_gate(
        store, bias, outer, selection if last else inner, normalised=normalised, last=last
    )
    return None if gate is None else repeated(gate, state)


_GGUF_RATE, _GGUF_BIAS = "ssm_a", "ssm_dt.bias"
# Mamba projects the step of each channel; Mamba-2 has none of these, and one step per head.
_MAMBA = ("ssm_x.weight", "ssm_dt.weight")
_MAMBA_2 = ("ssm_d", "ssm_norm.weight", "ssm_conv1d.weight", "ssm_out.weight")

_GGUF_NOMINAL = (
    "Δ = softplus(ssm_dt.bias) is the step at a zero input; what the bias of the convolution adds"
    " to it is left out"
)
CONVERTED = (
    "ssm_a is -exp(A_log), as llama.cpp's converter has stored it; training moves A_log, whose unit"
    " moves ssm_a by its own size"
)


class GgufMamba:
    """``λ = exp(Δ a)``, ``γ = Δ`` and ``Δ = softplus(ssm_dt.bias)``, where ``a`` is ssm_a.

    The equations of Mamba (a of each channel and state) and of Mamba-2 (a of each head). The
    converter has stored ``a = -exp(A_log)`` (llama.cpp, convert_hf_to_gguf.py), so that a value
    which was rounded to zero or beyond gives |λ| >= 1: nothing in the file keeps it negative.
    """

    name = "gguf_mamba"
    title = "Mamba and Mamba-2 in GGUF"
    recognised_by = "ssm_a beside ssm_dt.bias, and ssm_x and ssm_dt.weight or ssm_d and ssm_norm"
    equation = "λ = exp(Δ ssm_a), Δ = softplus(ssm_dt.bias)"
    source = "llama.cpp; Gu & Dao 2023, arXiv 2312.00752; Dao & Gu 2024, arXiv 2405.21060"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Blocks with the decay rates, the bias of the step and the tensors of either version."""
        return [
            match
            for version in (_MAMBA, _MAMBA_2)
            for match in layers_with(
                tensors,
                self.name,
                (_GGUF_RATE, _GGUF_BIAS, *version),
                fits=lambda shapes: len(shapes[_GGUF_RATE]) == 2,
            )
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read ssm_a and the bias.

        Raises:
            TensorError: NaN or inf, or shapes that do not fit together.
        """
        names = match.tensors
        rate = read_real(store, names[_GGUF_RATE], (None, None))
        bias = read_real(store, names[_GGUF_BIAS], rate.shape[:1])
        channel = np.repeat(np.arange(bias.size), rate.shape[1])
        by_channel = names.keys() >= {*_MAMBA}

        def gates() -> GateInput | None:
            if by_channel:
                gate = low_rank_gate(store, bias, names["ssm_dt.weight"], names["ssm_x.weight"])
            else:
                inner = beside(store, names[_GGUF_RATE], "ssm_in.weight")
                gate = projected_gate(store, bias, inner, rows=slice(-bias.size, None))
            return None if gate is None or np.any(rate >= 0) else repeated(gate, rate.shape[1])

        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=StepSize(-rate.ravel(), negated=True),
            at=bias[channel],
            slots=[
                Slot(_GGUF_RATE, names[_GGUF_RATE], rate.ravel(), "A_log"),
                Slot(
                    _GGUF_BIAS,
                    names[_GGUF_BIAS],
                    bias,
                    "dt_bias",
                    scalar=channel,
                    keeps_stable=True,
                ),
            ],
            gates=gates,
            sees=(
                "what ssm_x sees, the convolution's output"
                if by_channel
                else "what ssm_in sees, the mixer's input"
            ),
            multiplicity=1 if by_channel else _states_per_head(store, names),
            assumptions=(_GGUF_NOMINAL, CONVERTED),
            stable=False,
        )


def _states_per_head(store: TensorStore, names: Mapping[str, str]) -> int:
    """Head dimension × state of Mamba-2: the convolution has the channels of x, B and C.

    Raises:
        TensorError: the shapes contradict each other.
    """
    shapes = {role: store.tensors[names[role]].shape for role in (_GGUF_RATE, *_MAMBA_2)}
    heads, width = shapes[_GGUF_RATE][0], shapes["ssm_out.weight"][-1]
    groups = shapes["ssm_norm.weight"][0]
    shared = shapes["ssm_conv1d.weight"][0] - width
    fits = (
        prod(shapes["ssm_norm.weight"]) == width
        and 0 < heads <= width
        and width % heads == 0
        and shared > 0
        and shared % (2 * groups) == 0
    )
    if not fits:
        raise TensorError(
            f"its shape {shown_shape(shapes['ssm_conv1d.weight'])} does not fit {heads} heads of"
            f" {width} channels in {groups} groups",
            where=names["ssm_conv1d.weight"],
            remedy="name the right family with --family, or convert the model again",
        )
    return width // heads * (shared // (2 * groups))
