"""LSTM cells that multiply [x, h] by one kernel: TensorFlow 1, Sonnet 1, ELMo and Haiku."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import RowNorms, row_norms, squared_rows
from memcurse_cli.recurrences.gate_functions import Sigmoid
from memcurse_cli.recurrences.gated_cells import lstm_spectra
from memcurse_cli.recurrences.gated_layer import lstm_recurrence
from memcurse_cli.recurrences.peepholes import InputPeephole, behind_peepholes, with_input_peephole
from memcurse_cli.recurrences.reading import group_by_module, read_real
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.recurrences.torch_names import GateBias

FORGET_BIAS = Assumption(
    key="forget_bias",
    default="1.0",
    choices=(),
    meaning="what TensorFlow's LSTM cell adds to the stored bias of forgetting",
)
GATES = ("input", "cell", "forget", "output")
KERNEL, BIAS, PROJECTION = "kernel", "bias", "projection.kernel"
DIAGONALS = {gate: f"w_{gate[0]}_diag" for gate in ("forget", "input", "output")}
# What Sonnet 1 and the file of ELMo's weights call them.
_OTHER_NAMES = (
    {"w_gates": KERNEL, "b_gates": BIAS, "w_h_projection": PROJECTION},
    {"W_0": KERNEL, "B": BIAS, "W_P_0": PROJECTION},
)
# A kernel and a bias alone are any dense layer's.
_CELL = re.compile(r"(?:.*[./,])?\w*lstm_?(?:fused_?)?cell\w*", re.IGNORECASE)
# Its forget_bias is 0, since cuDNN adds none.
_CUDNN = re.compile(r"(?:.*[./,])?cudnn_compatible_lstm_cell\w*")


class TensorFlowLSTM:
    """``c[t+1] = σ(f + forget_bias + w_f c[t]) c[t] + σ(i + w_i c[t]) tanh(j)``.

    One kernel multiplies [x, h] from the right; its columns are i, j, f, o. ``forget_bias`` is
    added at run time and not stored; cells that are compatible with cuDNN add none. The peepholes w
    are ``w_f_diag``, ``w_i_diag``, ``w_o_diag``.
    """

    name = "tf_lstm"
    title = "TensorFlow 1 LSTM cell, with peepholes (Sonnet 1, ELMo)"
    recognised_by = (
        "w_f_diag, w_i_diag, w_o_diag beside kernel (inputs + H, 4H); or lstm_cell/kernel beside "
        "lstm_cell/bias (4H); w_gates and b_gates; W_0 and B"
    )
    equation = "λ = σ(b_f + forget_bias) + w_i σ'(b_i) tanh(b_j), γ = σ(b_i), columns i, j, f, o"
    source = (
        "tf.compat.v1.nn.rnn_cell.LSTMCell, BasicLSTMCell and LSTMBlockCell; tf.contrib.cudnn_rnn; "
        "sonnet 1; allennlp's ElmoLstm; Gers & Schmidhuber 2000"
    )
    assumptions: tuple[Assumption, ...] = (FORGET_BIAS,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a kernel of [x, h] and its bias, and peepholes or an LSTM cell's name."""
        roles = (KERNEL, BIAS, "recurrent_kernel", PROJECTION, *DIAGONALS.values())
        found = [
            Match(module, names)
            for module, names in group_by_module(tensors, roles).items()
            if _is_cell(module, _shapes(tensors, names))
        ]
        for renamed in _OTHER_NAMES:
            own = (*renamed, *DIAGONALS.values())
            for module, names in group_by_module(tensors, own).items():
                named = {renamed.get(role, role): name for role, name in names.items()}
                if names.keys() & renamed.keys() and _is_cell("lstm_cell", _shapes(tensors, named)):
                    found.append(Match(module or self.name, named))
        return found

    def forget_bias(self, module: str, assumed: Assumed) -> float:
        """What is added to the stored bias of forgetting."""
        silent = bool(_CUDNN.fullmatch(module))
        default = "0.0" if silent else None
        return float(assumed.choose(FORGET_BIAS, default=default, silent=silent))

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias and the input gate's peephole; the kernel where spectra are asked for.

        Raises:
            TensorError: NaN or inf in what is read, or shapes that do not fit together.
        """
        tensor, dtypes = match.tensors[BIAS], {n: spec.dtype for n, spec in store.tensors.items()}
        size = store.tensors[tensor].shape[0] // len(GATES)
        blocks = np.split(read_real(store, tensor, (4 * size,)), 4)
        biases = {
            gate: GateBias(block, ((BIAS, tensor, block, dtypes[tensor]),))
            for gate, block in zip(GATES, blocks, strict=True)
        }
        assumed = Assumed(options)
        shift = self.forget_bias(match.layer, assumed)
        biases["forget"] = GateBias(biases["forget"].total + shift, biases["forget"].parts)
        peepholes = {
            gate: read_real(store, match.tensors[role], (size,))
            for gate, role in DIAGONALS.items()
            if role in match.tensors
        }
        plain = lstm_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            hidden=_spectra(store, match, biases, peepholes, options) if options.spectra else None,
            assumptions=tuple(assumed.sentences),
            norms=_norms(store, match, size) if options.gates else None,
            projection=_projected(store, match, size) if options.gates else None,
        )
        recurrence = behind_peepholes(plain, peepholes)
        if "input" not in peepholes:
            return recurrence
        role = DIAGONALS["input"]
        held = match.tensors[role]
        seen = InputPeephole(role, held, peepholes["input"], dtypes[held])
        return with_input_peephole(recurrence, biases, seen, Sigmoid())


def _shapes(
    tensors: Mapping[str, TensorSpec], names: Mapping[str, str]
) -> dict[str, tuple[int, ...]]:
    return {role: tensors[name].shape for role, name in names.items()}


def _is_cell(module: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    kernel, bias = shapes.get(KERNEL, ()), shapes.get(BIAS, ())
    if len(kernel) != 2 or bias != kernel[1:] or bias[0] % 4 or "recurrent_kernel" in shapes:
        return False
    size = bias[0] // 4
    recurrent = shapes.get(PROJECTION, (size, size))[-1]
    named = shapes.keys() & set(DIAGONALS.values()) or _CELL.fullmatch(module)
    return bool(named) and size > 0 and kernel[0] > recurrent


def _projected(store: TensorStore, match: Match, size: int) -> Floats | None:
    """The squared norms of what the state is multiplied with, where it is projected."""
    if PROJECTION not in match.tensors:
        return None
    return squared_rows(read_real(store, match.tensors[PROJECTION], (size, None)).T)


def _norms(store: TensorStore, match: Match, size: int) -> dict[str, RowNorms] | None:
    """The norms of every gate's part of the kernel, whose last rows multiply the state."""
    kernel = read_real(store, match.tensors[KERNEL], (None, 4 * size))
    outputs = size
    if PROJECTION in match.tensors:
        outputs = store.tensors[match.tensors[PROJECTION]].shape[1]
    inputs, hidden = (
        dict(zip(GATES, np.split(rows.T, 4), strict=True))
        for rows in (kernel[:-outputs], kernel[-outputs:])
    )
    return row_norms(inputs, hidden)


def _spectra(
    store: TensorStore,
    match: Match,
    biases: Mapping[str, GateBias],
    peepholes: Mapping[str, Floats],
    options: ReadOptions,
) -> HiddenSpectra:
    size = biases["forget"].total.size
    projection = None
    if PROJECTION in match.tensors:
        projection = read_real(store, match.tensors[PROJECTION], (size, None)).T
    kernel = read_real(store, match.tensors[KERNEL], (None, 4 * size))
    outputs = size if projection is None else projection.shape[0]
    hidden, inputs = (np.split(rows.T, 4) for rows in (kernel[-outputs:], kernel[:-outputs]))
    return lstm_spectra(
        dict(zip(GATES, hidden, strict=True)),
        {gate: bias.total for gate, bias in biases.items()},
        projection,
        options.device,
        peepholes,
        dict(zip(GATES, inputs, strict=True)),
    )
