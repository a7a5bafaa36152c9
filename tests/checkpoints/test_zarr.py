"""Zarr arrays and OCDBT stores, against TensorStore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
from attacks.orbax_files import DESCRIPTION
from checkpoints import readers

from memcurse_cli.checkpoints.jax.orbax import Ocdbt, ZarrArray
from memcurse_cli.checkpoints.untrusted.source import Bytes, InlineBytes, LocalDirectory

ARRAY = np.random.default_rng(0).standard_normal((7, 5)) * 9
TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2"),
)


def written(directory: Path, driver: str, array: Any, element: str, **metadata: Any) -> ZarrArray:
    """What TensorStore stores of an array, opened."""
    if driver == "zarr":  # TensorStore's own default is blosc; Orbax writes zstd
        metadata = {"compressor": {"id": "zstd"}} | metadata
    spec = {"driver": driver, "kvstore": f"file://{directory}/", "metadata": metadata}
    store = tensorstore.open(
        spec, dtype=tensorstore.dtype(element), shape=array.shape, create=True
    ).result()
    store.write(array.astype(store.dtype.numpy_dtype)).result()
    return opened(directory)


def opened(directory: Path) -> ZarrArray:
    def find(key: str) -> Bytes | None:
        path = directory / key
        return InlineBytes(path.read_bytes()) if path.exists() else None

    name = ".zarray" if (directory / ".zarray").exists() else "zarr.json"
    return ZarrArray(json.loads((directory / name).read_text()), find)


def same(read: ZarrArray, array: np.ndarray[Any, Any], dtype: str) -> None:
    expected = array.astype(tensorstore.dtype(dtype).numpy_dtype)
    assert (read.spec.shape, read.spec.dtype) == (array.shape, dtype)
    assert read.spec.bytes == expected.nbytes
    np.testing.assert_array_equal(read(), readers.double(expected), strict=True)


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_read_as_tensorstore_reads_it(
    tmp_path: Path, driver: str, dtype: str
) -> None:
    array = np.abs(ARRAY) if dtype.startswith(("u", "b")) else ARRAY
    same(written(tmp_path, driver, array, dtype), array, dtype)


@pytest.mark.parametrize("compressor", [None, "zstd", "gzip", "zlib"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">i2", "<c16"])
@pytest.mark.parametrize("chunks", [(7, 5), (2, 3), (1, 1)])
def test_version_2(
    tmp_path: Path, compressor: str | None, order: str, dtype: str, chunks: tuple[int, int]
) -> None:
    metadata = {
        "compressor": compressor and {"id": compressor},
        "order": order,
        "dtype": dtype,
        "chunks": chunks,
        "dimension_separator": "/" if order == "F" else ".",
    }
    name = np.dtype(dtype).name
    same(written(tmp_path, "zarr", ARRAY, name, **metadata), ARRAY, name)


CODECS: dict[str, dict[str, Any]] = {
    "little": {"name": "bytes", "configuration": {"endian": "little"}},
    "big": {"name": "bytes", "configuration": {"endian": "big"}},
    "gzip": {"name": "gzip", "configuration": {"level": 5}},
    "zstd": {"name": "zstd", "configuration": {"level": 1}},
    "crc32c": {"name": "crc32c"},
}


@pytest.mark.parametrize("names", ["little", "big", "little gzip", "little zstd crc32c"])
@pytest.mark.parametrize("shard", [None, "start", "end"])
@pytest.mark.parametrize("separator", [".", "/"])
def test_version_3(tmp_path: Path, names: str, shard: str | None, separator: str) -> None:
    chain = [CODECS[name] for name in names.split()]
    if shard:
        index = [CODECS["little"], CODECS["crc32c"]][: 1 if shard == "start" else 2]
        inner = {"chunk_shape": [2, 1], "codecs": chain, "index_codecs": index}
        inner["index_location"] = shard
        chain = [{"name": "sharding_indexed", "configuration": inner}]
    metadata = {
        "codecs": chain,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 3]}},
        "chunk_key_encoding": {
            "name": "default" if separator == "/" else "v2",
            "configuration": {"separator": separator},
        },
    }
    same(written(tmp_path, "zarr3", ARRAY, "float32", **metadata), ARRAY, "float32")


@pytest.mark.parametrize("fill", [None, 0.5, "NaN", [1.0, -2.0]])
def test_a_chunk_that_is_not_stored_has_the_fill_value(tmp_path: Path, fill: Any) -> None:
    array = ARRAY.astype(complex) if isinstance(fill, list) else ARRAY
    dtype = "complex128" if isinstance(fill, list) else "float64"
    read = written(tmp_path, "zarr", array, dtype, chunks=[4, 5])
    description = json.loads((tmp_path / ".zarray").read_text()) | {"fill_value": fill}
    (tmp_path / ".zarray").write_text(json.dumps(description))
    (tmp_path / "1.0").unlink()
    expected = array.copy()
    expected[4:] = complex(*fill) if isinstance(fill, list) else float(fill or 0)
    np.testing.assert_array_equal(opened(tmp_path)(), expected)
    np.testing.assert_array_equal(read.spec.shape, ARRAY.shape)


VALID = DESCRIPTION | {"shape": [4], "chunks": [4]}


@pytest.mark.parametrize(
    ("change", "content", "expected"),
    [
        ({"zarr_format": 4}, None, "unknown zarr_format 4"),
        ({"shape": [-1]}, None, "no valid shape"),
        ({"shape": [1] * 65, "chunks": [1] * 65}, None, "no valid shape"),
        ({"shape": "4"}, None, "no valid shape"),
        ({"chunks": [0]}, None, "chunks without elements"),
        ({"chunks": [10**12]}, None, "chunks do not fit its shape"),
        ({"dtype": "|O"}, None, r"the element type \|O, which is not read"),
        ({"dtype": [["a", "<f4"]]}, None, "which is not read"),
        ({"compressor": {"id": "blosc"}}, None, "compressed by blosc; zstd, gzip, zlib are read"),
        ({"filters": [{"id": "delta"}]}, None, "filtered"),
        ({"dimension_separator": "../"}, None, "names that are not read"),
        ({"fill_value": "0x7fc00000"}, None, "the fill value 0x7fc00000, which is not read"),
        ({}, bytes(15), "a chunk has 15 bytes and needs 16"),
        ({"compressor": {"id": "zstd"}}, b"x", "cannot be decompressed"),
        (
            {"shape": [10**10], "chunks": [10**10], "compressor": {"id": "zstd"}},
            bytes(1000),
            "it claims 40000000000 bytes from 1000 compressed ones",
        ),
    ],
)
def test_a_description_that_is_not_read_and_chunks_that_lie_are_named(
    change: dict[str, Any], content: bytes | None, expected: str
) -> None:
    stored = None if content is None else InlineBytes(content)
    with pytest.raises(ValueError, match=expected):
        ZarrArray(VALID | change, lambda key: stored)()


@pytest.mark.parametrize("inline", [1, 100, 1024])
@pytest.mark.parametrize("node_bytes", [300, 100_000])
@pytest.mark.parametrize("compression", [None, {"id": "zstd"}])
def test_ocdbt_stores_of_every_shape(
    tmp_path: Path, inline: int, node_bytes: int, compression: dict[str, str] | None
) -> None:
    config = {"max_inline_value_bytes": inline, "max_decoded_node_bytes": node_bytes}
    spec = {"driver": "ocdbt", "base": f"file://{tmp_path}/"}
    store = tensorstore.KvStore.open(
        spec | {"config": config | {"compression": compression}}
    ).result()
    expected = {f"params/cell_{i}/{i % 7}": b"x" * (i * 3 % 200) for i in range(150)}
    with tensorstore.Transaction() as transaction:
        for key, value in expected.items():
            store.with_transaction(transaction)[key] = value
    store["later"] = b"another generation"
    del store["params/cell_3/3"]
    del expected["params/cell_3/3"]
    values = Ocdbt(LocalDirectory(tmp_path)).values
    assert {key: bytes(value.read(0, value.size)) for key, value in values.items()} == (
        expected | {"later": b"another generation"}
    )
