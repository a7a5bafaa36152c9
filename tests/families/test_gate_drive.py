"""What drives the gates of a cell, read alike from every library's layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import match_of
from families.simulated_gates import check_bands, drive_of, gates_of
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.jax import FLAX_GRU, FLAX_LSTM
from memcurse_cli.families.cells.keras import KERAS_GRU, KERAS_LSTM
from memcurse_cli.families.cells.onnx import ONNX_GRU, ONNX_LSTM
from memcurse_cli.families.cells.tensorflow import TENSORFLOW_LSTM
from memcurse_cli.families.cells.torch import GRU, LSTM
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, HiddenState

H, INPUTS = 5, 3
RANDOM = np.random.default_rng(3)
LSTM_ORDER = ("input", "forget", "cell", "output")
GRU_ORDER = ("reset", "update", "new")


def blocks(gates: tuple[str, ...], width: int) -> dict[str, np.ndarray]:
    return {gate: RANDOM.standard_normal((H, width)) for gate in gates}


def stack(parts: dict[str, np.ndarray], order: tuple[str, ...]) -> np.ndarray:
    return np.concatenate([parts[gate] for gate in order])


def assert_same(found: GateDrive, expected: GateDrive) -> None:
    """The same numbers, whatever the groups are called."""
    for one, other in (
        (found.gate, expected.gate),
        (found.write_gate, expected.write_gate),
        *zip(parts_of(found.state), parts_of(expected.state), strict=True),
    ):
        if one is None or other is None:
            assert one is other
            continue
        assert_allclose(one.bias, other.bias, rtol=1e-12)
        assert_allclose(one.norms.inputs, other.norms.inputs, rtol=1e-12)
        assert_allclose(one.norms.hidden, other.norms.hidden, rtol=1e-12)


def parts_of(state: HiddenState | None) -> tuple:
    return () if state is None else (state.candidate, state.reset, state.output)


def test_lstms_of_every_library_are_the_same() -> None:
    w, u = blocks(LSTM_ORDER, INPUTS), blocks(LSTM_ORDER, H)
    b = {gate: RANDOM.standard_normal(H) for gate in LSTM_ORDER}
    expected = drive_of(
        MemoryStore(
            {"weight_ih": stack(w, LSTM_ORDER), "weight_hh": stack(u, LSTM_ORDER)}
            | {"bias_ih": stack(b, LSTM_ORDER), "bias_hh": np.zeros(4 * H)}
        ),
        LSTM,
    )
    assert expected.write_gate is not None
    assert expected.state is not None
    assert_allclose(expected.gate.norms.inputs, (w["forget"] ** 2).sum(1))
    assert_allclose(expected.gate.norms.hidden, (u["forget"] ** 2).sum(1))
    assert_allclose(expected.write_gate.norms.inputs, (w["input"] ** 2).sum(1))
    assert_allclose(expected.state.candidate.norms.hidden, (u["cell"] ** 2).sum(1))
    assert expected.state.output is not None
    assert_allclose(expected.state.output.bias, b["output"])
    assert_allclose(
        expected.gate.variance(4.0, 0.5),
        4 * (w["forget"] ** 2).sum(1) + 0.5 * (u["forget"] ** 2).sum(1),
    )

    keras = {
        "lstm/kernel": stack(w, LSTM_ORDER).T,
        "lstm/recurrent_kernel": stack(u, LSTM_ORDER).T,
        "lstm/bias": stack(b, LSTM_ORDER),
    }
    assert_same(drive_of(MemoryStore(keras), KERAS_LSTM), expected)
    letters = dict(zip(LSTM_ORDER, "ifgo", strict=True))
    flax = {f"i{letters[gate]}.kernel": w[gate].T for gate in LSTM_ORDER}
    flax |= {f"h{letters[gate]}.kernel": u[gate].T for gate in LSTM_ORDER}
    flax |= {f"h{letters[gate]}.bias": b[gate] for gate in LSTM_ORDER}
    assert_same(drive_of(MemoryStore(flax), FLAX_LSTM), expected)
    order = ("input", "output", "forget", "cell")
    onnx = {"LSTM_W": stack(w, order), "LSTM_R": stack(u, order)}
    onnx["LSTM_B"] = np.concatenate([stack(b, order), np.zeros(4 * H)])
    assert_same(drive_of(MemoryStore(onnx), ONNX_LSTM), expected)
    order = ("input", "cell", "forget", "output")
    shifted = b | {"forget": b["forget"] - 1.0}  # forget_bias adds 1
    both = {gate: np.concatenate([w[gate], u[gate]], axis=1) for gate in order}
    tensorflow = {"lstm_cell/kernel": stack(both, order).T, "lstm_cell/bias": stack(shifted, order)}
    assert_same(drive_of(MemoryStore(tensorflow), TENSORFLOW_LSTM), expected)


def test_grus_of_every_library_are_the_same() -> None:
    w, u = blocks(GRU_ORDER, INPUTS), blocks(GRU_ORDER, H)
    b = {gate: RANDOM.standard_normal(H) for gate in GRU_ORDER}
    expected = drive_of(
        MemoryStore(
            {"weight_ih": stack(w, GRU_ORDER), "weight_hh": stack(u, GRU_ORDER)}
            | {"bias_ih": stack(b, GRU_ORDER), "bias_hh": np.zeros(3 * H)}
        ),
        GRU,
    )
    assert expected.state is not None
    assert expected.state.reset is not None
    assert_allclose(expected.gate.norms.hidden, (u["update"] ** 2).sum(1))
    assert_allclose(expected.state.reset.norms.inputs, (w["reset"] ** 2).sum(1))
    order = ("update", "reset", "new")
    keras = {"gru/kernel": stack(w, order).T, "gru/recurrent_kernel": stack(u, order).T}
    keras["gru/bias"] = stack(b, order)
    assert_same(drive_of(MemoryStore(keras), KERAS_GRU), expected)
    letters = dict(zip(GRU_ORDER, "rzn", strict=True))
    flax = {f"i{letters[gate]}.kernel": w[gate].T for gate in GRU_ORDER}
    flax |= {f"h{letters[gate]}.kernel": u[gate].T for gate in GRU_ORDER}
    flax |= {f"i{letters[gate]}.bias": b[gate] for gate in GRU_ORDER}
    assert_same(drive_of(MemoryStore(flax), FLAX_GRU), expected)
    onnx = {"GRU_W": stack(w, order), "GRU_R": stack(u, order)}
    onnx["GRU_B"] = np.concatenate([stack(b, order), np.zeros(3 * H)])
    assert_same(drive_of(MemoryStore(onnx), ONNX_GRU), expected)


def test_a_projection_narrows_what_the_gates_see() -> None:
    torch.manual_seed(2)
    lstm = torch.nn.LSTM(INPUTS, H, proj_size=2, dtype=torch.float64)
    arrays = {name: tensor.numpy() for name, tensor in lstm.state_dict().items()}
    drive = drive_of(MemoryStore(arrays), LSTM)
    assert drive.state is not None
    assert_allclose(drive.state.projection, (arrays["weight_hr_l0"] ** 2).sum(1))
    assert_allclose(drive.gate.norms.hidden, (arrays["weight_hh_l0"][H : 2 * H] ** 2).sum(1))


def test_a_layer_without_input_weights_has_no_drive() -> None:
    arrays = {"weight_hh": np.ones((3 * H, H)), "bias_hh": np.zeros(3 * H)}
    (match,) = match_of(arrays, GRU)
    assert GRU.read(MemoryStore(arrays), match, ReadOptions(gates=True)).gate is None


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


def test_a_hard_sigmoid_opens_every_gate_of_its_cell() -> None:
    """Keras's GRU of wide weights, run: the state that its gates see passes a hard reset gate."""
    random = np.random.default_rng(6)
    units, inputs = 64, 24
    arrays = {
        "gru/kernel": random.normal(size=(inputs, 3 * units)) * 0.6,
        "gru/recurrent_kernel": random.normal(size=(units, 3 * units)) / 8,
        "gru/bias": random.normal(size=3 * units),
    }
    h, squares = np.zeros(units), []
    for x in random.normal(size=(6000, inputs)) @ arrays["gru/kernel"] + arrays["gru/bias"]:
        update, reset, new = np.split(x, 3)
        by_update, by_reset, by_new = np.split(arrays["gru/recurrent_kernel"], 3, axis=1)
        z = np.clip(0.2 * (update + h @ by_update) + 0.5, 0, 1)
        r = np.clip(0.2 * (reset + h @ by_reset) + 0.5, 0, 1)
        h = z * h + (1 - z) * np.tanh(new + (r * h) @ by_new)
        squares.append(np.mean(h**2))
    gates = gates_of(arrays, assume={"recurrent_activation": "hard_sigmoid"})
    assert_allclose(gates.hidden_second_moment, np.mean(squares[500:]), rtol=0.1)


def test_hard_sigmoids_keep_their_law() -> None:
    arrays = {
        "gru/kernel": RANDOM.standard_normal((INPUTS, 3 * H)),
        "gru/recurrent_kernel": RANDOM.standard_normal((H, 3 * H)),
        "gru/bias": RANDOM.standard_normal(3 * H),
    }
    (match,) = match_of(arrays, KERAS_GRU)
    options = ReadOptions(gates=True, assume={"recurrent_activation": "hard_sigmoid"})
    drive = KERAS_GRU.read(MemoryStore(arrays), match, options).gate
    assert drive is not None
    assert not drive.law.smooth
    line = 0.2 * arrays["gru/bias"][:H] + 0.5
    assert_allclose(drive.law(drive.gate.bias).eigenvalue, np.clip(line, 0, 1))
