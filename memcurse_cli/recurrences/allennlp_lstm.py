"""AllenNLP's LSTM cells: ELMo's with a projection, and the one with a highway to its output."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import row_norms, squared_rows
from memcurse_cli.recurrences.gate_functions import Sigmoid
from memcurse_cli.recurrences.gated_cells import lstm_spectra
from memcurse_cli.recurrences.gated_layer import lstm_recurrence
from memcurse_cli.recurrences.reading import group_by_module, read_real
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.recurrences.torch_names import GateBias
from memcurse_cli.spectra.eigendecomposition import eigenvalues

GATES = ("input", "forget", "cell", "output")
SIDES = ("input_linearity", "state_linearity")
PROJECTION = "state_projection.weight"
HIGHWAY = (
    "its output passes a highway gate too, so that the Jacobian of the step is not that of an LSTM"
)


class AllenNLPLSTM:
    """``c[t+1] = σ(f) c[t] + σ(i) tanh(m)``: λ = σ(b_f), rows i, f, m, o.

    The rows after the four gates are a highway's, which gates the output and not the cell. ELMo
    clips the cell at ±3, far from zero.
    """

    name = "allennlp_lstm"
    title = "AllenNLP LSTM (ELMo's projection, highway)"
    recognised_by = (
        "state_linearity.weight (4H, P) beside input_linearity.weight (4H, inputs), with a "
        "state_projection.weight (P, H) or P = H; (5H, H) beside (6H, inputs)"
    )
    equation = "λ = σ(b_f), γ = σ(b_i), rows i, f, m, o"
    source = (
        "allennlp.modules.lstm_cell_with_projection and augmented_lstm; Peters et al. 2018, "
        "arXiv 1802.05365"
    )
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the linears of both sides, of one number of gates."""
        linears = [f"{side}.{part}" for side in SIDES for part in ("weight", "bias")]
        found = []
        for module, names in group_by_module(tensors, (*linears, PROJECTION)).items():
            shapes = {role: tensors[name].shape for role, name in names.items()}
            if _size(shapes):
                found.append(Match(module or self.name, names))
        return found

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the weights where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read, or another shape.
        """
        shapes = {role: store.tensors[name].shape for role, name in match.tensors.items()}
        size = _size(shapes)
        highway = shapes["state_linearity.weight"][0] > len(GATES) * size
        biases = _biases(store, match, size)
        inputs: dict[str, Floats] = {}
        weights: dict[str, Floats] = {}
        projection = None
        if options.spectra or options.gates:
            inputs, weights = (_weights(store, match, side, size) for side in SIDES)
            if PROJECTION in match.tensors:
                projection = read_real(store, match.tensors[PROJECTION], (None, size))
        hidden = None
        if options.spectra and highway:
            gates = {gate: eigenvalues(weights[gate], options.device) for gate in GATES}
            hidden = HiddenSpectra(gates, None, HIGHWAY)
        elif options.spectra:
            totals = {gate: bias.total for gate, bias in biases.items()}
            hidden = lstm_spectra(weights, totals, projection, options.device, inputs=inputs)
        # How large the state is behind a highway is not an LSTM's to say.
        driven = options.gates and not highway
        return lstm_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            hidden=hidden,
            norms=row_norms(inputs, weights) if driven else None,
            projection=None if projection is None or not driven else squared_rows(projection),
        )


def _size(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The number H of units; 0 where the shapes are not those of such a cell."""
    inputs, state = (shapes.get(f"{side}.weight", ()) for side in SIDES)
    if len(inputs) != 2 or len(state) != 2 or not state[1]:
        return 0
    if any(
        shapes.get(f"{side}.bias", weight[:1]) != weight[:1]
        for side, weight in zip(SIDES, (inputs, state), strict=True)
    ):
        return 0
    if PROJECTION in shapes:
        size = state[0] // len(GATES)
        fits = shapes[PROJECTION] == (state[1], size) and inputs[0] == state[0] == 4 * size
    else:
        size = state[1]
        fits = (inputs[0], state[0]) in ((4 * size, 4 * size), (6 * size, 5 * size))
    return size if fits else 0


def _biases(store: TensorStore, match: Match, size: int) -> dict[str, GateBias]:
    read = []
    for role in (f"{side}.bias" for side in SIDES):
        if role in match.tensors:
            tensor = match.tensors[role]
            read.append((role, tensor, read_real(store, tensor, store.tensors[tensor].shape)))
    found = {}
    for index, gate in enumerate(GATES):
        rows = slice(index * size, (index + 1) * size)
        parts = tuple(
            (role, tensor, values[rows], store.tensors[tensor].dtype)
            for role, tensor, values in read
        )
        total = np.sum([np.zeros(size), *(part[2] for part in parts)], axis=0)
        found[gate] = GateBias(total, parts)
    return found


def _weights(store: TensorStore, match: Match, side: str, size: int) -> dict[str, Floats]:
    weight = read_real(store, match.tensors[f"{side}.weight"], (None, None))
    return dict(zip(GATES, np.split(weight[: len(GATES) * size], len(GATES)), strict=True))
