"""Keras's cells against the oracles, and against Keras itself: it writes them and runs them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import (
    ZooFile,
    assert_same_spectrum,
    assert_sorted_moduli,
    oracle_eigenvalues,
    read_layers,
    zoo_files,
)
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.keras import KERAS_GRU, KERAS_LSTM, KERAS_SIMPLE_RNN
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

U, INPUTS = 4, 3
FLOAT32 = 1e-6
FAMILIES = {"lstm": "keras_lstm", "gru": "keras_gru", "rnn_tanh": "keras_simple_rnn"}
# What the files call the layers that the oracle names by the model's attributes.
SPELLINGS = {
    "bi/forward": ("bi/forward_layer", "bi/forward_lstm_1"),
    "bi/backward": ("bi/backward_layer", "bi/backward_lstm_1"),
    "stacked/cells/0": ("stacked/cell/cells/lstm_cell", "stacked/stacked_rnn_cells/lstm_cell"),
    "stacked/cells/1": ("stacked/cell/cells/gru_cell", "stacked/stacked_rnn_cells/gru_cell"),
}


@pytest.mark.parametrize("file", zoo_files("keras_rnn", ".keras", ".h5"))
def test_eigenvalues_are_those_of_the_oracle(file: ZooFile) -> None:
    layers = read_layers(file.path)
    assert len(layers) == len(file.layers)
    for expected in file.layers:
        names = (expected["name"], *SPELLINGS.get(expected["name"], ()))
        (recurrence,) = (layers[name] for name in names if name in layers)
        assert recurrence.family == FAMILIES[expected["kind"]]
        ours = np.exp(recurrence.log_eigenvalues)
        assert_same_spectrum(ours, oracle_eigenvalues(expected), 1e-12)
        if expected["order"] == "hidden unit":
            assert_allclose(ours, oracle_eigenvalues(expected), rtol=1e-12)


@pytest.mark.parametrize("layer", ["rnn_1", "rnn_2"])
def test_textgenrnn_sums_the_two_halves_of_cudnn_s_bias(trained: Path, layer: str) -> None:
    folder = trained / "textgenrnn_cudnnlstm"
    oracle = json.loads((folder / "oracle.json").read_text())["layers"][layer]
    recurrence = read_layers(folder / "textgenrnn_weights.hdf5")[layer]
    assert_sorted_moduli(recurrence, oracle["nominal_forget"]["lambda_sorted"])
    # Keras 2.1's own LSTM had hard gates; cuDNN knows only the sigmoid.
    assert recurrence.assumptions == ()
    assert {group.name for group in recurrence.parameters} == {
        f"{half}[{gate}]"
        for half in ("bias_input", "bias_recurrent")
        for gate in ("forget", "input")
    }


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Weights and states are float64, though Keras on torch multiplies matrices in float32."""
    before, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    # Once a layer has been built, the policy no longer follows floatx.
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(policy)


def built(layer: Any) -> Any:
    """A model of one layer with biases away from zero."""
    model = keras.Sequential([keras.Input((None, INPUTS)), layer])
    generator = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(0.5 * generator.standard_normal(weight.shape))
    return model


def decayed(model: Any, states: int, steps: int) -> NDArray[np.float64]:
    """What the layer's own step leaves of a kick to its last state, at zero input and weights.

    The recurrent kernel is zeroed, so that the gates stay at their biases.
    """
    layer = model.layers[-1]
    layer.cell.recurrent_kernel.assign(np.zeros(layer.cell.recurrent_kernel.shape))
    ends = []
    for kick in (1.0, 0.0):
        state = [np.zeros((1, U)) for _ in range(states - 1)] + [np.full((1, U), kick)]
        state = [keras.ops.convert_to_tensor(part, "float64") for part in state]
        for _ in range(steps):
            _, state = layer.cell(keras.ops.zeros((1, INPUTS), "float64"), state)
        ends.append(keras.ops.convert_to_numpy(state[-1])[0])
    return ends[0] - ends[1]


def saved(model: Any, path: Path) -> Recurrence:
    model.save_weights(path) if path.name.endswith(".weights.h5") else model.save(path)
    (recurrence,) = read_layers(path).values()
    return recurrence


@pytest.mark.parametrize("ending", ["a.keras", "a.weights.h5", "a.h5"])
@pytest.mark.parametrize("activation", ["sigmoid", "hard_sigmoid"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "gru_before"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_state_decays_as_keras_lets_it(
    tmp_path: Path, ending: str, activation: str, kind: str
) -> None:
    options = {"recurrent_activation": activation, "name": "memory"}
    if kind == "lstm":
        layer = keras.layers.LSTM(U, **options)
    else:
        layer = keras.layers.GRU(U, reset_after=kind == "gru", **options)
    model = built(layer)
    path = tmp_path / ending
    if ending == "a.weights.h5":
        model.save_weights(path)
        # Nothing in the file says which function opens the gates, nor the version of its slope.
        if activation == "hard_sigmoid":
            return
    else:
        model.save(path)
    (recurrence,) = read_layers(path).values()
    assert recurrence.name == "memory"
    eigenvalues = np.exp(recurrence.log_eigenvalues.real)
    assert_allclose(eigenvalues**6, decayed(model, 2 if kind == "lstm" else 1, 6), rtol=FLOAT32)
    assert recurrence.stable_by_construction is (activation == "sigmoid")
    assert bool(recurrence.assumptions) is (ending == "a.weights.h5")


def test_a_simple_rnn_is_the_transposed_kernel(tmp_path: Path) -> None:
    layer = keras.layers.SimpleRNN(U, activation="linear")
    model = built(layer)
    path = tmp_path / "a.keras"
    model.save(path)
    (recurrence,) = read_layers(path).values()
    assert recurrence.dense is not None
    assert recurrence.dense.activation == "linear"
    cell = layer.cell
    cell.bias.assign(np.zeros(U))
    state, x = np.random.default_rng(0).standard_normal((2, U))
    x = x[:INPUTS]
    given = [keras.ops.convert_to_tensor(part[None], "float64") for part in (x, state)]
    moved = keras.ops.convert_to_numpy(cell(given[0], [given[1]])[0])[0]
    assert recurrence.readin is not None
    assert_allclose(
        recurrence.dense.matrix @ state + recurrence.readin.real @ x, moved, rtol=FLOAT32
    )


@pytest.mark.parametrize("kind", ["lstm", "gru", "gru_before"])
def test_spectra_are_those_of_keras_s_own_step(tmp_path: Path, kind: str) -> None:
    torch = pytest.importorskip("torch")
    if kind == "lstm":
        layer = keras.layers.LSTM(U)
    else:
        layer = keras.layers.GRU(U, reset_after=kind == "gru")
    model = built(layer)
    path = tmp_path / "a.keras"
    model.save(path)
    with open_checkpoint(path) as store:
        ((family, match),) = detect(store.tensors)
        hidden = family.read(store, match, ReadOptions(spectra=True)).hidden
    assert hidden is not None
    count = 2 if kind == "lstm" else 1

    def step(state: Any) -> Any:
        parts = list(torch.split(state[None], U, dim=1))
        after = layer.cell(torch.zeros((1, INPUTS), dtype=torch.float64), parts)[1]
        return torch.cat(list(after), dim=1)[0]

    jacobian = torch.autograd.functional.jacobian(step, torch.zeros(count * U, dtype=torch.float64))
    assert hidden.jacobian is not None
    assert_same_spectrum(hidden.jacobian, np.linalg.eigvals(jacobian.numpy()), FLOAT32)
    columns = keras.ops.convert_to_numpy(layer.cell.recurrent_kernel)
    first = "input" if kind == "lstm" else "update"
    assert_same_spectrum(hidden.gates[first], np.linalg.eigvals(columns[:, :U]))


def arrays_of(gates: int, bias: tuple[int, ...] | None) -> dict[str, NDArray]:
    generator = np.random.default_rng(gates)
    shapes = {"kernel": (INPUTS, gates * U), "recurrent_kernel": (U, gates * U)}
    if bias is not None:
        shapes["bias"] = bias
    return {f"rnn/{name}": generator.standard_normal(shape) for name, shape in shapes.items()}


def test_derivatives_of_an_lstm() -> None:
    check_derivatives(
        arrays_of(4, (4 * U,)),
        KERAS_LSTM,
        elements={"bias[forget]": slice(U, 2 * U), "bias[input]": slice(0, U)},
    )
    elements = {
        f"{half}[{gate}]": slice(start + offset, start + offset + U)
        for half, start in (("bias_input", 0), ("bias_recurrent", 4 * U))
        for gate, offset in (("forget", U), ("input", 0))
    }
    check_derivatives(arrays_of(4, (8 * U,)), KERAS_LSTM, elements=elements)


@pytest.mark.parametrize("shape", [(2, 3 * U), (6 * U,)])
def test_derivatives_of_a_gru(shape: tuple[int, ...]) -> None:
    check_derivatives(arrays_of(3, (3 * U,)), KERAS_GRU, elements={"bias[update]": slice(0, U)})
    check_derivatives(
        arrays_of(3, shape),
        KERAS_GRU,
        elements={
            "bias_input[update]": slice(0, U),
            "bias_recurrent[update]": slice(3 * U, 4 * U),
        },
    )


def test_derivatives_of_hard_gates() -> None:
    arrays = arrays_of(3, (3 * U,))
    arrays["rnn/bias"] = np.clip(arrays["rnn/bias"], -2.0, 2.0)
    check_derivatives(
        arrays,
        KERAS_GRU,
        elements={"bias[update]": slice(0, U)},
        recurrent_activation="hard_sigmoid",
    )
    recurrence = read_layer(arrays, KERAS_GRU, recurrent_activation="hard_sigmoid")
    expected = 0.2 * arrays["rnn/bias"][:U] + 0.5
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), expected, rtol=1e-14)
    assert "as given" in recurrence.assumptions[0]


def test_without_biases_the_gates_stand_half_open() -> None:
    for family, gates in ((KERAS_LSTM, 4), (KERAS_GRU, 3)):
        recurrence = read_layer(arrays_of(gates, None), family)
        assert_allclose(np.exp(recurrence.log_eigenvalues), 0.5)
        assert recurrence.parameters == ()
        assert "no bias" in recurrence.assumptions[-1]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.1.5", "hard_sigmoid"), ("2.2.4-tf", "sigmoid"), ("2.4.3", "sigmoid"), ("", "sigmoid")],
)
def test_the_gates_of_old_versions_were_hard(tmp_path: Path, version: str, expected: str) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = version
        for name, array in arrays_of(4, (4 * U,)).items():
            file[f"rnn/{name}"] = array
    (recurrence,) = read_layers(path).values()
    assert f"recurrent_activation={expected} (the library's default)" in recurrence.assumptions[0]
    (given,) = read_layers(path, recurrent_activation="sigmoid").values()
    same = np.array_equal(given.log_eigenvalues, recurrence.log_eigenvalues)
    assert same is (expected == "sigmoid")


def test_gates_of_another_function_are_refused(tmp_path: Path) -> None:
    model = built(keras.layers.GRU(U, recurrent_activation="tanh", name="g"))
    model.save(tmp_path / "a.keras")
    with pytest.raises(TensorError, match="the activation tanh"):
        read_layers(tmp_path / "a.keras")


@pytest.mark.parametrize("shape", [(3, 4 * U), (5 * U,), (4 * U, 1)])
def test_a_bias_of_no_known_layout_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(TensorError, match=r"\(16\) or \(2, 16\) or \(32\) is needed"):
        read_layer(arrays_of(4, shape), KERAS_LSTM)


def test_only_a_cell_s_numbered_matrices_are_a_simple_rnn() -> None:
    arrays = {f"vars/{i}": np.ones((U, U)) for i in range(2)}
    for module, found in (("rnn/cell", 1), ("my_rnn_cell_2", 1), ("attention", 0), ("", 0)):
        prefix = f"{module}/" if module else ""
        named = {f"{prefix}{name}": array for name, array in arrays.items()}
        assert len(match_of(named, KERAS_SIMPLE_RNN)) == found


def test_convolutional_kernels_are_no_layers_of_these_families() -> None:
    arrays = {"c/kernel": np.ones((3, 3, 2, 16)), "c/recurrent_kernel": np.ones((3, 3, 4, 16))}
    for family in (KERAS_LSTM, KERAS_GRU, KERAS_SIMPLE_RNN):
        assert match_of(arrays, family) == []
