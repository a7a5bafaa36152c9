"""The minGRU of Feng et al. 2024, arXiv 2410.01201.

The minLSTM of Feng et al. 2024, arXiv 2410.01201.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.gated_layer import WITHOUT_BIAS
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import JointDrive
from memcurse_cli.families.gate_weights import inner_products, projected_gate, read_rows
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence
from memcurse_cli.families.vectors import read_vector, stacked_rows
from memcurse_cli.theory.gates.laws import Mix, Share

# minGRU-pytorch, whose rows are the candidate, the forget and the input gate; the paper's listing.
_FUSED_LSTM = "to_hidden_and_f_i_gate"
_SEPARATE = ("linear_f", "linear_i")
_CANDIDATE = "linear_h"
# A layer with any of these is another LSTM.
_LSTM_STRANGERS = tuple(f"linear_{gate}.weight" for gate in "ozrc")

_Gate = tuple[str, str, Floats]


class MinLSTM:
    """``h[t] = f/(f+i) h[t-1] + i/(f+i) x̃[t]`` with f = σ(b_f) and i = σ(b_i).

    With u = log i - log f: ``λ = σ(-u)`` and ``γ = 1 - λ = σ(u)``, so dλ/du = -λγ, d log γ/du = λ,
    du/db_f = -σ(-b_f) and du/db_i = σ(-b_i). Gates stand at zero input; without biases λ = 1/2.
    """

    name = "min_lstm"
    title = "minLSTM"
    recognised_by = (
        "to_hidden_and_f_i_gate.weight (3n, d); or linear_f.weight, linear_i.weight and"
        " linear_h.weight"
    )
    equation = "λ = f/(f+i), γ = i/(f+i), f = σ(b_f), i = σ(b_i)"
    source = "minGRU-pytorch; Feng et al. 2024, arXiv 2410.01201"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the fused projection, or with those of two gates and the candidate alone."""
        separate = tuple(f"{layer}.weight" for layer in (*_SEPARATE, _CANDIDATE))
        fused = f"{_FUSED_LSTM}.weight"
        biases = tuple(f"{layer}.bias" for layer in (_FUSED_LSTM, *_SEPARATE))
        matches = []
        roles = (fused, *separate, *biases, *_LSTM_STRANGERS)
        for module, names in group_by_module(tensors, roles).items():
            apart = names.keys() >= set(separate) and not names.keys() & set(_LSTM_STRANGERS)
            if apart and len({tensors[names[role]].shape for role in separate}) > 1:
                continue
            if fused in names or apart:
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the gates' biases, if there are any; the weights only give the size.

        Raises:
            TensorError: NaN or inf, a bias that does not fit its weight, or one gate without.
        """
        names, law = match.tensors, Share()
        size, gates = _read_gates(store, match)
        at = np.stack([each[2] for each in gates], axis=1) if gates else np.zeros((size, 2))
        slots = [
            Slot(role, tensor, values, moves)
            for (role, tensor, values), moves in zip(gates, (law.forget, law.opened), strict=False)
        ]

        def seen() -> JointDrive | None:
            """The rows of the forget and the input gate, which see the same input."""
            fused = names.get(f"{_FUSED_LSTM}.weight")
            apart = [names[f"{layer}.weight"] for layer in _SEPARATE] if fused is None else [fused]
            rows = read_rows(store, apart)
            if rows is None:
                return None
            forget, opened = rows if fused is None else rows[0].reshape(3, size, -1)[1:]
            motions: dict[str, tuple[str, float | Floats]] = {
                slot.name: (slot.moves, 1.0) for slot in slots
            }
            return JointDrive(law, at, inner_products(forget, opened), motions)

        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=law,
            at=at,
            slots=slots,
            gates=seen,
            tensors=tuple(names.values()),
            assumptions=() if gates else (WITHOUT_BIAS,),
        )


def _read_gates(store: TensorStore, match: Match) -> tuple[int, tuple[_Gate, ...]]:
    """The number of units, and (role, tensor, values) of the forget and the input gate's biases.

    Raises:
        TensorError: NaN or inf, a bias that does not fit its weight, or one gate without.
    """
    names = match.tensors
    fused = f"{_FUSED_LSTM}.weight" in names
    weight = names[f"{_FUSED_LSTM if fused else _SEPARATE[0]}.weight"]
    size = stacked_rows(store, weight, 3 if fused else 1)
    if fused:
        role = f"{_FUSED_LSTM}.bias"
        if role not in names:
            return size, ()
        bias = read_vector(store, names[role], 3 * size)
        return size, (
            (f"{role}[forget]", names[role], bias[size : 2 * size]),
            (f"{role}[input]", names[role], bias[2 * size : 3 * size]),
        )
    present = [f"{layer}.bias" for layer in _SEPARATE if f"{layer}.bias" in names]
    if len(present) == 1:
        raise TensorError(
            "only one of the two gates has a bias",
            where=names[present[0]],
            remedy="name the right family with --family",
        )
    return size, tuple(
        (role, names[role], read_vector(store, names[role], size)) for role in present
    )


# minGRU-pytorch, whose rows are the candidate and the gate; the paper's listing.
_FUSED = "to_hidden_and_gate"
_GATE, _CANDIDATE = "linear_z", "linear_h"
# A layer with any of these has more gates.
_STRANGERS = tuple(f"linear_{gate}.weight" for gate in "rfioc")


class MinGRU:
    """``h[t] = (1 - z) h[t-1] + z x̃[t]``, z = σ(b): ``λ = σ(-b)``, coupled to ``γ = σ(b)``.

    dλ/db = -λ(1-λ) and d log γ/db = λ. The gate stands at zero input; without a bias λ = 1/2.
    """

    name = "min_gru"
    title = "minGRU"
    recognised_by = "to_hidden_and_gate.weight (2n, d); or linear_z.weight beside linear_h.weight"
    equation = "λ = 1 - σ(b_z), γ = σ(b_z)"
    source = "minGRU-pytorch; Feng et al. 2024, arXiv 2410.01201"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the fused projection, or with those of the gate and the candidate alone."""
        weights = tuple(f"{layer}.weight" for layer in (_FUSED, _GATE, _CANDIDATE))
        roles = (*weights, f"{_FUSED}.bias", f"{_GATE}.bias", *_STRANGERS)
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            separate = names.keys() >= set(weights[1:]) and not names.keys() & set(_STRANGERS)
            if separate and tensors[names[weights[1]]].shape != tensors[names[weights[2]]].shape:
                continue
            if weights[0] in names or separate:
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the gate's bias, if there is one; the weight only gives the size.

        Raises:
            TensorError: NaN or inf, or a bias that does not fit the weight.
        """
        names = match.tensors
        fused = f"{_FUSED}.weight" in names
        role = f"{_FUSED if fused else _GATE}.bias"
        weight = names[f"{_FUSED if fused else _GATE}.weight"]
        parts = 2 if fused else 1
        size = stacked_rows(store, weight, parts)
        bias, tensor = np.zeros(size), names.get(role)
        if tensor is not None:
            bias = read_vector(store, tensor, parts * size)[-size:]
        name = f"{role}[gate]" if fused else role
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Mix(keeps=False),
            at=bias,
            slots=[] if tensor is None else [Slot(name, tensor, bias, "update")],
            # The gate's rows are the last ones of a fused projection.
            gates=lambda: projected_gate(store, bias, weight, rows=slice(-size, None)),
            tensors=tuple(names.values()),
            assumptions=(WITHOUT_BIAS,) if tensor is None else (),
        )
