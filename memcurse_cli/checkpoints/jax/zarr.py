"""Zarr arrays of version 2 and 3: a JSON description, and one value for each chunk of the grid.

https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html and …/v3/core/index.html, as far as
TensorStore writes them for Orbax; in version 3 also several chunks in one value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.store import (
    ELEMENT_TYPES,
    decode,
    element_bytes,
    element_count,
    spec_of,
)
from memcurse_cli.checkpoints.untrusted.archive import check_ratio, decompress_zstd, inflate
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import ByteRange, Bytes, naturals
from memcurse_cli.errors import CheckpointError

MAX_DIMENSIONS = 32
MAX_CHUNKS = 1_000_000
# A chunk that is not stored has the fill value; this bounds what such chunks may allocate.
MAX_FILLED_ELEMENTS = 1 << 24
VERSION_2, VERSION_3 = ".zarray", "zarr.json"
DECOMPRESSORS: dict[str, Callable[[bytes, int], bytes]] = {
    "zstd": decompress_zstd,
    "gzip": inflate,
    "zlib": inflate,
}
_TYPE = re.compile(r"([<>|])([biufc])(1|2|4|8|16)")
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_CHECKSUM_BYTES = 4
_ABSENT = [2**64 - 1, 2**64 - 1]

Shape = tuple[int, ...]
Find = Callable[[str], Bytes | None]


class _Encoding(NamedTuple):
    """How the elements of one chunk become bytes."""

    dtype: str
    big_endian: bool = False
    fortran: bool = False
    compression: str = ""
    checksum: bool = False

    def decode(self, content: bytes, shape: Shape) -> NDArray[Any]:
        size = element_count(shape) * element_bytes(self.dtype)
        if self.checksum:
            content = content[:-_CHECKSUM_BYTES]
        if self.compression:
            content = DECOMPRESSORS[self.compression](content, size)
        if len(content) != size:
            raise ValueError(f"a chunk has {len(content)} bytes and needs {size}")
        return decode(content, self.dtype, shape, self.big_endian, self.fortran)


# What the names of chunks begin with, what joins their parts, the chunks' shape and encoding.
_Layout = tuple[str, Any, Shape, _Encoding]


class ZarrArray:
    """One array: its description, and what finds the bytes of a key, None where there are none."""

    def __init__(self, description: dict[str, Any], find: Find) -> None:
        version = description.get("zarr_format")
        if version not in (2, 3):
            raise ValueError(f"it has the unknown zarr_format {printable(str(version), 40)}")
        self._find, self._fill = find, description.get("fill_value")
        shape = _shape(description.get("shape"))
        self._inner: Shape | None = None  # the chunks of a shard
        self._prefix, self._separator, self._chunk, self._encoding = (
            _version_2(description) if version == 2 else self._version_3(description)
        )
        if self._separator not in (".", "/"):
            raise ValueError("its chunks have names that are not read")
        # Larger ones than the array would let a short description claim any amount of memory.
        if len(self._chunk) != len(shape) or any(
            n > max(1, size) for n, size in zip(self._chunk, shape, strict=True)
        ):
            raise ValueError("its chunks do not fit its shape")
        self.spec = spec_of(shape, self._encoding.dtype)

    def _version_3(self, description: dict[str, Any]) -> _Layout:
        dtype = description.get("data_type")
        if not isinstance(dtype, str) or dtype not in ELEMENT_TYPES:
            raise ValueError(
                f"it has the element type {printable(str(dtype), 40)}, which is not read"
            )
        grid, settings = _named(description.get("chunk_grid"))
        if grid != "regular":
            raise ValueError("its chunks do not form a regular grid")
        chunk = _chunk_shape(settings.get("chunk_shape"))
        keys, how = _named(description.get("chunk_key_encoding"))
        prefix, separator = ("c", "/") if keys == "default" else ("", ".")
        separator = how.get("separator", separator)
        codecs = description.get("codecs")
        names = [_named(codec) for codec in codecs] if isinstance(codecs, list) else []
        if len(names) == 1 and names[0][0] == "sharding_indexed":
            settings = names[0][1]
            codecs = settings.get("codecs")
            self._inner = inner = _chunk_shape(settings.get("chunk_shape"))
            if len(inner) != len(chunk) or any(a % b for a, b in zip(chunk, inner, strict=True)):
                raise ValueError("the chunks of a shard do not fill it")
            index = _codecs(settings.get("index_codecs"), "uint64")
            if index.big_endian or index.compression:
                raise ValueError("the index of a shard is encoded in a way that is not read")
            self._index_first = settings.get("index_location", "end") == "start"
            self._index_checksum = index.checksum
        return prefix, separator, chunk, _codecs(codecs, dtype)

    def __call__(self) -> NDArray[Any]:
        """The elements."""
        try:
            return self._read()
        except ValueError as error:
            raise CheckpointError(
                f"a corrupt zarr array: {error}", remedy="copy or download the checkpoint again"
            ) from error

    def _read(self) -> NDArray[Any]:
        shape = self.spec.shape
        size = self._chunk if self._inner is None else self._inner
        found = list(self._chunks())
        stored = len(found) * element_count(size)
        count = element_count(shape)
        if count - stored > MAX_FILLED_ELEMENTS:
            raise ValueError(f"it claims {printable(str(count), 40)} elements and stores {stored}")
        check_ratio(self.spec.bytes, sum(content.size for _, content in found))
        kind = np.complex128 if self.spec.dtype.startswith("complex") else np.float64
        # Orbax may leave out chunks whose elements all have the fill value.
        array = np.full(shape, _filled(self._fill) if stored < count else 0, kind)
        for start, content in found:
            block = self._encoding.decode(bytes(content.read(0, content.size)), size)
            inside = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
            # The last chunk of a row may reach beyond the array.
            array[inside] = block[tuple(slice(n) for n in array[inside].shape)]
        return array

    def _chunks(self) -> Iterator[tuple[Shape, Bytes]]:
        """Where each stored chunk begins, and its bytes."""
        for index in _grid(self.spec.shape, self._chunk):
            names = [self._prefix] if self._prefix else []
            key = self._separator.join([*names, *map(str, index)]) or "0"
            content = self._find(key)
            start = tuple(i * n for i, n in zip(index, self._chunk, strict=True))
            if content is None:
                continue
            if self._inner is None:
                yield start, content
                continue
            for inside, part in self._parts(content, self._inner):
                yield tuple(a + b for a, b in zip(start, inside, strict=True)), part

    def _parts(self, shard: Bytes, inner: Shape) -> Iterator[tuple[Shape, Bytes]]:
        indices = list(_grid(self._chunk, inner))
        size = 16 * len(indices)
        total = size + (_CHECKSUM_BYTES if self._index_checksum else 0)
        if shard.size < total:
            raise ValueError("a shard is shorter than its index")
        table = shard.read(0 if self._index_first else shard.size - total, size)
        pairs = np.frombuffer(table, "<u8").reshape(-1, 2).tolist()
        stored = [(at, *pair) for at, pair in zip(indices, pairs, strict=True) if pair != _ABSENT]
        if sum(length for *_, length in stored) > shard.size:
            raise ValueError("the chunks of a shard overlap or reach beyond it")
        for index, offset, length in stored:
            if offset + length > shard.size:
                raise ValueError("a chunk reaches beyond its shard")
            start = tuple(i * n for i, n in zip(index, inner, strict=True))
            # A chunk beyond the array's edge belongs to no element.
            yield start, ByteRange(shard, offset, length)


def _grid(shape: Shape, chunk: Shape) -> Iterator[Shape]:
    counts = [-(-size // part) for size, part in zip(shape, chunk, strict=True)]
    if element_count(tuple(counts)) > MAX_CHUNKS:
        raise ValueError(f"it has more than {MAX_CHUNKS} chunks")
    return product(*map(range, counts))


def _version_2(description: dict[str, Any]) -> _Layout:
    chunk = _chunk_shape(description.get("chunks"))
    if description.get("filters"):
        raise ValueError("its elements are filtered, which is not read")
    dtype, big_endian = _version_2_type(description.get("dtype"))
    compressor = description.get("compressor")
    name = compressor.get("id") if isinstance(compressor, dict) else None
    compression = "" if compressor is None else _known_compression(name)
    encoding = _Encoding(dtype, big_endian, description.get("order") == "F", compression)
    return "", description.get("dimension_separator", "."), chunk, encoding


def _codecs(codecs: object, dtype: str) -> _Encoding:
    names = [_named(codec) for codec in codecs] if isinstance(codecs, list) else []
    if not names or names[0][0] != "bytes":
        raise ValueError("its codecs do not begin with bytes, which is not read")
    big_endian = names[0][1].get("endian") == "big"
    checksum = names[-1][0] == "crc32c"
    middle = [name for name, _ in (names[1:-1] if checksum else names[1:])]
    if len(middle) > 1:
        raise ValueError("its chunks are compressed twice, which is not read")
    compression = _known_compression(middle[0]) if middle else ""
    return _Encoding(dtype, big_endian, compression=compression, checksum=checksum)


def _named(entry: object) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, dict) and isinstance(entry.get("name"), str):
        configuration = entry.get("configuration", {})
        if isinstance(configuration, dict):
            return entry["name"], configuration
    raise ValueError("its description is malformed")


def _version_2_type(dtype: object) -> tuple[str, bool]:
    if isinstance(dtype, str):
        match = _TYPE.fullmatch(dtype)
        if match:
            order, kind, size = match.groups()
            name = "bool" if kind == "b" else f"{_KINDS[kind]}{8 * int(size)}"
            if name in ELEMENT_TYPES and (kind != "b" or size == "1"):
                return name, order == ">"
        elif dtype in ELEMENT_TYPES:  # TensorStore's extension: bfloat16, float8_e4m3fn
            return dtype, False
    raise ValueError(f"it has the element type {printable(str(dtype), 40)}, which is not read")


def _known_compression(name: object) -> str:
    if not isinstance(name, str) or name not in DECOMPRESSORS:
        raise ValueError(
            f"its chunks are compressed by {printable(str(name), 40)}; "
            f"{', '.join(DECOMPRESSORS)} are read"
        )
    return name


def _shape(values: object) -> Shape:
    sizes = naturals(values)
    if sizes is None or len(sizes) > MAX_DIMENSIONS:
        raise ValueError("it has no valid shape")
    return sizes


def _chunk_shape(values: object) -> Shape:
    chunk = _shape(values)
    if 0 in chunk:
        raise ValueError("it has chunks without elements")
    return chunk


def _filled(value: object) -> complex:
    if value is None:
        return 0
    if isinstance(value, list) and len(value) == 2:
        return complex(_real(value[0]), _real(value[1]))
    return _real(value)


def _real(value: object) -> float:
    # Python's float knows the three texts that stand for numbers which JSON has not.
    if isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise ValueError(f"it has the fill value {printable(str(value), 40)}, which is not read")
