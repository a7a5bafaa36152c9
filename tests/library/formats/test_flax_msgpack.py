"""Flax's msgpack files, against flax.serialization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from checkpoints import readers
from checkpoints.readers import same
from flax import serialization

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.errors import CheckpointError

TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
)


def saved(tree: Any, directory: Path) -> TensorStore:
    path = directory / "checkpoint_7"
    path.write_bytes(serialization.to_bytes(tree))
    return open_checkpoint(path)


def flat(tree: Any, path: tuple[str, ...] = ()) -> dict[str, np.ndarray[Any, Any]]:
    if isinstance(tree, dict):
        parts = (flat(child, (*path, key)) for key, child in tree.items())
        return {name: array for part in parts for name, array in part.items()}
    return {"/".join(path): tree} if isinstance(tree, np.ndarray | np.generic) else {}


@pytest.mark.parametrize("path", readers.files("msgpack"), ids=readers.label)
def test_every_shared_file_agrees_with_flax(path: Path) -> None:
    with open_checkpoint(path) as store:
        assert store.format == "Flax msgpack"
        assert store.bytes_read == 0
        same(store, flat(serialization.msgpack_restore(path.read_bytes())))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_is_read_as_flax_reads_it(tmp_path: Path, dtype: Any) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    tree = {"a": {"matrix": array, "scalar": array[1, 1], "empty": array[:0], "t": array.T}}
    with saved(tree, tmp_path) as store:
        same(store, flat(tree))


@pytest.mark.parametrize("size", [1, 15, 16, 17, 300])
def test_maps_lists_and_names_of_every_length(tmp_path: Path, size: int) -> None:
    tree = {"x" * size: {f"layer_{i}": np.full((i % 5,), i) for i in range(size)}}
    with saved(tree, tmp_path) as store:
        same(store, flat(tree))
    tree = {"layers": [np.ones(3)] * size, "text": "y" * size, "bytes": b"z" * size}
    (tmp_path / "list").write_bytes(serialization.msgpack_serialize(tree))
    with open_checkpoint(tmp_path / "list") as store:
        assert list(store.tensors) == [f"layers/{i}" for i in range(size)]


def test_an_array_of_chunks_is_joined_and_what_is_no_number_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 100)
    tree = {"long": np.arange(91.0).reshape(7, 13), "short": np.ones(3)}
    other = {"epoch": 3, "loss": -0.5, "z": 1j, "done": True, "name": "run", "none": None}
    other |= {"words": np.array(["a", "b"]), "deep": {"negative": -70000}}
    with saved(tree | other, tmp_path) as store:
        same(store, tree)


def test_only_what_is_read_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = readers.lengths_read(monkeypatch)
    tree = {f"layer_{i}": {"big": np.zeros(200_000), "bias": np.ones(4)} for i in range(8)}
    with saved(tree, tmp_path) as store:
        store.read("layer_5/bias")
        assert store.bytes_read == 32
        assert sum(touched) < 100_000 < store.bytes


def array(shape: Any = (2,), dtype: Any = "float32", content: Any = bytes(8)) -> msgpack.ExtType:
    return msgpack.ExtType(1, msgpack.packb((shape, dtype, content)))


CHUNKED = {"__msgpack_chunked_array__": True}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (msgpack.packb({"w": array()})[:-3], "before the 8 bytes that follow"),
        (msgpack.packb({"w": array()}) + b"\0", "1 bytes follow its end"),
        (msgpack.packb({"epoch": 3}), "holds no weights"),
        (msgpack.packb({"w": array((-2,))}), "not of natural numbers"),
        (msgpack.packb({"w": array((1,) * 65)}), "shape is not of natural numbers"),
        (msgpack.packb({"w": array((2,), None)}), "without a type"),
        (msgpack.packb({"w": array((2,), "float32", "text")}), "without elements"),
        (msgpack.packb({"w": msgpack.ExtType(1, b"\x93\x90\xa1f\xc4\x20")}), "before the 32 bytes"),
        (msgpack.packb({"w": msgpack.ExtType(1, b"\x01\x02")}), "malformed array"),
        (b"\x81\xa1w\xc1", "unknown mark 0xc1"),
        (b"\x82\xa1w\x01\x02\x03", "a key that is not text"),
        (b"\x82\xa1w\x01\xa1\xff\x03", "not UTF-8"),
        (msgpack.packb({"w": CHUNKED | {"shape": {"0": 9}}}), "malformed array of chunks"),
        (
            msgpack.packb({"w": CHUNKED | {"shape": {"0": 10**9}, "chunks": {"0": array()}}}),
            "chunks do not fill its shape",
        ),
    ],
    ids=range(14),
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "a.msgpack"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(path)
