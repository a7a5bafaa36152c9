"""The minimal gated unit of Zhou et al. 2016 and its kin in torch's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.coupled_gate import coupled_recurrence
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import GateInput, HiddenState, row_norms
from memcurse_cli.recurrences.gated_cells import gru_spectra
from memcurse_cli.recurrences.reading import group_by_module, read_real
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.recurrences.torch_names import (
    GateBias,
    hidden_weights,
    read_gate_biases,
    read_gate_norms,
    read_gate_weights,
    weight_rows,
)
from memcurse_cli.spectra.eigendecomposition import eigenvalues

GATE_KEEPS = Assumption(
    key="gate_keeps",
    default="no",
    choices=("no", "yes"),
    meaning="whether an open gate keeps the state (λ = σ(b)) or writes it (λ = 1 - σ(b))",
)
GATES = ("gate", "new")
LINEARS = {"gate": ("W_f", "U_f"), "new": ("W_h", "U_h")}
# Beside any of these there are more gates.
_STRANGERS = tuple(f"{letter}_{gate}.weight" for letter in "WU" for gate in "iorzc")
# Cells of the same shapes whose gate is defined the other way round.
_KEEPING = re.compile(r"ligru|light_?gru|janet|ugrnn", re.IGNORECASE)
_WRITING = re.compile(r"mgu|minimal_?gated", re.IGNORECASE)


@dataclass(frozen=True)
class _Cell:
    """The biases of both rows, and the (H, H) hidden weights where they were asked for."""

    biases: Mapping[str, GateBias]
    weights: Mapping[str, Floats]


class MGU:
    """``h[t+1] = (1-f) h[t] + f tanh(W x + U (f ∘ h[t]) + b)``: λ = 1 - σ(b_f), γ = σ(b_f).

    Its torch ports stack f and the candidate in a weight (2H, H), or have linears W_f, U_f, W_h,
    U_h. LiGRU, JANET and UGRNN stack alike and keep by their gate: λ = σ(b).
    """

    name = "mgu"
    title = "MGU (minimal gated unit) and other cells of one gate"
    recognised_by = "weight_hh (2H, H); or U_f.weight, W_f.weight, U_h.weight and no other gate"
    equation = "λ = 1 - σ(b_f), γ = σ(b_f), b = bias_ih + bias_hh, rows f, h; or λ = σ(b_f)"
    source = "torchrecurrent; Zhou et al. 2016, arXiv 1603.09420"
    assumptions: tuple[Assumption, ...] = (GATE_KEEPS,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Hidden weights (2H, H), and modules with the linears of one gate and a candidate."""
        matches = [
            weight.match(self.name)
            for weight in hidden_weights(tensors)
            if weight.rows == 2 * weight.columns and not weight.projected
        ]
        linears = [layer for pair in LINEARS.values() for layer in pair]
        weights = [f"{layer}.weight" for layer in linears]
        roles = (*weights, *(f"{layer}.bias" for layer in linears), *_STRANGERS)
        for module, names in group_by_module(tensors, roles).items():
            if not names.keys() >= set(weights) or names.keys() & set(_STRANGERS):
                continue
            shapes = [tensors[names[f"{layer}.weight"]].shape for layer in ("U_f", "U_h")]
            if len(set(shapes)) == 1 and len(shapes[0]) == 2 and shapes[0][0] == shapes[0][1]:
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the hidden weights where their spectra are asked for.

        Raises:
            TensorError: NaN or inf in what is read, or shapes that do not fit together.
        """
        linears = "U_f.weight" in match.tensors
        cell = (
            _read_linears(store, match, options) if linears else _read_rows(store, match, options)
        )
        assumed = Assumed(options)
        name = f"{match.layer} {store.path}"
        default = "yes" if _KEEPING.search(name) and not _WRITING.search(name) else "no"
        keeps = (
            assumed.choose(GATE_KEEPS, default=default, silent=bool(_WRITING.search(name))) == "yes"
        )
        # Which cell keeps by its gate, and so what its candidate sees of the state, is not stored.
        inputs = _inputs(store, match, cell.biases) if options.gates and not keeps else None
        return coupled_recurrence(
            match,
            family=self.name,
            gate="gate",
            bias=cell.biases["gate"],
            keeps=keeps,
            hidden_feedback=True,
            hidden=_spectra(cell, keeps, options.device) if options.spectra else None,
            assumptions=tuple(assumed.sentences),
            inputs=inputs["gate"] if inputs else None,
            state=HiddenState(inputs["new"], reset=inputs["gate"]) if inputs else None,
        )


def _inputs(
    store: TensorStore, match: Match, biases: Mapping[str, GateBias]
) -> dict[str, GateInput]:
    """What the gate and the candidate see; nothing where a weight is missing."""
    if "U_f.weight" in match.tensors:
        sides = [
            {
                gate: read_real(store, match.tensors[f"{layers[side]}.weight"], (None, None))
                for gate, layers in LINEARS.items()
            }
            for side in (0, 1)
        ]
        norms = row_norms(sides[0], sides[1])
    else:
        norms = read_gate_norms(store, match, GATES)
    return {gate: GateInput(biases[gate].total, norm) for gate, norm in (norms or {}).items()}


def _read_rows(store: TensorStore, match: Match, options: ReadOptions) -> _Cell:
    size = weight_rows(store, match) // len(GATES)
    weights = read_gate_weights(store, match, GATES) if options.spectra else {}
    return _Cell(read_gate_biases(store, match, GATES, size), weights)


def _read_linears(store: TensorStore, match: Match, options: ReadOptions) -> _Cell:
    size = store.tensors[match.tensors["U_f.weight"]].shape[0]
    biases, weights = {}, {}
    for gate, layers in LINEARS.items():
        held = {
            role: match.tensors[role]
            for layer in layers
            if (role := f"{layer}.bias") in match.tensors
        }
        parts = tuple(
            (role, tensor, read_real(store, tensor, (size,)), store.tensors[tensor].dtype)
            for role, tensor in held.items()
        )
        total = np.sum([np.zeros(size), *(part[2] for part in parts)], axis=0)
        biases[gate] = GateBias(total, parts)
        if options.spectra:
            weights[gate] = read_real(store, match.tensors[f"{layers[1]}.weight"], (size, size))
    return _Cell(biases, weights)


def _spectra(cell: _Cell, keeps: bool, device: str) -> HiddenSpectra:
    if keeps:
        gates = {gate: eigenvalues(weight, device) for gate, weight in cell.weights.items()}
        reason = "which cell it is, and so what its candidate sees of the state, is not stored"
        return HiddenSpectra(gates, None, reason)
    # A GRU whose update gate is 1 - f and whose reset gate is f.
    weights = {
        "reset": cell.weights["gate"],
        "update": -cell.weights["gate"],
        "new": cell.weights["new"],
    }
    gate, new = cell.biases["gate"].total, cell.biases["new"].total
    found = gru_spectra(weights, {"reset": gate, "update": -gate, "new": new}, None, device)
    named = {"gate": found.gates["reset"], "new": found.gates["new"]}
    return HiddenSpectra(named, found.jacobian, found.reason)
