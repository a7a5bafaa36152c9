"""The RG-LRU of Griffin and RecurrentGemma, De et al. 2024, arXiv 2402.19427, and of its copies."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from memcurse_cli.families.family import Layout
from memcurse_cli.families.gate_inputs import GateInput, NoDrive, RowNorms
from memcurse_cli.families.reading import LARGEST_DECAY, read_finite, sigmoid, softplus
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Slot
from memcurse_cli.theory.gates.laws import Exponent, Write

EXPONENT = 8.0
"""c in λ = a^{cσ(b)}: a constant in both libraries' code."""

SMALLEST_DECAY = 1e-300
"""-log λ is held above it: λ = 1 would have no gain."""


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

_NOMINAL = (
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
            assumptions=(_NOMINAL,),
        )
        return _turned(layer, recurrence, gate) if turns else recurrence


def _gate(layer: Layer, role: str, bias: Floats) -> GateInput | None:
    """A gate sees the input in blocks (heads, inputs, outputs), multiplied from the right."""
    name = role.replace("bias", "weight") if role.endswith("bias") else f"{role[:-1]}w"
    weight = layer.beside(role, name)
    if weight is None:
        return None
    norms = np.sum(read_finite(layer.store, weight) ** 2, axis=-2).ravel()
    return None if norms.shape != bias.shape else GateInput(bias, RowNorms(norms, 0 * norms))


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
_OFFSET = 1e-6
"""Under hippogriff's root, so that no gain is zero; griffin-torch has none."""
_LARGEST_LOG_SCALE = 20.0

_NO_INPUT = "both gates stand at a zero input of the RG-LRU, where only their biases are left"
_CONSTANT = "alpha_log_scale is a constant of the layer, and not among the parameters"


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
        Layout(
            HIPPOGRIFF,
            fits=lambda shapes: len(shapes["forget_base"]) == len(shapes["gates.bias"]) == 1,
        ),
        Layout(GRIFFIN_TORCH, fits=lambda shapes: len(shapes["Lambda"]) == len(shapes["bx"]) == 1),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        by_gate: float | Floats = 1.0
        assumptions = [_NO_INPUT]
        if "forget_base" in layer.names:
            rate, recurrence, entered = "forget_base", "gates.bias[forget]", "gates.bias[input]"
            radius = layer.real(rate, (None,))
            assumptions.append(_CONSTANT)
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
