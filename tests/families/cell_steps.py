"""One step of each library's cell at zero input, written out from the library's own source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from families.oracles import sigmoid
from numpy.typing import NDArray

H, INPUTS, P = 4, 3, 2
Arrays = dict[str, NDArray[np.float64]]
Step = Callable[[Mapping[str, NDArray], NDArray], NDArray]


@dataclass(frozen=True)
class Case:
    """A cell as a library stores it: its last states are those whose λ the report gives."""

    family: str
    module: str
    shapes: dict[str, tuple[int, ...]]
    step: Step
    hidden: tuple[str, ...]  # the tensors without which a unit keeps its own state alone
    others: int = 0  # entries of the state that come before
    whole: bool = True  # whether the Jacobian of the whole step is reported
    positive: tuple[str, ...] = ()

    def arrays(self) -> Arrays:
        generator = np.random.default_rng(5)
        drawn = {name: generator.normal(size=shape) for name, shape in self.shapes.items()}
        drawn |= {name: np.abs(drawn[name]) + 0.1 for name in self.positive}
        return {f"{self.module}{name}": array for name, array in drawn.items()}

    def jacobian(self, arrays: Mapping[str, NDArray]) -> NDArray[np.float64]:
        """∂step/∂state at zero, by complex steps."""
        kept = {name.removeprefix(self.module): array for name, array in arrays.items()}
        units = np.eye(self.others + self.size) * 1e-20j
        return np.stack([self.step(kept, unit).imag / 1e-20 for unit in units], axis=1)

    @property
    def size(self) -> int:
        return 2 * H if self.family == "lem" else H


def relu(x: NDArray) -> NDArray:
    return np.where(x.real > 0, x, 0)


def lstm(i: NDArray, f: NDArray, g: NDArray, o: NDArray, c: NDArray) -> NDArray:
    """[h, c] of the pre-activations."""
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return np.concatenate([sigmoid(o) * np.tanh(c), c])


def mix(z: NDArray, h: NDArray, candidate: NDArray) -> NDArray:
    """The state that an open gate keeps."""
    return np.asarray(z * h + (1 - z) * candidate)


def rows(matrix: str, order: str, *biases: str, columns: bool = True) -> Step:
    def step(w: Mapping[str, NDArray], state: NDArray) -> NDArray:
        h, c = state[:-H], state[-H:]
        seen = (h @ w[matrix] if columns else w[matrix] @ h) + sum(w[bias] for bias in biases)
        block = dict(zip(order, np.split(seen, 4), strict=True))
        return lstm(*(block[gate] for gate in "ifgo"), c)

    return step


def gru(matrix: str, order: str, outer: str, inner: str = "", *, columns: bool = True) -> Step:
    """A GRU whose reset gate acts behind the matrix, or before it where there is no inner bias."""

    def step(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
        matrices = dict(
            zip(order, np.split(w[matrix] if columns else w[matrix].T, 3, 1), strict=True)
        )
        b = dict(zip(order, np.split(w[outer], 3), strict=True))
        added = np.zeros(3 * H, np.result_type(*w.values()))
        if inner:
            added[-len(w[inner]) :] = w[inner]
        a = dict(zip(order, np.split(added, 3), strict=True))
        z, r = (sigmoid(h @ matrices[gate] + b[gate] + a[gate]) for gate in "zr")
        if inner:
            return mix(z, h, np.tanh(b["n"] + r * (h @ matrices["n"] + a["n"])))
        return mix(z, h, np.tanh(b["n"] + (r * h) @ matrices["n"]))

    return step


def haiku_gru(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
    """haiku.GRU: columns z, r, a; its gate writes."""
    gates, candidate = np.split(w["w_h"], [2 * H], axis=1)
    bias, inner = np.split(w["b"], [2 * H])
    z, r = np.split(sigmoid(h @ gates + bias), 2)
    return mix(1 - z, h, np.tanh((r * h) @ candidate + inner))


def joint_lstm(order: str, added: float, names: tuple[str, str, str], gates: str = "") -> Step:
    """[x, h] through one kernel, with what is added to f, a projection and peepholes."""
    kernel, bias, projection = names

    def step(w: Mapping[str, NDArray], state: NDArray) -> NDArray:
        h, c = state[:-H], state[-H:]
        seen = np.concatenate([np.zeros(INPUTS), h]) @ w[kernel] + w[bias]
        i, f, g, o = (np.split(seen, 4)[order.index(gate)] for gate in "ifgo")
        p = {gate: w[f"w_{gate}_diag"] if gate in gates else 0.0 for gate in "ifo"}
        c = sigmoid(f + added + p["f"] * c) * c + sigmoid(i + p["i"] * c) * np.tanh(g)
        h = sigmoid(o + p["o"] * c) * np.tanh(c)
        return np.concatenate([h @ w[projection] if projection in w else h, c])

    return step


def projected(step: Step, projection: str) -> Step:
    """An LSTM whose h is multiplied with a matrix (H, P), or (P, H)."""

    def after(w: Mapping[str, NDArray], state: NDArray) -> NDArray:
        shown, matrix = step(w, state), w[projection]
        return np.concatenate([shown[:H] @ (matrix if len(matrix) == H else matrix.T), shown[H:]])

    return after


def normalised(x: NDArray, scale: NDArray, epsilon: float = 1e-5) -> NDArray:
    centred = x - x.mean()
    return np.asarray(scale * centred / np.sqrt(np.mean(centred**2) + epsilon))


def haste_norm(order: str) -> Step:
    """haste's cells with a layer normalisation of what the kernels put out."""

    def step(w: Mapping[str, NDArray], state: NDArray) -> NDArray:
        shown = normalised(state[:H] @ w["recurrent_kernel"], w["gamma"][1])
        same = dict(w) | {"recurrent_kernel": np.zeros_like(w["recurrent_kernel"])}
        if order == "igfo":
            same["bias"] = w["bias"] + shown
            return rows("recurrent_kernel", order, "bias")(same, state)
        same["recurrent_bias"] = w["recurrent_bias"] + shown
        return gru("recurrent_kernel", order, "bias", "recurrent_bias")(same, state)

    return step


def allennlp(w: Mapping[str, NDArray], state: NDArray) -> NDArray:
    """LstmCellWithProjection and AugmentedLstm: rows i, f, m, o, and those of a highway."""
    seen = w["state_linearity.weight"] @ state[:-H] + w["state_linearity.bias"]
    shown = w.get("input_linearity.bias", np.zeros(6 * H))
    blocks = np.split(seen + shown[: len(seen)], len(seen) // H)
    after = lstm(*blocks[:4], state[-H:])
    h = after[:H]
    if len(blocks) > 4:
        highway = sigmoid(blocks[4])
        h = highway * h + (1 - highway) * shown[5 * H :]
    if "state_projection.weight" in w:
        h = w["state_projection.weight"] @ h
    return np.concatenate([h, after[H:]])


def tf_gru(gates: str, gate_bias: str, candidate: str, bias: str) -> Step:
    """GRUCell: columns r, u of [x, h]."""

    def step(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
        nothing = np.zeros(INPUTS)
        r, u = np.split(sigmoid(np.concatenate([nothing, h]) @ w[gates] + w[gate_bias]), 2)
        c = np.tanh(np.concatenate([nothing, r * h]) @ w[candidate] + w[bias])
        return mix(u, h, c)

    return step


def cudnn_gru(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
    """CudnnCompatibleGRUCell."""
    seen = np.concatenate([np.zeros(INPUTS), h]) @ w["gates/kernel"] + w["gates/bias"]
    r, u = np.split(sigmoid(seen), 2)
    inner = h @ w["candidate/hidden_projection/kernel"] + w["candidate/hidden_projection/bias"]
    return mix(u, h, np.tanh(w["candidate/input_projection/bias"] + r * inner))


def ncps_lstm(w: Mapping[str, NDArray], state: NDArray) -> NDArray:
    """ncps.torch.LSTMCell: rows z, i, f, o, and 1 added to f."""
    z, i, f, o = np.split(w["input_map.bias"] + w["recurrent_map.weight"] @ state[:H], 4)
    return lstm(i, f + 1, z, o, state[H:])


def mgu(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
    """MGUCell.forward of torchrecurrent."""
    b_f, b_n = np.split(w["bias_ih"] + w["bias_hh"], 2)
    u_f, u_n = np.split(w["weight_hh"], 2)
    f = sigmoid(u_f @ h + b_f)
    return mix(1 - f, h, np.tanh(u_n @ (f * h) + b_n))


def mgu_linears(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
    """The same of four linears."""
    f = sigmoid(w["U_f.weight"] @ h + w["U_f.bias"] + w["W_f.bias"])
    return mix(1 - f, h, np.tanh(w["U_h.weight"] @ (f * h) + w["U_h.bias"] + w["W_h.bias"]))


def flax_gru(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
    """flax.linen.GRUCell."""
    r, z = (sigmoid(w[f"i{gate}/bias"] + h @ w[f"h{gate}/kernel"]) for gate in "rz")
    return mix(z, h, np.tanh(w["in/bias"] + r * (h @ w["hn/kernel"] + w["hn/bias"])))


def lem(w: Mapping[str, NDArray], state: NDArray) -> NDArray:
    """[y, z] after LEMCell.forward, dt = 1."""
    y, z = np.split(state, 2)
    i_slow, i_fast, i_z, i_y = np.split(w["inp2hid.bias"], 4)
    h_slow, h_fast, h_y = np.split(w["hid2hid.weight"] @ y + w["hid2hid.bias"], 3)
    slow, fast = sigmoid(i_slow + h_slow), sigmoid(i_fast + h_fast)
    z = mix(1 - fast, z, np.tanh(i_y + h_y))
    shown = w["transform_z.weight"] @ z + w["transform_z.bias"]
    return np.concatenate([mix(1 - slow, y, np.tanh(shown + i_z)), z])


def fast_grnn(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
    """FastGRNNCell.forward of EdgeML."""
    seen = w["U"] @ h if "U" in w else w["U2"] @ (w["U1"] @ h)
    z = sigmoid(seen + w["bias_gate"][0])
    opened = sigmoid(w["zeta"][0]) * (1 - z) + sigmoid(w["nu"][0])
    return np.asarray(z * h + opened * np.tanh(seen + w["bias_update"][0]))


def multiplicative(w: Mapping[str, NDArray], state: NDArray) -> NDArray:
    """encoder.mlstm: the product of two projections stands for h."""
    h, c = np.split(state, 2)
    m = (np.zeros(INPUTS) @ w["wmx"]) * (h @ w["wmh"])
    i, f, o, u = np.split(m @ w["wh"] + w["b"], 4)
    return lstm(i, f, u, o, c)


def light_gru(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
    """LiGRU_Layer: rows n, z, behind a batch or a layer normalisation of W x."""
    shown = w["norm.bias"]
    if "norm.running_mean" in w:
        width = np.sqrt(w["norm.running_var"] + 1e-5)
        shown = shown - w["norm.weight"] * w["norm.running_mean"] / width
    n, z = np.split(shown + w["u.weight"] @ h, 2)
    return mix(sigmoid(z), h, relu(n))


def dreamer(linear: str, norm: str) -> Step:
    """GRUCell of dreamerv3-torch and SheepRL: rows r, n, u, and -1 added to u."""

    def step(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
        pair = (h, np.zeros(INPUTS)) if linear == "linear" else (np.zeros(INPUTS), h)
        seen = w[f"{linear}.weight"] @ np.concatenate(pair) + w.get(f"{linear}.bias", 0.0)
        if f"{norm}.weight" in w:
            seen = normalised(seen, w[f"{norm}.weight"], 1e-3) + w[f"{norm}.bias"]
        r, n, u = np.split(seen, 3)
        return mix(1 - sigmoid(u - 1), h, np.tanh(sigmoid(r) * n))

    return step


_TF = ("kernel", "bias", "projection/kernel")
_STEPS: dict[str, Step] = {
    "torch_lstm": rows("weight_hh", "ifgo", "bias_ih", "bias_hh", columns=False),
    "torch_lstm_projected": projected(
        rows("weight_hh", "ifgo", "bias_ih", "bias_hh", columns=False), "weight_hr"
    ),
    "torch_gru": gru("weight_hh", "rzn", "bias_ih", "bias_hh", columns=False),
    "equinox_gru": gru("weight_hh", "rzn", "bias", "bias_n", columns=False),
    "keras_lstm": rows("recurrent_kernel", "ifgo", "bias"),
    "keras_gru": gru("recurrent_kernel", "zrn", "bias"),
    "haste_lstm": rows("recurrent_kernel", "igfo", "bias"),
    "haste_gru": gru("recurrent_kernel", "zrn", "bias", "recurrent_bias"),
    "haste_lstm_normalised": haste_norm("igfo"),
    "haste_gru_normalised": haste_norm("zrn"),
    "flax_gru": flax_gru,
    "mlx_lstm": rows("Wh", "ifgo", "bias", columns=False),
    "mlx_gru": gru("Wh", "rzn", "b", "bhn", columns=False),
    "mlx_lstm_before": rows("Wh", "ifgo", "bias"),
    "haiku_gru": haiku_gru,
    "haiku_lstm": joint_lstm("igfo", 1.0, ("linear/w", "linear/b", "")),
    "sonnet_lstm": rows("w_h", "ifgo", "b"),
    "sonnet_lstm_projected": projected(rows("w_h", "ifgo", "b"), "projection"),
    "tf_lstm": joint_lstm("igfo", 1.0, _TF),
    "tf_lstm_peepholes": joint_lstm("igfo", 1.0, _TF, "ifo"),
    "tf_lstm_projected": joint_lstm("igfo", 1.0, _TF, "ifo"),
    "sonnet_1_lstm": joint_lstm("igfo", 1.0, ("w_gates", "b_gates", "w_h_projection")),
    "elmo_hdf5": joint_lstm("igfo", 1.0, ("W_0", "B", "W_P_0")),
    "baselines_lstm": rows("wh", "ifog", "b"),
    "tf_gru": tf_gru("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias"),
    "gru_block_cell": tf_gru("w_ru", "b_ru", "w_c", "b_c"),
    "cudnn_compatible_gru": cudnn_gru,
    "allennlp_elmo": allennlp,
    "allennlp_plain": allennlp,
    "allennlp_highway": allennlp,
    "ncps_lstm": ncps_lstm,
    "mgu": mgu,
    "mgu_linears": mgu_linears,
    "lem": lem,
    "fast_grnn": fast_grnn,
    "fast_grnn_low_rank": fast_grnn,
    "multiplicative_lstm": multiplicative,
    "light_gru_batch": light_gru,
    "light_gru_layer": light_gru,
    "dreamer": dreamer("_layer", "_norm"),
    "dreamer_without_a_norm": dreamer("_layer", "_norm"),
    "sheeprl": dreamer("linear", "layer_norm"),
}
# A cell's name, its family, its module with what joins it to the names in it, what stands before
# the states whose λ is given, whether the Jacobian of the whole step is read or only the spectra
# of the gates, and the shapes of its tensors: * is that of a hidden weight, > is positive.
_TABLE = """
torch_lstm lstm net. H whole: weight_hh* 4H,H; weight_ih 4H,I; bias_ih 4H; bias_hh 4H
torch_lstm_projected lstm net. P whole: weight_hh* 4H,P; weight_ih 4H,I; bias_ih 4H; bias_hh 4H;
    weight_hr P,H
torch_gru gru net. 0 whole: weight_hh* 3H,H; weight_ih 3H,I; bias_ih 3H; bias_hh 3H
equinox_gru gru cell. 0 whole: weight_hh* 3H,H; weight_ih 3H,I; bias 3H; bias_n H
keras_lstm keras_lstm lstm/ H whole: kernel I,4H; recurrent_kernel* H,4H; bias 4H
keras_gru keras_gru gru/ 0 whole: kernel I,3H; recurrent_kernel* H,3H; bias 3H
haste_lstm haste_lstm rnn. H whole: kernel I,4H; recurrent_kernel* H,4H; bias 4H
haste_gru haste_gru rnn. 0 whole: kernel I,3H; recurrent_kernel* H,3H; bias 3H; recurrent_bias 3H
haste_lstm_normalised haste_lstm rnn. H gates: kernel I,4H; recurrent_kernel* H,4H; bias 4H;
    gamma 2,4H
haste_gru_normalised haste_gru rnn. 0 gates: kernel I,3H; recurrent_kernel* H,3H; bias 3H;
    recurrent_bias 3H; gamma 2,3H
flax_gru flax_gru cell/ 0 whole: hr/kernel* H,H; hz/kernel* H,H; hn/kernel* H,H; ir/kernel I,H;
    iz/kernel I,H; in/kernel I,H; ir/bias H; iz/bias H; in/bias H; hn/bias H
mlx_lstm mlx_lstm net.lstm. H whole: Wh* 4H,H; Wx 4H,I; bias 4H
mlx_gru mlx_gru gru. 0 whole: Wh* 3H,H; Wx 3H,I; b 3H; bhn H
mlx_lstm_before mlx_lstm lstm. H whole: Wx I,4H; Wh* H,4H; bias 4H
haiku_gru haiku_gru gru/ 0 whole: w_i I,3H; w_h* H,3H; b 3H
haiku_lstm haiku_lstm lstm/ H whole: linear/w* I+H,4H; linear/b 4H
sonnet_lstm sonnet_lstm lstm/ H whole: w_i I,4H; w_h* H,4H; b 4H
sonnet_lstm_projected sonnet_lstm lstm/ P whole: w_i I,4H; w_h* P,4H; b 4H; projection H,P
tf_lstm tf_lstm rnn/lstm_cell/ H whole: kernel* I+H,4H; bias 4H
tf_lstm_peepholes tf_lstm rnn/lstm_cell/ H whole: kernel* I+H,4H; bias 4H; w_i_diag H; w_f_diag H;
    w_o_diag H
tf_lstm_projected tf_lstm rnn/lstm_cell/ P whole: kernel* I+P,4H; bias 4H; w_i_diag H; w_f_diag H;
    w_o_diag H; projection/kernel H,P
sonnet_1_lstm tf_lstm lstm/ P whole: w_gates* I+P,4H; b_gates 4H; w_h_projection H,P
elmo_hdf5 tf_lstm RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/ P whole: W_0* I+P,4H; B 4H; W_P_0 H,P
baselines_lstm tf_lstm ppo2_model/pi/lstm1/ H whole: wx I,4H; wh* H,4H; b 4H
tf_gru tf_gru rnn/gru_cell/ 0 whole: gates/kernel* I+H,2H; gates/bias 2H; candidate/kernel* I+H,H;
    candidate/bias H
gru_block_cell tf_gru rnn/gru_block_cell/ 0 whole: w_ru* I+H,2H; b_ru 2H; w_c* I+H,H; b_c H
cudnn_compatible_gru tf_gru rnn/cudnn_compatible_gru_cell/ 0 whole: gates/kernel* I+H,2H;
    gates/bias 2H; candidate/input_projection/kernel I,H; candidate/input_projection/bias H;
    candidate/hidden_projection/kernel* H,H; candidate/hidden_projection/bias H
allennlp_elmo allennlp_lstm _elmo_lstm.forward_layer_0. P whole: input_linearity.weight 4H,I;
    state_linearity.weight* 4H,P; state_linearity.bias 4H; state_projection.weight P,H
allennlp_plain allennlp_lstm stacked.layer_0. H whole: input_linearity.weight 4H,I;
    state_linearity.weight* 4H,H; state_linearity.bias 4H
allennlp_highway allennlp_lstm stacked.layer_0. H gates: input_linearity.weight 6H,I;
    input_linearity.bias 6H; state_linearity.weight* 5H,H; state_linearity.bias 5H
ncps_lstm liquid_lstm lstm. H whole: recurrent_map.weight* 4H,H; input_map.weight 4H,I;
    input_map.bias 4H
mgu mgu mgu.cells.0. 0 whole: weight_hh* 2H,H; weight_ih 2H,I; bias_ih 2H; bias_hh 2H
mgu_linears mgu mgu. 0 whole: W_f.bias H; W_h.bias H; U_f.bias H; U_h.bias H; U_f.weight* H,H;
    U_h.weight* H,H; W_f.weight H,I; W_h.weight H,I
lem lem cell. 0 whole: inp2hid.weight 4H,I; inp2hid.bias 4H; hid2hid.weight* 3H,H;
    hid2hid.bias 3H; transform_z.weight* H,H; transform_z.bias H
fast_grnn fast_grnn cell. 0 whole: bias_gate 1,H; bias_update 1,H; zeta 1,1; nu 1,1; W H,I; U* H,H
fast_grnn_low_rank fast_grnn cell. 0 whole: bias_gate 1,H; bias_update 1,H; zeta 1,1; nu 1,1;
    W H,I; U1 P,H; U2* H,P
multiplicative_lstm multiplicative_lstm model/rnn/ H whole: wx I,4H; wh* H,4H; wmx I,H; wmh H,H;
    b 4H
light_gru_batch light_gru enc.rnn.0. 0 gates: w.weight 2H,I; u.weight* 2H,H; norm.weight 2H;
    norm.bias 2H; norm.running_mean 2H; norm.running_var> 2H
light_gru_layer light_gru enc.rnn.0. 0 gates: w.weight 2H,I; u.weight* 2H,H; norm.weight 2H;
    norm.bias 2H
dreamer layer_norm_gru dynamics._cell. 0 gates: _layer.weight* 3H,I+H; _norm.weight 3H;
    _norm.bias 3H
dreamer_without_a_norm layer_norm_gru dynamics._cell. 0 gates: _layer.weight* 3H,I+H;
    _layer.bias 3H
sheeprl layer_norm_gru rssm.recurrent_model.rnn. 0 gates: linear.weight* 3H,I+H; linear.bias 3H;
    layer_norm.weight 3H; layer_norm.bias 3H
"""
_SIZES = {"": 0, "0": 0, "1": 1, "2": 2, "H": H, "I": INPUTS, "P": P}


def _size(text: str) -> int:
    """``3H``, ``I+H`` or a number."""
    return sum(
        _SIZES[part[-1]] * int(part[:-1] or 1) if len(part) > 1 else _SIZES[part]
        for part in text.split("+")
    )


def _case(entry: str) -> tuple[str, Case]:
    head, _, tensors = entry.partition(":")
    name, family, module, others, read = head.split()
    shapes, marks = {}, {}
    for tensor in tensors.split(";"):
        marked, shape = tensor.split()
        plain = marked.rstrip("*>")
        shapes[plain] = tuple(map(_size, shape.split(",")))
        marks[plain] = marked[len(plain) :]
    return name, Case(
        family,
        module,
        shapes,
        _STEPS[name],
        tuple(tensor for tensor, mark in marks.items() if mark == "*"),
        _size(others),
        whole=read == "whole",
        positive=tuple(tensor for tensor, mark in marks.items() if mark == ">"),
    )


CASES = dict(map(_case, _TABLE.replace("\n ", " ").strip().split("\n")))
