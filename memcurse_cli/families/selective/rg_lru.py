"""The RG-LRU of Griffin and RecurrentGemma, De et al. 2024, arXiv 2402.19427.

Hawk's RG-LRU as independent code stores it: hippogriff, and griffin-torch with its own decay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, GateInput, NoDrive, RowNorms
from memcurse_cli.families.gate_weights import projected_gate
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    log_sigmoid,
    one_to_one,
    read_finite,
    read_real,
    read_vector,
    sigmoid,
    softplus,
)
from memcurse_cli.families.recurrence import Floats, ParameterGroup, Recurrence
from memcurse_cli.theory.gates.laws import Exponent, Write

EXPONENT = 8.0
"""c in λ = a^{cσ(b)}: a constant in both libraries' code."""

# transformers, then recurrentgemma: Λ, the recurrence gate's bias and the input gate's bias.
_NAMINGS = (
    ("recurrent_param", "recurrent_gate_bias", "input_gate_bias"),
    ("a_param", "a_gate.b", "input_gate.b"),
)
_IMAGINARY = "a_imag_param"
_SMALLEST_DECAY = 1e-300
_TURNING = NoDrive("its recurrence gate moves the angle of λ too, which no law of gates has")

_NOMINAL = (
    "both gates stand at a zero input of the RG-LRU; what the biases of the linear layer and the"
    " convolution before it add to them is left out"
)


class RGLRU:
    """``h[t] = λ h[t-1] + √(1-λ²) σ(b_x) x[t]``, ``log λ = -8 softplus(Λ) σ(b_a)``.

    With the decay d = -log λ: ``dd/dΛ = 8σ(Λ)σ(b_a)``, ``dd/db_a = d σ(-b_a)`` and
    ``d log γ/dd = 1/(e^{2d} - 1)``. Λ is stored as it is, not negated. The library multiplies
    λ by 0 where a document starts.

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
        roles = (*(role for naming in _NAMINGS for role in naming), _IMAGINARY)
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            for naming in _NAMINGS:
                if names.keys() >= set(naming):
                    kept = {role: names[role] for role in (*naming, _IMAGINARY) if role in names}
                    matches.append(Match(module or self.name, kept))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the three vectors, and the angle where there is one.

        Raises:
            TensorError: NaN or inf, or vectors of different sizes.
        """
        naming: tuple[str, ...] = next(naming for naming in _NAMINGS if naming[0] in match.tensors)
        names = [match.tensors[role] for role in naming]
        radius = read_vector(store, names[0])
        gate = read_vector(store, names[1], radius.size)
        opened = read_vector(store, names[2], radius.size)
        decay = np.clip(EXPONENT * softplus(radius) * sigmoid(gate), _SMALLEST_DECAY, LARGEST_DECAY)
        turn = np.zeros(radius.size)
        if _IMAGINARY in match.tensors:
            naming = (*naming, _IMAGINARY)
            names.append(match.tensors[_IMAGINARY])
            turn = read_vector(store, names[-1], radius.size)
        log_eigenvalue = -decay + 1j * turn * sigmoid(gate)
        eigenvalue = np.exp(log_eigenvalue)
        lost = -np.expm1(-2 * decay)
        log_gain_slope = np.exp(-2 * decay) / lost
        radius_slope = EXPONENT * sigmoid(radius) * sigmoid(gate)
        nothing = np.zeros(radius.size)
        derivatives = (
            (-eigenvalue * radius_slope, log_gain_slope * radius_slope),
            (
                eigenvalue * log_eigenvalue * sigmoid(-gate),
                log_gain_slope * decay * sigmoid(-gate),
            ),
            (nothing, sigmoid(-opened)),
            (1j * eigenvalue * sigmoid(gate), nothing),
        )
        groups = tuple(
            one_to_one(role, tensor, values, store.tensors[tensor].dtype, *derivative)
            for role, tensor, values, derivative in zip(
                naming, names, (radius, gate, opened, turn), derivatives, strict=False
            )
        )
        drive: GateDrive | NoDrive | None = None
        if options.gates:
            turning = _IMAGINARY in match.tensors
            drive = _TURNING if turning else _drive(store, naming, names, radius, gate, opened)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names),
            log_eigenvalues=log_eigenvalue,
            log_gain=(0.5 * np.log(lost) + log_sigmoid(opened)).astype(np.complex128),
            parameters=groups,
            input_dependent=True,
            stable_by_construction=True,
            assumptions=(_NOMINAL,),
            gate=drive,
        )


def _drive(
    store: TensorStore,
    naming: tuple[str, ...],
    names: list[str],
    radius: Floats,
    gate: Floats,
    opened: Floats,
) -> GateDrive | None:
    """Both gates see the input in blocks (heads, inputs, outputs), multiplied from the right."""
    inputs = []
    for role, tensor, bias in zip(naming[1:], names[1:], (gate, opened), strict=True):
        suffix = "weight" if role.endswith("bias") else "w"
        weight = tensor[: len(tensor) - len("bias" if role.endswith("bias") else "b")] + suffix
        if weight not in store.tensors:
            return None
        norms = np.sum(read_finite(store, weight) ** 2, axis=-2).ravel()
        if norms.shape != bias.shape:
            return None
        inputs.append(GateInput(bias, RowNorms(norms, np.zeros_like(norms))))
    rate = np.maximum(EXPONENT * softplus(radius), _SMALLEST_DECAY)
    slope = EXPONENT * sigmoid(radius) / rate
    return GateDrive(
        law=Exponent(rate, slope),
        gate=inputs[0],
        write=Write(),
        write_gate=inputs[1],
        motions=dict(
            zip(naming, (("rate", 1.0), ("recurrence", 1.0), ("input", 1.0)), strict=True)
        ),
        sees="what the RG-LRU sees, the convolution's output",
    )


HIPPOGRIFF = ("forget_base", "alpha_log_scale", "gates.bias", "gates.weight")
GRIFFIN_TORCH = ("Lambda", "ba", "bx", "Wa", "Wx")
# Under hippogriff's root, so that no gain is zero; griffin-torch has none.
_OFFSET = 1e-6

_LARGEST_LOG_SCALE = 20.0

_HAWK_NOMINAL = "both gates stand at a zero input of the RG-LRU, where only their biases are left"
_CONSTANT = "alpha_log_scale is a constant of the layer, and not among the parameters"


class Hawk:
    """``h[t] = λ h[t-1] + √(1-λ²) σ(b_i) x[t]``, as `rg_lru` but for what is stored.

    `Hawk` (hippogriff.py) in proger/hippogriff: ``log λ = -c softplus(forget_base) σ(b_f)``, where
    b_f and b_i are the halves of gates.bias and ``c = e^alpha_log_scale``; an older one stores -c
    itself. Its root is ``√(1 - λ² + 1e-6)``. `RGLRU` (griffin_torch/main.py) in kyegomez/Griffin
    divides where the paper takes a power: ``λ = σ(Lambda) / 8^σ(ba)``. With the decay d,
    ``dγ/γ = λ² dd/(1-λ²)``.
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
        matches = []
        for module, names in group_by_module(tensors, HIPPOGRIFF + GRIFFIN_TORCH).items():
            for naming in (HIPPOGRIFF, GRIFFIN_TORCH):
                if not names.keys() >= set(naming):
                    continue
                if all(len(tensors[names[role]].shape) == 1 for role in (naming[0], naming[2])):
                    kept = {role: names[role] for role in naming}
                    matches.append(Match(module or self.name, kept))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read Λ, c and the biases.

        Raises:
            TensorError: NaN or inf, or vectors that do not fit together.
        """
        names = match.tensors
        radius = read_real(store, names[next(iter(names))], (None,))
        size = radius.size
        if "forget_base" in names:
            both = read_real(store, names["gates.bias"], (2 * size,))
            forget, opened = both[:size], both[size:]
            stored = float(read_vector(store, names["alpha_log_scale"], 1)[0])
            # log c is positive for any use of the layer; an older one stored -c.
            scale = -stored if stored < 0 else math.exp(min(stored, _LARGEST_LOG_SCALE))
            rate, rate_slope = scale * softplus(radius), scale * sigmoid(radius)
            decay = rate * sigmoid(forget)
            slopes = (rate_slope * sigmoid(forget), decay * sigmoid(-forget))
            labels = ("forget_base", "gates.bias[forget]", "gates.bias[input]")
            tensors = (names["forget_base"], names["gates.bias"], names["gates.bias"])
            offset = _OFFSET
        else:
            forget = read_real(store, names["ba"], (size,))
            opened = read_real(store, names["bx"], (size,))
            logarithm = math.log(EXPONENT)
            decay = softplus(-radius) + logarithm * sigmoid(forget)
            slopes = (-sigmoid(-radius), logarithm * sigmoid(forget) * sigmoid(-forget))
            labels = ("Lambda", "ba", "bx")
            tensors = (names["Lambda"], names["ba"], names["bx"])
            offset = 0.0
        decay = np.clip(decay, _SMALLEST_DECAY, LARGEST_DECAY)
        eigenvalue = np.exp(-decay)
        lost = -np.expm1(-2 * decay) + offset
        kept = np.exp(-2 * decay) / lost
        derivatives = (
            *((-eigenvalue * slope, kept * slope) for slope in slopes),
            (np.zeros(size), sigmoid(-opened)),
        )
        groups = tuple(
            one_to_one(label, tensor, values, store.tensors[tensor].dtype, *derivative)
            for label, tensor, values, derivative in zip(
                labels, tensors, (radius, forget, opened), derivatives, strict=True
            )
        )
        gate = None
        if options.gates and "forget_base" in names:
            gate = _hawk_drive(
                store, names["gates.weight"], rate, rate_slope, (forget, opened), groups
            )
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(dict.fromkeys(tensors)),
            log_eigenvalues=-decay.astype(np.complex128),
            log_gain=(0.5 * np.log(lost) + log_sigmoid(opened)).astype(np.complex128),
            parameters=groups,
            input_dependent=True,
            stable_by_construction=True,
            assumptions=(_HAWK_NOMINAL, *([_CONSTANT] if "forget_base" in names else [])),
            gate=gate,
        )


def _hawk_drive(
    store: TensorStore,
    weight: str,
    rate: Floats,
    rate_slope: Floats,
    biases: tuple[Floats, Floats],
    groups: tuple[ParameterGroup, ...],
) -> GateDrive | None:
    """The first half of the rows of gates.weight makes the forget gate, the second the input's."""
    forget = projected_gate(store, biases[0], weight, rows=slice(None, rate.size))
    write = projected_gate(store, biases[1], weight, rows=slice(rate.size, None))
    if forget is None or write is None:
        return None
    bounded = np.maximum(rate, _SMALLEST_DECAY)
    return GateDrive(
        law=Exponent(bounded, rate_slope / bounded),
        gate=forget,
        write=Write(),
        write_gate=write,
        motions={
            group.name: (parameter, 1.0)
            for group, parameter in zip(groups, ("rate", "recurrence", "input"), strict=True)
        },
        sees="what the gates see, the convolution's output",
    )
