"""The LSTM of Hochreiter & Schmidhuber with Gers's forget gate, in torch's layout."""

from __future__ import annotations

from collections.abc import Mapping

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import squared_rows
from memcurse_cli.recurrences.gate_functions import Sigmoid
from memcurse_cli.recurrences.gated_cells import lstm_spectra
from memcurse_cli.recurrences.gated_layer import lstm_recurrence
from memcurse_cli.recurrences.reading import read_real
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.recurrences.torch_cells import Lookalikes
from memcurse_cli.recurrences.torch_names import (
    GateBias,
    hidden_weights,
    read_gate_biases,
    read_gate_inputs,
    read_gate_norms,
    read_gate_weights,
    weight_rows,
)

GATES = ("input", "forget", "cell", "output")
CELLS = Lookalikes("lstm", "torch's LSTM", refused=("tau_gru", "intersection_rnn"))


class LSTM:
    """``c[t+1] = σ(f) c[t] + σ(i) tanh(g)``: the state is c, λ = σ(b_f) and γ = σ(b_i).

    The gates stand at zero input and zero state, where only their biases are left. The hidden
    weights are recognised by their shape and read only where their spectra are asked for. A layer
    without biases has λ = 1/2 and no parameter group, since its weights do not act at zero input.
    """

    name = "lstm"
    title = "LSTM"
    recognised_by = "weight_hh_l0 or weight_hh (4H, H), or with a projection weight_hr_l0 (4H, P)"
    equation = "λ = σ(b_f), b = bias_ih + bias_hh, rows i, f, g, o"
    source = "torch.nn.LSTM; Gers et al. 2000; theory of Zucchet & Orvieto 2024, D.2"
    assumptions: tuple[Assumption, ...] = (CELLS.assumption,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Layers whose hidden weight is (4H, H), or (4H, P) beside a projection."""
        return [
            weight.match(self.name)
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
        return lstm_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            assumptions=assumed,
            hidden=_spectra(store, match, biases, options.device) if options.spectra else None,
            norms=read_gate_norms(store, match, GATES) if options.gates else None,
            projection=_projected(store, match) if options.gates else None,
        )


def _projected(store: TensorStore, match: Match) -> Floats | None:
    """The squared norms of what the state is multiplied with, where it is projected."""
    if "weight_hr" not in match.tensors:
        return None
    return squared_rows(read_real(store, match.tensors["weight_hr"], (None, None)))


def _spectra(
    store: TensorStore, match: Match, biases: Mapping[str, GateBias], device: str
) -> HiddenSpectra:
    weights = read_gate_weights(store, match, GATES)
    totals = {gate: bias.total for gate, bias in biases.items()}
    projection = None
    if "weight_hr" in match.tensors:
        projection = read_real(store, match.tensors["weight_hr"], weights["forget"].shape[::-1])
    inputs = read_gate_inputs(store, match, GATES)
    return lstm_spectra(weights, totals, projection, device, inputs=inputs)
