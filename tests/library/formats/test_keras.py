"""Keras's files against h5py and Keras itself; the parts of HDF5 that both leave to a reader."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from checkpoints import readers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.errors import CheckpointError

REAL = st.one_of(
    numpy_strategies.boolean_dtypes(),
    numpy_strategies.integer_dtypes(),
    numpy_strategies.unsigned_integer_dtypes(),
    numpy_strategies.floating_dtypes(sizes=(16, 32, 64)),
)


def arrays_of(path: Path | Any) -> dict[str, Any]:
    """Every dataset as h5py reads it."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return found


def written(path: Path, arrays: dict[str, Any], **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)
    return path


def is_weight(name: str) -> bool:
    return not name.startswith("optimizer")


@pytest.mark.parametrize("path", readers.files("h5", "hdf5"), ids=readers.label)
def test_every_shared_file_agrees_with_h5py(path: Path) -> None:
    expected = {name: array for name, array in arrays_of(path).items() if is_weight(name)}
    with open_checkpoint(path) as store:
        assert store.format == "Keras HDF5"
        assert store.bytes == path.stat().st_size
        assert len(store.tensors) == len(expected)
        left = [(array.shape, array.astype(float).tobytes()) for array in expected.values()]
        for name, spec in store.tensors.items():
            assert spec.dtype == "float32"
            left.remove((spec.shape, store.read(name).tobytes()))
        assert left == []
        assert store.bytes_read == sum(array.nbytes for array in expected.values())


def test_layers_have_the_names_that_the_user_gave_them(zoo: Path) -> None:
    with open_checkpoint(zoo / "keras_rnn" / "model.weights.h5") as store:
        assert list(store.tensors)[:3] == [f"enc_lstm/cell/vars/{i}" for i in range(3)]
        assert "bi/backward_layer/cell/vars/0" in store.tensors
        assert "stacked/cell/cells/gru_cell/vars/2" in store.tensors
        assert "64 tensors of optimiser state" in store.notes[0]
        reference = arrays_of(zoo / "keras_rnn" / "model.weights.h5")
        for name, stored in (
            ("lstm/cell/vars/1", "layers/lstm_1/cell/vars/1"),
            ("gru_before/cell/vars/2", "layers/gru_1/cell/vars/2"),
        ):
            np.testing.assert_array_equal(store.read(name), reference[stored])
    with open_checkpoint(zoo / "keras_rnn" / "model_legacy.h5") as store:
        assert "bi/forward_lstm_1/lstm_cell/recurrent_kernel" in store.tensors
        assert store.metadata["keras_version"] == "3.15.1"
        assert '"recurrent_activation": "sigmoid"' in store.metadata["model_config"]


def test_the_archive_holds_what_the_weights_file_holds(zoo: Path, tmp_path: Path) -> None:
    folder = zoo / "keras_rnn"
    deflated = tmp_path / "deflated.keras"
    with (
        zipfile.ZipFile(folder / "model.keras") as old,
        zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with open_checkpoint(folder / "model.weights.h5") as weights:
        for path in (folder / "model.keras", deflated):
            with open_checkpoint(path) as store:
                assert store.format == "Keras archive"
                assert store.bytes == path.stat().st_size
                assert store.metadata["keras_version"] == "3.15.1"
                assert '"class_name": "LSTM"' in store.metadata["model_config"]
                assert dict(store.tensors) == dict(weights.tensors)
                for name in store.tensors:
                    np.testing.assert_array_equal(store.read(name), weights.read(name))


@given(
    array=numpy_strategies.arrays(
        REAL, numpy_strategies.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=6)
    ),
    filters=st.fixed_dictionaries(
        {},
        optional={
            "compression": st.just("gzip"),
            "shuffle": st.just(True),
            "fletcher32": st.just(True),
            "chunks": st.just(True),
        },
    ),
)
def test_every_real_type_and_filter_is_read_as_h5py_reads_it(
    tmp_path_factory: pytest.TempPathFactory, array: Any, filters: dict[str, Any]
) -> None:
    path = written(tmp_path_factory.mktemp("keras") / "a.h5", {"layer/w": array}, **filters)
    expected = arrays_of(path)["layer/w"]
    with open_checkpoint(path) as store:
        assert store.tensors["layer/w"].dtype == expected.dtype.name
        assert store.tensors["layer/w"].bytes == expected.nbytes
        np.testing.assert_array_equal(store.read("layer/w"), expected.astype(float))


def test_chunks_that_overhang_are_cut(tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((37, 53))
    path = written(tmp_path / "a.h5", {"w": array}, chunks=(8, 10), compression="gzip")
    with open_checkpoint(path) as store:
        np.testing.assert_array_equal(store.read("w"), array)


def test_what_is_small_or_has_no_dimension_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["scalar"] = np.float32(3)
        file["empty"] = np.zeros((0, 4))
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((2,))
        made = h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F64BE, space, compact)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1.0, -2.0]))
    with open_checkpoint(path) as store:
        assert store.read("scalar") == 3
        assert store.read("empty").shape == (0, 4)
        np.testing.assert_array_equal(store.read("compact"), [1, -2])


def test_bfloat16_is_read_where_keras_says_that_it_is(tmp_path: Path) -> None:
    path, array = tmp_path / "a.h5", np.linspace(-2, 2, 9).astype(ml_dtypes.bfloat16)
    with h5py.File(path, "w") as file:
        made = file.create_dataset("layers/dense/vars/0", data=array)
        made.attrs["dtype"] = "bfloat16"
        file.create_dataset("other", data=array)
    with open_checkpoint(path) as store:
        assert store.tensors["dense/vars/0"].dtype == "bfloat16"
        np.testing.assert_array_equal(store.read("dense/vars/0"), array.astype(float))
        assert "other" not in store.tensors
        assert "another type" in store.notes[0]


def test_names_with_backslashes_are_paths(tmp_path: Path) -> None:
    names = [rf"_layer_checkpoint_dependencies\lstm\cell\vars/{i}" for i in range(2)]
    path = written(tmp_path / "a.h5", dict.fromkeys(names, np.eye(2)))
    with open_checkpoint(path) as store:
        assert list(store.tensors) == ["lstm/cell/vars/0", "lstm/cell/vars/1"]


def test_layers_of_the_same_name_keep_their_paths(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", {f"layers/lstm{i}/vars/0": np.eye(2) for i in ("", "_1")})
    with h5py.File(path, "a") as file:
        for group in ("lstm", "lstm_1"):
            file[f"layers/{group}/vars"].attrs["name"] = "twin"
    with open_checkpoint(path) as store:
        assert list(store.tensors) == ["layers/lstm/vars/0", "layers/lstm_1/vars/0"]


def test_attributes_of_a_layer_keep_the_names_that_the_user_gave_them(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", {"encoder/cell/vars/0": np.eye(2), "vars/0": np.eye(3)})
    with h5py.File(path, "a") as file:
        for group, name in (("", "my_model"), ("encoder/", "lstm_7"), ("encoder/cell/", "c")):
            file.require_group(f"{group}vars").attrs["name"] = name
    with open_checkpoint(path) as store:
        assert list(store.tensors) == ["encoder/cell/vars/0", "vars/0"]


def test_soft_links_are_left_alone_and_hard_links_read_once(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", {"g/w": np.eye(2)})
    with h5py.File(path, "a") as file:
        file["g/self"] = file["g"]
        file["soft"] = h5py.SoftLink("/g/w")
    with open_checkpoint(path) as store:
        assert [name.split("/")[-1] for name in store.tensors] == ["w"]
        assert "soft links, 1 in all" in store.notes[0]


@pytest.mark.parametrize("kind", ["truncated", "data", "plug-in"])
def test_what_cannot_be_read_gets_its_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.h5"
    written(path, {"w": np.eye(30)}, compression="lzf" if kind == "plug-in" else "gzip")
    content = bytearray(path.read_bytes())
    if kind == "data":
        with h5py.File(path) as file:
            chunk = file["w"].id.get_chunk_info(0)
        content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(content[:-100] if kind == "truncated" else content)
    message = {"data": "decompressed", "plug-in": "filter 32000"}
    with (
        pytest.raises(CheckpointError, match=message.get(kind, kind)),
        open_checkpoint(path) as store,
    ):
        store.read("w")


KINDS = ("hdf5", "archive")


def test_a_dataset_under_two_names_of_hdf5_is_read_under_both(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a/kernel"], file["a/bias"] = np.eye(3), np.arange(3.0)
        file["b/kernel"] = 2 * np.eye(3)
        file["b/bias"] = file["a/bias"]
        file["c"] = file["b"]
        file["b/within"] = file["b"]
    with open_checkpoint(tmp_path / "a.h5") as store:
        # A group is read under one of its names.
        whole = next(name for name in ("b", "c") if f"{name}/kernel" in store.tensors)
        assert set(store.tensors) == {"a/kernel", "a/bias", f"{whole}/kernel", f"{whole}/bias"}
        assert dict(store.aliases) == {f"{whole}/bias": "a/bias"}
        for name in ("a/bias", f"{whole}/bias"):
            np.testing.assert_array_equal(store.read(name), np.arange(3.0))
        assert store.bytes_read == 24


def test_weights_by_layer_name_lose_the_repetition(trained: Path) -> None:
    path = trained / "textgenrnn_cudnnlstm" / "textgenrnn_weights.hdf5"
    with open_checkpoint(path) as store:
        assert list(store.tensors)[1:4] == [
            "rnn_1/kernel",
            "rnn_1/recurrent_kernel",
            "rnn_1/bias",
        ]
        assert store.metadata == {"keras_version": "2.1.5"}
