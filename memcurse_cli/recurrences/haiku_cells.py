"""The recurrent cores of Haiku, and of Sonnet 2, which names and orders its own alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.coupled_gate import coupled_recurrence
from memcurse_cli.recurrences.dense_layer import dense_recurrence
from memcurse_cli.recurrences.dense_rnn import ACTIVATION
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import (
    GateInput,
    HiddenState,
    RowNorms,
    row_norms,
    squared_rows,
)
from memcurse_cli.recurrences.gate_functions import Sigmoid
from memcurse_cli.recurrences.gated_cells import gru_spectra, lstm_spectra
from memcurse_cli.recurrences.gated_layer import lstm_recurrence
from memcurse_cli.recurrences.reading import group_by_module, read_real
from memcurse_cli.recurrences.recurrence import Floats, Recurrence
from memcurse_cli.recurrences.tf_lstm import BIAS, KERNEL, TensorFlowLSTM
from memcurse_cli.recurrences.torch_names import GateBias

GRU_GATES = ("update", "reset", "new")
LSTM_GATES = ("input", "forget", "cell", "output")
INPUT, HIDDEN, VECTOR, PROJECTION = "w_i", "w_h", "b", "projection"
# A matrix and a bias alone are any linear layer's, and two of them any network's.
_LSTM = re.compile(r"(?:.*[./,])?\w*lstm\w*", re.IGNORECASE)
_RNN = re.compile(r"(?:.*[./,])?\w*rnn\w*", re.IGNORECASE)
_SIDES = (("linear", "linear_1"), ("input_to_hidden", "hidden_to_hidden"))


@dataclass(frozen=True)
class _Cell:
    """A core with ``w_i`` (inputs, kH), ``w_h`` (H, kH) and ``b`` (kH), of one layer."""

    store: TensorStore
    match: Match
    gates: tuple[str, ...]

    @property
    def rows(self) -> int:
        """The size of what the gates see of the state."""
        return self.store.tensors[self.match.tensors[HIDDEN]].shape[0]

    @property
    def size(self) -> int:
        return self.store.tensors[self.match.tensors[HIDDEN]].shape[1] // len(self.gates)

    def biases(self) -> dict[str, GateBias]:
        """One bias for both sides."""
        tensor = self.match.tensors.get(VECTOR)
        if tensor is None:
            return {gate: GateBias(np.zeros(self.size), ()) for gate in self.gates}
        values = read_real(self.store, tensor, (len(self.gates) * self.size,))
        dtype = self.store.tensors[tensor].dtype
        blocks = zip(self.gates, np.split(values, len(self.gates)), strict=True)
        return {gate: GateBias(part, ((VECTOR, tensor, part, dtype),)) for gate, part in blocks}

    def weights(self, role: str) -> dict[str, Floats]:
        """The (H, ·) weights of every gate, row = target; those stored multiply from the right.

        Raises:
            TensorError: NaN or inf in them, or another shape.
        """
        rows = self.rows if role == HIDDEN else None
        width = len(self.gates) * self.size
        matrix = read_real(self.store, self.match.tensors[role], (rows, width))
        blocks = np.split(matrix, len(self.gates), axis=1)
        return {gate: block.T for gate, block in zip(self.gates, blocks, strict=True)}

    def norms(self, options: ReadOptions) -> dict[str, RowNorms] | None:
        """Those of both sides of each gate, where they are asked for."""
        return row_norms(self.weights(INPUT), self.weights(HIDDEN)) if options.gates else None


def _cores(tensors: Mapping[str, TensorSpec], gates: int, family: str) -> list[Match]:
    found = []
    for module, names in group_by_module(tensors, (INPUT, HIDDEN, VECTOR, PROJECTION)).items():
        if not {INPUT, HIDDEN} <= names.keys():
            continue
        inputs, hidden = (tensors[names[role]].shape for role in (INPUT, HIDDEN))
        if len(inputs) != 2 or len(hidden) != 2 or inputs[1] != hidden[1]:
            continue
        projection = tensors[names[PROJECTION]].shape if PROJECTION in names else hidden[:1] * 2
        size, rest = divmod(hidden[1], gates)
        if rest or not size or projection != (size, hidden[0]):
            continue
        if VECTOR not in names or tensors[names[VECTOR]].shape == hidden[1:]:
            found.append(Match(module or family, names))
    return found


class HaikuGRU:
    """``h' = (1 - σ(z)) h + σ(z) tanh(a)``, the reset gate before the matrix: λ = 1 - σ(b_z).

    The gate writes where that of torch and Keras keeps.
    """

    name = "haiku_gru"
    title = "Haiku and Sonnet 2 GRU"
    recognised_by = "w_h (H, 3H) beside w_i (inputs, 3H) and b (3H)"
    equation = "λ = 1 - σ(b_z), γ = σ(b_z), columns z, r, a"
    source = "haiku.GRU; sonnet.GRU of Sonnet 2; Cho et al. 2014"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cores of three gates."""
        return _cores(tensors, len(GRU_GATES), self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias, and the matrices where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read, or another shape.
        """
        cell = _Cell(store, match, GRU_GATES)
        biases = cell.biases()
        hidden = None
        if options.spectra:
            weights, inputs = cell.weights(HIDDEN), cell.weights(INPUT)
            totals = {gate: bias.total for gate, bias in biases.items()}
            # The theory's update gate keeps.
            for of_gates in (weights, inputs, totals):
                of_gates["update"] = -of_gates["update"]
            hidden = gru_spectra(weights, totals, None, options.device, inputs)
        norms = cell.norms(options)
        seen = {gate: GateInput(biases[gate].total, norm) for gate, norm in (norms or {}).items()}
        return coupled_recurrence(
            match,
            family=self.name,
            gate="update",
            bias=biases["update"],
            keeps=False,
            hidden_feedback=True,
            hidden=hidden,
            inputs=seen.get("update"),
            state=HiddenState(seen["new"], reset=seen["reset"]) if seen else None,
        )


class SonnetLSTM:
    """``c' = σ(f) c + σ(i) tanh(g)``: λ = σ(b_f), which holds the forget_bias already."""

    name = "sonnet_lstm"
    title = "Sonnet 2 LSTM"
    recognised_by = "w_h (H, 4H) beside w_i (inputs, 4H) and b (4H)"
    equation = "λ = σ(b_f), γ = σ(b_i), columns i, f, g, o"
    source = "sonnet.LSTM and UnrolledLSTM of Sonnet 2; Gers et al. 2000"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cores of four gates."""
        return _cores(tensors, len(LSTM_GATES), self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias, and the matrices where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read, or another shape.
        """
        cell = _Cell(store, match, LSTM_GATES)
        biases = cell.biases()
        projection = None
        if PROJECTION in match.tensors and (options.spectra or options.gates):
            projection = read_real(store, match.tensors[PROJECTION], (cell.size, cell.rows)).T
        hidden = None
        if options.spectra:
            hidden = lstm_spectra(
                cell.weights(HIDDEN),
                {gate: bias.total for gate, bias in biases.items()},
                projection,
                options.device,
                inputs=cell.weights(INPUT),
            )
        return lstm_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            hidden=hidden,
            norms=cell.norms(options),
            projection=None if projection is None else squared_rows(projection),
        )


class HaikuLSTM(TensorFlowLSTM):
    """``c' = σ(f + 1) c + σ(i) tanh(g)``, columns i, g, f, o: λ = σ(b_f + 1).

    One linear multiplies [x, h], and 1 is added to f whatever is stored.
    """

    name = "haiku_lstm"
    title = "Haiku LSTM"
    recognised_by = "linear/w (inputs + H, 4H) and linear/b (4H) in a module called lstm"
    equation = "λ = σ(b_f + 1), γ = σ(b_i), columns i, g, f, o"
    source = "haiku.LSTM; Gers et al. 2000"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules that are called an LSTM and hold a linear of the shape of four gates."""
        found = []
        roles = {"linear.w": KERNEL, "linear.b": BIAS}
        for module, names in group_by_module(tensors, roles).items():
            shapes = {role: tensors[name].shape for role, name in names.items()}
            kernel, bias = shapes.get("linear.w", ()), shapes.get("linear.b", ())
            if len(kernel) != 2 or bias != kernel[1:] or not bias[0] or bias[0] % 4:
                continue
            if kernel[0] > bias[0] // 4 and _LSTM.fullmatch(module):
                found.append(Match(module, {roles[role]: name for role, name in names.items()}))
        return found

    def forget_bias(self, module: str, assumed: Assumed) -> float:
        """Always 1."""
        return 1.0


class HaikuRNN:
    """``h' = φ(W x + b + U h)``: A = Uᵀ of what is stored, linearised with slope 1."""

    name = "haiku_rnn"
    title = "Haiku and Sonnet 2 VanillaRNN (dense)"
    recognised_by = (
        "linear_1/w (H, H) beside linear/w (inputs, H) in a module called rnn; or "
        "hidden_to_hidden/w beside input_to_hidden/w"
    )
    equation = "λ = eig(wᵀ)"
    source = "haiku.VanillaRNN; sonnet.VanillaRNN of Sonnet 2; Elman 1990"
    assumptions: tuple[Assumption, ...] = (ACTIVATION,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the two linears, the one of the state square."""
        found = []
        for inputs, hidden in _SIDES:
            roles = tuple(f"{side}.{part}" for side in (inputs, hidden) for part in ("w", "b"))
            for module, names in group_by_module(tensors, roles).items():
                sides = [names.get(f"{side}.w", "") for side in (inputs, hidden)]
                if not all(sides) or (inputs == "linear" and not _RNN.fullmatch(module)):
                    continue
                readin, square = (tensors[name].shape for name in sides)
                if len(square) == 2 and square[0] == square[1] and readin[1:] == square[1:]:
                    own = {"readin": sides[0], "state": sides[1]}
                    found.append(Match(module or self.name, own))
        return found

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read both matrices and decompose that of the state.

        Raises:
            TensorError: NaN or inf, or shapes that do not fit together.
        """
        tensor = match.tensors["state"]
        size = store.tensors[tensor].shape[0]
        assumed = Assumed(options)
        activation = assumed.choose(ACTIVATION, default="relu" if "linear_1" in tensor else "tanh")
        readin = read_real(store, match.tensors["readin"], (None, size)).T
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=read_real(store, tensor, (size, size)).T,
            tensor=tensor,
            activation=activation,
            device=options.device,
            readin=readin.astype(np.complex128),
            assumptions=tuple(assumed.sentences),
        )
