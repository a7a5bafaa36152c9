"""Keras's files, and HDF5 of every version, against what h5py reads of the same file."""

from __future__ import annotations

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

from memcurse_cli.checkpoints.hdf5 import dataset as hdf5_dataset
from memcurse_cli.checkpoints.hdf5.dataset import chunks_of
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


def test_layers_have_the_names_that_the_user_gave_them(zoo: Path, trained: Path) -> None:
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
    path = trained / "textgenrnn_cudnnlstm" / "textgenrnn_weights.hdf5"
    with open_checkpoint(path) as store:  # of weights by layer, without the repetition
        assert list(store.tensors)[1:4] == ["rnn_1/kernel", "rnn_1/recurrent_kernel", "rnn_1/bias"]
        assert store.metadata == {"keras_version": "2.1.5"}


@given(numpy_strategies.arrays(REAL, numpy_strategies.array_shapes(max_dims=4, max_side=6)))
def test_every_real_type_is_read_as_h5py_reads_it(
    tmp_path_factory: pytest.TempPathFactory, array: Any
) -> None:
    path = written(tmp_path_factory.mktemp("keras") / "a.h5", {"layer/w": array})
    expected = arrays_of(path)["layer/w"]
    with open_checkpoint(path) as store:
        assert store.tensors["layer/w"].dtype == expected.dtype.name
        assert store.tensors["layer/w"].bytes == expected.nbytes
        np.testing.assert_array_equal(store.read("layer/w"), expected.astype(float))


def test_what_is_small_or_of_bfloat16_where_keras_says_so_is_read(tmp_path: Path) -> None:
    path, array = tmp_path / "a.h5", np.linspace(-2, 2, 9).astype(ml_dtypes.bfloat16)
    with h5py.File(path, "w") as file:
        file["scalar"] = np.float32(3)
        file["empty"] = np.zeros((0, 4))
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((2,))
        made = h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F64BE, space, compact)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1.0, -2.0]))
        said = file.create_dataset("layers/dense/vars/0", data=array)
        said.attrs["dtype"] = "bfloat16"
        file.create_dataset("other", data=array)
    with open_checkpoint(path) as store:
        assert store.read("scalar") == 3
        assert store.read("empty").shape == (0, 4)
        np.testing.assert_array_equal(store.read("compact"), [1, -2])
        assert store.tensors["dense/vars/0"].dtype == "bfloat16"
        np.testing.assert_array_equal(store.read("dense/vars/0"), array.astype(float))
        assert "other" not in store.tensors
        assert "another type" in store.notes[0]


def test_paths_have_the_names_of_layers_where_they_tell_them_apart(tmp_path: Path) -> None:
    def names(path: Path) -> list[str]:
        with open_checkpoint(path) as store:
            return list(store.tensors)

    stored = [rf"_layer_checkpoint_dependencies\lstm\cell\vars/{i}" for i in range(2)]
    path = written(tmp_path / "a.h5", dict.fromkeys(stored, np.eye(2)))
    assert names(path) == ["lstm/cell/vars/0", "lstm/cell/vars/1"]
    path = written(tmp_path / "b.h5", {f"layers/lstm{i}/vars/0": np.eye(2) for i in ("", "_1")})
    with h5py.File(path, "a") as file:
        for group in ("lstm", "lstm_1"):
            file[f"layers/{group}/vars"].attrs["name"] = "twin"
    assert names(path) == ["layers/lstm/vars/0", "layers/lstm_1/vars/0"]
    # Attributes of a layer keep the names that the user gave them.
    path = written(tmp_path / "c.h5", {"encoder/cell/vars/0": np.eye(2), "vars/0": np.eye(3)})
    with h5py.File(path, "a") as file:
        for group, name in (("", "my_model"), ("encoder/", "lstm_7"), ("encoder/cell/", "c")):
            file.require_group(f"{group}vars").attrs["name"] = name
    assert names(path) == ["encoder/cell/vars/0", "vars/0"]


def test_elements_that_cannot_be_decompressed_get_their_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", {"w": np.eye(30)}, compression="gzip")
    content = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        chunk = file["w"].id.get_chunk_info(0)
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="decompressed"), open_checkpoint(path) as store:
        store.read("w")


def test_a_dataset_under_two_names_of_hdf5_is_read_under_both(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a/kernel"], file["a/bias"] = np.eye(3), np.arange(3.0)
        file["b/kernel"] = 2 * np.eye(3)
        file["b/bias"] = file["a/bias"]
        file["c"] = file["b"]
        file["b/within"] = file["b"]
        file["soft"] = h5py.SoftLink("/a/kernel")
    with open_checkpoint(tmp_path / "a.h5") as store:
        # A group is read under one of its names.
        whole = next(name for name in ("b", "c") if f"{name}/kernel" in store.tensors)
        assert set(store.tensors) == {"a/kernel", "a/bias", f"{whole}/kernel", f"{whole}/bias"}
        assert dict(store.aliases) == {f"{whole}/bias": "a/bias"}
        for name in ("a/bias", f"{whole}/bias"):
            np.testing.assert_array_equal(store.read(name), np.arange(3.0))
        assert store.bytes_read == 24
        assert "soft links, 1 in all" in store.notes[0]


def opened(path: Path, version: str = "latest") -> h5py.File:
    return h5py.File(path, "w", libver=(version, "latest" if version == "earliest" else version))


def check(path: Path, expected: int) -> None:
    """Every dataset is what h5py says, and the file has so many."""
    found = arrays_of(path)
    with open_checkpoint(path) as store:
        assert set(store.tensors) == set(found)
        assert len(found) == expected
        for name, array in found.items():
            np.testing.assert_array_equal(store.read(name), array.astype(float), strict=True)


VERSIONS = ("earliest", "v108", "v110", "v112", "v114", "v200", "latest")


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_and_datasets_of_every_version(tmp_path: Path, version: str) -> None:
    made = np.random.default_rng(0)
    with opened(tmp_path / "a.h5", version) as file:
        file.attrs["keras_version"] = "2.3.1"
        for layer in range(3):
            group = file.create_group(f"layer_{layer}", track_order=layer == 1)
            group.attrs["name"] = f"gru_{layer}"
            group.create_dataset("bias", data=made.random(70).astype("f4"), compression="gzip")
            group.create_dataset("scalar", data=3.0)
            group.create_dataset("none", shape=(0, 4), dtype="f4")
            group.create_dataset("big", data=made.integers(-9, 9, (4, 5)).astype(">i2"))
    check(tmp_path / "a.h5", 12)
    with open_checkpoint(tmp_path / "a.h5") as store:
        assert store.metadata == {"keras_version": "2.3.1"}


FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip", "shuffle": True},
    "fletcher32": {"fletcher32": True},
}
SHAPES = [
    ((7, 5), (7, 5), None),  # one chunk
    ((7, 5), (9, 6), (9, 6)),
    ((70, 50), (7, 9), None),  # a fixed array
    ((70, 50), (7, 9), (90, 80)),
    ((300, 40), (3, 3), None),  # in pages
    ((50,), (4,), (None,)),  # an extensible array
    ((20, 30), (3, 4), (20, None)),
    ((20, 30), (3, 4), (None, 100)),
    ((4000,), (1,), (None,)),  # with super blocks
    ((20, 30), (3, 4), (None, None)),  # a version 2 B-tree
    ((300, 40), (3, 3), (None, None)),
]


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize(("shape", "chunks", "limits"), SHAPES)
@pytest.mark.parametrize("version", ["earliest", "latest"])
def test_every_index_of_chunks(
    tmp_path: Path,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    limits: tuple[int | None, ...] | None,
    filters: dict[str, Any],
    version: str,
) -> None:
    array = np.random.default_rng(0).random(shape)
    with opened(tmp_path / "a.h5", version) as file:
        file.create_dataset("w", data=array, chunks=chunks, maxshape=limits, **filters)
    check(tmp_path / "a.h5", 1)


def test_an_extensible_array_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_chunks = [0, 5, *range(600, 131_000, 7_000), *range(131_500, 140_000, 900)]
    with opened(tmp_path / "a.h5") as file:
        made = file.create_dataset("w", (140_000,), "u1", chunks=(1,), maxshape=(None,))
        for at in written_chunks:
            made[at] = 1
        file["filler"] = np.zeros(150_000)  # so many chunks would not fit into a smaller file
        expected = sorted(
            (info.chunk_offset, info.byte_offset)
            for info in map(made.id.get_chunk_info, range(made.id.get_num_chunks()))
        )
    found: list[Any] = []

    def remembered(*arguments: Any) -> Any:
        found.extend(chunks_of(*arguments))
        return found

    monkeypatch.setattr(hdf5_dataset, "chunks_of", remembered)
    with (
        open_checkpoint(tmp_path / "a.h5") as store,
        pytest.raises(CheckpointError, match="of the"),
    ):
        store.read("w")
    assert [(chunk.corner, chunk.address) for chunk in found] == expected
    assert len(found) == len(written_chunks)


def test_datasets_that_have_grown_or_were_allocated_at_once_without_an_index(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "a.h5") as file:
        for limit in (None, 1000):
            made = file.create_dataset(f"{limit}", (10,), "f4", chunks=(4,), maxshape=(limit,))
            made[:] = 1
            made.resize((500,))
            made[:] = np.arange(500)
        space = h5py.h5s.create_simple((20, 30), (30, 50))
        options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        options.set_chunk((6, 7))
        options.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        early = h5py.h5d.create(file.id, b"w", h5py.h5t.IEEE_F64LE, space, options)
        early.write(h5py.h5s.ALL, h5py.h5s.ALL, np.random.default_rng(0).random((20, 30)))
    check(tmp_path / "a.h5", 3)


@pytest.mark.parametrize("count", [9, 100, 3000])
@pytest.mark.parametrize("length", [1, 60])
def test_many_links_lie_in_a_heap(tmp_path: Path, count: int, length: int) -> None:
    with opened(tmp_path / "a.h5") as file:
        for index in range(count):
            file[f"{'n' * length}{index}"] = float(index)
    check(tmp_path / "a.h5", count)


def test_many_attributes_lie_in_a_heap(tmp_path: Path) -> None:
    config = '{"class_name": "Sequential", "config": {}}'
    with opened(tmp_path / "a.h5") as file:
        for index in range(50):
            file.attrs[f"other {index}"] = "x" * index
        file.attrs["model_config"] = config
        file["w"] = np.eye(2)
        file.attrs["long"] = np.bytes_(b"x" * 70_000)
    with open_checkpoint(tmp_path / "a.h5") as store:
        assert store.metadata == {"model_config": config}


@pytest.mark.parametrize("limits", [(40,), (None,), (None, None)])
def test_chunks_that_were_never_written_are_missed(tmp_path: Path, limits: Any) -> None:
    path = tmp_path / "a.h5"
    with opened(path) as file:
        file.create_dataset(
            "w", (40,) * len(limits), "f4", chunks=(4,) * len(limits), maxshape=limits
        )
        file["filler"] = np.ones(2000)
    with open_checkpoint(path) as store, pytest.raises(CheckpointError, match="has 0 chunks of"):
        store.read("w")
