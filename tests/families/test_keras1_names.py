"""Weights under Keras 1's names are the same layers as under the present ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from families.oracles import read_layers
from numpy.testing import assert_allclose, assert_array_equal

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.families.cells.keras import GRU_LETTERS, LSTM_LETTERS, keras1_cells
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence

U, INPUTS = 4, 3
# The order in which keras/layers/recurrent.py of 1.2.2 lists an LSTM's gates is i, c, f, o.
LETTERS = {"lstm": "icfo", "gru": "zrh"}
PRESENT = {"lstm": LSTM_LETTERS.values(), "gru": GRU_LETTERS.values()}


def weights(kind: str) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
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


def read_spectra(path: Path) -> dict[str, Recurrence]:
    with open_checkpoint(path) as store:
        return {
            match.layer: family.read(store, match, ReadOptions(spectra=True))
            for family, match in detect(store.tensors)
        }


@pytest.mark.parametrize("ending", ["", ":0"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gates_of_their_own_are_the_layer_of_joined_kernels(
    tmp_path: Path, kind: str, ending: str
) -> None:
    layers = read_spectra(keras1(tmp_path / "a.h5", kind, ending))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.attrs["keras_version"] = "2.2.4"
        for name, array in zip(("kernel", "recurrent_kernel", "bias"), joined(kind), strict=True):
            file[f"memory/memory/{name}:0"] = array
    (present,) = read_spectra(tmp_path / "b.h5").values()
    assert list(layers) == ["memory"]
    old = layers["memory"]
    assert old.family == present.family == f"keras_{kind}"
    assert_array_equal(old.log_eigenvalues, present.log_eigenvalues)
    assert_array_equal(old.log_gain, present.log_gain)
    assert old.hidden is not None
    assert present.hidden is not None
    for gate, spectrum in present.hidden.gates.items():
        assert_array_equal(old.hidden.gates[gate], spectrum)
    assert_array_equal(old.hidden.jacobian, present.hidden.jacobian)
    assert {group.tensor for group in old.parameters} <= set(old.tensors)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_kernels_that_were_joined_by_keras_1(kind: str) -> None:
    arrays = {f"memory/memory_{letter}": a for letter, a in zip("WUb", joined(kind), strict=True)}
    store = MemoryStore(arrays)
    ((family, match),) = detect(store.tensors)
    assert (family.name, match.layer) == (f"keras_{kind}", "memory")
    recurrence = family.read(store, match, ReadOptions())
    forgotten = weights(kind)["f" if kind == "lstm" else "z"]["b"]
    # Without a version, Keras 1's names alone say that its gates were hard.
    expected = np.clip(0.2 * forgotten.astype(float) + 0.5, 0, 1)
    assert_allclose(np.exp(recurrence.log_eigenvalues), expected, rtol=1e-6)


def test_a_simple_rnn_and_the_layers_of_a_wrapper() -> None:
    matrix = np.random.default_rng(0).standard_normal((U, U)) / 3
    arrays = {
        f"bidirectional_1/{side}_simplernn_1_{letter}": array
        for side in ("forward", "backward")
        for letter, array in {"W": np.ones((INPUTS, U)), "U": matrix, "b": np.ones(U)}.items()
    }
    store = MemoryStore(arrays)
    found = {
        match.layer: family.read(store, match, ReadOptions())
        for family, match in detect(store.tensors)
    }
    assert set(found) == {
        "bidirectional_1/forward_simplernn_1",
        "bidirectional_1/backward_simplernn_1",
    }
    for recurrence in found.values():
        assert recurrence.family == "keras_simple_rnn"
        ours = np.sort_complex(np.exp(recurrence.log_eigenvalues))
        assert_allclose(ours, np.sort_complex(np.linalg.eigvals(matrix.T)), rtol=1e-12)


def test_the_configuration_s_inner_activation_counts(tmp_path: Path) -> None:
    layer = {"class_name": "LSTM", "config": {"name": "memory", "inner_activation": "sigmoid"}}
    config = {"class_name": "Sequential", "config": [layer]}
    path = keras1(tmp_path / "a.h5", "lstm", config=config, keras_version="1.2.2")
    recurrence = read_layers(path)["memory"]
    expected = 1 / (1 + np.exp(-weights("lstm")["f"]["b"].astype(float)))
    assert_allclose(np.exp(recurrence.log_eigenvalues), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"memory/memory_U_f": np.ones((U, U + 1))},
        {"memory/memory_b_f": np.ones(U + 1)},
        {"memory/memory_W_f": np.ones((INPUTS, U + 1))},
        {"memory/memory_U_f": np.float64(1)},
        {"memory/memory_U_z": np.ones((U, U))},
    ],
)
def test_what_does_not_fit_together_is_no_cell(change: dict[str, Any]) -> None:
    gates = weights("lstm")
    arrays = {
        f"memory/memory_{letter}_{gate}": array
        for gate, named in gates.items()
        for letter, array in named.items()
    }
    assert len(list(keras1_cells(MemoryStore(arrays).tensors))) == 1
    assert not list(keras1_cells(MemoryStore(arrays | change).tensors))
