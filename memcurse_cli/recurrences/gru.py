"""The GRU of Cho et al. in torch's layout."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_functions import Sigmoid
from memcurse_cli.recurrences.gated_cells import gru_spectra
from memcurse_cli.recurrences.gated_layer import gru_recurrence
from memcurse_cli.recurrences.gru_mutations import mutated_recurrence
from memcurse_cli.recurrences.reading import read_real
from memcurse_cli.recurrences.recurrence import HiddenSpectra, Recurrence
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

GATES = ("reset", "update", "new")
MUTATIONS = ("mut2", "mut3")
CELLS = Lookalikes(
    "gru",
    "torch's GRU",
    read=MUTATIONS,
    refused=("original_lstm", "tgru", "tlstm"),
    square=("tgru", "tlstm"),
)


class GRU:
    """``h[t+1] = σ(z) h[t] + (1 - σ(z)) tanh(n)``: λ = σ(b_z), coupled to γ = 1 - λ.

    The gate stands at zero input and zero state, where only its bias is left. The hidden weights
    are recognised by their shape and read only where their spectra are asked for. A layer without
    biases has λ = 1/2 and no parameter group, since its weights do not act at zero input.
    """

    name = "gru"
    title = "GRU"
    recognised_by = "weight_hh_l0, weight_hh or w_hh (3H, H)"
    equation = "λ = σ(b_z), γ = 1 - λ, b = bias_ih + bias_hh, rows r, z, n"
    source = "torch.nn.GRU; Cho et al. 2014; theory of Zucchet & Orvieto 2024, D.2"
    assumptions: tuple[Assumption, ...] = (CELLS.assumption,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Layers whose hidden weight is (3H, H)."""
        return [
            weight.match(self.name)
            for weight in hidden_weights(tensors)
            if weight.rows == 3 * weight.columns and not weight.projected
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the hidden weights where their spectra are asked for.

        Raises:
            TensorError: NaN or inf in what is read, a bias of another size than 3H, or a tensor or
                a name that another cell has.
        """
        choice = CELLS.choose(store, match, options)
        if choice.cell in MUTATIONS:
            return mutated_recurrence(
                store,
                match,
                options,
                family=self.name,
                cell=choice.cell,
                assumptions=choice.sentences,
            )
        size = weight_rows(store, match) // len(GATES)
        biases = read_gate_biases(store, match, GATES, size)
        return gru_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            assumptions=choice.sentences,
            hidden=_spectra(store, match, biases, options.device) if options.spectra else None,
            norms=read_gate_norms(store, match, GATES) if options.gates else None,
        )


def _spectra(
    store: TensorStore, match: Match, biases: Mapping[str, GateBias], device: str
) -> HiddenSpectra:
    totals = {gate: bias.total for gate, bias in biases.items()}
    inner = np.zeros_like(totals["new"])
    totals["new"] = np.zeros_like(inner)
    for role, _, values, _ in biases["new"].parts:
        if role == "bias_hh":
            inner = values
        else:
            totals["new"] = values
    if "bias_n" in match.tensors:  # Equinox: the one bias of ``new`` is the input's
        inner = read_real(store, match.tensors["bias_n"], inner.shape)
    return gru_spectra(
        read_gate_weights(store, match, GATES),
        totals,
        inner,
        device,
        read_gate_inputs(store, match, GATES),
    )
