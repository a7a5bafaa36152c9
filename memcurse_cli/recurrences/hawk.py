"""Hawk's RG-LRU as independent code stores it: hippogriff, and griffin-torch with its own decay."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import GateDrive
from memcurse_cli.recurrences.projected_gates import projected_gate
from memcurse_cli.recurrences.reading import (
    LARGEST_DECAY,
    group_by_module,
    log_sigmoid,
    one_to_one,
    read_real,
    sigmoid,
    softplus,
)
from memcurse_cli.recurrences.recurrence import Floats, ParameterGroup, Recurrence
from memcurse_cli.recurrences.rg_lru import EXPONENT
from memcurse_cli.recurrences.vectors import read_vector
from memcurse_cli.theory.gate_laws import Exponent, Write

HIPPOGRIFF = ("forget_base", "alpha_log_scale", "gates.bias", "gates.weight")
GRIFFIN_TORCH = ("Lambda", "ba", "bx", "Wa", "Wx")
# Under hippogriff's root, so that no gain is zero; griffin-torch has none.
_OFFSET = 1e-6
_SMALLEST_DECAY = 1e-300
_LARGEST_LOG_SCALE = 20.0

_NOMINAL = "both gates stand at a zero input of the RG-LRU, where only their biases are left"
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
            gate = _drive(store, names["gates.weight"], rate, rate_slope, (forget, opened), groups)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(dict.fromkeys(tensors)),
            log_eigenvalues=-decay.astype(np.complex128),
            log_gain=(0.5 * np.log(lost) + log_sigmoid(opened)).astype(np.complex128),
            parameters=groups,
            input_dependent=True,
            stable_by_construction=True,
            assumptions=(_NOMINAL, *([_CONSTANT] if "forget_base" in names else [])),
            gate=gate,
        )


def _drive(
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
