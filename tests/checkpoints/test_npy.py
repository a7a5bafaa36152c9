"""NumPy's .npy: one file, or a directory of them."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from checkpoints.fuzzing import FUZZ, changed, survives_at
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "W_rec": np.linspace(-1, 1, 9).reshape(3, 3),
    "W_in.T": np.asfortranarray(np.arange(6.0, dtype=np.float32).reshape(3, 2)),
    "taus": np.arange(3, dtype=">i4"),
}


def saved(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    for name, array in ARRAYS.items():
        np.save(directory / f"{name}.npy", array)
    return directory


def test_a_directory_of_arrays_is_one_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / "config.json").write_text("{}")
    with open_checkpoint(path) as store:
        assert store.format == "NumPy .npy"
        assert store.path == str(path)
        assert store.bytes == sum(file.stat().st_size for file in path.glob("*.npy"))
        assert set(store.tensors) == set(ARRAYS)
        for name, array in ARRAYS.items():
            assert store.tensors[name].bytes == array.nbytes
            np.testing.assert_array_equal(store.read(name), array.astype(float), strict=True)


def test_one_file_is_named_after_itself(tmp_path: Path) -> None:
    with open_checkpoint(saved(tmp_path) / "W_rec.npy") as store:
        assert list(store.tensors) == ["W_rec"]
        np.testing.assert_array_equal(store.read("W_rec"), ARRAYS["W_rec"])


def test_a_checkpoint_beside_arrays_is_what_the_directory_holds(tmp_path: Path) -> None:
    save_file({"w": np.eye(2)}, saved(tmp_path) / "epoch3.safetensors")
    with open_checkpoint(tmp_path) as store:
        assert list(store.tensors) == ["w"]


def test_an_array_of_objects_is_left_out(tmp_path: Path) -> None:
    np.save(saved(tmp_path) / "names.npy", np.array([None, "a"]), allow_pickle=True)
    with open_checkpoint(tmp_path) as store:
        assert set(store.tensors) == set(ARRAYS)
        assert "names is an array of Python objects" in store.notes[0]


def test_a_link_out_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    np.save(tmp_path / "secret.npy", np.ones(3))
    path = saved(tmp_path / "inside")
    (path / "b.npy").symlink_to(tmp_path / "secret.npy")
    with pytest.raises(CheckpointError, match="symbolic link leads outside"):
        open_checkpoint(path)


def test_a_damaged_array_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / "taus.npy").write_bytes((path / "taus.npy").read_bytes()[:-2])
    with pytest.raises(CheckpointError, match="taus needs 12 bytes for its shape and has 10"):
        open_checkpoint(path)


@cache
def valid() -> Path:
    return saved(Path(mkdtemp()) / "saved")


@FUZZ
@given(data=st.data())
def test_a_changed_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("changed") / "saved"
    shutil.copytree(valid(), path)
    file = data.draw(st.sampled_from(sorted(path.iterdir())), "file")
    file.write_bytes(changed(file.read_bytes(), data))
    survives_at(path)
    survives_at(file)
    shutil.rmtree(path)
