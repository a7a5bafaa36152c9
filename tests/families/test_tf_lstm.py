"""TensorFlow's LSTM cell, written out in torch, with autodiff as the judge of its peepholes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import assert_same_spectrum
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.tensorflow import DIAGONALS, TENSORFLOW_LSTM
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence

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


def step(arrays: dict[str, np.ndarray], state: torch.Tensor) -> torch.Tensor:
    """[h, c] after a step of tf.compat.v1.nn.rnn_cell.LSTMCell.call at zero input."""
    kept = {name.partition("cell/")[2]: torch.tensor(a) for name, a in arrays.items()}
    c, m = state[-H:], state[:-H]
    joined = torch.cat([torch.zeros(INPUTS, dtype=c.dtype), m])
    i, j, f, o = torch.split(joined @ kept["kernel"] + kept["bias"], H)
    zero = torch.zeros(H, dtype=c.dtype)
    w_f, w_i, w_o = (kept.get(DIAGONALS[g], zero) for g in ("forget", "input", "output"))
    new = torch.sigmoid(f + 1.0 + w_f * c) * c + torch.sigmoid(i + w_i * c) * torch.tanh(j)
    shown = torch.sigmoid(o + w_o * new) * torch.tanh(new)
    shown = shown @ kept["projection/kernel"] if "projection/kernel" in kept else shown
    return torch.cat([shown, new])


ALL = ("forget", "input", "output")


@pytest.mark.parametrize("gates", [(), ALL], ids=["plain", "peepholes"])
def test_lambda_is_the_slope_of_the_cell_at_zero(gates: tuple[str, ...]) -> None:
    arrays = cell(*gates)
    recurrence = read_layer(arrays, TENSORFLOW_LSTM)
    assert recurrence.name == "rnn/lstm_cell"
    origin = torch.zeros(2 * H, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: step(arrays, s), origin).numpy()
    slope = jacobian[H:, H:]
    assert_allclose(slope, np.diag(np.diag(slope)), atol=0)
    assert_allclose(np.exp(recurrence.log_eigenvalues).real, np.diag(slope), rtol=1e-12)
    assert recurrence.stable_by_construction is (not gates)
    assert any("forget_bias=1.0" in sentence for sentence in recurrence.assumptions)


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("gates", [(), ("output",), ALL], ids=["plain", "output", "all"])
def test_the_jacobian_of_the_whole_step(gates: tuple[str, ...], projected: bool) -> None:
    arrays = cell(*gates, projected=projected)
    store = MemoryStore(arrays)
    (match,) = TENSORFLOW_LSTM.find(store.tensors)
    hidden = TENSORFLOW_LSTM.read(store, match, ReadOptions(spectra=True)).hidden
    assert hidden is not None
    assert hidden.jacobian is not None
    origin = torch.zeros(H + (P if projected else H), dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: step(arrays, s), origin)
    assert_same_spectrum(hidden.jacobian, np.linalg.eigvals(jacobian.numpy()), 1e-11)
    assert bool(hidden.gates) is not projected


def test_derivatives() -> None:
    blocks = {"input": 0, "cell": 1, "forget": 2}
    elements = {f"bias[{g}]": slice(k * H, (k + 1) * H) for g, k in blocks.items()}
    check_derivatives(cell(*ALL), TENSORFLOW_LSTM, elements=elements)
    check_derivatives(cell(), TENSORFLOW_LSTM, elements=elements, forget_bias="0.5")


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


OTHERS = {
    "sonnet": ("lstm/", {"kernel": "w_gates", "bias": "b_gates", "projection": "w_h_projection"}),
    "elmo": (
        "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/",
        {"kernel": "W_0", "bias": "B", "projection": "W_P_0"},
    ),
}


@pytest.mark.parametrize("library", OTHERS)
@pytest.mark.parametrize("projected", [True, False])
def test_the_same_cell_under_other_names(library: str, projected: bool) -> None:
    module, names = OTHERS[library]
    arrays = cell(projected=projected)
    renamed = {module + names[name.split("/")[2]]: array for name, array in arrays.items()}
    expected = read(arrays)
    (match,) = match_of(renamed, TENSORFLOW_LSTM)
    assert match.layer == module.rstrip("/")
    found = read(renamed)
    assert_allclose(found.log_eigenvalues, expected.log_eigenvalues, rtol=0)
    assert found.hidden is not None
    assert expected.hidden is not None
    assert_allclose(found.hidden.jacobian, expected.hidden.jacobian, rtol=0)


def read(arrays: dict[str, np.ndarray]) -> Recurrence:
    store = MemoryStore(arrays)
    family = TENSORFLOW_LSTM
    (match,) = family.find(store.tensors)
    return family.read(store, match, ReadOptions(spectra=True))


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
