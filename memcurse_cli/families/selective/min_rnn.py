"""The minGRU and the minLSTM of Feng et al. 2024, arXiv 2410.01201.

minGRU-pytorch stores the rows of the candidate and of the gates in one projection; the paper's
listing has a layer for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.gated_layer import WITHOUT_BIAS
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import JointDrive, inner_products, projected_gate, read_rows
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_vector, stacked_rows
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence
from memcurse_cli.theory.gates.laws import Mix, Share

_CANDIDATE = "linear_h"


class _MinRNN:
    """What both have: a candidate and gates that see nothing but the input.

    Attributes:
        fused: the layer whose rows are the candidate and the gates.
        gates: for each gate its own layer, what its part of the fused bias is called and the
            parameter of the law that is its bias.
        strangers: a module with any of these has more gates.
    """

    fused: ClassVar[str]
    gates: ClassVar[tuple[tuple[str, str, str], ...]]
    strangers: ClassVar[tuple[str, ...]]
    name: str

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the fused projection, or with those of the gates and the candidate alone."""
        layers = [layer for layer, _, _ in self.gates]
        fused, separate = (
            f"{self.fused}.weight",
            [f"{each}.weight" for each in (*layers, _CANDIDATE)],
        )
        biases = [f"{each}.bias" for each in (self.fused, *layers)]
        matches = []
        roles = (fused, *separate, *biases, *self.strangers)
        for module, names in group_by_module(tensors, roles).items():
            apart = names.keys() >= set(separate) and not names.keys() & set(self.strangers)
            if apart and len({tensors[names[role]].shape for role in separate}) > 1:
                continue
            if fused in names or apart:
                matches.append(Match(module or self.name, names))
        return matches

    def slots(self, store: TensorStore, match: Match) -> tuple[int, list[Slot]]:
        """The number of units, and the bias of each gate; none where there are none.

        Raises:
            TensorError: NaN or inf, a bias that does not fit its weight, or a gate without one.
        """
        names, parts = match.tensors, len(self.gates) + 1
        if f"{self.fused}.weight" in names:
            size = stacked_rows(store, names[f"{self.fused}.weight"], parts)
            role = f"{self.fused}.bias"
            if role not in names:
                return size, []
            rows = read_vector(store, names[role], parts * size).reshape(parts, size)[1:]
            return size, [
                Slot(f"{role}[{label}]", names[role], bias, moves)
                for (_, label, moves), bias in zip(self.gates, rows, strict=True)
            ]
        size = stacked_rows(store, names[f"{self.gates[0][0]}.weight"], 1)
        found = [
            (f"{layer}.bias", moves) for layer, _, moves in self.gates if f"{layer}.bias" in names
        ]
        if found and len(found) < len(self.gates):
            raise TensorError(
                "only one of the two gates has a bias",
                where=names[found[0][0]],
                remedy="name the right family with --family",
            )
        return size, [
            Slot(role, names[role], read_vector(store, names[role], size), moves)
            for role, moves in found
        ]

    def weights(self, match: Match) -> list[str]:
        """The tensors that hold the rows of the gates: one, or one of each."""
        fused = match.tensors.get(f"{self.fused}.weight")
        if fused is not None:
            return [fused]
        return [match.tensors[f"{layer}.weight"] for layer, _, _ in self.gates]


class MinGRU(_MinRNN):
    """``h[t] = (1 - z) h[t-1] + z x̃[t]``, z = σ(b): ``λ = σ(-b)``, coupled to ``γ = σ(b)``.

    The gate stands at zero input; without a bias λ = 1/2.
    """

    name = "min_gru"
    title = "minGRU"
    recognised_by = "to_hidden_and_gate.weight (2n, d); or linear_z.weight beside linear_h.weight"
    equation = "λ = 1 - σ(b_z), γ = σ(b_z)"
    source = "minGRU-pytorch; Feng et al. 2024, arXiv 2410.01201"
    assumptions: tuple[Assumption, ...] = ()
    fused = "to_hidden_and_gate"
    gates = (("linear_z", "gate", "update"),)
    strangers = tuple(f"linear_{gate}.weight" for gate in "rfioc")

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the gate's bias, if there is one; the weight only gives the size.

        Raises:
            TensorError: NaN or inf, or a bias that does not fit the weight.
        """
        size, slots = self.slots(store, match)
        bias = slots[0].values if slots else np.zeros(size)
        (weight,) = self.weights(match)
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Mix(keeps=False),
            at=bias,
            slots=slots,
            # The gate's rows are the last ones of a fused projection.
            gates=lambda: projected_gate(store, bias, weight, rows=slice(-size, None)),
            tensors=tuple(match.tensors.values()),
            assumptions=() if slots else (WITHOUT_BIAS,),
        )


class MinLSTM(_MinRNN):
    """``h[t] = f/(f+i) h[t-1] + i/(f+i) x̃[t]`` with f = σ(b_f) and i = σ(b_i): γ = 1 - λ.

    Gates stand at zero input; without biases λ = 1/2.
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
    fused = "to_hidden_and_f_i_gate"
    gates = (("linear_f", "forget", "forget"), ("linear_i", "input", "input"))
    strangers = tuple(f"linear_{gate}.weight" for gate in "ozrc")

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the gates' biases, if there are any; the weights only give the size.

        Raises:
            TensorError: NaN or inf, a bias that does not fit its weight, or one gate without.
        """
        size, slots = self.slots(store, match)
        at = np.stack([slot.values for slot in slots], axis=1) if slots else np.zeros((size, 2))

        def gates() -> JointDrive | None:
            rows = read_rows(store, self.weights(match))
            if rows is None:
                return None
            gram = inner_products(*(rows if len(rows) == 2 else np.split(rows[0], 3)[1:]))
            return JointDrive(Share(), at, gram, {slot.name: (slot.moves, 1.0) for slot in slots})

        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Share(),
            at=at,
            slots=slots,
            gates=gates,
            tensors=tuple(match.tensors.values()),
            assumptions=() if slots else (WITHOUT_BIAS,),
        )
