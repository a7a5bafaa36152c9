"""The RG-LRU of Griffin and RecurrentGemma, De et al. 2024, arXiv 2402.19427."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import GateDrive, GateInput, NoDrive, RowNorms
from memcurse_cli.recurrences.reading import (
    LARGEST_DECAY,
    group_by_module,
    log_sigmoid,
    one_to_one,
    read_finite,
    sigmoid,
    softplus,
)
from memcurse_cli.recurrences.recurrence import Floats, Recurrence
from memcurse_cli.recurrences.vectors import read_vector
from memcurse_cli.theory.gate_laws import Exponent, Write

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
