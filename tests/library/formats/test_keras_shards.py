"""Keras's sharded weights, written by Keras."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.errors import CheckpointError

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

INDEX = "model.weights.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("shards")
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((5, 30)),
            layers.LSTM(40, return_sequences=True, name="encoder"),
            layers.GRU(30, name="decoder"),
        ]
    )
    model.compile("adam", "mse")
    model.save_weights(folder / INDEX, max_shard_size=4e-5)  # in gibibytes
    # Other tests count on the names that Keras gives to a first model.
    keras.utils.clear_session()
    assert len(list(folder.glob("*.h5"))) == 3
    return folder, model


@pytest.mark.parametrize("name", ["", INDEX])
def test_the_shards_are_one_checkpoint(saved: tuple[Path, Any], name: str) -> None:
    folder, model = saved
    with open_checkpoint(folder / name) as store:
        assert store.format == "Keras shards"
        assert store.bytes == sum(file.stat().st_size for file in folder.iterdir())
        assert store.notes[0] == "3 shards"
        assert "optimiser state" in store.notes[1]
        for layer in model.layers:
            for index, expected in enumerate(layer.get_weights()):
                stored = store.read(f"{layer.name}/cell/vars/{index}")
                np.testing.assert_array_equal(stored, expected.astype(float))
    report = inspect(folder / name)
    assert {layer.name: layer.family for layer in report.layers} == {
        "encoder": "keras_lstm",
        "decoder": "keras_gru",
    }


@pytest.mark.parametrize(
    ("weight_map", "expected"),
    [
        ({"/layers/lstm/cell/vars": ["../outside.weights.h5"]}, "leads outside"),
        ({"/layers/lstm/cell/vars": "/etc/passwd", "b": "a.weights.h5"}, "leads outside"),
        ({"/layers/lstm/cell/vars": ["missing.weights.h5"]}, "no such file"),
        ({"/layers/x/vars": ["model_00000.weights.h5"]}, "in none of its shards"),
        ({"/layers/lstm/cell/vars": ["model_00000.weights.h5", 3]}, "something that is not a file"),
        (
            {"/layers/lstm/cell/vars": ["a.weights.h5", "model_00000.weights.h5"]},
            "repeats a tensor",
        ),
        ({"/layers/lstm/cell/vars": ["text.weights.h5"]}, "is not an HDF5 file"),
        ([["model_00000.weights.h5"]], "not an object that names shards"),
    ],
)
def test_an_index_that_lies_is_refused(
    saved: tuple[Path, Any], tmp_path: Path, weight_map: Any, expected: str
) -> None:
    index = shutil.copytree(saved[0], tmp_path, dirs_exist_ok=True) / INDEX
    (tmp_path / "a.weights.h5").write_bytes((tmp_path / "model_00000.weights.h5").read_bytes())
    (tmp_path / "text.weights.h5").write_text("text")
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(index)
