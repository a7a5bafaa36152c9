"""Keras's cells against the oracles, and what each version's files leave open."""

from __future__ import annotations

import json
from pathlib import Path

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

from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.keras import KERAS_GRU, KERAS_LSTM, KERAS_SIMPLE_RNN

U, INPUTS = 4, 3
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


def arrays_of(gates: int, bias: tuple[int, ...] | None) -> dict[str, NDArray]:
    generator = np.random.default_rng(gates)
    shapes = {"kernel": (INPUTS, gates * U), "recurrent_kernel": (U, gates * U)}
    if bias is not None:
        shapes["bias"] = bias
    return {f"rnn/{name}": generator.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("shape", [(4 * U,), (8 * U,)])
def test_derivatives_of_an_lstm(shape: tuple[int, ...]) -> None:
    check_derivatives(arrays_of(4, shape), KERAS_LSTM)


@pytest.mark.parametrize("shape", [(3 * U,), (2, 3 * U), (6 * U,)])
def test_derivatives_of_a_gru(shape: tuple[int, ...]) -> None:
    check_derivatives(arrays_of(3, shape), KERAS_GRU)


def test_derivatives_of_hard_gates() -> None:
    arrays = arrays_of(3, (3 * U,))
    arrays["rnn/bias"] = np.clip(arrays["rnn/bias"], -2.0, 2.0)
    check_derivatives(arrays, KERAS_GRU, recurrent_activation="hard_sigmoid")
    recurrence = read_layer(arrays, KERAS_GRU, recurrent_activation="hard_sigmoid")
    expected = 0.2 * arrays["rnn/bias"][:U] + 0.5
    assert_allclose(np.exp(recurrence.log_eigenvalues.real), expected, rtol=1e-14)
    assert "as given" in recurrence.assumptions[0]


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
