"""Keras's cells against Keras itself: it writes them and runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families.oracles import read_layers, run_file
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.errors import TensorError

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

U, INPUTS = 4, 3
FLOAT32 = 1e-6


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
    assert recurrence.dense.activation == "linear"
    cell = layer.cell
    cell.bias.assign(np.zeros(U))
    state, x = np.random.default_rng(0).standard_normal((2, U))
    x = x[:INPUTS]
    given = [keras.ops.convert_to_tensor(part[None], "float64") for part in (x, state)]
    moved = keras.ops.convert_to_numpy(cell(given[0], [given[1]])[0])[0]
    assert_allclose(
        recurrence.dense.matrix @ state + recurrence.readin.real @ x, moved, rtol=FLOAT32
    )


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.LSTM(U),
        keras.layers.GRU(U),
        keras.layers.GRU(U, reset_after=False),
        keras.layers.SimpleRNN(U),
    ],
    ids=["lstm", "gru", "gru before", "simple rnn"],
)
def test_a_run_is_that_of_keras(tmp_path: Path, layer: Any) -> None:
    model = built(type(layer).from_config(layer.get_config()))
    model.save(tmp_path / "a.keras")
    inputs = np.random.default_rng(0).standard_normal((5, 2, INPUTS))
    expected = model.predict(inputs.swapaxes(0, 1), verbose=0)
    assert_allclose(run_file(tmp_path / "a.keras", inputs), expected, atol=FLOAT32)


def test_gates_of_another_function_are_refused(tmp_path: Path) -> None:
    model = built(keras.layers.GRU(U, recurrent_activation="tanh", name="g"))
    model.save(tmp_path / "a.keras")
    with pytest.raises(TensorError, match="the activation tanh"):
        read_layers(tmp_path / "a.keras")
