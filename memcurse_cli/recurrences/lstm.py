"""The LSTM of Hochreiter & Schmidhuber with Gers's forget gate, in torch's layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import squared_rows
from memcurse_cli.recurrences.gate_functions import Sigmoid
from memcurse_cli.recurrences.gated_cells import lstm_spectra
from memcurse_cli.recurrences.gated_layer import lstm_recurrence
from memcurse_cli.recurrences.peepholes import (
    InputPeephole,
    behind_peepholes,
    with_input_peephole,
)
from memcurse_cli.recurrences.reading import read_real
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.recurrences.torch_cells import Lookalikes, beside
from memcurse_cli.recurrences.torch_names import (
    GateBias,
    hidden_weights,
    read_gate_biases,
    read_gate_inputs,
    read_gate_norms,
    read_gate_weights,
    split_hidden_weight,
    weight_rows,
)

GATES = ("input", "forget", "cell", "output")
PEEPHOLES = "weight_ph"
CELLS = Lookalikes(
    "lstm",
    "torch's LSTM",
    refused=("tau_gru", "intersection_rnn"),
    square=("intersection_rnn",),
)


class LSTM:
    """``c[t+1] = σ(f) c[t] + σ(i) tanh(g)``: the state is c, λ = σ(b_f) and γ = σ(b_i).

    The gates stand at zero input and zero state, where only their biases are left. The hidden
    weights are recognised by their shape and read only where their spectra are asked for. A layer
    without biases has λ = 1/2 and no parameter group, since its weights do not act at zero input.
    Peepholes ``weight_ph`` (3H), rows i, f, o, let the gates see c: the input gate's adds to λ.
    """

    name = "lstm"
    title = "LSTM"
    recognised_by = "weight_hh_l0 or weight_hh (4H, H), or with a projection weight_hr_l0 (4H, P)"
    equation = "λ = σ(b_f), b = bias_ih + bias_hh, rows i, f, g, o"
    source = (
        "torch.nn.LSTM, torchrecurrent; Gers et al. 2000; theory of Zucchet & Orvieto 2024, D.2"
    )
    assumptions: tuple[Assumption, ...] = (CELLS.assumption,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Layers whose hidden weight is (4H, H), or (4H, P) beside a projection."""
        return [
            _with_peepholes(tensors, weight.match(self.name))
            for weight in hidden_weights(tensors)
            if weight.rows == 4 * weight.columns or (weight.projected and weight.rows % 4 == 0)
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the hidden weights where their spectra are asked for.

        Raises:
            TensorError: NaN or inf in what is read, a bias of another size than 4H, or a tensor or
                a name that another cell has.
        """
        assumed = CELLS.choose(store, match, options).sentences
        size = weight_rows(store, match) // len(GATES)
        biases = read_gate_biases(store, match, GATES, size)
        peepholes = _peepholes(store, match, size)
        plain = lstm_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            assumptions=assumed,
            hidden=_spectra(store, match, biases, peepholes, options) if options.spectra else None,
            norms=read_gate_norms(store, match, GATES) if options.gates else None,
            projection=_projected(store, match) if options.gates else None,
        )
        if not peepholes:
            return plain
        tensor = match.tensors[PEEPHOLES]
        seen = InputPeephole(
            f"{PEEPHOLES}[input]", tensor, peepholes["input"], store.tensors[tensor].dtype
        )
        recurrence = behind_peepholes(plain, peepholes)
        return with_input_peephole(recurrence, biases, seen, Sigmoid())


def _with_peepholes(tensors: Mapping[str, TensorSpec], match: Match) -> Match:
    """The layer with torchrecurrent's peepholes, where they stand beside its weights."""
    weight = match.tensors["weight_hh"]
    tensor = beside(tensors, weight).get(PEEPHOLES)
    if tensor is None or split_hidden_weight(weight)[2]:  # a layer of torch's has none
        return match
    return replace(match, tensors={**match.tensors, PEEPHOLES: tensor})


def _peepholes(store: TensorStore, match: Match, size: int) -> dict[str, Floats]:
    """(H,) of the gates input, forget and output, whose rows stand in this order; or none."""
    if PEEPHOLES not in match.tensors:
        return {}
    values = read_real(store, match.tensors[PEEPHOLES], (3 * size,))
    return dict(zip(("input", "forget", "output"), np.split(values, 3), strict=True))


def _projected(store: TensorStore, match: Match) -> Floats | None:
    """The squared norms of what the state is multiplied with, where it is projected."""
    if "weight_hr" not in match.tensors:
        return None
    return squared_rows(read_real(store, match.tensors["weight_hr"], (None, None)))


def _spectra(
    store: TensorStore,
    match: Match,
    biases: Mapping[str, GateBias],
    peepholes: Mapping[str, Floats],
    options: ReadOptions,
) -> HiddenSpectra:
    weights = read_gate_weights(store, match, GATES)
    totals = {gate: bias.total for gate, bias in biases.items()}
    projection = None
    if "weight_hr" in match.tensors:
        projection = read_real(store, match.tensors["weight_hr"], weights["forget"].shape[::-1])
    inputs = read_gate_inputs(store, match, GATES)
    return lstm_spectra(
        weights, totals, projection, options.device, peepholes=peepholes, inputs=inputs
    )
