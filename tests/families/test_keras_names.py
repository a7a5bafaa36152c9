"""What the files of each version of Keras leave open, and the names of Keras 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from families.derivatives import check_derivatives, read_layer
from families.oracles import assert_same_spectrum, read_layers
from numpy.testing import assert_allclose, assert_array_equal

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.families.cells.configured import KERAS_GRU, KERAS_LSTM, KERAS_SIMPLE_RNN
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence

U, INPUTS = 4, 3
Arrays = dict[str, np.ndarray[Any, Any]]


def arrays_of(gates: int, bias: tuple[int, ...] | None) -> Arrays:
    generator = np.random.default_rng(gates)
    shapes = {"kernel": (INPUTS, gates * U), "recurrent_kernel": (U, gates * U)}
    if bias is not None:
        shapes["bias"] = bias
    return {f"rnn/{name}": generator.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("gates", "shape"),
    [(4, (4 * U,)), (4, (8 * U,)), (3, (3 * U,)), (3, (2, 3 * U)), (3, (6 * U,))],
)
def test_derivatives_by_a_bias_of_one_or_both_sides(gates: int, shape: tuple[int, ...]) -> None:
    family, arrays = (KERAS_LSTM if gates == 4 else KERAS_GRU), arrays_of(gates, shape)
    check_derivatives(arrays, family)
    named = {group.name.partition("[")[0] for group in read_layer(arrays, family).parameters}
    whole = arrays["rnn/bias"].size == gates * U
    assert named == ({"bias"} if whole else {"bias_input", "bias_recurrent"})


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


# The order in which keras/layers/recurrent.py of 1.2.2 lists an LSTM's gates is i, c, f, o.
LETTERS = {"lstm": "icfo", "gru": "zrh"}
PRESENT = {"lstm": "ifco", "gru": "zrh"}


def weights(kind: str) -> dict[str, Arrays]:
    """W, U and b of each gate."""
    made = np.random.default_rng(1)
    shapes = {"W": (INPUTS, U), "U": (U, U), "b": (U,)}
    return {
        gate: {letter: made.standard_normal(shape, np.float32) for letter, shape in shapes.items()}
        for gate in LETTERS[kind]
    }


def joined(kind: str) -> list[np.ndarray[Any, Any]]:
    gates = weights(kind)
    return [
        np.concatenate([gates[gate][letter] for gate in PRESENT[kind]], axis=-1) for letter in "WUb"
    ]


def keras1(
    path: Path, kind: str, ending: str = "", config: object = None, **attributes: str
) -> Path:
    """A file as keras/engine/topology.py of 1.2.2 writes it."""
    with h5py.File(path, "w") as file:
        group = file.create_group("model_weights") if config else file
        group.attrs["layer_names"] = [b"memory", b"dense_1"]
        for key, value in attributes.items():
            file.attrs[key] = value
        if config:
            file.attrs["model_config"] = json.dumps(config)
        layer = group.create_group("memory")
        names = []
        for gate, arrays in weights(kind).items():
            for letter, array in arrays.items():
                names.append(f"memory_{letter}_{gate}{ending}".encode())
                layer[names[-1].decode()] = array
        layer.attrs["weight_names"] = names
        dense = group.create_group("dense_1")
        dense["dense_1_W"], dense["dense_1_b"] = np.ones((U, 2)), np.ones(2)
    return path


def read_spectra(path: Path) -> Recurrence:
    with open_checkpoint(path) as store:
        ((family, match),) = detect(store.tensors)
        return family.read(store, match, ReadOptions(spectra=True))


@pytest.mark.parametrize("ending", ["", ":0"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gates_of_their_own_are_the_layer_of_joined_kernels(
    tmp_path: Path, kind: str, ending: str
) -> None:
    old = read_spectra(keras1(tmp_path / "a.h5", kind, ending))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.attrs["keras_version"] = "2.2.4"
        for role, array in zip(("kernel", "recurrent_kernel", "bias"), joined(kind), strict=True):
            file[f"memory/memory/{role}:0"] = array
    present = read_spectra(tmp_path / "b.h5")
    assert (old.name, old.family) == ("memory", f"keras_{kind}")
    assert_array_equal(old.hidden.jacobian, present.hidden.jacobian)
    assert_array_equal(old.log_eigenvalues, present.log_eigenvalues)
    assert_array_equal(old.log_gain, present.log_gain)
    assert {group.tensor for group in old.parameters} <= set(old.tensors)
    # Kernels that Keras 1 joined; without a version its names alone say that gates were hard.
    arrays = {f"memory/memory_{letter}": a for letter, a in zip("WUb", joined(kind), strict=True)}
    whole = read_layer(arrays, KERAS_LSTM if kind == "lstm" else KERAS_GRU)
    assert whole.name == "memory"
    forgotten = weights(kind)["f" if kind == "lstm" else "z"]["b"]
    expected = np.clip(0.2 * forgotten.astype(float) + 0.5, 0, 1)
    assert_allclose(np.exp(whole.log_eigenvalues), expected, rtol=1e-6)


def test_a_simple_rnn_and_the_layers_of_a_wrapper() -> None:
    matrix = np.random.default_rng(0).standard_normal((U, U)) / 3
    letters = {"W": np.ones((INPUTS, U)), "U": matrix, "b": np.ones(U)}
    for at, side in enumerate(("forward", "backward")):
        modules = [f"bidirectional_1/{each}_simplernn_1" for each in ("forward", "backward")]
        arrays = {f"{m}_{letter}": array for m in modules for letter, array in letters.items()}
        recurrence = read_layer(arrays, KERAS_SIMPLE_RNN, layer=at)
        assert recurrence.name == f"bidirectional_1/{side}_simplernn_1"
        ours = np.exp(recurrence.log_eigenvalues)
        assert_same_spectrum(ours, np.linalg.eigvals(matrix.T), 1e-12)


def test_the_configuration_s_inner_activation_counts(tmp_path: Path) -> None:
    layer = {"class_name": "LSTM", "config": {"name": "memory", "inner_activation": "sigmoid"}}
    config = {"class_name": "Sequential", "config": [layer]}
    path = keras1(tmp_path / "a.h5", "lstm", config=config, keras_version="1.2.2")
    recurrence = read_layers(path)["memory"]
    expected = 1 / (1 + np.exp(-weights("lstm")["f"]["b"].astype(float)))
    assert_allclose(np.exp(recurrence.log_eigenvalues), expected, rtol=1e-6)
