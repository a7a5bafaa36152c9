"""The LSTM and the GRU of haste's PyTorch layers, under the names that Keras has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import row_norms
from memcurse_cli.recurrences.gate_functions import Sigmoid
from memcurse_cli.recurrences.gated_cells import gru_spectra, lstm_spectra
from memcurse_cli.recurrences.gated_layer import gru_recurrence, lstm_recurrence
from memcurse_cli.recurrences.reading import group_by_module, read_real
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.recurrences.torch_names import GateBias
from memcurse_cli.spectra.eigendecomposition import eigenvalues

LSTM_GATES = ("input", "cell", "forget", "output")
GRU_GATES = ("update", "reset", "new")
KERNELS = ("kernel", "recurrent_kernel")
BIASES = ("bias", "recurrent_bias")
NORM = "gamma"
NORMALISED = (
    "a layer normalisation stands behind the hidden matrix: its slope at zero is not stored"
)


def _matches(tensors: Mapping[str, TensorSpec], gates: int, family: str) -> list[Match]:
    """Modules with both kernels and the biases of such a layer."""
    wanted = {*KERNELS, *(BIASES if gates == len(GRU_GATES) else BIASES[:1])}
    found = []
    for module, names in group_by_module(tensors, (*KERNELS, *BIASES, NORM)).items():
        if names.keys() - {NORM} != wanted:
            continue
        # Nothing but the way that names are joined tells such an LSTM from one of Keras.
        if len(wanted) == len(KERNELS) + 1 and names["kernel"] != f"{module}.kernel":
            continue
        kernel, hidden = (tensors[names[role]].shape for role in KERNELS)
        biases = [tensors[names[role]].shape for role in BIASES if role in names]
        if len(kernel) != 2 or len(hidden) != 2 or kernel[1] != hidden[1] or not hidden[0]:
            continue
        if hidden[1] == gates * hidden[0] and all(bias == hidden[1:] for bias in biases):
            found.append(Match(module or family, names))
    return found


def _biases(store: TensorStore, match: Match, gates: tuple[str, ...]) -> dict[str, GateBias]:
    read = []
    for role in BIASES:
        if role in match.tensors:
            tensor = match.tensors[role]
            values = read_real(store, tensor, store.tensors[tensor].shape)
            read.append((role, tensor, np.split(values, len(gates)), store.tensors[tensor].dtype))
    return {
        gate: GateBias(
            np.sum([blocks[index] for _, _, blocks, _ in read], axis=0),
            tuple((role, tensor, blocks[index], dtype) for role, tensor, blocks, dtype in read),
        )
        for index, gate in enumerate(gates)
    }


def _weights(
    store: TensorStore, match: Match, role: str, gates: tuple[str, ...]
) -> dict[str, Floats]:
    """The (H, ·) weights of every gate, row = target; those stored multiply from the right."""
    kernel = read_real(store, match.tensors[role], (None, None))
    blocks = np.split(kernel.T, len(gates))
    return dict(zip(gates, blocks, strict=True))


def _normalised_spectra(weights: Mapping[str, Floats], device: str) -> HiddenSpectra:
    gates = {gate: eigenvalues(weight, device) for gate, weight in weights.items()}
    return HiddenSpectra(gates, None, NORMALISED)


class HasteLSTM:
    """``c' = σ(f) c + σ(i) tanh(g)``: λ = σ(b_f), columns i, g, f, o, where Keras has i, f, c, o.

    A layer normalisation of what the kernels put out is zero at zero input and zero state.
    """

    name = "haste_lstm"
    title = "haste LSTM (PyTorch)"
    recognised_by = "rnn.recurrent_kernel (H, 4H) beside rnn.kernel and rnn.bias (4H), with dots"
    equation = "λ = σ(b_f), γ = σ(b_i), columns i, g, f, o"
    source = "haste_pytorch.LSTM and LayerNormLSTM; Gers et al. 2000"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Layers of four gates."""
        return _matches(tensors, len(LSTM_GATES), self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias, and the kernels where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read.
        """
        biases = _biases(store, match, LSTM_GATES)
        inputs: dict[str, Floats] = {}
        weights: dict[str, Floats] = {}
        if options.spectra or options.gates:
            inputs, weights = (_weights(store, match, role, LSTM_GATES) for role in KERNELS)
        hidden = None
        if options.spectra and NORM in match.tensors:
            hidden = _normalised_spectra(weights, options.device)
        elif options.spectra:
            totals = {gate: bias.total for gate, bias in biases.items()}
            hidden = lstm_spectra(weights, totals, None, options.device, inputs=inputs)
        return lstm_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            hidden=hidden,
            norms=row_norms(inputs, weights)
            if options.gates and NORM not in match.tensors
            else None,
        )


class HasteGRU:
    """``h' = σ(z) h + (1 - σ(z)) tanh(n)``: λ = σ(b_z), the sum of both biases, columns z, r, n."""

    name = "haste_gru"
    title = "haste GRU (PyTorch)"
    recognised_by = "recurrent_bias (3H) beside recurrent_kernel (H, 3H), kernel and bias (3H)"
    equation = "λ = σ(b_z), γ = 1 - λ, b = bias + recurrent_bias, columns z, r, n"
    source = "haste_pytorch.GRU and LayerNormGRU; Cho et al. 2014"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Layers of three gates with two biases."""
        return _matches(tensors, len(GRU_GATES), self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the kernels where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read.
        """
        biases = _biases(store, match, GRU_GATES)
        inputs: dict[str, Floats] = {}
        weights: dict[str, Floats] = {}
        if options.spectra or options.gates:
            inputs, weights = (_weights(store, match, role, GRU_GATES) for role in KERNELS)
        hidden = None
        if options.spectra and NORM in match.tensors:
            hidden = _normalised_spectra(weights, options.device)
        elif options.spectra:
            totals = {gate: bias.total for gate, bias in biases.items()}
            totals["new"], inner = (values for _, _, values, _ in biases["new"].parts)
            hidden = gru_spectra(weights, totals, inner, options.device, inputs)
        return gru_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            hidden=hidden,
            norms=row_norms(inputs, weights)
            if options.gates and NORM not in match.tensors
            else None,
        )
