"""The RG-LRU of Griffin and RecurrentGemma, De et al. 2024, arXiv 2402.19427, and of its copies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateInput, NoDrive, RowNorms, projected_gate
from memcurse_cli.families.projections import beside
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    one_to_one,
    read_finite,
    read_real,
    read_vector,
    sigmoid,
    softplus,
)
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import Seen, Slot, law_recurrence, layers_with
from memcurse_cli.theory.gates.laws import Exponent, Write

EXPONENT = 8.0
"""c in λ = a^{cσ(b)}: a constant in both libraries' code."""

SMALLEST_DECAY = 1e-300
"""-log λ is held above it: λ = 1 would have no gain."""


def exponent_law(radius: Floats, scale: float, gate: Floats, offset: float = 0.0) -> Exponent:
    """``log λ = -scale softplus(Λ) σ(z)``, no closer to 0 at zero input than `SMALLEST_DECAY`.

    Args:
        radius: (n,) Λ.
        scale: c.
        gate: (n,) z at zero input.
        offset: ε under the root of γ.
    """
    rate = np.maximum(scale * softplus(radius), SMALLEST_DECAY / sigmoid(gate))
    return Exponent(rate, scale * sigmoid(radius) / rate, offset=offset)


# transformers, then recurrentgemma: Λ, the recurrence gate's bias and the input gate's bias.
_NAMINGS = (
    ("recurrent_param", "recurrent_gate_bias", "input_gate_bias"),
    ("a_param", "a_gate.b", "input_gate.b"),
)
_WEIGHTS = {
    "recurrent_gate_bias": "recurrent_gate_weight",
    "input_gate_bias": "input_gate_weight",
    "a_gate.b": "w",
    "input_gate.b": "w",
}
_IMAGINARY = "a_imag_param"
_TURNING = NoDrive("its recurrence gate moves the angle of λ too, which no law of gates has")

_NOMINAL = (
    "both gates stand at a zero input of the RG-LRU; what the biases of the linear layer and the"
    " convolution before it add to them is left out"
)


class RGLRU:
    """``h[t] = λ h[t-1] + √(1-λ²) σ(b_x) x[t]``, ``log λ = -8 softplus(Λ) σ(b_a)``.

    Λ is stored as it is, not negated. The library multiplies λ by 0 where a document starts.

    recurrentgemma's JAX code has an angle beside the decay if ``only_real`` is false:
    ``log λ = σ(b_a) (-8 softplus(Λ) + i a_imag_param)``, and ``√(1-|λ|²)``. The n states are
    complex, their input the first half of 2n channels plus i times the second.
    """

    name = "rg_lru"
    title = "RG-LRU (Griffin, RecurrentGemma)"
    recognised_by = (
        "recurrent_param, recurrent_gate_bias and input_gate_bias; or a_param, a_gate.b and"
        " input_gate.b, perhaps a_imag_param"
    )
    equation = "λ = exp((-8 softplus(recurrent_param) + i a_imag) σ(b_a)), γ = √(1-|λ|²) σ(b_x)"
    source = "transformers and recurrentgemma; De et al. 2024, arXiv 2402.19427"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with Λ and the biases of both gates."""
        return [
            match
            for naming in _NAMINGS
            for match in layers_with(tensors, self.name, naming, optional=(_IMAGINARY,))
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the three vectors, and the angle where there is one.

        Raises:
            TensorError: NaN or inf, or vectors of different sizes.
        """
        naming = next(naming for naming in _NAMINGS if naming[0] in match.tensors)
        names = [match.tensors[role] for role in naming]
        radius = read_vector(store, names[0])
        gate, opened = (read_vector(store, name, radius.size) for name in names[1:])
        turning = match.tensors.get(_IMAGINARY)

        def gates() -> Seen:
            if turning is not None:
                return _TURNING
            return (
                _gate(store, naming[1], names[1], gate),
                _gate(store, naming[2], names[2], opened),
            )

        recurrence = law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=exponent_law(radius, EXPONENT, gate),
            at=np.maximum(gate, -LARGEST_DECAY),
            slots=[
                Slot(naming[0], names[0], radius, "rate"),
                Slot(naming[1], names[1], gate, "recurrence"),
                Slot(naming[2], names[2], opened, "input"),
            ],
            gates=gates,
            write=Write(),
            write_at=opened,
            sees="what the RG-LRU sees, the convolution's output",
            assumptions=(_NOMINAL,),
        )
        if turning is None:
            return recurrence
        return _turned(store, recurrence, turning, read_vector(store, turning, radius.size), gate)


def _gate(store: TensorStore, role: str, tensor: str, bias: Floats) -> GateInput | None:
    """A gate sees the input in blocks (heads, inputs, outputs), multiplied from the right."""
    weight = beside(store, tensor, _WEIGHTS[role])
    if weight is None:
        return None
    norms = np.sum(read_finite(store, weight) ** 2, axis=-2).ravel()
    return None if norms.shape != bias.shape else GateInput(bias, RowNorms(norms, 0 * norms))


def _turned(
    store: TensorStore, recurrence: Recurrence, tensor: str, turn: Floats, gate: Floats
) -> Recurrence:
    """With the angle ``a_imag σ(b_a)`` in λ, which the recurrence gate's bias moves too."""
    opened = sigmoid(gate)
    rotation = np.exp(1j * turn * opened)
    eigenvalue = np.exp(recurrence.log_eigenvalues) * rotation
    by_angle = (0.0, 1j * eigenvalue * turn * opened * sigmoid(-gate), 0.0)
    groups = [
        replace(group, eigenvalue_derivative=group.eigenvalue_derivative * rotation + added)
        for group, added in zip(recurrence.parameters, by_angle, strict=True)
    ]
    dtype = store.tensors[tensor].dtype
    groups.append(one_to_one(_IMAGINARY, tensor, turn, dtype, 1j * eigenvalue * opened))
    return replace(
        recurrence,
        tensors=(*recurrence.tensors, tensor),
        log_eigenvalues=recurrence.log_eigenvalues + 1j * turn * opened,
        parameters=tuple(groups),
    )


HIPPOGRIFF = ("forget_base", "alpha_log_scale", "gates.bias", "gates.weight")
GRIFFIN_TORCH = ("Lambda", "ba", "bx", "Wa", "Wx")
_OFFSET = 1e-6
"""Under hippogriff's root, so that no gain is zero; griffin-torch has none."""
_LARGEST_LOG_SCALE = 20.0

_HAWK_NOMINAL = "both gates stand at a zero input of the RG-LRU, where only their biases are left"
_CONSTANT = "alpha_log_scale is a constant of the layer, and not among the parameters"


class Hawk:
    """``h[t] = λ h[t-1] + √(1-λ²) σ(b_i) x[t]``, as `rg_lru` but for what is stored.

    `Hawk` (hippogriff.py) in proger/hippogriff: ``log λ = -c softplus(forget_base) σ(b_f)``, where
    b_f and b_i are the halves of gates.bias and ``c = e^alpha_log_scale``; an older one stores -c
    itself. Its root is ``√(1 - λ² + 1e-6)``. `RGLRU` (griffin_torch/main.py) in kyegomez/Griffin
    divides where the paper takes a power: ``λ = σ(Lambda) / 8^σ(ba)``.
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
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with all names of one library, Λ and the biases being vectors."""
        return [
            match
            for naming in (HIPPOGRIFF, GRIFFIN_TORCH)
            for match in layers_with(
                tensors,
                self.name,
                naming,
                fits=lambda shapes, naming=naming: (  # type: ignore[misc]
                    len(shapes[naming[0]]) == len(shapes[naming[2]]) == 1
                ),
            )
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read Λ, c and the biases.

        Raises:
            TensorError: NaN or inf, or vectors that do not fit together.
        """
        names = match.tensors
        hippogriff = "forget_base" in names
        radius = read_real(store, names["forget_base" if hippogriff else "Lambda"], (None,))
        size, assumptions = radius.size, [_HAWK_NOMINAL]
        if hippogriff:
            both = read_real(store, names["gates.bias"], (2 * size,))
            forget, opened = both[:size], both[size:]
            stored = float(read_vector(store, names["alpha_log_scale"], 1)[0])
            # log c is positive for any use of the layer; an older one stored -c.
            scale = -stored if stored < 0 else math.exp(min(stored, _LARGEST_LOG_SCALE))
            law = exponent_law(radius, scale, forget, _OFFSET)
            slots = [
                Slot("forget_base", names["forget_base"], radius, "rate"),
                Slot("gates.bias[forget]", names["gates.bias"], forget, "recurrence"),
                Slot("gates.bias[input]", names["gates.bias"], opened, "input"),
            ]
            assumptions.append(_CONSTANT)
        else:
            forget, opened = (read_real(store, names[role], (size,)) for role in ("ba", "bx"))
            # -log λ is softplus(-Lambda) + log 8 σ(z): the law has it at z = ba alone.
            opening, by_gate = sigmoid(forget), math.log(EXPONENT)
            decay = np.maximum(softplus(-radius) + by_gate * opening, SMALLEST_DECAY)
            law = Exponent(decay / opening, -sigmoid(-radius) / decay)
            slots = [
                Slot("Lambda", names["Lambda"], radius, "rate"),
                Slot("ba", names["ba"], forget, "recurrence", by_gate * opening / decay),
                Slot("bx", names["bx"], opened, "input"),
            ]

        def gates() -> Seen:
            """The first half of the rows of gates.weight makes the forget gate."""
            if not hippogriff:
                return None
            halves = (forget, slice(None, size)), (opened, slice(size, None))
            forgets, writes = (
                projected_gate(store, bias, names["gates.weight"], rows=rows)
                for bias, rows in halves
            )
            return forgets, writes

        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=law,
            at=np.maximum(forget, -LARGEST_DECAY),
            slots=slots,
            gates=gates,
            write=Write(),
            write_at=opened,
            sees="what the gates see, the convolution's output",
            assumptions=assumptions,
        )
