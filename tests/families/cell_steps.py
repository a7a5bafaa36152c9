"""One step of each library's cell at zero input, written out from the library's own source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

H, INPUTS, P = 4, 3, 2
Arrays = dict[str, NDArray[np.float64]]
Step = Callable[[Mapping[str, NDArray], NDArray], NDArray]


@dataclass(frozen=True)
class Case:
    """A cell as a library stores it.

    Attributes:
        family: the name of the family that reads it.
        module: its module, with what joins it to the names of its tensors.
        shapes: of its tensors, by their names in the module.
        step: the next state; the states whose λ the report gives are its last.
        hidden: the tensors without which only its own state is left of a unit's memory.
        others: how many entries of the state come before.
        whole: whether the Jacobian of the whole step is reported.
        assume: what is given with ``--assume``.
        positive: tensors of positive entries.
    """

    family: str
    module: str
    shapes: dict[str, tuple[int, ...]]
    step: Step
    hidden: tuple[str, ...]
    others: int = 0
    whole: bool = True
    assume: dict[str, str] = field(default_factory=dict)
    positive: tuple[str, ...] = ()

    def arrays(self) -> Arrays:
        """Its tensors, drawn."""
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
        """How many λ there are."""
        return 2 * H if self.family == "lem" else H


def sigmoid(x: NDArray) -> NDArray:
    """σ(x), of complex x too."""
    return np.asarray(1 / (1 + np.exp(-x)))


def relu(x: NDArray) -> NDArray:
    """max(x, 0), of complex x by its real part."""
    return np.where(x.real > 0, x, 0)


def lstm(i: NDArray, f: NDArray, g: NDArray, o: NDArray, c: NDArray) -> NDArray:
    """[h, c] of the pre-activations."""
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return np.concatenate([sigmoid(o) * np.tanh(c), c])


def mix(z: NDArray, h: NDArray, candidate: NDArray) -> NDArray:
    """The state that an open gate keeps."""
    return np.asarray(z * h + (1 - z) * candidate)


def rows(matrix: str, order: str, *biases: str, columns: bool = True) -> Step:
    """An LSTM whose blocks have this order."""

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


def sonnet(w: Mapping[str, NDArray], state: NDArray) -> NDArray:
    """sonnet.LSTM of Sonnet 2 with a projection."""
    shown = rows("w_h", "ifgo", "b")(w, state)
    return np.concatenate([shown[:H] @ w["projection"], shown[H:]])


def normalised(x: NDArray, scale: NDArray, epsilon: float = 1e-5) -> NDArray:
    """A layer normalisation without its bias."""
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


def flax_mgu(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
    """flax.linen.MGUCell: the forget gate resets, and keeps."""
    f = sigmoid(w["if/bias"] + h @ w["hf/kernel"])
    return mix(f, h, np.tanh(w["in/bias"] + f * (h @ w["hn/kernel"] + w["hn/bias"])))


def flax_lstm(w: Mapping[str, NDArray], state: NDArray) -> NDArray:
    """flax.linen.LSTMCell: a module of each gate."""
    h, c = np.split(state, 2)
    return lstm(*(h @ w[f"h{gate}/kernel"] + w[f"h{gate}/bias"] for gate in "ifgo"), c)


def flax_gru(w: Mapping[str, NDArray], h: NDArray) -> NDArray:
    """flax.linen.GRUCell."""
    r, z = (sigmoid(w[f"i{gate}/bias"] + h @ w[f"h{gate}/kernel"]) for gate in "rz")
    return mix(z, h, np.tanh(w["in/bias"] + r * (h @ w["hn/kernel"] + w["hn/bias"])))


def onnx(operator: str, order: str) -> Step:
    """A node whose bias has both sides', and whose reset gate acts before the matrix."""

    def step(w: Mapping[str, NDArray], state: NDArray) -> NDArray:
        both = {"R": w[f"{operator}_R"], "B": sum(np.split(w[f"{operator}_B"], 2))}
        if operator == "LSTM":
            return rows("R", order, "B", columns=False)(both, state)
        return gru("R", order, "B", columns=False)(both, state)

    return step


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


def _kernels(blocks: int, *biases: str, hidden: int = H) -> dict[str, tuple[int, ...]]:
    width = blocks * H
    shapes: dict[str, tuple[int, ...]] = {
        "kernel": (INPUTS, width),
        "recurrent_kernel": (hidden, width),
    }
    return shapes | dict.fromkeys(biases, (width,))


def _linears(rows_of: int, hidden: str, inputs: str, bias: str) -> dict[str, tuple[int, ...]]:
    return {hidden: (rows_of * H, H), inputs: (rows_of * H, INPUTS), bias: (rows_of * H,)}


def _linen(hidden: str, inputs: str, biases: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"h{gate}/kernel": (H, H) for gate in hidden}
    shapes |= {f"i{gate}/kernel": (INPUTS, H) for gate in inputs}
    return shapes | {f"{bias}/bias": (H,) for bias in biases}


def _dreamer(linear: str, norm: str, *tensors: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{linear}.weight": (3 * H, INPUTS + H)}
    return shapes | dict.fromkeys(tensors or (f"{norm}.weight", f"{norm}.bias"), (3 * H,))


JOINT: dict[str, tuple[int, ...]] = {"kernel": (INPUTS + H, 4 * H), "bias": (4 * H,)}
TF_NAMES = ("kernel", "bias", "projection/kernel")
GATES: dict[str, tuple[int, ...]] = {"gates/kernel": (INPUTS + H, 2 * H), "gates/bias": (2 * H,)}
DIAGONALS: dict[str, tuple[int, ...]] = {f"w_{gate}_diag": (H,) for gate in "ifo"}
HADAMARD: dict[str, tuple[int, ...]] = {
    "bias_gate": (1, H),
    "bias_update": (1, H),
    "zeta": (1, 1),
    "nu": (1, 1),
    "W": (H, INPUTS),
}
STATE: dict[str, tuple[int, ...]] = {
    "input_linearity.weight": (4 * H, INPUTS),
    "state_linearity.weight": (4 * H, H),
    "state_linearity.bias": (4 * H,),
}
LIGHT: dict[str, tuple[int, ...]] = {
    "w.weight": (2 * H, INPUTS),
    "u.weight": (2 * H, H),
    "norm.weight": (2 * H,),
    "norm.bias": (2 * H,),
}
RUNNING: dict[str, tuple[int, ...]] = {
    "norm.running_mean": (2 * H,),
    "norm.running_var": (2 * H,),
}
RK, SL = ("recurrent_kernel",), ("state_linearity.weight",)

CASES: dict[str, Case] = {
    "torch_lstm": Case(
        "lstm",
        "net.",
        _linears(4, "weight_hh", "weight_ih", "bias_ih") | {"bias_hh": (4 * H,)},
        rows("weight_hh", "ifgo", "bias_ih", "bias_hh", columns=False),
        ("weight_hh",),
        H,
    ),
    "torch_gru": Case(
        "gru",
        "net.",
        _linears(3, "weight_hh", "weight_ih", "bias_ih") | {"bias_hh": (3 * H,)},
        gru("weight_hh", "rzn", "bias_ih", "bias_hh", columns=False),
        ("weight_hh",),
    ),
    "equinox_gru": Case(
        "gru",
        "cell.",
        _linears(3, "weight_hh", "weight_ih", "bias") | {"bias_n": (H,)},
        gru("weight_hh", "rzn", "bias", "bias_n", columns=False),
        ("weight_hh",),
    ),
    "keras_lstm": Case(
        "keras_lstm", "lstm/", _kernels(4, "bias"), rows(*RK, "ifgo", "bias"), RK, H
    ),
    "keras_gru": Case("keras_gru", "gru/", _kernels(3, "bias"), gru(*RK, "zrn", "bias"), RK),
    "haste_lstm": Case("haste_lstm", "rnn.", _kernels(4, "bias"), rows(*RK, "igfo", "bias"), RK, H),
    "haste_gru": Case(
        "haste_gru",
        "rnn.",
        _kernels(3, "bias", "recurrent_bias"),
        gru(*RK, "zrn", "bias", "recurrent_bias"),
        RK,
    ),
    "haste_lstm_normalised": Case(
        "haste_lstm",
        "rnn.",
        _kernels(4, "bias") | {"gamma": (2, 4 * H)},
        haste_norm("igfo"),
        RK,
        H,
        whole=False,
    ),
    "haste_gru_normalised": Case(
        "haste_gru",
        "rnn.",
        _kernels(3, "bias", "recurrent_bias") | {"gamma": (2, 3 * H)},
        haste_norm("zrn"),
        RK,
        whole=False,
    ),
    "onnx_lstm": Case(
        "onnx_lstm",
        "n/",
        {"LSTM_W": (4 * H, INPUTS), "LSTM_R": (4 * H, H), "LSTM_B": (8 * H,)},
        onnx("LSTM", "iofg"),
        ("LSTM_R",),
        H,
    ),
    "onnx_gru": Case(
        "onnx_gru",
        "n/",
        {"GRU_W": (3 * H, INPUTS), "GRU_R": (3 * H, H), "GRU_B": (6 * H,)},
        onnx("GRU", "zrn"),
        ("GRU_R",),
    ),
    "flax_lstm": Case(
        "flax_lstm",
        "cell/",
        _linen("ifgo", "ifgo", ("hi", "hf", "hg", "ho")),
        flax_lstm,
        tuple(f"h{gate}/kernel" for gate in "ifgo"),
        H,
    ),
    "flax_gru": Case(
        "flax_gru",
        "cell/",
        _linen("rzn", "rzn", ("ir", "iz", "in", "hn")),
        flax_gru,
        tuple(f"h{gate}/kernel" for gate in "rzn"),
    ),
    "flax_mgu": Case(
        "flax_mgu",
        "cell/",
        _linen("fn", "fn", ("if", "in", "hn")),
        flax_mgu,
        ("hf/kernel", "hn/kernel"),
    ),
    "nnx_lstm": Case(
        "flax_lstm",
        "cell/",
        {"dense_i/kernel": (INPUTS, 4 * H), "dense_h/kernel": (H, 4 * H), "dense_h/bias": (4 * H,)},
        rows("dense_h/kernel", "ifgo", "dense_h/bias"),
        ("dense_h/kernel",),
        H,
    ),
    "mlx_lstm": Case(
        "mlx_lstm",
        "net.lstm.",
        _linears(4, "Wh", "Wx", "bias"),
        rows("Wh", "ifgo", "bias", columns=False),
        ("Wh",),
        H,
    ),
    "mlx_gru": Case(
        "mlx_gru",
        "gru.",
        _linears(3, "Wh", "Wx", "b") | {"bhn": (H,)},
        gru("Wh", "rzn", "b", "bhn", columns=False),
        ("Wh",),
    ),
    "mlx_lstm_before": Case(
        "mlx_lstm",
        "lstm.",
        {"Wx": (INPUTS, 4 * H), "Wh": (H, 4 * H), "bias": (4 * H,)},
        rows("Wh", "ifgo", "bias"),
        ("Wh",),
        H,
    ),
    "haiku_gru": Case(
        "haiku_gru",
        "gru/",
        {"w_i": (INPUTS, 3 * H), "w_h": (H, 3 * H), "b": (3 * H,)},
        haiku_gru,
        ("w_h",),
    ),
    "haiku_lstm": Case(
        "haiku_lstm",
        "lstm/",
        {"linear/w": (INPUTS + H, 4 * H), "linear/b": (4 * H,)},
        joint_lstm("igfo", 1.0, ("linear/w", "linear/b", "")),
        ("linear/w",),
        H,
    ),
    "sonnet_lstm": Case(
        "sonnet_lstm",
        "lstm/",
        {"w_i": (INPUTS, 4 * H), "w_h": (H, 4 * H), "b": (4 * H,)},
        rows("w_h", "ifgo", "b"),
        ("w_h",),
        H,
    ),
    "sonnet_lstm_projected": Case(
        "sonnet_lstm",
        "lstm/",
        {"w_i": (INPUTS, 4 * H), "w_h": (P, 4 * H), "b": (4 * H,), "projection": (H, P)},
        sonnet,
        ("w_h",),
        P,
    ),
    "tf_lstm": Case(
        "tf_lstm", "rnn/lstm_cell/", JOINT, joint_lstm("igfo", 1.0, TF_NAMES), ("kernel",), H
    ),
    "tf_lstm_peepholes": Case(
        "tf_lstm",
        "rnn/lstm_cell/",
        JOINT | DIAGONALS,
        joint_lstm("igfo", 1.0, TF_NAMES, "ifo"),
        ("kernel",),
        H,
    ),
    "tf_lstm_output_peephole": Case(
        "tf_lstm",
        "rnn/lstm_cell/",
        JOINT | {"w_o_diag": (H,)},
        joint_lstm("igfo", 1.0, TF_NAMES, "o"),
        ("kernel",),
        H,
    ),
    "tf_lstm_projected": Case(
        "tf_lstm",
        "rnn/lstm_cell/",
        JOINT | DIAGONALS | {"kernel": (INPUTS + P, 4 * H), "projection/kernel": (H, P)},
        joint_lstm("igfo", 1.0, TF_NAMES, "ifo"),
        ("kernel",),
        P,
    ),
    "sonnet_1_lstm": Case(
        "tf_lstm",
        "lstm/",
        {"w_gates": (INPUTS + P, 4 * H), "b_gates": (4 * H,), "w_h_projection": (H, P)},
        joint_lstm("igfo", 1.0, ("w_gates", "b_gates", "w_h_projection")),
        ("w_gates",),
        P,
    ),
    "elmo_hdf5": Case(
        "tf_lstm",
        "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/",
        {"W_0": (INPUTS + P, 4 * H), "B": (4 * H,), "W_P_0": (H, P)},
        joint_lstm("igfo", 1.0, ("W_0", "B", "W_P_0")),
        ("W_0",),
        P,
    ),
    "cudnn_compatible_lstm": Case(
        "tf_lstm",
        "rnn/cudnn_compatible_lstm_cell/",
        JOINT,
        joint_lstm("igfo", 0.0, TF_NAMES),
        ("kernel",),
        H,
    ),
    "baselines_lstm": Case(
        "tf_lstm",
        "ppo2_model/pi/lstm1/",
        {"wx": (INPUTS, 4 * H), "wh": (H, 4 * H), "b": (4 * H,)},
        rows("wh", "ifog", "b"),
        ("wh",),
        H,
    ),
    "tf_gru": Case(
        "tf_gru",
        "rnn/gru_cell/",
        GATES | {"candidate/kernel": (INPUTS + H, H), "candidate/bias": (H,)},
        tf_gru("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias"),
        ("gates/kernel", "candidate/kernel"),
    ),
    "gru_block_cell": Case(
        "tf_gru",
        "rnn/gru_block_cell/",
        {"w_ru": (INPUTS + H, 2 * H), "b_ru": (2 * H,), "w_c": (INPUTS + H, H), "b_c": (H,)},
        tf_gru("w_ru", "b_ru", "w_c", "b_c"),
        ("w_ru", "w_c"),
    ),
    "cudnn_compatible_gru": Case(
        "tf_gru",
        "rnn/cudnn_compatible_gru_cell/",
        GATES
        | {
            "candidate/input_projection/kernel": (INPUTS, H),
            "candidate/input_projection/bias": (H,),
            "candidate/hidden_projection/kernel": (H, H),
            "candidate/hidden_projection/bias": (H,),
        },
        cudnn_gru,
        ("gates/kernel", "candidate/hidden_projection/kernel"),
    ),
    "allennlp_elmo": Case(
        "allennlp_lstm",
        "_elmo_lstm.forward_layer_0.",
        STATE | {"state_linearity.weight": (4 * H, P), "state_projection.weight": (P, H)},
        allennlp,
        SL,
        P,
    ),
    "allennlp_plain": Case("allennlp_lstm", "stacked.layer_0.", STATE, allennlp, SL, H),
    "allennlp_highway": Case(
        "allennlp_lstm",
        "stacked.layer_0.",
        {
            "input_linearity.weight": (6 * H, INPUTS),
            "input_linearity.bias": (6 * H,),
            "state_linearity.weight": (5 * H, H),
            "state_linearity.bias": (5 * H,),
        },
        allennlp,
        SL,
        H,
        whole=False,
    ),
    "ncps_lstm": Case(
        "liquid_lstm",
        "lstm.",
        _linears(4, "recurrent_map.weight", "input_map.weight", "input_map.bias"),
        ncps_lstm,
        ("recurrent_map.weight",),
        H,
    ),
    "mgu": Case(
        "mgu",
        "mgu.cells.0.",
        _linears(2, "weight_hh", "weight_ih", "bias_ih") | {"bias_hh": (2 * H,)},
        mgu,
        ("weight_hh",),
    ),
    "mgu_linears": Case(
        "mgu",
        "mgu.",
        {f"{side}_{gate}.bias": (H,) for side in "WU" for gate in "fh"}
        | {f"U_{gate}.weight": (H, H) for gate in "fh"}
        | {f"W_{gate}.weight": (H, INPUTS) for gate in "fh"},
        mgu_linears,
        ("U_f.weight", "U_h.weight"),
    ),
    "lem": Case(
        "lem",
        "cell.",
        {
            "inp2hid.weight": (4 * H, INPUTS),
            "inp2hid.bias": (4 * H,),
            "hid2hid.weight": (3 * H, H),
            "hid2hid.bias": (3 * H,),
            "transform_z.weight": (H, H),
            "transform_z.bias": (H,),
        },
        lem,
        ("hid2hid.weight", "transform_z.weight"),
    ),
    "fast_grnn": Case("fast_grnn", "cell.", HADAMARD | {"U": (H, H)}, fast_grnn, ("U",)),
    "fast_grnn_low_rank": Case(
        "fast_grnn", "cell.", HADAMARD | {"U1": (P, H), "U2": (H, P)}, fast_grnn, ("U2",)
    ),
    "multiplicative_lstm": Case(
        "multiplicative_lstm",
        "model/rnn/",
        {
            "wx": (INPUTS, 4 * H),
            "wh": (H, 4 * H),
            "wmx": (INPUTS, H),
            "wmh": (H, H),
            "b": (4 * H,),
        },
        multiplicative,
        ("wh",),
        H,
    ),
    "light_gru_batch": Case(
        "light_gru",
        "enc.rnn.0.",
        LIGHT | RUNNING,
        light_gru,
        ("u.weight",),
        whole=False,
        positive=("norm.running_var",),
    ),
    "light_gru_layer": Case(
        "light_gru", "enc.rnn.0.", LIGHT, light_gru, ("u.weight",), whole=False
    ),
    "dreamer": Case(
        "layer_norm_gru",
        "dynamics._cell.",
        _dreamer("_layer", "_norm"),
        dreamer("_layer", "_norm"),
        ("_layer.weight",),
        whole=False,
    ),
    "dreamer_without_a_norm": Case(
        "layer_norm_gru",
        "dynamics._cell.",
        _dreamer("_layer", "_norm", "_layer.bias"),
        dreamer("_layer", "_norm"),
        ("_layer.weight",),
        whole=False,
    ),
    "sheeprl": Case(
        "layer_norm_gru",
        "rssm.recurrent_model.rnn.",
        _dreamer("linear", "layer_norm", "linear.bias", "layer_norm.weight", "layer_norm.bias"),
        dreamer("linear", "layer_norm"),
        ("linear.weight",),
        whole=False,
    ),
}
