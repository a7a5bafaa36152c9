"""NumPy's .npz: layouts, byte orders, compression, and what is left out with a note."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.store import TensorStore

NUMBERS = st.one_of(
    numpy_strategies.boolean_dtypes(),
    numpy_strategies.integer_dtypes(),
    numpy_strategies.unsigned_integer_dtypes(),
    numpy_strategies.floating_dtypes(),
    numpy_strategies.complex_number_dtypes(),
)


def saved(path: Path, arrays: dict[str, Any], compressed: bool = False) -> TensorStore:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return open_checkpoint(path)


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
    with saved(path, {"w": array}, compressed) as store, np.load(path) as reference:
        expected = reference["w"]
        assert store.tensors["w"].shape == expected.shape
        assert store.tensors["w"].bytes == expected.nbytes
        kind = np.complex128 if expected.dtype.kind == "c" else np.float64
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(store.read("w"), expected.astype(kind))


def test_an_array_of_many_pieces_is_inflated(tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((900, 700))
    with saved(tmp_path / "a.npz", {"w": array}, compressed=True) as store:
        np.testing.assert_array_equal(store.read("w"), array)


def test_bfloat16_is_read_though_numpy_stores_no_such_type(tmp_path: Path) -> None:
    array = np.linspace(-2, 2, 9).astype(ml_dtypes.bfloat16)
    with saved(tmp_path / "a.npz", {"w": array}) as store:
        assert store.tensors["w"].dtype == "bfloat16"
        np.testing.assert_array_equal(store.read("w"), array.astype(np.float64))
        assert "read as bfloat16" in store.notes[0]


def test_what_is_no_number_is_left_out_with_a_note(tmp_path: Path) -> None:
    arrays = {
        "w": np.eye(2),
        "ratio": np.array([None]),
        "name": np.array("run"),
        "when": np.array(["2024-01-01"], dtype="datetime64[D]"),
        "fields": np.zeros(2, dtype=[("a", "f4")]),
    }
    with saved(tmp_path / "a.npz", arrays) as store:
        assert list(store.tensors) == ["w"]
        assert len(store.notes) == 4
        assert "ratio is an array of Python objects" in store.notes[0]


def test_the_slots_of_tensorflow_are_left_out_beside_their_variable(tmp_path: Path) -> None:
    arrays = {
        name: np.eye(2)
        for name in ("W_rec", "W_rec/Adam", "W_rec/Adam_1", "W_in/Momentum", "Adam/kernel")
    }
    with saved(tmp_path / "a.npz", arrays | {"beta1_power": np.array(0.9)}) as store:
        # W_in/Momentum has no variable W_in beside it: it may be a weight.
        assert list(store.tensors) == ["W_rec", "W_in/Momentum", "Adam/kernel"]
        assert "3 tensors of optimiser state" in store.notes[0]
