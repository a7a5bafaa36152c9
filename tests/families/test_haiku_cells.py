"""The cores of Haiku and Sonnet 2 against their own equations, written out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import assert_same_spectrum
from numpy.testing import assert_allclose

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.haiku import HAIKU_GRU, HAIKU_LSTM, HAIKU_RNN, SONNET_LSTM
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.reading import sigmoid

H, INPUTS, PROJECTED = 4, 3, 2
Arrays = dict[str, np.ndarray]
Step = Callable[[np.ndarray], np.ndarray]


def weights(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def haiku_gru() -> tuple[Arrays, Step]:
    """haiku.GRU: columns z, r, a, and the reset gate before the matrix."""
    arrays = weights({"gru/w_i": (INPUTS, 3 * H), "gru/w_h": (H, 3 * H), "gru/b": (3 * H,)})

    def step(state: np.ndarray) -> np.ndarray:
        gates, candidate = np.split(arrays["gru/w_h"], [2 * H], axis=1)
        bias, inner = np.split(arrays["gru/b"], [2 * H])
        z, r = np.split(sigmoid(state @ gates + bias), 2)
        a = np.tanh((r * state) @ candidate + inner)
        return np.asarray((1 - z) * state + z * a)

    return arrays, step


def haiku_lstm() -> tuple[Arrays, Step]:
    """haiku.LSTM: [x, h] through one linear, columns i, g, f, o, and 1 added to f."""
    arrays = weights({"lstm/linear/w": (INPUTS + H, 4 * H), "lstm/linear/b": (4 * H,)})

    def step(state: np.ndarray) -> np.ndarray:
        hidden, cell = np.split(state, 2)
        seen = np.concatenate([np.zeros(INPUTS), hidden])
        i, g, f, o = np.split(seen @ arrays["lstm/linear/w"] + arrays["lstm/linear/b"], 4)
        cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g)
        return np.concatenate([sigmoid(o) * np.tanh(cell), cell])

    return arrays, step


def sonnet_lstm(projected: bool = False) -> tuple[Arrays, Step]:
    """sonnet.LSTM of Sonnet 2: columns i, f, g, o."""
    rows = PROJECTED if projected else H
    shapes: dict[str, tuple[int, ...]] = {
        "lstm/w_i": (INPUTS, 4 * H),
        "lstm/w_h": (rows, 4 * H),
        "lstm/b": (4 * H,),
    }
    if projected:
        shapes["lstm/projection"] = (H, PROJECTED)
    arrays = weights(shapes)

    def step(state: np.ndarray) -> np.ndarray:
        hidden, cell = np.split(state, [rows])
        i, f, g, o = np.split(hidden @ arrays["lstm/w_h"] + arrays["lstm/b"], 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        shown = sigmoid(o) * np.tanh(cell)
        return np.concatenate([shown @ arrays["lstm/projection"] if projected else shown, cell])

    return arrays, step


CORES = {
    "haiku_gru": (HAIKU_GRU, haiku_gru, H),
    "haiku_lstm": (HAIKU_LSTM, haiku_lstm, 2 * H),
    "sonnet_lstm": (SONNET_LSTM, sonnet_lstm, 2 * H),
    "sonnet_lstm projected": (SONNET_LSTM, lambda: sonnet_lstm(True), PROJECTED + H),
}


def jacobian(step: Step, size: int) -> np.ndarray:
    """d step / d state at zero, by differences of the fourth order."""
    columns = []
    for column in np.eye(size) * 1e-3:
        near, far = step(column) - step(-column), step(2 * column) - step(-2 * column)
        columns.append((8 * near - far) / (12 * 1e-3))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("core", CORES)
def test_the_step_s_jacobian(core: str) -> None:
    family, make, size = CORES[core]
    arrays, step = make()
    store = MemoryStore(arrays)
    ((found, match),) = detect(store.tensors)
    assert found.name == family.name == core.partition(" ")[0]
    recurrence = family.read(store, match, ReadOptions(spectra=True))
    assert recurrence.hidden is not None
    assert recurrence.hidden.jacobian is not None
    expected = np.linalg.eigvals(jacobian(step, size))
    assert_same_spectrum(recurrence.hidden.jacobian, expected, 1e-9)


@pytest.mark.parametrize("core", CORES)
def test_without_hidden_weights_the_state_decays_as_the_report_says(core: str) -> None:
    family, make, size = CORES[core]
    arrays, step = make()
    for name, array in arrays.items():
        if name.endswith(("w_h", "linear/w")):
            array[:] = 0
    recurrence = read_layer(arrays, family)
    still, kicked = np.zeros(size), np.zeros(size)
    kicked[-H:] += 1  # the cell of an LSTM, the state of a GRU
    for _ in range(8):
        still, kicked = step(still), step(kicked)
    expected = np.exp(8 * recurrence.log_eigenvalues.real)
    assert_allclose((kicked - still)[-H:], expected, rtol=1e-9)


@pytest.mark.parametrize("core", CORES)
def test_derivatives(core: str) -> None:
    family, make, _ = CORES[core]
    arrays, _ = make()
    blocks = {
        "haiku_gru": {"b[update]": 0},
        "haiku_lstm": {"bias[input]": 0, "bias[forget]": 2},
        "sonnet_lstm": {"b[input]": 0, "b[forget]": 1},
    }[family.name]
    elements = {name: slice(block * H, (block + 1) * H) for name, block in blocks.items()}
    check_derivatives(arrays, family, elements=elements)


@pytest.mark.parametrize("core", CORES)
def test_what_drives_the_gates_is_read(core: str) -> None:
    family, make, _ = CORES[core]
    arrays, _ = make()
    store = MemoryStore(arrays)
    (match,) = family.find(store.tensors)
    drive = family.read(store, match, ReadOptions(gates=True)).gate
    assert drive is not None
    block = {"haiku_gru": 0, "haiku_lstm": 2, "sonnet_lstm": 1}[family.name]
    columns = slice(block * H, (block + 1) * H)
    if family.name == "haiku_lstm":
        inputs = arrays["lstm/linear/w"][:INPUTS, columns]
    else:
        inputs = arrays[f"{match.layer}/w_i"][:, columns]
    assert_allclose(drive.gate.norms.inputs, np.sum(inputs**2, axis=0))


@pytest.mark.parametrize(
    ("names", "layer", "activation"),
    [
        (("vanilla_rnn/linear/w", "vanilla_rnn/linear_1/w"), "vanilla_rnn", "relu"),
        (("net/~/my_rnn_1/linear/w", "net/~/my_rnn_1/linear_1/w"), "net/~/my_rnn_1", "relu"),
        (("core/input_to_hidden/w", "core/hidden_to_hidden/w"), "core", "tanh"),
    ],
)
def test_a_vanilla_rnn(names: tuple[str, str], layer: str, activation: str) -> None:
    arrays = weights({names[0]: (INPUTS, H), names[1]: (H, H)})
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    assert (family.name, match.layer) == ("haiku_rnn", layer)
    recurrence = read_layer(arrays, HAIKU_RNN)
    assert recurrence.dense is not None
    assert recurrence.readin is not None
    assert_allclose(recurrence.dense.matrix, arrays[names[1]].T)
    assert_allclose(recurrence.readin, arrays[names[0]].T)
    assert recurrence.dense.activation == activation


def test_other_modules_are_not_taken() -> None:
    arrays = weights(
        {
            "mlp/linear/w": (INPUTS, H),
            "mlp/linear_1/w": (H, H),
            "head/linear/w": (INPUTS + H, 4 * H),
            "head/linear/b": (4 * H,),
            "lstm_head/linear/w": (H, 4 * H),  # nothing is left for an input
            "lstm_head/linear/b": (4 * H,),
            "attention/w_i": (H, 3 * H + 1),
            "attention/w_h": (H, 3 * H + 1),
            "pair/w_i": (INPUTS, 3 * H),
            "pair/w_h": (H, 3 * H),
            "pair/b": (H,),
        }
    )
    for family in (HAIKU_GRU, HAIKU_LSTM, HAIKU_RNN, SONNET_LSTM):
        assert match_of(arrays, family) == []


def test_without_bias() -> None:
    arrays = weights({"w_i": (INPUTS, 3 * H), "w_h": (H, 3 * H)})
    recurrence = read_layer(arrays, HAIKU_GRU)
    assert recurrence.name == "haiku_gru"
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), 0.5)
    assert recurrence.parameters == ()


def test_a_bias_with_nan_is_refused() -> None:
    arrays, _ = haiku_gru()
    arrays["gru/b"][0] = np.nan
    with pytest.raises(TensorError, match="1 NaN"):
        read_layer(arrays, HAIKU_GRU)
