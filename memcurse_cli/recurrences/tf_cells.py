"""TensorFlow 1's GRU and basic RNN cells, which multiply [x, h] by one kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.dense_layer import dense_recurrence
from memcurse_cli.recurrences.dense_rnn import ACTIVATION
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import row_norms
from memcurse_cli.recurrences.gate_functions import Sigmoid
from memcurse_cli.recurrences.gated_cells import gru_spectra
from memcurse_cli.recurrences.gated_layer import gru_recurrence
from memcurse_cli.recurrences.reading import group_by_module, read_real
from memcurse_cli.recurrences.recurrence import Floats, Recurrence
from memcurse_cli.recurrences.torch_names import GateBias

# GRUBlockCell's names, and what they are in a GRUCell.
_BLOCK = {
    "w_ru": "gates.kernel",
    "b_ru": "gates.bias",
    "w_c": "candidate.kernel",
    "b_c": "candidate.bias",
}
# The cell that is compatible with cuDNN keeps both sides of its candidate apart.
_SIDES = ("candidate.input_projection", "candidate.hidden_projection")
_PLAIN = tuple(_BLOCK.values())
_CUDNN = (*_PLAIN[:2], *(f"{side}.{part}" for side in _SIDES for part in ("kernel", "bias")))
_BASIC = re.compile(r"(?:.*[./,])?\w*basic_rnn_cell\w*")


class TensorFlowGRU:
    """``h' = σ(u) h + (1 - σ(u)) tanh(c)``: λ = σ(b_u), γ = 1 - λ, columns r, u.

    The reset gate acts before the matrix; in the cell that is compatible with cuDNN after it.
    """

    name = "tf_gru"
    title = "TensorFlow 1 GRU cell"
    recognised_by = (
        "gates/kernel (inputs + H, 2H) and gates/bias beside candidate/kernel, or beside "
        "candidate/hidden_projection/kernel; w_ru and b_ru beside w_c"
    )
    equation = "λ = σ(b_u), γ = 1 - λ, columns r, u"
    source = (
        "tf.compat.v1.nn.rnn_cell.GRUCell; tf.contrib.rnn.GRUBlockCell; tf.contrib.cudnn_rnn's "
        "CudnnCompatibleGRUCell; Cho et al. 2014"
    )
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the kernels of both gates and of the candidate."""
        found = []
        for module, names in group_by_module(tensors, {*_PLAIN, *_CUDNN}).items():
            for roles in (_CUDNN, _PLAIN):
                if set(roles) <= names.keys():
                    found.append(Match(module or self.name, {role: names[role] for role in roles}))
                    break
        for module, names in group_by_module(tensors, _BLOCK).items():
            if names.keys() == _BLOCK.keys():
                renamed = {_BLOCK[role]: name for role, name in names.items()}
                found.append(Match(module or self.name, renamed))
        return [match for match in found if _fits(tensors, match)]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias of the gates, and the kernels where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read, or another shape.
        """
        role = "gates.bias"
        size = store.tensors[match.tensors[role]].shape[0] // 2
        reset, update = np.split(_read(store, match, role, (2 * size,)), 2)
        tensor = match.tensors[role]
        dtype = store.tensors[tensor].dtype
        biases = {
            gate: GateBias(values, ((role, tensor, values, dtype),))
            for gate, values in (("reset", reset), ("update", update))
        }
        hidden = norms = None
        if options.spectra or options.gates:
            candidate, inner = _candidate_bias(store, match, size)
            biases["new"] = GateBias(candidate if inner is None else candidate + inner, ())
            inputs, weights = _weights(store, match, size)
            norms = row_norms(inputs, weights) if options.gates else None
            if options.spectra:
                totals = {"reset": reset, "update": update, "new": candidate}
                hidden = gru_spectra(weights, totals, inner, options.device, inputs)
        return gru_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            hidden=hidden,
            norms=norms,
        )


def _fits(tensors: Mapping[str, TensorSpec], match: Match) -> bool:
    shapes = {role: tensors[name].shape for role, name in match.tensors.items()}
    gates, bias = shapes["gates.kernel"], shapes["gates.bias"]
    if len(gates) != 2 or bias != gates[1:] or bias[0] % 2 or not bias[0]:
        return False
    size, inputs = bias[0] // 2, gates[0] - bias[0] // 2
    if inputs <= 0:
        return False
    if "candidate.kernel" in shapes:
        return shapes["candidate.kernel"] == (gates[0], size)
    return [shapes[f"{side}.kernel"] for side in _SIDES] == [(inputs, size), (size, size)]


def _read(store: TensorStore, match: Match, role: str, shape: tuple[int | None, ...]) -> Floats:
    return read_real(store, match.tensors[role], shape)


def _candidate_bias(store: TensorStore, match: Match, size: int) -> tuple[Floats, Floats | None]:
    """The bias of the candidate, and what the reset gate multiplies of it; None for nothing."""
    if "candidate.bias" in match.tensors:
        return _read(store, match, "candidate.bias", (size,)), None
    outer, inner = (_read(store, match, f"{side}.bias", (size,)) for side in _SIDES)
    return outer, inner


def _weights(
    store: TensorStore, match: Match, size: int
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """The (H, inputs) and the (H, H) weights of each gate, row = target."""
    kernel = _read(store, match, "gates.kernel", (None, 2 * size))
    if "candidate.kernel" in match.tensors:
        candidate = _read(store, match, "candidate.kernel", (len(kernel), size))
        sides = candidate[:-size], candidate[-size:]
    else:
        outer, inner = (_read(store, match, f"{side}.kernel", (None, size)) for side in _SIDES)
        sides = outer, inner
    found = []
    for rows, new in zip((kernel[:-size], kernel[-size:]), sides, strict=True):
        reset, update = np.split(rows.T, 2)
        found.append({"reset": reset, "update": update, "new": new.T})
    return found[0], found[1]


class TensorFlowRNN:
    """``h' = φ([x, h] K + b)``: A = the rows of K that meet h, transposed."""

    name = "tf_rnn"
    title = "TensorFlow 1 basic RNN cell (dense)"
    recognised_by = "basic_rnn_cell/kernel (inputs + H, H) beside basic_rnn_cell/bias (H)"
    equation = "λ = eig(kernelᵀ) of the last H rows"
    source = "tf.compat.v1.nn.rnn_cell.BasicRNNCell; Elman 1990"
    assumptions: tuple[Assumption, ...] = (ACTIVATION,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules of this name with a kernel of [x, h] and its bias."""
        found = []
        for module, names in group_by_module(tensors, ("kernel", "bias")).items():
            if len(names) < 2 or not _BASIC.fullmatch(module):
                continue
            kernel, bias = (tensors[names[role]].shape for role in ("kernel", "bias"))
            if len(kernel) == 2 and bias == kernel[1:] and kernel[0] > kernel[1] > 0:
                found.append(Match(module, names))
        return found

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the kernel and the bias, and decompose what meets h.

        Raises:
            TensorError: NaN or inf in them.
        """
        tensor = match.tensors["kernel"]
        rows, size = store.tensors[tensor].shape
        kernel = _read(store, match, "kernel", (rows, size))
        assumed = Assumed(options)
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=kernel[-size:].T,
            tensor=tensor,
            activation=assumed.choose(ACTIVATION),
            device=options.device,
            readin=kernel[:-size].T.astype(np.complex128),
            bias=_read(store, match, "bias", (size,)),
            assumptions=tuple(assumed.sentences),
        )
