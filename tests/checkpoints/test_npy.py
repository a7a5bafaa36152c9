"""NumPy's arrays, alone, in folders, in archives and as Equinox's leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
from numpy.testing import assert_array_equal
from safetensors.numpy import save_file

from memcurse_cli.checkpoints.npy import leaf_names
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
    with open_checkpoint(path / "W_rec.npy") as store:  # one file is named after itself
        np.testing.assert_array_equal(store.read("W_rec"), ARRAYS["W_rec"])
    save_file({"w": np.eye(2)}, path / "epoch3.safetensors")
    assert list(open_checkpoint(path).tensors) == ["w"]


def test_a_link_out_of_the_directory_is_not_followed_and_a_damaged_array_named(
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "secret.npy", np.ones(3))
    path = saved(tmp_path / "inside")
    (path / "b.npy").symlink_to(tmp_path / "secret.npy")
    with pytest.raises(CheckpointError, match="symbolic link leads outside"):
        open_checkpoint(path)
    (path / "b.npy").unlink()
    (path / "taus.npy").write_bytes((path / "taus.npy").read_bytes()[:-2])
    with pytest.raises(CheckpointError, match="taus: it needs 12 bytes for its shape and has 10"):
        open_checkpoint(path)


NUMBERS = (
    numpy_strategies.boolean_dtypes()
    | numpy_strategies.integer_dtypes()
    | numpy_strategies.unsigned_integer_dtypes()
    | numpy_strategies.floating_dtypes()
    | numpy_strategies.complex_number_dtypes()
)


@given(
    array=numpy_strategies.arrays(
        NUMBERS, numpy_strategies.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
    ),
    fortran=st.booleans(),
    compressed=st.booleans(),
)
def test_every_number_is_read_as_numpy_reads_it(
    tmp_path_factory: pytest.TempPathFactory,
    array: np.ndarray[Any, Any],
    fortran: bool,
    compressed: bool,
) -> None:
    path = tmp_path_factory.mktemp("arrays") / "a.npz"
    if fortran:
        array = np.asfortranarray(array)
    (np.savez_compressed if compressed else np.savez)(path, w=array)
    with open_checkpoint(path) as store, np.load(path) as reference:
        expected = reference["w"]
        assert store.tensors["w"].shape == expected.shape
        assert store.tensors["w"].bytes == expected.nbytes
        kind = np.complex128 if expected.dtype.kind == "c" else np.float64
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(store.read("w"), expected.astype(kind))


def test_what_is_no_number_of_numpy_s_is_bfloat16_or_left_out_with_a_note(tmp_path: Path) -> None:
    array = np.linspace(-2, 2, 9).astype(ml_dtypes.bfloat16)
    others = {
        "ratio": np.array([None]),
        "name": np.array("run"),
        "when": np.array(["2024-01-01"], dtype="datetime64[D]"),
        "fields": np.zeros(2, dtype=[("a", "f4")]),
    }
    np.savez(tmp_path / "a.npz", w=array, **others)
    with open_checkpoint(tmp_path / "a.npz") as store:
        assert store.tensors["w"].dtype == "bfloat16"
        np.testing.assert_array_equal(store.read("w"), array.astype(np.float64))
        assert list(store.tensors) == ["w"]
        notes = "; ".join(store.notes)
        assert "read as bfloat16" in notes
        assert all(name in notes for name in others)
        assert "ratio is an array of Python objects" in notes


H, INPUTS = 4, 3
GRU = [(3 * H, INPUTS), (3 * H, H), (3 * H,), (H,)]
LSTM = [(4 * H, INPUTS), (4 * H, H), (4 * H,)]


def leaves(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.normal(size=shape).astype(np.float32) for shape in shapes]


def saved_equinox(path: Path, arrays: list[np.ndarray], head: bytes = b"") -> Path:
    with path.open("wb") as file:
        file.write(head)
        for array in arrays:
            np.save(file, array)
    return path


@pytest.mark.parametrize("head", [b"", b'{"hidden_size": 4}\n'])
def test_every_leaf_is_read_under_its_number_or_in_its_cell(tmp_path: Path, head: bytes) -> None:
    arrays = leaves([(INPUTS, 2), (INPUTS,), *GRU, *LSTM, (1, H), ()])
    with open_checkpoint(saved_equinox(tmp_path / "model.eqx", arrays, head)) as store:
        assert store.format == "Equinox leaves"
        fields = ["weight_ih", "weight_hh", "bias"]
        assert list(store.tensors) == [
            *("leaf0", "leaf1"),
            *(f"cell0.{field}" for field in (*fields, "bias_n")),
            *(f"cell1.{field}" for field in fields),
            *("leaf9", "leaf10"),
        ]
        for name, array in zip(store.tensors, arrays, strict=True):
            assert_array_equal(store.read(name), array)
        assert "no names" in store.notes[0]


def test_shapes_that_are_those_of_other_modules_stay_numbered() -> None:
    perceptron = [(3 * H, INPUTS), (3 * H,), (H, 3 * H), (H,)]
    for shapes in (perceptron, GRU[:3], [*GRU[:3], (H + 1,)], LSTM[:2], [(0, 0)] * 3, [(8,)] * 4):
        assert leaf_names(shapes) == [f"leaf{index}" for index in range(len(shapes))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], "leaf 6: it reaches beyond the end"),
        (lambda content: content + b"\x93NUMPY", "leaf 7: it has no valid header"),
        (
            lambda content: content[:300] + content[300:].replace(b"'<f4'", b"'|O' "),
            "leaf 2: it is an array of Python objects",
        ),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, change: object, message: str) -> None:
    path = saved_equinox(tmp_path / "model.eqx", leaves([*GRU, *LSTM]))
    assert callable(change)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)
