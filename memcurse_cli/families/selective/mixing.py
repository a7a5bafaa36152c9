"""Layers whose gates see the input alone: minimal RNNs, SRU, QRNN, and the RG-LRU."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from msgspec.structs import replace

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.cells.gated_layer import WITHOUT_BIAS
from memcurse_cli.families.family import Assumption, Layout, Match, Shapes
from memcurse_cli.families.gate_inputs import (
    GateInput,
    JointDrive,
    NoDrive,
    inner_products,
    mixing_drive,
    read_rows,
    squared_rows,
)
from memcurse_cli.families.reading import LARGEST_DECAY, first_name, misfit, sigmoid
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Seen, Slot
from memcurse_cli.theory import duals
from memcurse_cli.theory.gates.laws import Exponent, Mix, Share, Write, softplus
from memcurse_cli.theory.simulation import CellDynamics, Draw, Step


class _MinRNN(LawFamily):
    """A candidate and gates that see nothing but the input.

    minGRU-pytorch stores the rows of the candidate and of the gates in one projection, ``fused``;
    the paper's listing has a layer for each: ``gates`` are these layers and the law's parameters.
    """

    fused: ClassVar[str]
    gates: ClassVar[tuple[tuple[str, str], ...]]
    law: ClassVar[Mix | Share]

    def _recurrence(self, layer: Layer) -> Recurrence:
        modules, parts = [of for of, _ in self.gates], 1
        if f"{self.fused}.weight" in layer.names:
            modules, parts = [self.fused], len(self.gates) + 1
        weights = [f"{module}.weight" for module in modules]
        size = layer.stacked_rows(weights[0], parts)
        held = [role for role in (f"{module}.bias" for module in modules) if role in layer.names]
        if 0 < len(held) < len(modules):
            remedy = "name the right family with --family"
            raise misfit("only one of the two gates has a bias", layer.names[held[0]], remedy)
        biases = [layer.vector(role, parts * size) for role in held]
        names = held
        if biases and parts > 1:  # the rows of the candidate are the first ones
            biases = list(biases[0].reshape(parts, size)[1:])
            names = [f"{held[0]}[{moves}]" for _, moves in self.gates]
        slots = [
            Slot(name, bias, moves)
            for name, bias, (_, moves) in zip(names, biases, self.gates, strict=False)
        ]
        at = np.stack(biases or [np.zeros(size)] * len(self.gates), axis=1)
        one = at[:, 0] if len(self.gates) == 1 else at

        def gates() -> Seen:
            if isinstance(self.law, Mix):  # the rows of the gate are the last ones
                return layer.projected(one, *weights, rows=slice(-size, None))
            rows = read_rows(layer.store, [layer.names[role] for role in weights])
            if rows is None:
                return None
            gram = inner_products(*(rows if len(rows) == 2 else np.split(rows[0], 3)[1:]))
            return JointDrive(self.law, at, gram, {slot.name: (slot.moves, 1.0) for slot in slots})

        return layer.gated(
            self.law,
            one,
            slots,
            gates=gates,
            tensors=tuple(layer.names.values()),
            assumptions=() if slots else (WITHOUT_BIAS,),
        )


def _layouts(fused: str, gates: Iterable[tuple[str, str]], strangers: str) -> tuple[Layout, ...]:
    """All in one projection, or a layer of each gate and none of more gates."""
    return (
        Layout((f"{fused}.weight",), optional=(f"{fused}.bias",)),
        Layout(
            (*(f"{gate}.weight" for gate, _ in gates), "linear_h.weight"),
            optional=tuple(f"{gate}.bias" for gate, _ in gates),
            without=tuple(f"linear_{gate}.weight" for gate in strangers),
            # The weights of the gates and of the candidate have one shape.
            fits=lambda of: len({of[role] for role in of if role.endswith("weight")}) == 1,
        ),
    )


class MinGRU(_MinRNN):
    """``h[t] = (1 - z) h[t-1] + z x̃[t]``, z = σ(b): λ = 1/2 without a bias."""

    name = "min_gru"
    title = "minGRU"
    recognised_by = "to_hidden_and_gate.weight (2n, d); or linear_z.weight beside linear_h.weight"
    equation = "λ = 1 - σ(b_z), γ = σ(b_z)"
    source = "minGRU-pytorch; Feng et al. 2024, arXiv 2410.01201"
    fused, law = "to_hidden_and_gate", Mix(keeps=False, parameter="gate")
    gates = (("linear_z", "gate"),)
    layouts = _layouts(fused, gates, "rfioc")


class MinLSTM(_MinRNN):
    """``h[t] = f/(f+i) h[t-1] + i/(f+i) x̃[t]``: λ = 1/2 without biases."""

    name = "min_lstm"
    title = "minLSTM"
    recognised_by = (
        "to_hidden_and_f_i_gate.weight (3n, d); or linear_f.weight, linear_i.weight and"
        " linear_h.weight"
    )
    equation = "λ = f/(f+i), γ = i/(f+i), f = σ(b_f), i = σ(b_i)"
    source = "minGRU-pytorch; Feng et al. 2024, arXiv 2410.01201"
    fused, law = "to_hidden_and_f_i_gate", Share()
    gates = (("linear_f", "forget"), ("linear_i", "input"))
    layouts = _layouts(fused, gates, "ozrc")


_NORM = ("layer_norm.weight", "layer_norm.bias")
# Before version 2 the cell's state did not enter the gates, and only this list told a layer.
_RNN_LIST = re.compile(r"(?:.*[./,])?rnn_lst[./,]\d+")

_NOMINAL = "weight_c multiplies the cell's state in the gates, which stands at zero"
_NORMALISED = "what the layer normalisation puts out at zero input is taken as zero"

_OWN_STATE = (
    "weight_c lets its gate see its own unit's state, which stays from step to step, where the"
    " theory has gates drawn anew; the band is that of the gate, drawn"
)
_ATTENDED = NoDrive("its gate sees an attention over the sequence, not a projection of the input")
_UNFIT = NoDrive("its weight is not three or four matrices of the size of its bias")


class SRU(LawFamily):
    """``c[t+1] = f c[t] + (1-f) W x``, ``f = σ(W_f x + v_f c[t] + b_f)``: λ = σ(b_f), γ = 1 - λ.

    ``bias`` holds b_f, then the b_r of the highway ``h = r c + (1-r) x``; both directions of a
    bidirectional layer stand in each half. v_f, the first half of ``weight_c``, multiplies the
    state, and so does not move λ at c = 0. SRU++ changes how W x is made and nothing else.
    """

    name = "sru"
    title = "SRU and SRU++ (simple recurrent unit)"
    recognised_by = "weight_c (2n) beside bias (2n); or rnn_lst.0.weight (inputs, 3n or 4n)"
    equation = "λ = σ(b_f), γ = 1 - λ, b_f the first half of bias"
    source = "sru 2.7 and 3.0; Lei et al. 2018, arXiv 1709.02755; Lei 2021, arXiv 2102.12459"
    layouts = (
        Layout(("bias",), optional=("weight_c", "weight", "weight_proj", "scale_x", *_NORM)),
    )

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a weight_c of the bias's size, and old ones in a list ``rnn_lst``."""
        return [match for match in super().find(tensors) if _is_sru(match, tensors)]

    def _recurrence(self, layer: Layer) -> Recurrence:
        values = layer.real("bias", (None,))
        forget = values[: values.size // 2]
        sentences = {"weight_c": _NOMINAL, _NORM[0]: _NORMALISED}
        return layer.gated(
            Mix(parameter="forget"),
            forget,
            [Slot("bias[forget]", forget, "forget")],
            gates=lambda: _sru_gates(layer, forget),
            tensors=tuple(layer.names.values()),
            assumptions=[text for role, text in sentences.items() if role in layer.names],
            dynamics=_sru_dynamics(layer, forget.size) if layer.options.simulate else None,
        )


def _is_sru(match: Match, tensors: Mapping[str, TensorSpec]) -> bool:
    shapes = {role: tensors[name].shape for role, name in match.tensors.items()}
    bias, weight = shapes["bias"], shapes.get("weight", ())
    if len(bias) != 1 or bias[0] % 2 or not bias[0]:
        return False
    if "weight_c" in shapes:
        return shapes["weight_c"] == bias
    fits = len(weight) == 2 and weight[1] in (3 * bias[0] // 2, 2 * bias[0])
    return fits and _RNN_LIST.fullmatch(match.layer) is not None


def _sru_gates(layer: Layer, bias: Floats) -> Seen:
    """``z = W_f x + v_f c + b_f``, with W and W_f the first of the matrices in ``weight``."""
    if "weight" not in layer.names:
        return _ATTENDED
    weight, size = layer.finite("weight"), bias.size
    if weight.ndim != 2 or weight.shape[1] not in (3 * size, 4 * size):
        return _UNFIT
    if "weight_proj" in layer.names:
        weight = layer.finite("weight_proj") @ weight
    taken, seen = np.moveaxis(weight.reshape(len(weight), size, -1), -1, 0)[:2]
    scale = None
    # The normalisation of the input; one of another size stands behind the cell.
    if _NORM[0] in layer.names and layer.shape(_NORM[0]) == (len(weight),):
        scale = layer.real(_NORM[0], (len(weight),))
    gate, own = _behind_norm(layer, bias, seen, scale), np.zeros(size)
    if "weight_c" in layer.names:
        own = layer.finite("weight_c")[:size]
    if not np.any(own):
        return gate
    shared: Floats = np.sum((1.0 if scale is None else scale[:, None] ** 2) * taken * seen, axis=0)
    entered = _behind_norm(layer, np.zeros(size), taken, scale)
    return mixing_drive(gate, entered, shared, own, _OWN_STATE)


def _sru_dynamics(layer: Layer, size: int) -> CellDynamics | None:
    """``c' = f c + (1-f) W x`` with ``f = σ(W_f x + v_f c + b_f)``; None behind a norm."""
    matrices = [role for role in ("weight_proj", "weight") if role in layer.names]
    vectors = [role for role in ("weight_c", "bias") if role in layer.names]
    if "weight" not in matrices or _NORM[0] in layer.names:
        return None
    count = layer.shape("weight")[-1] // size
    shapes = [layer.shape(role) for role in matrices]
    if shapes[-1][1:] not in ((3 * size,), (4 * size,)) or len(shapes[0]) != 2:
        return None

    def begin(draw: Draw) -> Step:
        through = [draw(layer.names[role], layer.real(role, (None, None))) for role in matrices]
        *own, bias = (draw(layer.names[role], layer.vector(role))[..., :size] for role in vectors)

        def step(c: Any, x: Any) -> Any:
            for matrix in through:
                x = x @ matrix
            z = x[..., 1::count] + bias
            for weight in own:
                z = z + weight * c
            return duals.sigmoid(z) * c + duals.sigmoid(-z) * x[..., ::count]

        return step

    return CellDynamics(
        order=size,
        shown=slice(size),
        width=shapes[0][0],
        tensors={layer.names[role]: role for role in (*matrices, *vectors)},
        begin=begin,
        weights=sum(map(math.prod, shapes)),
        diagonal=True,
    )


def _behind_norm(layer: Layer, bias: Floats, weight: Floats, scale: Floats | None) -> GateInput:
    """What (inputs, n) weights show of the input, or of a normalisation's scale and bias."""
    if scale is None:
        return GateInput(bias, squared_rows(weight.T))
    seen = squared_rows((scale[:, None] * weight).T)
    shift = layer.real(_NORM[1], scale.shape) @ weight if _NORM[1] in layer.names else 0.0
    return GateInput(bias, fixed=seen, shift=shift)


OUTPUT_GATE = Assumption(
    key="output_gate",
    default="yes",
    choices=("yes", "no"),
    meaning="whether the rows of a QRNN's linear are z, f, o or only z, f",
)
# DropConnect wraps the linear and keeps the weight that it drops from under weight_raw.
_WEIGHTS = tuple(
    f"linear.{inner}" for inner in ("weight_raw", "module.weight_raw", "weight", "module.weight")
)
_BIASES = ("linear.bias", "linear.module.bias")
_LAYERS = re.compile(r"(?P<network>.*?)[./,]?(?P<list>layers(?:_bwd)?|rnns)[./,](?P<index>\d+)")


def _is_qrnn(shapes: Shapes) -> bool:
    """Whether a linear has a bias for each of its rows, which are two or three equal parts."""
    weight, bias = (
        next(shapes[role] for role in roles if role in shapes) for roles in (_WEIGHTS, _BIASES)
    )
    return len(weight) == 2 and bias == weight[:1] and (weight[0] % 3 == 0 or weight[0] % 2 == 0)


class QRNN(LawFamily):
    """``c[t+1] = (1-f) c[t] + f tanh(z)``, z, f and o from a window of inputs: λ = 1 - σ(b_f).

    f is the gate that writes, so that γ = σ(b_f) = 1 - λ; o only shows the state. Without zoneout,
    which multiplies f by 1 - p and is not stored.
    """

    name = "qrnn"
    title = "QRNN (quasi-recurrent network)"
    recognised_by = "linear.weight_raw or linear.weight (3H, inputs) in layers.0 or rnns.0"
    equation = "λ = 1 - σ(b_f), γ = σ(b_f), rows z, f, o"
    source = "pytorch-qrnn, fastai.text.models.qrnn; Bradbury et al. 2017, arXiv 1611.01576"
    assumptions = (OUTPUT_GATE,)
    layouts = (Layout((_WEIGHTS, _BIASES), fits=_is_qrnn, alone=True),)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules of a list of layers that hold one linear and nothing else.

        The name of the network tells that it is recurrent; where it does not, each layer's inputs
        must be a third of the rows of the layer before it, or two thirds with a window of two.
        """
        networks: dict[str, list[Match]] = {}
        for match in super().find(tensors):
            parts = _LAYERS.fullmatch(match.layer)
            if parts:
                networks.setdefault(parts["network"], []).append(match)
        return [
            match
            for matches in networks.values()
            if "rnn" in matches[0].layer.lower() or _is_chain(matches, tensors)
            for match in matches
        ]

    def _recurrence(self, layer: Layer) -> Recurrence:
        weight, bias = layer.first(_WEIGHTS), layer.first(_BIASES)
        rows = layer.shape(weight)[0]
        gated = rows % 3 == 0
        if rows % 6 == 0 or "output_gate" in layer.options.assume:
            gated = layer.choose(OUTPUT_GATE) == "yes"
        size = layer.stacked_rows(weight, 3 if gated else 2)
        forget = layer.vector(bias, rows)[size : 2 * size]
        return layer.gated(
            Mix(keeps=False, parameter="forget"),
            forget,
            [Slot("linear.bias[forget]", forget, "forget", tensor=layer.names[bias])],
            gates=lambda: layer.projected(forget, weight, rows=slice(size, 2 * size)),
            tensors=tuple(layer.names.values()),
        )


def _is_chain(matches: list[Match], tensors: Mapping[str, TensorSpec]) -> bool:
    weights = (first_name(match.tensors, _WEIGHTS) or "" for match in matches)
    shapes = [tensors[weight].shape for weight in weights]
    return len(shapes) > 1 and all(
        before[0] % 3 == 0 and after[1] in (before[0] // 3, 2 * before[0] // 3)
        for before, after in itertools.pairwise(shapes)
    )


EXPONENT = 8.0  # c in λ = a^{cσ(b)}: a constant in both libraries' code
SMALLEST_DECAY = 1e-300  # -log λ is held above it: λ = 1 would have no gain


def _exponent_law(radius: Floats, scale: float, gate: Floats, offset: float = 0.0) -> Exponent:
    """``log λ = -c softplus(Λ) σ(z)``, no closer to 0 at zero input than `SMALLEST_DECAY`."""
    rate = np.maximum(scale * softplus(radius), SMALLEST_DECAY / sigmoid(gate))
    return Exponent(rate, scale * sigmoid(radius) / rate, offset=offset)


# transformers, then recurrentgemma: Λ, the recurrence gate's bias and the input gate's bias.
_NAMINGS = (
    ("recurrent_param", "recurrent_gate_bias", "input_gate_bias"),
    ("a_param", "a_gate.b", "input_gate.b"),
)
_IMAGINARY = "a_imag_param"
_TURNING = NoDrive("its recurrence gate moves the angle of λ too, which no law of gates has")

_BEHIND = (
    "both gates stand at a zero input of the RG-LRU; what the biases of the linear layer and the"
    " convolution before it add to them is left out"
)


class RGLRU(LawFamily):
    """``h[t] = λ h[t-1] + √(1-λ²) σ(b_x) x[t]``; λ is 0 where a document starts.

    recurrentgemma's JAX code has an angle beside the decay if ``only_real`` is false. The n states
    are complex then, their input the first half of 2n channels plus i times the second.
    """

    name = "rg_lru"
    title = "RG-LRU (Griffin, RecurrentGemma)"
    recognised_by = (
        "recurrent_param, recurrent_gate_bias and input_gate_bias; or a_param, a_gate.b and"
        " input_gate.b, perhaps a_imag_param"
    )
    equation = "λ = exp((-8 softplus(recurrent_param) + i a_imag) σ(b_a)), γ = √(1-|λ|²) σ(b_x)"
    source = "transformers and recurrentgemma; De et al. 2024, arXiv 2402.19427"
    layouts = tuple(Layout(naming, optional=(_IMAGINARY,)) for naming in _NAMINGS)

    def _recurrence(self, layer: Layer) -> Recurrence:
        roles = next(naming for naming in _NAMINGS if naming[0] in layer.names)
        radius = layer.vector(roles[0])
        gate, opened = (layer.vector(role, radius.size) for role in roles[1:])
        turns = _IMAGINARY in layer.names
        recurrence = layer.gated(
            _exponent_law(radius, EXPONENT, gate),
            np.maximum(gate, -LARGEST_DECAY),
            [
                Slot(roles[0], radius, "rate"),
                Slot(roles[1], gate, "recurrence"),
                Slot(roles[2], opened, "input"),
            ],
            gates=lambda: (
                _TURNING
                if turns
                else (_gate(layer, roles[1], gate), _gate(layer, roles[2], opened))
            ),
            write=Write(),
            sees="what the RG-LRU sees, the convolution's output",
            assumptions=(_BEHIND,),
        )
        return _turned(layer, recurrence, gate) if turns else recurrence


def _gate(layer: Layer, role: str, bias: Floats) -> GateInput | None:
    """A gate sees the input in blocks (heads, inputs, outputs), multiplied from the right."""
    name = role.replace("bias", "weight") if role.endswith("bias") else f"{role[:-1]}w"
    weight = layer.beside(role, name)
    if weight is None:
        return None
    norms = np.sum(layer.finite(weight) ** 2, axis=-2).ravel()
    return None if norms.shape != bias.shape else GateInput(bias, norms)


def _turned(layer: Layer, recurrence: Recurrence, gate: Floats) -> Recurrence:
    """With the angle ``a_imag σ(b_a)`` in λ, which the recurrence gate's bias moves too."""
    opened = sigmoid(gate)
    turn = layer.vector(_IMAGINARY, gate.size)
    rotation = np.exp(1j * turn * opened)
    eigenvalue = np.exp(recurrence.log_eigenvalues) * rotation
    by_angle = (0.0, 1j * eigenvalue * turn * opened * sigmoid(-gate), 0.0)
    groups = [
        replace(group, eigenvalue_derivative=group.eigenvalue_derivative * rotation + added)
        for group, added in zip(recurrence.parameters, by_angle, strict=True)
    ]
    groups.append(layer.group(_IMAGINARY, turn, 1j * eigenvalue * opened))
    return replace(
        recurrence,
        tensors=(*recurrence.tensors, layer.names[_IMAGINARY]),
        log_eigenvalues=recurrence.log_eigenvalues + 1j * turn * opened,
        parameters=tuple(groups),
    )


HIPPOGRIFF = ("forget_base", "alpha_log_scale", "gates.bias", "gates.weight")
GRIFFIN_TORCH = ("Lambda", "ba", "bx", "Wa", "Wx")
_OFFSET = 1e-6  # under hippogriff's root, so that no gain is zero; griffin-torch has none
_LARGEST_LOG_SCALE = 20.0

_STILL = "both gates stand at a zero input of the RG-LRU, where only their biases are left"
_SCALE_CONSTANT = "alpha_log_scale is a constant of the layer, and not among the parameters"


class Hawk(LawFamily):
    """``h[t] = λ h[t-1] + √(1-λ²) σ(b_i) x[t]``, as `rg_lru` but for what is stored.

    `Hawk` (hippogriff.py) in proger/hippogriff has b_f and b_i as halves of gates.bias, and the
    root ``√(1 - λ² + 1e-6)``. `RGLRU` (griffin_torch/main.py) in kyegomez/Griffin divides where the
    paper takes a power.
    """

    name = "hawk"
    title = "Hawk (RG-LRU of hippogriff and griffin-torch)"
    recognised_by = (
        "forget_base (n), alpha_log_scale (1) and gates.weight (2n, n) with its bias; or Lambda,"
        " ba, bx (n), Wa and Wx"
    )
    equation = (
        "λ = exp(-c softplus(forget_base) σ(b_f)), c = e^alpha_log_scale; or σ(Lambda)/8^σ(ba)"
    )
    source = "proger/hippogriff and kyegomez/Griffin; De et al. 2024, arXiv 2402.19427"
    layouts = (
        Layout(HIPPOGRIFF, fits=lambda of: len(of["forget_base"]) == len(of["gates.bias"]) == 1),
        Layout(GRIFFIN_TORCH, fits=lambda of: len(of["Lambda"]) == len(of["bx"]) == 1),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        by_gate: float | Floats = 1.0
        assumptions = [_STILL]
        if "forget_base" in layer.names:
            rate, recurrence, entered = "forget_base", "gates.bias[forget]", "gates.bias[input]"
            radius = layer.real(rate, (None,))
            assumptions.append(_SCALE_CONSTANT)
            forget, opened = layer.real("gates.bias", (2 * radius.size,)).reshape(2, -1)
            stored = float(layer.vector("alpha_log_scale", 1)[0])
            # log c is positive for any use of the layer; an older one stored -c.
            scale = -stored if stored < 0 else math.exp(min(stored, _LARGEST_LOG_SCALE))
            law = _exponent_law(radius, scale, forget, _OFFSET)
        else:
            rate, recurrence, entered = "Lambda", "ba", "bx"
            radius = layer.real(rate, (None,))
            forget, opened = (layer.real(role, radius.shape) for role in (recurrence, entered))
            # -log λ is softplus(-Lambda) + log 8 σ(z): the law has it at z = ba alone.
            opening = sigmoid(forget)
            decay = np.maximum(softplus(-radius) + math.log(EXPONENT) * opening, SMALLEST_DECAY)
            law = Exponent(decay / opening, -sigmoid(-radius) / decay)
            by_gate = math.log(EXPONENT) * opening / decay

        return layer.gated(
            law,
            np.maximum(forget, -LARGEST_DECAY),
            [
                Slot(rate, radius, "rate"),
                Slot(recurrence, forget, "recurrence", by_gate),
                Slot(entered, opened, "input"),
            ],
            gates=lambda: (
                layer.projected(forget, "gates.weight", rows=slice(None, radius.size)),
                layer.projected(opened, "gates.weight", rows=slice(radius.size, None)),
            ),
            write=Write(),
            sees="what the gates see, the convolution's output",
            assumptions=assumptions,
        )
