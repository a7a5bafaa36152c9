"""ONNX's LSTM, GRU and RNN nodes, one layer for each direction of a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.json_header import parse_object
from memcurse_cli.checkpoints.names import printable
from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.dense_layer import dense_recurrence
from memcurse_cli.recurrences.dense_rnn import ACTIVATION
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import RowNorms, row_norms
from memcurse_cli.recurrences.gate_functions import GateFunction, HardSigmoid, Sigmoid
from memcurse_cli.recurrences.gated_cells import gru_spectra, lstm_spectra
from memcurse_cli.recurrences.gated_layer import gru_recurrence, lstm_recurrence
from memcurse_cli.recurrences.peepholes import InputPeephole, behind_peepholes, with_input_peephole
from memcurse_cli.recurrences.reading import group_by_module, read_real
from memcurse_cli.recurrences.recurrence import Floats, Recurrence
from memcurse_cli.recurrences.torch_names import GateBias

LSTM_GATES = ("input", "output", "forget", "cell")
GRU_GATES = ("update", "reset", "new")
ACTIVATIONS = {"Tanh": "tanh", "Relu": "relu"}
# The functions that take an alpha or a beta from the node's lists, in the order of the functions.
_TAKE_ALPHA = ("affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu")
_TAKE_BETA = ("affine", "hardsigmoid", "scaledtanh")
# The operator HardSigmoid's own defaults.
_ALPHA, _BETA = 0.2, 0.5
_CLIPPED = "the node clips what enters its activations; the biases are taken as they are"


class OnnxLSTM:
    """The operator LSTM, with the gates' rows in the order i, o, f, c and B = [Wb | Rb].

    The two halves of B are summed. Initialisers that the graph slices and puts together anew are
    followed, so that the order is that of the node whatever the exporter's was.
    """

    name = "onnx_lstm"
    title = "ONNX LSTM node"
    recognised_by = "LSTM_R (4H, H) and LSTM_B (8H), as the reader of ONNX names a node's weights"
    equation = "λ = σ(b_f), γ = σ(b_i), b = Wb + Rb, rows i, o, f, c"
    source = "onnx.ai/onnx/operators/onnx__LSTM.html; Gers et al. 2000"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """The directions of LSTM nodes."""
        return _matches(tensors, "LSTM")

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read B.

        Raises:
            TensorError: NaN or inf in B, another size than 8H, or gates that are not read.
        """
        attributes = _attributes(store, match, "LSTM")
        if _first(attributes, "input_forget", 0):
            raise TensorError(
                "its input and forget gates are coupled (input_forget), which is not read",
                where=match.layer,
                remedy="export the model without input_forget",
            )
        function = _gate_function(match, attributes, 3)
        biases = _gate_biases(store, match, LSTM_GATES)
        peepholes = _peepholes(store, match)
        hidden = None
        if options.spectra:
            totals = {gate: bias.total for gate, bias in biases.items()}
            weights = _gate_weights(store, match, LSTM_GATES)
            hidden = function.spectra(
                lambda: lstm_spectra(
                    weights,
                    totals,
                    None,
                    options.device,
                    peepholes,
                    _input_weights(store, match, LSTM_GATES),
                )
            )
        recurrence = lstm_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=function,
            hidden=hidden,
            assumptions=tuple(_sentences(attributes)),
            norms=_gate_norms(store, match, LSTM_GATES) if options.gates else None,
        )
        if not peepholes:
            return recurrence
        held = match.tensors["P"]
        seen = InputPeephole("P[input]", held, peepholes["input"], store.tensors[held].dtype)
        return with_input_peephole(behind_peepholes(recurrence, peepholes), biases, seen, function)


class OnnxGRU:
    """The operator GRU, with the gates' rows in the order z, r, h and B = [Wb | Rb].

    The two halves of B are summed. ``linear_before_reset`` puts the recurrent half of the
    candidate's bias inside the reset gate, which does not touch λ.
    """

    name = "onnx_gru"
    title = "ONNX GRU node"
    recognised_by = "GRU_R (3H, H) and GRU_B (6H), as the reader of ONNX names a node's weights"
    equation = "λ = σ(b_z), γ = 1 - λ, b = Wb + Rb, rows z, r, h"
    source = "onnx.ai/onnx/operators/onnx__GRU.html; Cho et al. 2014"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """The directions of GRU nodes."""
        return _matches(tensors, "GRU")

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read B.

        Raises:
            TensorError: NaN or inf in B, another size than 6H, or gates that are not read.
        """
        attributes = _attributes(store, match, "GRU")
        function = _gate_function(match, attributes, 2)
        biases = _gate_biases(store, match, GRU_GATES)
        hidden = None
        if options.spectra:
            totals = {gate: bias.total for gate, bias in biases.items()}
            inner: Floats | None = None
            if _first(attributes, "linear_before_reset", 0):
                parts = [part[2] for part in biases["new"].parts]
                zero = np.zeros_like(totals["new"])
                totals["new"], inner = parts or (zero, zero)
            weights = _gate_weights(store, match, GRU_GATES)
            hidden = function.spectra(
                lambda: gru_spectra(
                    weights,
                    totals,
                    inner,
                    options.device,
                    _input_weights(store, match, GRU_GATES),
                )
            )
        return gru_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=function,
            hidden=hidden,
            assumptions=tuple(_sentences(attributes)),
            norms=_gate_norms(store, match, GRU_GATES) if options.gates else None,
        )


class OnnxRNN:
    """The operator RNN: ``h[t+1] = φ(R h[t] + W x[t+1] + Wb + Rb)``, so A = R and B = W.

    Linearised with slope 1; biases do not matter to the linear theory.
    """

    name = "onnx_rnn"
    title = "ONNX RNN node (dense)"
    recognised_by = "RNN_R (H, H), as the reader of ONNX names a node's weights"
    equation = "λ = eig(R)"
    source = "onnx.ai/onnx/operators/onnx__RNN.html; Elman 1990"
    assumptions: tuple[Assumption, ...] = (ACTIVATION,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """The directions of RNN nodes."""
        return _matches(tensors, "RNN")

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read R and W, and decompose R.

        Raises:
            TensorError: NaN or inf, or weights whose shapes do not fit together.
        """
        tensor = match.tensors["R"]
        size = store.tensors[tensor].shape[1]
        attributes = _attributes(store, match, "RNN")
        stored = next(_activations(match, attributes, 1), ("Tanh", _ALPHA, _BETA))[0]
        known = ACTIVATIONS.get(stored)
        assumed = Assumed(options)
        activation = assumed.choose(ACTIVATION, default=known, silent=known is not None)
        if known is None:
            assumed.sentences.append(f"the node's activation {stored} is not modelled")
        readin = None
        if "W" in match.tensors:
            readin = read_real(store, match.tensors["W"], (size, None)).astype(np.complex128)
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=read_real(store, tensor, (size, size)),
            tensor=tensor,
            activation=activation,
            device=options.device,
            readin=readin,
            assumptions=(*assumed.sentences, *_sentences(attributes)),
        )


def _matches(tensors: Mapping[str, TensorSpec], operator: str) -> list[Match]:
    roles = [f"{operator}_{role}" for role in "WRBP"]
    return [
        Match(module, {role.removeprefix(f"{operator}_"): name for role, name in names.items()})
        for module, names in group_by_module(tensors, roles).items()
        if f"{operator}_R" in names and len(tensors[names[f"{operator}_R"]].shape) == 2
    ]


def _attributes(store: TensorStore, match: Match, operator: str) -> dict[str, Any]:
    """The node's attributes, each a list; none where the file does not say."""
    text = store.metadata.get(printable(f"{match.layer}/{operator}"))
    return {} if text is None else parse_object(text.encode())


def _first(attributes: Mapping[str, Any], name: str, default: int) -> int:
    values = attributes.get(name)
    return values[0] if values and isinstance(values[0], int) else default


def _activations(
    match: Match, attributes: Mapping[str, Any], count: int
) -> Iterator[tuple[str, float, float]]:
    """The functions of this direction, each with its alpha and beta."""
    names = [name for name in attributes.get("activations") or () if isinstance(name, str)]
    alphas, betas = (
        iter(attributes.get(key) or ()) for key in ("activation_alpha", "activation_beta")
    )
    taken = [
        (
            name,
            float(next(alphas, _ALPHA)) if name.lower() in _TAKE_ALPHA else _ALPHA,
            float(next(betas, _BETA)) if name.lower() in _TAKE_BETA else _BETA,
        )
        for name in names
    ]
    # A node of both directions lists the functions of the forward one first.
    second = match.layer.endswith("/reverse") and len(taken) >= 2 * count
    yield from taken[count : 2 * count] if second else taken[:count]


def _gate_function(match: Match, attributes: Mapping[str, Any], count: int) -> GateFunction:
    """The function of the gates, the first of the node's list."""
    name, alpha, beta = next(_activations(match, attributes, count), ("Sigmoid", _ALPHA, _BETA))
    if name.lower() == "sigmoid":
        return Sigmoid()
    if name.lower() == "hardsigmoid" and np.isfinite([alpha, beta]).all():
        return HardSigmoid(alpha, beta)
    raise TensorError(
        f"its gates have the activation {printable(name, 40)}, which is not read",
        where=match.layer,
        remedy="known are Sigmoid and HardSigmoid",
    )


def _sentences(attributes: Mapping[str, Any]) -> Iterator[str]:
    if attributes.get("clip"):
        yield _CLIPPED


def _peepholes(store: TensorStore, match: Match) -> dict[str, Floats]:
    """P of the gates i, o, f; none where the node has none."""
    if "P" not in match.tensors:
        return {}
    size = store.tensors[match.tensors["R"]].shape[1]
    blocks = np.split(read_real(store, match.tensors["P"], (3 * size,)), 3)
    return dict(zip(LSTM_GATES, blocks, strict=False))


def _gate_norms(
    store: TensorStore, match: Match, gates: tuple[str, ...]
) -> dict[str, RowNorms] | None:
    """The norms of the rows of W and R of every gate; None without W."""
    return row_norms(_input_weights(store, match, gates), _gate_weights(store, match, gates))


def _input_weights(
    store: TensorStore, match: Match, gates: tuple[str, ...]
) -> dict[str, Floats] | None:
    """The rows of W of every gate; None without W."""
    return _gate_weights(store, match, gates, "W") if "W" in match.tensors else None


def _gate_weights(
    store: TensorStore, match: Match, gates: tuple[str, ...], role: str = "R"
) -> dict[str, Floats]:
    """The rows of R, or of W, of every gate, row = target."""
    tensor = match.tensors[role]
    blocks = np.split(read_real(store, tensor, store.tensors[tensor].shape), len(gates))
    return dict(zip(gates, blocks, strict=True))


def _gate_biases(store: TensorStore, match: Match, gates: tuple[str, ...]) -> dict[str, GateBias]:
    """The biases of every gate: of the input weight, then of the recurrent one."""
    size = store.tensors[match.tensors["R"]].shape[1]
    if "B" not in match.tensors:
        return {gate: GateBias(np.zeros(size), ()) for gate in gates}
    tensor = match.tensors["B"]
    halves = read_real(store, tensor, (2 * len(gates) * size,)).reshape(2, len(gates), size)
    dtype = store.tensors[tensor].dtype
    return {
        gate: GateBias(
            halves[:, index].sum(axis=0),
            tuple(
                (role, tensor, half[index], dtype)
                for role, half in zip(("Wb", "Rb"), halves, strict=True)
            ),
        )
        for index, gate in enumerate(gates)
    }
