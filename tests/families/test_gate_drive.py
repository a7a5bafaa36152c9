"""What drives the gates of a cell, read alike from every library's layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.families.cells.configured import KERAS_GRU, KERAS_LSTM, ONNX_GRU, ONNX_LSTM
from memcurse_cli.families.cells.libraries import FLAX_LSTM, TENSORFLOW_LSTM
from memcurse_cli.families.cells.torch import GRU, LSTM
from memcurse_cli.families.family import Family

H, INPUTS = 5, 3
RANDOM = np.random.default_rng(3)
LSTM_ORDER = ("input", "forget", "cell", "output")
GRU_ORDER = ("reset", "update", "new")


Arrays = dict[str, np.ndarray]


def drawn(gates: tuple[str, ...]) -> tuple[Arrays, Arrays, Arrays]:
    """W, U and b of every gate."""
    shapes = ((H, INPUTS), (H, H), (H,))
    return tuple({gate: RANDOM.standard_normal(shape) for gate in gates} for shape in shapes)


def stack(parts: Arrays, order: tuple[str, ...]) -> np.ndarray:
    return np.concatenate([parts[gate] for gate in order])


def joined(names: str, w: Arrays, u: Arrays, b: Arrays, order: tuple[str, ...]) -> Arrays:
    """Torch's and ONNX's rows, whose other bias is zero, and Keras's columns."""
    stacked = [stack(part, order) for part in (w, u, b)]
    if names.startswith(("lstm/", "gru/")):
        stacked[:2] = [stacked[0].T, stacked[1].T]
    if names.endswith("_B"):
        stacked[2] = np.concatenate([stacked[2], np.zeros_like(stacked[2])])
    return dict(zip(names.split(), stacked, strict=True))


TORCH = "weight_ih weight_hh bias_ih"


def lstms(w: Arrays, u: Arrays, b: Arrays) -> dict[str, tuple[Family, Arrays]]:
    flax = {f"i{gate[0]}.kernel": w[gate].T for gate in w}
    flax |= {f"h{gate[0]}.kernel": u[gate].T for gate in w}
    flax |= {f"h{gate[0]}.bias": b[gate] for gate in w}
    flax = {name.replace("c.", "g."): array for name, array in flax.items()}
    keras = "lstm/kernel lstm/recurrent_kernel lstm/bias"
    onnx = ("input", "output", "forget", "cell")
    order = ("input", "cell", "forget", "output")
    shifted = b | {"forget": b["forget"] - 1.0}  # forget_bias adds 1
    both = {gate: np.concatenate([w[gate], u[gate]], axis=1) for gate in order}
    tensorflow = {"lstm_cell/kernel": stack(both, order).T, "lstm_cell/bias": stack(shifted, order)}
    return {
        "torch": (LSTM, joined(TORCH, w, u, b, LSTM_ORDER)),
        "keras": (KERAS_LSTM, joined(keras, w, u, b, LSTM_ORDER)),
        "flax": (FLAX_LSTM, flax),
        "onnx": (ONNX_LSTM, joined("LSTM_W LSTM_R LSTM_B", w, u, b, onnx)),
        "tensorflow": (TENSORFLOW_LSTM, tensorflow),
    }


def grus(w: Arrays, u: Arrays, b: Arrays) -> dict[str, tuple[Family, Arrays]]:
    order = ("update", "reset", "new")
    return {
        "torch": (GRU, joined(TORCH, w, u, b, GRU_ORDER)),
        "keras": (KERAS_GRU, joined("gru/kernel gru/recurrent_kernel gru/bias", w, u, b, order)),
        "onnx": (ONNX_GRU, joined("GRU_W GRU_R GRU_B", w, u, b, order)),
    }


LSTMS, GRUS = drawn(LSTM_ORDER), drawn(GRU_ORDER)
CELLS = [(LSTMS, *each) for each in lstms(*LSTMS).values()]
CELLS += [(GRUS, *each) for each in grus(*GRUS).values()]


@pytest.mark.parametrize(
    ("parts", "family", "arrays"), CELLS, ids=lambda each: getattr(each, "name", "")
)
def test_every_gate_sees_the_rows_of_its_own(
    parts: tuple[Arrays, ...], family: Family, arrays: Arrays
) -> None:
    w, u, b = parts
    drive = drive_of(MemoryStore(arrays), family)
    if "forget" in b:
        seen = {"forget": drive.gate, "input": drive.write_gate}
        seen |= {"cell": drive.state.candidate, "output": drive.state.output}
    else:
        assert drive.write_gate is None
        seen = {"update": drive.gate, "new": drive.state.candidate, "reset": drive.state.reset}
    for gate, found in seen.items():
        assert_allclose(found.bias, b[gate], rtol=1e-12)
        assert_allclose(found.inputs, (w[gate] ** 2).sum(1), rtol=1e-12)
        assert_allclose(found.hidden, (u[gate] ** 2).sum(1), rtol=1e-12)
        variance = 4 * found.inputs + 0.5 * found.hidden
        assert_allclose(found.variance(4.0, 0.5), variance)


def test_a_projection_narrows_what_the_gates_see() -> None:
    torch.manual_seed(2)
    lstm = torch.nn.LSTM(INPUTS, H, proj_size=2, dtype=torch.float64)
    arrays = {name: tensor.numpy() for name, tensor in lstm.state_dict().items()}
    drive = drive_of(MemoryStore(arrays), LSTM)
    assert_allclose(drive.state.projection, (arrays["weight_hr_l0"] ** 2).sum(1))
    assert_allclose(drive.gate.hidden, (arrays["weight_hh_l0"][H : 2 * H] ** 2).sum(1))


@pytest.mark.parametrize(("peepholes", "forget"), [((0,), 2.0), ((0, 1, 2), 0.0)])
def test_the_band_of_a_forget_gate_behind_a_peephole(
    forget: float, peepholes: tuple[int, ...]
) -> None:
    """Against TensorFlow's cell, run: rows i, j, f, o; a bias of 1 is added to f."""
    random = np.random.default_rng(5)
    units, inputs = 64, 24
    kernel = random.normal(size=(inputs + units, 4 * units)) / 5
    kernel[inputs:] /= 8
    bias = random.normal(size=4 * units)
    bias[2 * units : 3 * units] += forget
    weights = random.normal(size=(3, units)) / 2
    arrays = {"lstm_cell/kernel": kernel, "lstm_cell/bias": bias}
    arrays |= {f"lstm_cell/w_{'fio'[one]}_diag": weights[one] for one in peepholes}
    p_f, p_i, p_o = (weights[one] if one in peepholes else np.zeros(units) for one in range(3))
    h, c, gates, squares = np.zeros(units), np.zeros(units), [], []
    for x in random.normal(size=(12_000, inputs)):
        i, g, f, o = np.split(np.concatenate([x, h]) @ kernel + bias, 4)
        kept = 1 / (1 + np.exp(-f - 1 - p_f * c))
        c = kept * c + np.tanh(g) / (1 + np.exp(-i - p_i * c))
        h = np.tanh(c) / (1 + np.exp(-o - p_o * c))
        gates.append(kept)
        squares.append(np.mean(h**2))
    found = gates_of(arrays)
    assert "peepholes" in (found.reason or "")
    check_bands(found, np.array(gates[500:]), reason=found.reason)
    assert_allclose(found.hidden_second_moment, np.mean(squares[500:]), rtol=0.1)
