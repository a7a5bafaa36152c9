"""Keras's LSTM, GRU and SimpleRNN, of every version, with cuDNN's layouts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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
from memcurse_cli.recurrences.keras1_names import is_keras1_name, keras1_cells
from memcurse_cli.recurrences.keras_config import configured, keras_version
from memcurse_cli.recurrences.reading import group_by_module, read_real, shown_shape
from memcurse_cli.recurrences.recurrence import Floats, Recurrence
from memcurse_cli.recurrences.torch_names import GateBias

RECURRENT_ACTIVATION = Assumption(
    key="recurrent_activation",
    default="sigmoid",
    choices=("sigmoid", "hard_sigmoid"),
    meaning="the function of a Keras layer's gates, which its configuration would say",
)
LSTM_GATES = ("input", "forget", "cell", "output")
GRU_GATES = ("update", "reset", "new")
ROLES = ("kernel", "recurrent_kernel", "bias")
# Keras 3 stores a cell's variables by the order in which it made them.
VARIABLES = dict(zip(("0", "1", "2"), ROLES, strict=True))
_CELL = re.compile(r"(?:.*[./,])?(?:\w+_)?cell(?:_\d+)?")
_CELL_NAME = re.compile(r"[./,](?:cell|(?:lstm|gru|simple_rnn)_cell(?:_\d+)?)$")


@dataclass(frozen=True)
class Cell:
    """A cell's tensors.

    Attributes:
        module: the name of the module that holds them.
        gates: how many blocks of columns the kernels have: 4, 3 or 1.
        tensors: the kernel, the recurrent kernel and the bias, as far as they are there; of Keras 1
            those of each gate.
    """

    module: str
    gates: int
    tensors: Mapping[str, str]


def keras_cells(tensors: Mapping[str, TensorSpec]) -> list[Cell]:
    """Every module with a kernel (inputs, kU) and a recurrent kernel (U, kU)."""
    found = []
    named = group_by_module(tensors, ROLES)
    numbered = {
        module.removesuffix("/vars"): {VARIABLES[role]: name for role, name in names.items()}
        for module, names in group_by_module(tensors, VARIABLES).items()
        if module.endswith("/vars") or module == "vars"
    }
    for module, names in (*named.items(), *numbered.items()):
        if not {"kernel", "recurrent_kernel"} <= names.keys():
            continue
        kernel, recurrent = (tensors[names[role]].shape for role in ROLES[:2])
        if len(kernel) != 2 or len(recurrent) != 2 or kernel[1] != recurrent[1] or not recurrent[0]:
            continue
        gates, rest = divmod(recurrent[1], recurrent[0])
        # Matrices of one width under numbers could be anything, unless a cell holds them.
        named_so = module in named or _CELL.fullmatch(module)
        if rest or gates not in (1, 3, 4) or (gates == 1 and not named_so):
            continue
        found.append(Cell(module, gates, names))
    found += [Cell(*cell) for cell in keras1_cells(tensors)]
    return found


def _matches(tensors: Mapping[str, TensorSpec], gates: int, family: str) -> list[Match]:
    cells = keras_cells(tensors)
    # A layer holds its weights in a cell; its name is the layer's, unless it holds several.
    short = {cell.module: _CELL_NAME.sub("", cell.module) for cell in cells}
    shared = Counter(short.values())
    return [
        Match(
            (cell.module if shared[short[cell.module]] > 1 else short[cell.module]) or family,
            cell.tensors,
        )
        for cell in cells
        if cell.gates == gates
    ]


class KerasLSTM:
    """The LSTM, with the gates' columns in the order i, f, c, o and the bias of forgetting stored.

    ``unit_forget_bias`` only initialises, so that nothing is added here. CuDNNLSTM has a bias of 8U
    elements, of the input and of the recurrent kernel; the two are summed.
    """

    name = "keras_lstm"
    title = "Keras LSTM"
    recognised_by = "recurrent_kernel or cell/vars/1 (U, 4U) beside a kernel (inputs, 4U)"
    equation = "λ = σ(b_f), γ = σ(b_i), columns i, f, c, o"
    source = "keras.layers.LSTM, CuDNNLSTM of Keras 2; Gers et al. 2000"
    assumptions: tuple[Assumption, ...] = (RECURRENT_ACTIVATION,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cells of four gates."""
        return _matches(tensors, 4, self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias.

        Raises:
            TensorError: NaN or inf in the bias, or a bias that fits no layout.
        """
        function, assumptions = _gate_function(store, match, options, "LSTM")
        biases = _gate_biases(store, match, LSTM_GATES)
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
                    inputs=_gate_weights(store, match, LSTM_GATES, "kernel"),
                )
            )
        return lstm_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=function,
            hidden=hidden,
            assumptions=assumptions,
            norms=_gate_norms(store, match, LSTM_GATES) if options.gates else None,
        )


class KerasGRU:
    """The GRU, with the gates' columns in the order z, r, h.

    With ``reset_after`` the bias is (2, 3U), and (6U) in CuDNNGRU: of the input and of the
    recurrent kernel, which are summed. Without it the bias is (3U). λ is the same for both.
    """

    name = "keras_gru"
    title = "Keras GRU"
    recognised_by = "recurrent_kernel or cell/vars/1 (U, 3U) beside a kernel (inputs, 3U)"
    equation = "λ = σ(b_z), γ = 1 - λ, columns z, r, h"
    source = "keras.layers.GRU, CuDNNGRU of Keras 2; Cho et al. 2014"
    assumptions: tuple[Assumption, ...] = (RECURRENT_ACTIVATION,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cells of three gates."""
        return _matches(tensors, 3, self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias.

        Raises:
            TensorError: NaN or inf in the bias, or a bias that fits no layout.
        """
        function, assumptions = _gate_function(store, match, options, "GRU")
        biases = _gate_biases(store, match, GRU_GATES)
        hidden = None
        if options.spectra:
            totals = {gate: bias.total for gate, bias in biases.items()}
            inner: Floats | None = np.zeros_like(totals["new"])
            parts = biases["new"].parts
            if len(parts) == 2:  # reset_after: the recurrent bias stands inside the reset gate
                totals["new"], inner = parts[0][2], parts[1][2]
            elif parts:
                inner = None
            weights = _gate_weights(store, match, GRU_GATES)
            hidden = function.spectra(
                lambda: gru_spectra(
                    weights,
                    totals,
                    inner,
                    options.device,
                    _gate_weights(store, match, GRU_GATES, "kernel"),
                )
            )
        return gru_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=function,
            hidden=hidden,
            assumptions=assumptions,
            norms=_gate_norms(store, match, GRU_GATES) if options.gates else None,
        )


class KerasSimpleRNN:
    """``h[t+1] = φ(h[t] U + x[t+1] W + b)``: kernels multiply from the right, so A = Uᵀ, B = Wᵀ.

    Linearised; its bias says at which slope.
    """

    name = "keras_simple_rnn"
    title = "Keras SimpleRNN (dense)"
    recognised_by = "recurrent_kernel or cell/vars/1 (U, U) beside a kernel (inputs, U)"
    equation = "λ = eig(recurrent_kernelᵀ)"
    source = "keras.layers.SimpleRNN; Elman 1990"
    assumptions: tuple[Assumption, ...] = (ACTIVATION,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cells without gates."""
        return _matches(tensors, 1, self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the kernels and decompose the recurrent one.

        Raises:
            TensorError: NaN or inf, or kernels whose shapes do not fit together.
        """
        tensor = match.tensors["recurrent_kernel"]
        size = store.tensors[tensor].shape[0]
        stored = configured(store, match.layer, "SimpleRNN", "activation")
        known = stored if stored in ACTIVATION.choices else None
        assumed = Assumed(options)
        activation = assumed.choose(ACTIVATION, default=known, silent=known is not None)
        if stored and known is None:
            assumed.sentences.append(f"the configuration's activation {stored} is not modelled")
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=read_real(store, tensor, (size, size)).T,
            tensor=tensor,
            activation=activation,
            device=options.device,
            readin=read_real(store, match.tensors["kernel"], (None, size)).T.astype(np.complex128),
            bias=read_real(store, match.tensors["bias"], (size,))
            if "bias" in match.tensors
            else np.zeros(size),
            assumptions=tuple(assumed.sentences),
        )


def _is_cudnn(store: TensorStore, match: Match) -> bool:
    """Whether the bias has cuDNN's layout, whose gates are always sigmoids."""
    if "bias" not in match.tensors:
        return False
    columns = store.tensors[match.tensors["recurrent_kernel"]].shape[1]
    return store.tensors[match.tensors["bias"]].shape == (2 * columns,)


def _gate_norms(
    store: TensorStore, match: Match, gates: tuple[str, ...]
) -> dict[str, RowNorms] | None:
    """The norms of every gate's kernel and recurrent kernel."""
    return row_norms(
        _gate_weights(store, match, gates, "kernel"), _gate_weights(store, match, gates)
    )


def _gate_weights(
    store: TensorStore, match: Match, gates: tuple[str, ...], role: str = "recurrent_kernel"
) -> dict[str, Floats]:
    """The recurrent kernel of every gate, or another one, row = target."""
    if role not in match.tensors:
        names = {gate: match.tensors[f"{role}_{gate}"] for gate in gates}
        return {
            gate: read_real(store, name, store.tensors[name].shape).T
            for gate, name in names.items()
        }
    tensor = match.tensors[role]
    kernel = read_real(store, tensor, store.tensors[tensor].shape)
    blocks = np.split(kernel, len(gates), axis=1)
    return {gate: block.T for gate, block in zip(gates, blocks, strict=True)}


def _gate_biases(store: TensorStore, match: Match, gates: tuple[str, ...]) -> dict[str, GateBias]:
    """The biases of every gate, summed over the input's and the recurrent kernel's."""
    if "recurrent_kernel" not in match.tensors:
        return {gate: _own_bias(store, match.tensors[f"bias_{gate}"]) for gate in gates}
    size, columns = store.tensors[match.tensors["recurrent_kernel"]].shape
    if "bias" not in match.tensors:
        return {gate: GateBias(np.zeros(size), ()) for gate in gates}
    tensor = match.tensors["bias"]
    spec = store.tensors[tensor]
    if spec.shape not in ((columns,), (2, columns), (2 * columns,)):
        raise TensorError(
            f"its shape {shown_shape(spec.shape)} is neither ({columns}), (2, {columns}) nor "
            f"({2 * columns})",
            where=tensor,
            remedy="name the right family with --family, or export the layer again",
        )
    values = read_real(store, tensor, spec.shape).reshape(-1, columns)
    roles = ("bias",) if len(values) == 1 else ("bias_input", "bias_recurrent")
    biases = {}
    for index, gate in enumerate(gates):
        block = slice(index * size, (index + 1) * size)
        parts = tuple(
            (role, tensor, row[block], spec.dtype) for role, row in zip(roles, values, strict=True)
        )
        biases[gate] = GateBias(values[:, block].sum(axis=0), parts)
    return biases


def _own_bias(store: TensorStore, tensor: str) -> GateBias:
    """A gate's bias where it is a tensor of its own."""
    spec = store.tensors[tensor]
    values = read_real(store, tensor, spec.shape)
    return GateBias(values, (("bias", tensor, values, spec.dtype),))


def _gate_function(
    store: TensorStore, match: Match, options: ReadOptions, kind: str
) -> tuple[GateFunction, tuple[str, ...]]:
    """The function of the gates, and what was assumed of it."""
    version = keras_version(store)
    stored = configured(store, match.layer, kind, "recurrent_activation")
    if _is_cudnn(store, match):
        stored = "sigmoid"
    if stored is not None and stored not in RECURRENT_ACTIVATION.choices:
        raise TensorError(
            f"its gates have the activation {stored}, which is not read",
            where=match.layer,
            remedy=f"known are {', '.join(RECURRENT_ACTIVATION.choices)}",
        )
    # Until 2.3 Keras's gates were hard unless told otherwise; tf.keras calls itself 2.2.4-tf.
    old = (
        version < (2, 3)
        if version is not None
        else any(map(is_keras1_name, match.tensors.values()))
    )
    assumed = Assumed(options)
    name = assumed.choose(
        RECURRENT_ACTIVATION,
        default=stored or ("hard_sigmoid" if old else None),
        silent=stored is not None,
    )
    if name == "sigmoid":
        return Sigmoid(), tuple(assumed.sentences)
    # Keras 3 changed the slope of its hard sigmoid from 1/5 to 1/6.
    slope = 1 / 6 if version is not None and version >= (3, 0) else 0.2
    return HardSigmoid(slope, 0.5), tuple(assumed.sentences)
