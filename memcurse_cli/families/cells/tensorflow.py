"""TensorFlow 1's cells, which multiply [x, h] by one kernel, as Sonnet 1's and ELMo's LSTM do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.layout import IGFO, STATE, CellFamily, Layout, Variant, elman
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions

FORGET_BIAS = Assumption(
    "forget_bias", "1.0", (), "what TensorFlow's LSTM cell adds to the stored bias of forgetting"
)
KERNEL, BIAS, PROJECTION = "kernel", "bias", "projection.kernel"
DIAGONALS = {gate: f"w_{gate[0]}_diag" for gate in ("forget", "input", "output")}
LSTM = Layout(
    {KERNEL: IGFO},
    {KERNEL: IGFO},
    {BIAS: IGFO},
    projection=PROJECTION,
    peepholes={role: (gate,) for gate, role in DIAGONALS.items()},
    whole=True,
    strangers=("recurrent_kernel",),
)
_DIAGONALS = {role: role for role in DIAGONALS.values()}
# What Sonnet 1 and the file of ELMo's weights call them.
_RENAMED = tuple(
    replace(LSTM, names=names | _DIAGONALS, strangers=())
    for names in (
        {"w_gates": KERNEL, "b_gates": BIAS, "w_h_projection": PROJECTION},
        {"W_0": KERNEL, "B": BIAS, "W_P_0": PROJECTION},
    )
)
_IFOG = ("input", "forget", "output", "cell")
BASELINES = Layout({"wx": _IFOG}, {"wh": _IFOG}, {"b": _IFOG}, whole=True)
# A kernel and a bias alone are any dense layer's.
_CELL = re.compile(r"(?:.*[./,])?\w*lstm_?(?:fused_?)?cell\w*", re.IGNORECASE)
# Its forget_bias is 0, since cuDNN adds none, as that of OpenAI's baselines.
_CUDNN = re.compile(r"(?:.*[./,])?cudnn_compatible_lstm_cell\w*")

RU = ("reset", "update")
_JOINT = {"gates.kernel": RU, "candidate.kernel": ("new",)}
GRU = Layout(_JOINT, _JOINT, {"gates.bias": RU, "candidate.bias": ("new",)}, whole=True)
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
    whole=True,
)
RNN = Layout(
    {KERNEL: STATE},
    {KERNEL: STATE},
    {BIAS: STATE},
    whole=True,
    module=re.compile(r"(?:.*[./,])?\w*basic_rnn_cell\w*"),
)


def _lstms(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules with a kernel of [x, h] and its bias, and peepholes or an LSTM cell's name."""
    plain = [
        match
        for match in LSTM.find(tensors, family)
        if match.tensors.keys() & _DIAGONALS.keys() or _CELL.fullmatch(match.layer)
    ]
    others = (*_RENAMED, BASELINES)
    return plain + [match for layout in others for match in layout.find(tensors, family)]


def _lstm(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """``forget_bias`` is added at run time and not stored."""
    silent = "wh" in match.tensors or bool(_CUDNN.fullmatch(match.layer))
    assumed = Assumed(options)
    added = assumed.choose(FORGET_BIAS, default="0.0" if silent else None, silent=silent)
    return Variant(assumptions=tuple(assumed.sentences), added={"forget": float(added)})


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
    layouts=(CUDNN_GRU, GRU, replace(GRU, names=_BLOCK)),
)
# A = the rows of the kernel that meet h, transposed.
TENSORFLOW_RNN = CellFamily(
    name="tf_rnn",
    title="TensorFlow 1 basic RNN cell (dense)",
    recognised_by="basic_rnn_cell/kernel (inputs + H, H) beside basic_rnn_cell/bias (H)",
    equation="λ = eig(kernelᵀ) of the last H rows",
    source="tf.compat.v1.nn.rnn_cell.BasicRNNCell; Elman 1990",
    layouts=(RNN,),
    variant=lambda store, match, options: elman(options),
    assumptions=(ACTIVATION,),
)
