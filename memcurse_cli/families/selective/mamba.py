"""Mamba, Mamba-2 and Mamba-3, and llama.cpp's files of the first two, at their nominal input."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.families.family import Assumption, Layout, Match, setting
from memcurse_cli.families.gate_inputs import (
    GateInput,
    JointDrive,
    NoDrive,
    inner_products,
    low_rank_gate,
    repeated,
    squared_rows,
)
from memcurse_cli.families.reading import group_by_module
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Slot, step_size
from memcurse_cli.theory.gates.laws import TrapezoidStep, softplus

RATE, BIAS = "A_log", "dt_proj.bias"
_RATES, _BIASES = "A_logs", "dt_projs_bias"
# A_b_log of Vision Mamba, A_log_b of mamba.py, A_log_0 of LocalVim and A_log.0 of Hymba.
_RATE_NAME = re.compile(r"(?:^|[./,])(?:A_([a-z]{1,2})_log|A_log[._/]([a-z]{1,2}|\d{1,3}))$")

_NOMINAL = (
    "Δ = softplus(dt_proj.bias) is the step at a zero input; what the bias of the convolution adds"
    " to it through x_proj is left out"
)
_SHARED_STEP = "the backward direction has the step sizes of the forward one: its bias moves both"


class Mamba(LawFamily):
    """``h[t] = λ h[t-1] + Δ B x[t]``: mamba_ssm/modules/mamba_simple.py, `Mamba.step`; γ = Δ.

    A_log is (channels, state), or (heads, head dimension, state) in Zamba; one bias moves the whole
    state of its channel. Each direction of a Vision Mamba is a layer; VMamba stores all of them as
    one, A_logs (directions × channels, state) beside dt_projs_bias (directions, channels).
    """

    name = "mamba"
    title = "Mamba (S6)"
    recognised_by = (
        "A_log (channels, state) beside dt_proj.bias (channels), or A_logs beside dt_projs_bias"
    )
    equation = "λ = exp(-Δ e^A_log), Δ = softplus(dt_proj.bias)"
    source = "mamba_ssm and transformers; Gu & Dao 2023, arXiv 2312.00752"

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every rate of two or more dimensions that has a step-size bias, as `RATE` and `BIAS`."""
        # The first test spares 10⁵ other names the expression.
        directions = {"", *(_direction(name) or "" for name in tensors if "A_" in name)}
        roles = [RATE, _RATES, _BIASES, "Ds", "x_proj_weight"]
        for tag in directions:
            roles += [f"A_{tag}_log", f"A_log_{tag}", f"A_log.{tag}", *_bias_names(tag)]
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            rates = {of: role for role in names if (of := _direction(role)) is not None}
            for tag, role in rates.items():
                bias = next((names[each] for each in _bias_names(tag) if each in names), None)
                if bias is None or len(tensors[names[role]].shape) < 2:
                    continue
                alone = not tag or (tag.isdigit() and len(rates) == 1)
                shown = "" if alone else f" ({'backward' if tag == 'b' else tag})"
                layer = (module or self.name) + shown
                matches.append(Match(layer, {RATE: names[role], BIAS: bias}))
            if _RATES in names and _BIASES in names:
                kept = {RATE: names[_RATES], BIAS: names[_BIASES]}
                kept |= {role: names[role] for role in ("Ds", "x_proj_weight") if role in names}
                if len(tensors[kept[RATE]].shape) == len(tensors[kept[BIAS]].shape) == 2:
                    matches.append(Match(module or self.name, kept))
        return matches

    def _recurrence(self, layer: Layer) -> Recurrence:
        shape, bias_name = layer.shape(RATE), layer.names[BIAS]
        log_rate = layer.real(RATE, shape)
        # One rate for each head, as Mamba-2 has it, in the m0 form of VMamba.
        by_head = shape == layer.shape(BIAS)
        state = 1 if by_head else shape[-1]
        if bias_name.endswith(_BIASES):
            bias = layer.vector(BIAS, log_rate.size // state)
        else:
            bias = layer.real(BIAS, shape[:-1]).ravel()
        shared = layer.match.layer.endswith("(backward)") and not bias_name.endswith("_b.bias")
        law, at, slots = step_size(
            Slot(RATE, log_rate.ravel(), "A_log"), Slot(BIAS, bias, "dt_bias")
        )
        return layer.gated(
            law,
            at,
            slots,
            gates=lambda: _step(layer, bias, state),
            sees="what x_proj sees, the convolution's output",
            multiplicity=_head_size(layer) if by_head else 1,
            assumptions=(_NOMINAL, *([_SHARED_STEP] if shared else [])),
        )


def _direction(name: str) -> str | None:
    """The direction that the name of a rate says, empty for the only one; None for other names."""
    found = _RATE_NAME.search(name)
    return "" if name == RATE else (found[1] or found[2]) if found else None


def _bias_names(tag: str) -> tuple[str, ...]:
    """The names of a direction's step-size bias."""
    if not tag:
        return BIAS, "dt_proj_bias"
    own = (f"dt_proj_{tag}.bias", f"dt_proj.{tag}.bias")
    # Vision Mamba's second direction may share the first one's (``bimamba_type="v1"``).
    return (*own, BIAS) if tag == "b" else own


def _head_size(layer: Layer) -> int:
    """From Ds (K, heads, head dimension) and x_proj_weight (K, heads + 2 state, inputs); or 1."""
    shapes = [layer.shape(role) for role in ("Ds", "x_proj_weight") if role in layer.names]
    if [len(shape) for shape in shapes] != [3, 3]:
        return 1
    (_, heads, size), (_, rows, _) = shapes
    return max(size * ((rows - heads) // 2), 1)


def _step(layer: Layer, bias: Floats, state: int) -> GateInput | None:
    """The step's projection beside its bias: dt_proj (x_proj u), with Jamba's norm between."""
    store, outer = layer.store, f"{layer.names[BIAS][:-4]}weight"
    inner = outer.replace("dt_projs", "dt_proj").replace("dt_proj", "x_proj")
    last = inner not in store.tensors
    if last:  # MambaBEAT calls x_proj selection, with the rows B, C, Δ instead of Δ, B, C
        inner = outer.replace("dt_proj", "selection")
    norm = re.sub(r"dt_proj(\.\d+)?\.weight$", "dt_layernorm.weight", outer)
    normalised = None
    if norm != outer and norm in store.tensors:
        normalised = layer.vector(norm)
    elif setting(store.config, "model_type") == "falcon_mamba":
        normalised = np.ones(1)  # its norm has no scale
    gate = low_rank_gate(store, bias, outer, inner, normalised=normalised, last=last)
    return None if gate is None else repeated(gate, state)


_GGUF_RATE, _GGUF_BIAS = "ssm_a", "ssm_dt.bias"
# Mamba projects the step of each channel; Mamba-2 has none of these, and one step per head.
_MAMBA = ("ssm_x.weight", "ssm_dt.weight")
_MAMBA_2 = ("ssm_d", "ssm_norm.weight", "ssm_conv1d.weight", "ssm_out.weight")

_GGUF_NOMINAL = (
    "Δ = softplus(ssm_dt.bias) is the step at a zero input; what the bias of the convolution adds"
    " to it is left out"
)


class GgufMamba(LawFamily):
    """Mamba, with ssm_a of each channel and state, and Mamba-2, with ssm_a of each head; γ = Δ.

    The converter has stored ``ssm_a = -exp(A_log)`` (llama.cpp, convert_hf_to_gguf.py), so that a
    value which was rounded to zero or beyond gives |λ| >= 1: nothing in the file keeps it negative.
    """

    name = "gguf_mamba"
    title = "Mamba and Mamba-2 in GGUF"
    recognised_by = "ssm_a beside ssm_dt.bias, and ssm_x and ssm_dt.weight or ssm_d and ssm_norm"
    equation = "λ = exp(Δ ssm_a), Δ = softplus(ssm_dt.bias)"
    source = "llama.cpp; Gu & Dao 2023, arXiv 2312.00752; Dao & Gu 2024, arXiv 2405.21060"
    layouts = tuple(
        Layout(
            (_GGUF_RATE, _GGUF_BIAS, *version),
            fits=lambda shapes: len(shapes[_GGUF_RATE]) == 2 and all(shapes.values()),
        )
        for version in (_MAMBA, _MAMBA_2)
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        rate = layer.real(_GGUF_RATE, (None, None))
        bias = layer.real(_GGUF_BIAS, rate.shape[:1])
        by_channel = layer.names.keys() >= {*_MAMBA}

        def gates() -> GateInput | None:
            inner = _MAMBA[::-1] if by_channel else ("ssm_in.weight",)
            gate = layer.gate_through(bias, _GGUF_RATE, [inner], slice(-bias.size, None))
            return None if gate is None or np.any(rate >= 0) else repeated(gate, rate.shape[1])

        law, at, slots = step_size(
            Slot(_GGUF_RATE, rate.ravel(), "A_log"), Slot(_GGUF_BIAS, bias, "dt_bias"), stored=True
        )
        sees = "what ssm_in sees, the mixer's input"
        if by_channel:
            sees = "what ssm_x sees, the convolution's output"
        return layer.gated(
            law,
            at,
            slots,
            gates=gates,
            sees=sees,
            multiplicity=1 if by_channel else _gguf_states(layer),
            assumptions=(_GGUF_NOMINAL,),
            converted=True,
        )


def _gguf_states(layer: Layer) -> int:
    """Head dimension × state of Mamba-2: the convolution has the channels of x, B and C."""
    heads, (groups, *inner) = layer.shape(_GGUF_RATE)[0], layer.shape("ssm_norm.weight")
    width, convolved = layer.shape("ssm_out.weight")[-1], layer.shape("ssm_conv1d.weight")
    fits = groups * math.prod(inner) == width
    found = _states_per_head(heads, width, convolved[0] - width, groups) if fits else 0
    if not found:
        raise layer.misshapen(
            "ssm_conv1d.weight",
            f"does not fit {heads} heads of {width} channels in {groups} groups",
            "name the right family with --family, or convert the model again",
        )
    return found


def _states_per_head(heads: int, width: int, shared: int, groups: int) -> int:
    """Head dimension × state, with B and C of ``shared`` channels; 0 where they do not fit."""
    if not 0 < heads <= width or width % heads or shared < 1 or shared % (2 * groups):
        return 0
    return width // heads * (shared // (2 * groups))


UNCLAMPED = (
    "Δ is not clamped: the limits of time_step_limit are in the configuration, not in the"
    " checkpoint, and act on whole sequences only"
)


def _clamp_sentence(config: Mapping[str, Any], step: Floats) -> tuple[str, ...]:
    """What is left out where the library clamps Δ; nothing where the limits are known as open."""
    limits = (setting(config, key) for key in ("time_step_limit", "ssm_cfg.dt_limit"))
    pair: Any = next((found for found in limits if found is not None), None)
    # Their mixers clamp at the smallest step of the initialisation, whatever the limit says.
    if setting(config, "model_type") in ("nemotron_h", "zamba2"):
        pair = [setting(config, "time_step_min"), math.inf]
    low, high = map(_number, pair) if isinstance(pair, list) and len(pair) == 2 else (None, None)
    if low is None or high is None or low > high:
        return (UNCLAMPED,)
    if low <= 0 and high == math.inf:
        return ()
    outside = int(((step < low) | (step > high)).sum())
    sentence = (
        f"Δ is not clamped: config.json holds it in [{low:g}, {high:g}] over whole sequences, not"
        f" in single steps; {outside} of {step.size} heads lie outside at zero input"
    )
    return (sentence,)


def _number(value: Any) -> float | None:
    if isinstance(value, Mapping):  # how transformers 5 writes an infinity into JSON
        return math.inf if value.get("__float__") == "Infinity" else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 or value == math.inf else None


def _bias_scale(config: Mapping[str, Any]) -> float:
    """The factor that Falcon-H1 puts on the rows of in_proj, its bias included, that make Δ."""
    factors = setting(config, "ssm_multipliers")
    if setting(config, "model_type") != "falcon_h1" or not isinstance(factors, list):
        return 1.0
    factor = _number(factors[-1]) if len(factors) == 5 else None
    return 1.0 if factor is None or abs(factor) > 1e6 else factor


GROUPS = Assumption(
    key="groups",
    default="1",
    meaning="how many groups of heads share B and C (n_groups); the size of the state rests on it",
)
_CONFIGURED_GROUPS = ("n_groups", "mamba_n_groups", "mamba_ngroups", "ssm_cfg.ngroups")

# A gated delta net has A_log and dt_bias too, but no D, and other names for its projections.
_REQUIRED = ("A_log", "dt_bias", "D", "in_proj.weight", "conv1d.weight")
# Hydra's mixer runs in both directions of time, and only it has fc_D.
_BOTH_DIRECTIONS = "fc_D.weight"
_OPTIONAL = ("in_proj.bias", "norm.weight", _BOTH_DIRECTIONS)
_BACKWARD = " (backward)"
_SHARED = "A_log and dt_bias are those of both directions: each of them moves two layers"
# Nemotron-H keeps what needs single precision in a module of its own inside the mixer.
_SINGLE_PRECISION = "_fp32_params."


class Mamba2(LawFamily):
    """``h[t] = λ h[t-1] + Δ B x[t]``: mamba_ssm/modules/mamba2.py, `Mamba2.step`; γ = Δ.

    One eigenvalue per head, which drives (head dimension × state) scalar states. The rows of
    in_proj are z, x, B, C and Δ, so that the last entries of its bias add to Δ. Hydra's two
    directions are two layers, whose Δ have rows and biases of their own.
    """

    name = "mamba2"
    title = "Mamba-2 (SSD)"
    recognised_by = "A_log, dt_bias and D (heads) beside in_proj.weight and conv1d.weight"
    equation = "λ = exp(-Δ e^A_log), Δ = softplus(dt_bias + in_proj.bias[-heads:])"
    source = "mamba_ssm and transformers; Dao & Gu 2024, arXiv 2405.21060"
    assumptions = (GROUPS,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every one-dimensional ``A_log`` that has all of a Mamba-2 mixer's tensors beside it."""
        inner = tuple(f"{_SINGLE_PRECISION}{role}" for role in _REQUIRED)
        matches = []
        for module, found in group_by_module(tensors, _REQUIRED + _OPTIONAL + inner).items():
            names = {role.removeprefix(_SINGLE_PRECISION): name for role, name in found.items()}
            if names.keys() >= {*_REQUIRED} and len(tensors[names["A_log"]].shape) == 1:
                directions = ("", _BACKWARD) if _BOTH_DIRECTIONS in names else ("",)
                matches += [Match((module or self.name) + each, names) for each in directions]
        return matches

    def _recurrence(self, layer: Layer) -> Recurrence:
        config = layer.store.config
        counts = (setting(config, key) for key in _CONFIGURED_GROUPS)
        configured = next((str(n) for n in counts if type(n) is int and 0 < n < 10**6), None)
        groups = layer.choose(GROUPS, configured=configured)
        if not re.fullmatch(r"0*[1-9]\d{0,8}", groups):
            remedy = "give the number of groups, 1 or more"
            raise layer.unknown(GROUPS, printable(groups, 60), remedy)
        multiplicity = _mixer_states(layer, int(groups))
        log_rate = layer.real("A_log", (None,))
        heads, scale = log_rate.size, _bias_scale(config)
        both = _BOTH_DIRECTIONS in layer.names
        forward = both and not layer.match.layer.endswith(_BACKWARD)
        # The last rows of in_proj make Δ.
        rows = slice(-2 * heads, -heads) if forward else slice(-heads, None)
        bias = layer.real("dt_bias", (heads,))
        law, total, slots = step_size(
            Slot("A_log", log_rate, "A_log"), Slot("dt_bias", bias, "dt_bias")
        )
        if "in_proj.bias" in layer.names:
            added = layer.real("in_proj.bias", (None,))[rows]
            slots.append(Slot("in_proj.bias", added, "dt_bias", scale))
            total = total + scale * added
        return layer.gated(
            law,
            total,
            slots,
            gates=lambda: layer.projected(total, "in_proj.weight", rows=rows, factor=scale),
            sees="what in_proj sees, the mixer's input",
            # The B and C of the other direction are among the convolved channels too.
            multiplicity=multiplicity // 2 if both else multiplicity,
            assumptions=(*_clamp_sentence(config, softplus(total)), *([_SHARED] if both else [])),
        )


def _mixer_states(layer: Layer, groups: int) -> int:
    """Head dimension × state, from the rows of in_proj (z, x, B, C, Δ) and conv1d (x, B, C)."""
    layer.require("in_proj.weight", (None, None))
    layer.require("conv1d.weight", (None, None, None))
    roles = ("A_log", "in_proj.weight", "conv1d.weight")
    heads, rows, convolved = (layer.shape(role)[0] for role in roles)
    if "in_proj.bias" in layer.names:
        layer.require("in_proj.bias", (rows,))
    # A mixer may carry a gated MLP in the same projection; its norm is as wide as its heads.
    gate = rows - convolved - heads
    norm = layer.shape("norm.weight") if "norm.weight" in layer.names else ()
    width = norm[0] if len(norm) == 1 else gate
    found = _states_per_head(heads, width, convolved - width, groups) if width <= gate else 0
    if not found:
        raise layer.misshapen(
            "in_proj.weight",
            f"does not fit {heads} heads, {convolved} convolved channels and groups={groups}",
            "give the number of groups with --assume groups=, or export the layer again",
        )
    return found


RATE_FUNCTION = Assumption(
    key="rate_function",
    default="heavy_tail",
    choices=("heavy_tail", "softplus"),
    meaning="the map from Mamba-3's projection to -A: 1 at zero, or log 2 with softplus",
)

_TRAPEZOID = (
    "the trapezoid puts half of an input's gain on its own step, the rest on the next; λ does not"
    " turn at a zero input, where the rotation of B and C stands still"
)

# Squared correlation of angles and steps, beyond which κ can be off by more than 7 %.
LARGEST_ALIGNMENT = 0.05
ALIGNED = "a state turns by angles that are correlated with the steps, which the sums leave out"
KINDS = 4  # states that turn by angles of about the same size are taken as of one
_UNFIT = NoDrive(
    "the rows of in_proj are not those of z, x, B, C, step, rate, trapezoid and angles for the"
    " shapes of its other tensors"
)


class Mamba3(LawFamily):
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
    layouts = (
        Layout(
            ("dt_bias", "B_bias", "C_bias", "in_proj.weight", "out_proj.weight"),
            without=("A_log",),
            fits=lambda shapes: len(shapes["dt_bias"]) == 1 and len(shapes["B_bias"]) == 3,
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        by_softplus = layer.choose(RATE_FUNCTION) == "softplus"
        floor = setting(layer.store.config, "ssm_cfg.A_floor")
        # mamba_ssm's default, where the configuration has none below a at zero.
        known = isinstance(floor, float) and 0 < floor < 0.5
        law = TrapezoidStep(by_softplus, floor if known else 1e-4)
        bias = layer.real("dt_bias", (None,))
        at = np.zeros((bias.size, 4))
        at[:, 0] = bias
        return layer.gated(
            law,
            at,
            [Slot("dt_bias", bias, law.bias)],
            gates=lambda: _drive(layer, law, at),
            multiplicity=_multiplicity(layer, bias.size),
            assumptions=(_TRAPEZOID,),
        )


def _drive(layer: Layer, law: TrapezoidStep, at: Floats) -> JointDrive | NoDrive:
    """The rows of step, rate, trapezoid and angles, these taken as independent of all else."""
    heads, start = len(at), _first_step_row(layer, len(at))
    if start is None:
        return _UNFIT
    rows = layer.finite("in_proj.weight")[start:]
    if np.iscomplexobj(rows):
        return _UNFIT
    (step, rate, weight), angles = rows[: 3 * heads].reshape(3, heads, -1), rows[3 * heads :]
    groups = np.array_split(np.sort(squared_rows(angles)), min(len(angles), KINDS))
    turning = 2 * len(angles) / layer.shape("B_bias")[2]
    kinds = [(float(np.mean(group)), turning * group.size / len(angles)) for group in groups]
    if turning < 1:
        kinds.append((0.0, 1 - turning))
    gram = np.zeros((heads, len(kinds), 4, 4))
    gram[:, :, :3, :3] = inner_products(step, rate, weight)[:, None]
    gram[:, :, 3, 3] = [angle for angle, _ in kinds]
    aligned = float(np.max(alignment(angles, step) + alignment(angles, rate), initial=0.0))
    fits = aligned <= LARGEST_ALIGNMENT
    return JointDrive(
        law,
        np.repeat(at, len(kinds), axis=0),
        gram.reshape(-1, 4, 4),
        motions={"dt_bias": (law.bias, 1.0)} if fits else {},
        kinds=tuple(share for _, share in kinds),
        reason=None if fits else ALIGNED,
        # The size of a state that a white drive leaves does not depend on how it turns.
        white_alone=not fits,
        sees="what in_proj sees, the mixer's input",
    )


def alignment(angles: Floats, rows: Floats) -> Floats:
    """(n,) the squared cosine between a row and one of the angles, mean over these."""
    both = squared_rows(rows)[:, None] * squared_rows(angles)
    cosines = (rows @ angles.T) ** 2 / np.where(both > 0, both, 1.0)
    return np.asarray(cosines.mean(axis=1))


def _first_step_row(layer: Layer, heads: int) -> int | None:
    """Behind z, x (inner each) and B, C (groups × rank × state each), where angles come last."""
    shape, (_, inner) = layer.shape("in_proj.weight"), layer.shape("out_proj.weight")
    if len(shape) != 2:
        return None
    _, rank, state = layer.shape("B_bias")
    both = 2 * rank * state  # B and C of a group; angles are 1/2 or 1/4 of a state
    groups, angles = divmod(shape[0] - 2 * inner - 3 * heads, both) if both else (0, 0)
    if groups < 1 or heads % groups or angles not in (state // 4, state // 2) or not angles:
        return None
    return 2 * inner + groups * both


def _multiplicity(layer: Layer, heads: int) -> int:
    """Head dimension × state."""
    layer.require("B_bias", (heads, None, None))
    layer.require("out_proj.weight", (None, None))
    shape = layer.shape("out_proj.weight")
    if shape[1] < 1 or shape[1] % heads:
        raise layer.misshapen("out_proj.weight", f"does not fit {heads} heads")
    return shape[1] // heads * layer.shape("B_bias")[2]
