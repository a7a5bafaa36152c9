"""TensorFlow's LSTM cell: what is taken for one, and what it adds to its biases."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of, read_layer
from numpy.testing import assert_allclose

from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.tensorflow import DIAGONALS, TENSORFLOW_LSTM

H, INPUTS, P = 4, 3, 2


def cell(*gates: str, projected: bool = False) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    shapes: dict[str, tuple[int, ...]] = {
        "kernel": (INPUTS + (P if projected else H), 4 * H),
        "bias": (4 * H,),
    } | {DIAGONALS[gate]: (H,) for gate in gates}
    if projected:
        shapes["projection/kernel"] = (H, P)
    return {f"rnn/lstm_cell/{name}": generator.normal(size=shape) for name, shape in shapes.items()}


def test_a_large_peephole_turns_the_eigenvalue_over() -> None:
    arrays = cell("input")
    arrays["rnn/lstm_cell/w_i_diag"] = np.array([-100.0, 100.0, 0.0, 1e-12])
    recurrence = read_layer(arrays, TENSORFLOW_LSTM)
    i, j, f, _ = np.split(arrays["rnn/lstm_cell/bias"], 4)
    slope = np.exp(-i) / (1 + np.exp(-i)) ** 2
    expected = 1 / (1 + np.exp(-f - 1)) + arrays["rnn/lstm_cell/w_i_diag"] * slope * np.tanh(j)
    assert expected.min() < 0
    assert expected.max() > 1
    assert_allclose(np.exp(recurrence.log_eigenvalues), expected, rtol=1e-12)


def test_what_is_taken_for_a_cell() -> None:
    arrays = {"dense/kernel": np.zeros((7, 16)), "dense/bias": np.zeros(16)}
    assert match_of(arrays, TENSORFLOW_LSTM) == []
    peephole = arrays | {"dense/w_f_diag": np.zeros(4)}
    assert [match.layer for match in match_of(peephole, TENSORFLOW_LSTM)] == ["dense"]
    keras = {
        "lstm/lstm_cell/kernel": np.zeros((7, 16)),
        "lstm/lstm_cell/recurrent_kernel": np.zeros((4, 16)),
        "lstm/lstm_cell/bias": np.zeros(16),
    }
    assert match_of(keras, TENSORFLOW_LSTM) == []
    convolution = {
        "rnn/conv_lstm_cell/kernel": np.zeros((3, 3, 7, 16)),
        "rnn/conv_lstm_cell/bias": np.zeros(16),
    }
    assert match_of(convolution, TENSORFLOW_LSTM) == []


def test_a_peephole_of_another_size_is_refused() -> None:
    arrays = cell("input") | {"rnn/lstm_cell/w_i_diag": np.zeros(5)}
    with pytest.raises(TensorError, match="w_i_diag"):
        read_layer(arrays, TENSORFLOW_LSTM)


def test_names_of_variables_with_their_output() -> None:
    arrays = {f"{name}:0": array for name, array in cell().items()}
    assert read_layer(arrays, TENSORFLOW_LSTM).name == "rnn/lstm_cell"


@pytest.mark.parametrize(
    ("module", "bias"),
    [
        ("rnn/cudnn_compatible_lstm_cell", 0.0),
        ("rnn/lstm_fused_cell", 1.0),
        ("rnn/multi_rnn_cell/cell_0/basic_lstm_cell", 1.0),
    ],
)
def test_what_each_cell_adds_to_forgetting(module: str, bias: float) -> None:
    arrays = {name.replace("rnn/lstm_cell", module): array for name, array in cell().items()}
    recurrence = read_layer(arrays, TENSORFLOW_LSTM)
    stored = arrays[f"{module}/bias"][2 * H : 3 * H]
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), 1 / (1 + np.exp(-stored - bias)))
    assert bool(recurrence.assumptions) == bool(bias)
    other = read_layer(arrays, TENSORFLOW_LSTM, forget_bias="2")
    assert_allclose(np.exp(other.log_eigenvalues.real), 1 / (1 + np.exp(-stored - 2)))
