"""Cells of libraries under names of their own: AllenNLP, haste, RAFT and RVM, MLX, Flax, Haiku,
Sonnet 1 and 2 and TensorFlow 1, whose cells multiply [x, h] by one kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.cells.layout import (
    IFGO,
    IGFO,
    PLAIN,
    RZN,
    STATE,
    ZRN,
    Cell,
    CellFamily,
    Gated,
    Layout,
    Variant,
    called,
    elman,
    mix,
    shapes_of,
    stacked,
    without_jacobian,
)
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Assumption, Match
from memcurse_cli.families.gate_inputs import GateInput
from memcurse_cli.families.recurrence import Floats
from memcurse_cli.families.selective.law import Layer
from memcurse_cli.theory.gates.laws import GateLaw, GateValues, Motion

# The last rows are those of a highway, which gates the output and not the cell.
HIGHWAY = (*IFGO, "highway")
ALTERED = (
    "its output passes a highway gate too, so that the Jacobian of the step is not that of an LSTM"
)


def _allennlp(inputs: tuple[str, ...], hidden: tuple[str, ...], projection: str = "") -> Layout:
    return Layout(
        {"input_linearity.weight": inputs},
        {"state_linearity.weight": hidden},
        {"input_linearity.bias": inputs, "state_linearity.bias": hidden},
        columns=False,
        projection=projection,
    )


PROJECTED = _allennlp(IFGO, IFGO, "state_projection.weight")
WITH_HIGHWAY = _allennlp((*HIGHWAY, "carried"), HIGHWAY)


def _highway(layer: Layer) -> Variant:
    if PROJECTED.fits(shapes_of(layer.store.tensors, layer.names)):
        return PLAIN
    return Variant(spectra=without_jacobian(ALTERED, IFGO), seen=lambda cell: {})


# ELMo clips the cell at ±3, far from zero.
ALLENNLP_LSTM = CellFamily(
    name="allennlp_lstm",
    title="AllenNLP LSTM (ELMo's projection, highway)",
    recognised_by=(
        "state_linearity.weight (4H, P) beside input_linearity.weight (4H, inputs), with a "
        "state_projection.weight (P, H) or P = H; (5H, H) beside (6H, inputs)"
    ),
    equation="λ = σ(b_f), γ = σ(b_i), rows i, f, m, o",
    source=(
        "allennlp.modules.lstm_cell_with_projection and augmented_lstm; Peters et al. 2018, "
        "arXiv 1802.05365"
    ),
    layouts=(PROJECTED, WITH_HIGHWAY),
    variant=_highway,
)

NORM = "gamma"
NORMALISED = (
    "a layer normalisation stands behind the hidden matrix: its slope at zero is not stored"
)
_HASTE = ("kernel", "recurrent_kernel", "bias")
_HASTE_INNER = "recurrent_bias"
HASTE_IGFO = stacked(IGFO, *_HASTE, whole=True, others=(NORM,), strangers=(_HASTE_INNER,))
HASTE_ZRN = stacked(ZRN, *_HASTE, _HASTE_INNER, inner=_HASTE_INNER, whole=True, others=(NORM,))


def _haste_lstms(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Nothing but the way that names are joined tells such an LSTM from one of Keras."""
    found = HASTE_IGFO.find(tensors, family)
    return [match for match in found if match.tensors["kernel"].endswith(".kernel")]


def _normalised(layer: Layer) -> Variant:
    """A normalisation of what the kernels put out is zero at zero input and zero state."""
    if NORM not in layer.names:
        return PLAIN
    return Variant(spectra=without_jacobian(NORMALISED), seen=lambda cell: {})


HASTE_LSTM = CellFamily(
    name="haste_lstm",
    title="haste LSTM (PyTorch)",
    recognised_by="rnn.recurrent_kernel (H, 4H) beside rnn.kernel and rnn.bias (4H), with dots",
    equation="λ = σ(b_f), γ = σ(b_i), columns i, g, f, o",
    source="haste_pytorch.LSTM and LayerNormLSTM; Gers et al. 2000",
    layouts=(HASTE_IGFO,),
    matches=_haste_lstms,
    variant=_normalised,
)
HASTE_GRU = CellFamily(
    name="haste_gru",
    title="haste GRU (PyTorch)",
    recognised_by="recurrent_bias (3H) beside recurrent_kernel (H, 3H), kernel and bias (3H)",
    equation="λ = σ(b_z), γ = 1 - λ, b = bias + recurrent_bias, columns z, r, n",
    source="haste_pytorch.GRU and LayerNormGRU; Cho et al. 2014",
    layouts=(HASTE_ZRN,),
    variant=_normalised,
)


def _raft(half: str) -> Layout:
    """A convolution of [h, x] for each gate."""
    gates = {f"conv{letter}{half}": (gate,) for letter, gate in zip("zrq", ZRN, strict=True)}
    kernels = {f"{module}.weight": gate for module, gate in gates.items()}
    biases = {f"{module}.bias": gate for module, gate in gates.items()}
    return Layout(
        kernels, kernels, biases, columns=False, keeps=False, state_first=True, convolves=True
    )


RAFT, HORIZONTAL, VERTICAL = map(_raft, ("", "1", "2"))
_RVM, _RVM_BIASES = (
    {f"ih.0.{part}": RZN[:2], f"hh.0.{part}": RZN[2:]} for part in ("weight", "bias")
)
RVM = Layout(_RVM, _RVM, _RVM_BIASES, columns=False, keeps=False, convolves=True)


def _convolutions(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules with the kernels of a step, of both halves where it has two."""
    found = RAFT.find(tensors, family) + RVM.find(tensors, family)
    second = {match.layer: match.tensors for match in VERTICAL.find(tensors, family)}
    for match in HORIZONTAL.find(tensors, family):
        if match.layer in second:
            both = {**match.tensors, **second[match.layer]}
            shapes = {tensors[both[f"convz{half}.weight"]].shape[:2] for half in "12"}
            found += [replace(match, tensors=both)] if len(shapes) == 1 else []
    return found


class _Halves(GateLaw, frozen=True):
    """λ = λ₁ λ₂ and γ = 1 - λ of two steps of `Mix`, the second of which stands at ``after``."""

    law: GateLaw
    after: Floats

    def __call__(self, z: Floats) -> GateValues:
        """1 - λ₁ λ₂ = λ₂ γ₁ + γ₂, without cancellation."""
        first, second = self.law(z), self.law(self.after)
        lost = second.eigenvalue * first.gain + second.gain
        slopes = {
            name: one.motions["update"].eigenvalue * other.eigenvalue
            for name, one, other in (("first", first, second), ("second", second, first))
        }
        motions = {name: Motion(slope, -slope) for name, slope in slopes.items()}
        return GateValues(first.eigenvalue * second.eigenvalue, lost, lost, motions)


def _halves(layer: Layer) -> Variant:
    """A step of two halves decays by the product of both."""
    if not VERTICAL.matrices <= layer.names.keys():
        return PLAIN

    def recur(cell: Cell, variant: Variant, seen: Mapping[str, GateInput]) -> Gated:
        first, second = mix(cell, variant, seen), mix(Cell(layer, VERTICAL), variant, seen)
        halves = ("first", first), ("second", second)
        slots = tuple(slot._replace(moves=name) for name, half in halves for slot in half.slots)
        return first._replace(law=_Halves(first.law, second.at), slots=slots)

    return Variant(recur=recur)


# h' = (1 - z) h + z tanh(q), whose candidate sees r ∘ h.
CONV_GRU = CellFamily(
    name="conv_gru",
    title="ConvGRU (RAFT, RVM)",
    recognised_by=(
        "convz.weight, convr.weight, convq.weight (H, H + inputs, k, k), or convz1 to convq2; or "
        "ih.0.weight (2H, 2H, k, k) beside hh.0.weight"
    ),
    equation="λ = 1 - σ(b_z), γ = σ(b_z); λ = λ₁ λ₂ of both halves of a SepConvGRU",
    source=(
        "princeton-vl/RAFT, core/update.py; PeterL1n/RobustVideoMatting, model/decoder.py; Ballas "
        "et al. 2016, arXiv 1511.06432"
    ),
    layouts=(RAFT, HORIZONTAL, RVM),
    matches=_convolutions,
    variant=_halves,
)


def _both(rows: Layout) -> tuple[Layout, Layout]:
    """Rows are targets; before 0.18 MLX stored the matrices transposed, as their shapes tell."""
    return rows, replace(rows, columns=True)


MLX_LSTM = CellFamily(
    name="mlx_lstm",
    title="MLX LSTM",
    recognised_by="Wh (4H, H) beside Wx (4H, inputs)",
    equation="λ = σ(b_f), γ = σ(b_i), rows i, f, g, o",
    source="mlx.nn.LSTM; Gers et al. 2000",
    layouts=_both(stacked(IFGO, "Wx", "Wh", "bias", columns=False)),
)
# bhn stands inside the reset gate.
MLX_GRU = CellFamily(
    name="mlx_gru",
    title="MLX GRU",
    recognised_by="Wh (3H, H) beside Wx (3H, inputs)",
    equation="λ = σ(b_z), γ = 1 - λ, rows r, z, n",
    source="mlx.nn.GRU; Cho et al. 2014",
    layouts=_both(
        Layout({"Wx": RZN}, {"Wh": RZN}, {"b": RZN, "bhn": ("new",)}, columns=False, inner="bhn")
    ),
)
MLX_RNN = CellFamily(
    name="mlx_rnn",
    title="MLX RNN (dense)",
    recognised_by="Whh (H, H) beside Wxh (H, inputs)",
    equation="λ = eig(Whh)",
    source="mlx.nn.RNN; Elman 1990",
    layouts=_both(stacked(STATE, "Wxh", "Whh", "bias", columns=False)),
    variant=elman,
    assumptions=(ACTIVATION,),
)


RESIDUAL = Assumption(
    key="residual",
    default="no",
    choices=("no", "yes"),
    meaning="whether a SimpleCell of Flax adds its state before the activation",
)


def _linen(sides: Mapping[str, str]) -> Layout:
    """A module of each gate and side, named by letters: ``ii`` and ``hi`` of the input gate."""
    inputs = {f"i{letter}.kernel": (gate,) for gate, letter in sides.items()}
    hidden = {f"h{letter}.kernel": (gate,) for gate, letter in sides.items()}
    biases = {f"{side}{letter}.bias": (gate,) for gate, letter in sides.items() for side in "ih"}
    # `if` is a keyword, so that nnx's attribute is called if_.
    roles = {role: role for role in (*inputs, *hidden, *biases)}
    names = {role.replace("if.", "if_."): role for role in roles} | roles
    return Layout(inputs, hidden, biases, inner="hn.bias", names=names, stacks=True, told=True)


def _flax(gates: tuple[str, ...], letters: str) -> tuple[Layout, Layout]:
    """linen, and nnx, which has one module of each side."""
    modules = (f"dense_{part}" for part in ("i.kernel", "h.kernel", "h.bias", "i.bias"))
    fused = stacked(gates, *modules, inner="", stacks=True, told=True)
    return _linen(dict(zip(gates, letters, strict=True))), fused


def _simple(layer: Layer) -> Variant:
    plain = elman(layer)
    if layer.choose(RESIDUAL) == "no":
        return plain
    return replace(plain, matrix=lambda stored: stored + np.eye(len(stored)))


FLAX_LSTM = CellFamily(
    name="flax_lstm",
    title="Flax LSTM",
    recognised_by="hi, hf, hg, ho beside ii, if, ig, io; or dense_h (H, 4H) beside dense_i",
    equation="λ = σ(b_f), γ = σ(b_i), fused columns i, f, g, o",
    source="flax.linen and flax.nnx LSTMCell and OptimizedLSTMCell; Gers et al. 2000",
    layouts=_flax(IFGO, "ifgo"),
)
# linen has the biases of r and z on the input side alone, and a second one of n inside the reset
# gate; nnx has all three on the input side.
FLAX_GRU = CellFamily(
    name="flax_gru",
    title="Flax GRU",
    recognised_by="hr, hz, hn beside ir, iz, in; or dense_h (H, 3H) beside dense_i",
    equation="λ = σ(b_z), γ = 1 - λ, fused columns r, z, n",
    source="flax.linen and flax.nnx GRUCell; Cho et al. 2014",
    layouts=_flax(RZN, "rzn"),
)
FLAX_MGU = CellFamily(
    name="flax_mgu",
    title="Flax MGU (minimal gated unit)",
    recognised_by="hf, hn beside if, in, and no other gate",
    equation="λ = σ(b_f), γ = 1 - λ",
    source="flax.linen.MGUCell; Zhou et al. 2016, arXiv 1603.09420",
    layouts=(
        replace(
            _linen({"update": "f", "new": "n"}), strangers=("hi.kernel", "hr.kernel", "hz.kernel")
        ),
    ),
)
# Linearised: A = kernelᵀ, and I more with ``residual``.
FLAX_SIMPLE = CellFamily(
    name="flax_simple",
    title="Flax SimpleCell (dense)",
    recognised_by="h (H, H) beside i (inputs, H); or dense_h (H, H) beside dense_i",
    equation="λ = eig(kernelᵀ), plus 1 where residual=yes",
    source="flax.linen and flax.nnx SimpleCell; Elman 1990",
    layouts=(_linen({"state": ""}), _flax(STATE, "s")[1]),
    variant=_simple,
    assumptions=(ACTIVATION, RESIDUAL),
)


def _vanilla(inputs: str, hidden: str, module: re.Pattern[str] | None = None) -> Layout:
    parts = (f"{inputs}.w", f"{hidden}.w", f"{inputs}.b", f"{hidden}.b")
    return stacked(STATE, *parts, module=module)


# The reset gate acts before the matrix; the update gate writes where that of torch and Keras keeps.
HAIKU_GRU = CellFamily(
    name="haiku_gru",
    title="Haiku and Sonnet 2 GRU",
    recognised_by="w_h (H, 3H) beside w_i (inputs, 3H) and b (3H)",
    equation="λ = 1 - σ(b_z), γ = σ(b_z), columns z, r, a",
    source="haiku.GRU; sonnet.GRU of Sonnet 2; Cho et al. 2014",
    layouts=(stacked(ZRN, "w_i", "w_h", "b", keeps=False),),
)
# The stored bias holds the forget_bias already.
SONNET_LSTM = CellFamily(
    name="sonnet_lstm",
    title="Sonnet 2 LSTM",
    recognised_by="w_h (H, 4H) beside w_i (inputs, 4H) and b (4H)",
    equation="λ = σ(b_f), γ = σ(b_i), columns i, f, g, o",
    source="sonnet.LSTM and UnrolledLSTM of Sonnet 2; Gers et al. 2000",
    layouts=(stacked(IFGO, "w_i", "w_h", "b", projection="projection"),),
)
# One linear multiplies [x, h], and 1 is added to f whatever is stored.
HAIKU_LSTM = CellFamily(
    name="haiku_lstm",
    title="Haiku LSTM",
    recognised_by="linear/w (inputs + H, 4H) and linear/b (4H) in a module called lstm",
    equation="λ = σ(b_f + 1), γ = σ(b_i), columns i, g, f, o",
    source="haiku.LSTM; Gers et al. 2000",
    layouts=(
        stacked(
            IGFO,
            "kernel",
            "kernel",
            "bias",
            names={"linear.w": "kernel", "linear.b": "bias"},
            whole=True,
            module=called("lstm"),
        ),
    ),
    variant=lambda _: Variant(added={"forget": 1.0}),
)
# A = wᵀ of what is stored, linearised; its bias says at which slope.
HAIKU_RNN = CellFamily(
    name="haiku_rnn",
    title="Haiku and Sonnet 2 VanillaRNN (dense)",
    recognised_by=(
        "linear_1/w (H, H) beside linear/w (inputs, H) in a module called rnn; or "
        "hidden_to_hidden/w beside input_to_hidden/w"
    ),
    equation="λ = eig(wᵀ)",
    source="haiku.VanillaRNN; sonnet.VanillaRNN of Sonnet 2; Elman 1990",
    layouts=(
        _vanilla("linear", "linear_1", called("rnn")),
        _vanilla("input_to_hidden", "hidden_to_hidden"),
    ),
    variant=lambda layer: elman(layer, default="relu" if "linear.w" in layer.names else "tanh"),
    assumptions=(ACTIVATION,),
)


FORGET_BIAS = Assumption(
    "forget_bias", "1.0", (), "what TensorFlow's LSTM cell adds to the stored bias of forgetting"
)
_OWN = ("kernel", "bias", "projection.kernel")
_DIAGONALS = {f"w_{gate[0]}_diag": gate for gate in ("forget", "input", "output")}
# TensorFlow's own names, Sonnet 1's, and those of the file of ELMo's weights.
TENSORFLOW, *_RENAMED = (
    Layout(
        {"kernel": IGFO},
        {"kernel": IGFO},
        {"bias": IGFO},
        projection="projection.kernel",
        peepholes={role: (gate,) for role, gate in _DIAGONALS.items()},
        whole=True,
        strangers=("recurrent_kernel",) if names is _OWN else (),
        names=dict(zip(names, _OWN, strict=True)) | {role: role for role in _DIAGONALS},
    )
    for names in (_OWN, ("w_gates", "b_gates", "w_h_projection"), ("W_0", "B", "W_P_0"))
)
BASELINES = stacked(("input", "forget", "output", "cell"), "wx", "wh", "b", whole=True)
# Its forget_bias is 0, since cuDNN adds none, as that of OpenAI's baselines.
_CUDNN = re.compile(r"(?:.*[./,])?cudnn_compatible_lstm_cell\w*")

RU = ("reset", "update")
_JOINT = {"gates.kernel": RU, "candidate.kernel": ("new",)}
TENSORFLOW_RU = Layout(_JOINT, _JOINT, {"gates.bias": RU, "candidate.bias": ("new",)}, whole=True)
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


def _forget_bias(layer: Layer) -> Variant:
    """``forget_bias`` is added at run time and not stored."""
    silent = "wh" in layer.names or bool(_CUDNN.fullmatch(layer.match.layer))
    added = layer.choose(FORGET_BIAS, default="0.0" if silent else None, silent=silent)
    return Variant(added={"forget": float(added)})


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
    layouts=(
        # A kernel and a bias alone are any dense layer's.
        replace(TENSORFLOW, required=(_DIAGONALS,)),
        replace(TENSORFLOW, module=called("lstm_?(?:fused_?)?cell")),
        *_RENAMED,
        BASELINES,
    ),
    variant=_forget_bias,
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
    layouts=(CUDNN_GRU, TENSORFLOW_RU, replace(TENSORFLOW_RU, names=_BLOCK)),
)
# A = the rows of the kernel that meet h, transposed.
TENSORFLOW_RNN = CellFamily(
    name="tf_rnn",
    title="TensorFlow 1 basic RNN cell (dense)",
    recognised_by="basic_rnn_cell/kernel (inputs + H, H) beside basic_rnn_cell/bias (H)",
    equation="λ = eig(kernelᵀ) of the last H rows",
    source="tf.compat.v1.nn.rnn_cell.BasicRNNCell; Elman 1990",
    layouts=(
        stacked(STATE, "kernel", "kernel", "bias", whole=True, module=called("basic_rnn_cell")),
    ),
    variant=elman,
    assumptions=(ACTIVATION,),
)
