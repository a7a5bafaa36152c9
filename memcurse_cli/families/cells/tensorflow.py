"""TensorFlow 1's cells, which multiply [x, h] by one kernel, as Sonnet 1's and ELMo's LSTM do."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.gated_layer import Peephole
from memcurse_cli.families.cells.layout import IGFO, STATE, CellFamily, Layout, Variant, elman
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_real

FORGET_BIAS = Assumption(
    key="forget_bias",
    default="1.0",
    choices=(),
    meaning="what TensorFlow's LSTM cell adds to the stored bias of forgetting",
)
KERNEL, BIAS, PROJECTION = "kernel", "bias", "projection.kernel"
LSTM = Layout({KERNEL: IGFO}, {KERNEL: IGFO}, {BIAS: IGFO}, projection=PROJECTION)
DIAGONALS = {gate: f"w_{gate[0]}_diag" for gate in ("forget", "input", "output")}
# What Sonnet 1 and the file of ELMo's weights call them.
_LSTM_NAMES = (
    {role: role for role in (KERNEL, BIAS, PROJECTION)},
    {"w_gates": KERNEL, "b_gates": BIAS, "w_h_projection": PROJECTION},
    {"W_0": KERNEL, "B": BIAS, "W_P_0": PROJECTION},
)
# A kernel and a bias alone are any dense layer's.
_CELL = re.compile(r"(?:.*[./,])?\w*lstm_?(?:fused_?)?cell\w*", re.IGNORECASE)
# Its forget_bias is 0, since cuDNN adds none, as that of OpenAI's baselines.
_CUDNN = re.compile(r"(?:.*[./,])?cudnn_compatible_lstm_cell\w*")
_BASIC = re.compile(r"(?:.*[./,])?\w*basic_rnn_cell\w*")

RU = ("reset", "update")
_JOINT = {"gates.kernel": RU, "candidate.kernel": ("new",)}
GRU = Layout(_JOINT, _JOINT, {"gates.bias": RU, "candidate.bias": ("new",)})
# GRUBlockCell's names, and what they are in a GRUCell.
_BLOCK = {
    "w_ru": "gates.kernel",
    "b_ru": "gates.bias",
    "w_c": "candidate.kernel",
    "b_c": "candidate.bias",
}
# The cell that is compatible with cuDNN keeps both sides of its candidate apart.
_OUTER, _INNER = "candidate.input_projection", "candidate.hidden_projection"
CUDNN_GRU = Layout(
    {"gates.kernel": RU, f"{_OUTER}.kernel": ("new",)},
    {"gates.kernel": RU, f"{_INNER}.kernel": ("new",)},
    {"gates.bias": RU, f"{_OUTER}.bias": ("new",), f"{_INNER}.bias": ("new",)},
    inner=f"{_INNER}.bias",
)
_IFOG = ("input", "forget", "output", "cell")
BASELINES = Layout({"wx": _IFOG}, {"wh": _IFOG}, {"b": _IFOG})
RNN = Layout({KERNEL: STATE}, {KERNEL: STATE}, {BIAS: STATE})


def _shapes(
    tensors: Mapping[str, TensorSpec], names: Mapping[str, str]
) -> dict[str, tuple[int, ...]]:
    return {role: tensors[name].shape for role, name in names.items()}


def _lstms(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules with a kernel of [x, h] and its bias, and peepholes or an LSTM cell's name."""
    found = []
    for renamed in _LSTM_NAMES:
        plain = KERNEL in renamed
        roles = (*renamed, *DIAGONALS.values(), *(("recurrent_kernel",) if plain else ()))
        for module, names in group_by_module(tensors, roles).items():
            named = {renamed.get(role, role): name for role, name in names.items()}
            told = not plain or names.keys() & set(DIAGONALS.values()) or _CELL.fullmatch(module)
            whole = BIAS in named and "recurrent_kernel" not in named
            if told and whole and LSTM.fits(_shapes(tensors, named)):
                found.append(Match(module or family, named))
    return found + [match for match in BASELINES.find(tensors, family) if "b" in match.tensors]


def _lstm(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """``forget_bias`` is added at run time and not stored."""
    layout = BASELINES if "wh" in match.tensors else LSTM
    silent = layout is BASELINES or bool(_CUDNN.fullmatch(match.layer))
    assumed = Assumed(options)
    added = assumed.choose(FORGET_BIAS, default="0.0" if silent else None, silent=silent)
    (bias,) = layout.biases
    size = store.tensors[match.tensors[bias]].shape[0] // len(IGFO)
    peepholes = {
        gate: Peephole(
            role,
            match.tensors[role],
            read_real(store, match.tensors[role], (size,)),
            store.tensors[match.tensors[role]].dtype,
        )
        for gate, role in DIAGONALS.items()
        if role in match.tensors
    }
    return Variant(
        assumptions=tuple(assumed.sentences),
        layout=layout,
        added={"forget": float(added)},
        peepholes=peepholes,
    )


def _grus(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules with the kernels and biases of both gates and of the candidate."""
    found = []
    for layout in (CUDNN_GRU, GRU):
        own = layout.matrices | layout.biases.keys()
        namings = [{role: role for role in own}, *([_BLOCK] if layout is GRU else [])]
        for naming in namings:
            for module, names in group_by_module(tensors, naming).items():
                named = {naming[role]: name for role, name in names.items()}
                if named.keys() == own and layout.fits(_shapes(tensors, named)):
                    found.append(Match(module or family, named))
    return found


def _rnns(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules of this name with a kernel of [x, h] and its bias."""
    found = RNN.find(tensors, "")
    return [match for match in found if BIAS in match.tensors and _BASIC.fullmatch(match.layer)]


# c[t+1] = σ(f + forget_bias + w_f c[t]) c[t] + σ(i + w_i c[t]) tanh(j)
TENSORFLOW_LSTM = CellFamily(
    name="tf_lstm",
    title="TensorFlow 1 LSTM cell, with peepholes (Sonnet 1, ELMo, OpenAI Baselines)",
    recognised_by=(
        "w_f_diag, w_i_diag, w_o_diag beside kernel (inputs + H, 4H); or lstm_cell/kernel beside "
        "lstm_cell/bias (4H); w_gates and b_gates; W_0 and B; wx, wh (H, 4H) and b"
    ),
    equation="λ = σ(b_f + forget_bias) + w_i σ'(b_i) tanh(b_j), γ = σ(b_i), columns i, j, f, o",
    source=(
        "tf.compat.v1.nn.rnn_cell.LSTMCell, BasicLSTMCell and LSTMBlockCell; tf.contrib.cudnn_rnn; "
        "sonnet 1; allennlp's ElmoLstm; openai/baselines, a2c/utils.py; Gers & Schmidhuber 2000"
    ),
    layouts=(LSTM, BASELINES),
    matches=_lstms,
    variant=_lstm,
    assumptions=(FORGET_BIAS,),
)
# The reset gate acts before the matrix; in the cell that is compatible with cuDNN after it.
TENSORFLOW_GRU = CellFamily(
    name="tf_gru",
    title="TensorFlow 1 GRU cell",
    recognised_by=(
        "gates/kernel (inputs + H, 2H) and gates/bias beside candidate/kernel, or beside "
        "candidate/hidden_projection/kernel; w_ru and b_ru beside w_c"
    ),
    equation="λ = σ(b_u), γ = 1 - λ, columns r, u",
    source=(
        "tf.compat.v1.nn.rnn_cell.GRUCell; tf.contrib.rnn.GRUBlockCell; tf.contrib.cudnn_rnn's "
        "CudnnCompatibleGRUCell; Cho et al. 2014"
    ),
    layouts=(CUDNN_GRU, GRU),
    matches=_grus,
)
# A = the rows of the kernel that meet h, transposed.
TENSORFLOW_RNN = CellFamily(
    name="tf_rnn",
    title="TensorFlow 1 basic RNN cell (dense)",
    recognised_by="basic_rnn_cell/kernel (inputs + H, H) beside basic_rnn_cell/bias (H)",
    equation="λ = eig(kernelᵀ) of the last H rows",
    source="tf.compat.v1.nn.rnn_cell.BasicRNNCell; Elman 1990",
    layouts=(RNN,),
    matches=_rnns,
    variant=lambda store, match, options: elman(options),
    assumptions=(ACTIVATION,),
)
