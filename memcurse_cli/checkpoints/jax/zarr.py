"""Zarr arrays of version 2 and 3: a JSON description, and one value for each chunk of the grid.

https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html and …/v3/core/index.html, as far as
TensorStore writes them for Orbax: zstd, gzip or no compression; in version 3 also several chunks
in one value (``sharding_indexed``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

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
_ABSENT = 2**64 - 1

Shape = tuple[int, ...]
Find = Callable[[str], Bytes | None]


@dataclass(frozen=True)
class _Encoding:
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


@dataclass(frozen=True)
class _Layout:
    """What an array's description says."""

    shape: Shape
    chunk: Shape
    encoding: _Encoding
    fill: object
    key: Callable[[Shape], str]
    inner: Shape | None = None
    index_first: bool = False
    index_checksum: bool = True


class ZarrArray:
    """One array."""

    def __init__(self, description: dict[str, Any], find: Find) -> None:
        version = description.get("zarr_format")
        if version not in (2, 3):
            raise ValueError(f"it has the unknown zarr_format {printable(str(version), 40)}")
        self._layout = (_version_2 if version == 2 else _version_3)(description)
        self._find = find
        shape, dtype = self._layout.shape, self._layout.encoding.dtype
        self.spec = spec_of(shape, dtype)

    def __call__(self) -> NDArray[Any]:
        """The elements."""
        try:
            return self._read()
        except ValueError as error:
            raise CheckpointError(
                f"a corrupt zarr array: {error}", remedy="copy or download the checkpoint again"
            ) from error

    def _read(self) -> NDArray[Any]:
        layout = self._layout
        size = layout.chunk if layout.inner is None else layout.inner
        found = list(self._chunks())
        stored = len(found) * element_count(size)
        count = element_count(layout.shape)
        if count - stored > MAX_FILLED_ELEMENTS:
            raise ValueError(f"it claims {printable(str(count), 40)} elements and stores {stored}")
        check_ratio(self.spec.bytes, sum(content.size for _, content in found))
        kind = np.complex128 if layout.encoding.dtype.startswith("complex") else np.float64
        # Orbax may leave out chunks whose elements all have the fill value.
        array = np.full(layout.shape, _fill(layout.fill) if stored < count else 0, kind)
        for start, content in found:
            block = layout.encoding.decode(bytes(content.read(0, content.size)), size)
            room = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
            # The last chunk of a row may reach beyond the array.
            inside = zip(start, size, layout.shape, strict=True)
            array[room] = block[tuple(slice(max(0, min(n, end - a))) for a, n, end in inside)]
        return array

    def _chunks(self) -> Iterator[tuple[Shape, Bytes]]:
        """Where each stored chunk begins, and its bytes."""
        layout = self._layout
        for index in _grid(layout.shape, layout.chunk):
            content = self._find(layout.key(index))
            start = tuple(i * n for i, n in zip(index, layout.chunk, strict=True))
            if content is None:
                continue
            if layout.inner is None:
                yield start, content
                continue
            for inside, part in self._parts(content, layout.inner):
                yield tuple(a + b for a, b in zip(start, inside, strict=True)), part

    def _parts(self, shard: Bytes, inner: Shape) -> Iterator[tuple[Shape, Bytes]]:
        layout = self._layout
        indices = list(_grid(layout.chunk, inner))
        size = 16 * len(indices)
        total = size + (_CHECKSUM_BYTES if layout.index_checksum else 0)
        if shard.size < total:
            raise ValueError("a shard is shorter than its index")
        table = shard.read(0 if layout.index_first else shard.size - total, size)
        pairs = np.frombuffer(table, "<u8").reshape(-1, 2).tolist()
        stored = sum(length for offset, length in pairs if (offset, length) != (_ABSENT, _ABSENT))
        if stored > shard.size:
            raise ValueError("the chunks of a shard overlap or reach beyond it")
        for index, (offset, length) in zip(indices, pairs, strict=True):
            if (offset, length) == (_ABSENT, _ABSENT):
                continue
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
    shape, chunk = _shape(description.get("shape")), _chunk_shape(description.get("chunks"))
    if description.get("filters"):
        raise ValueError("its elements are filtered, which is not read")
    dtype, big_endian = _version_2_type(description.get("dtype"))
    compressor = description.get("compressor")
    name = compressor.get("id") if isinstance(compressor, dict) else None
    encoding = _Encoding(
        dtype,
        big_endian,
        fortran=description.get("order") == "F",
        compression="" if compressor is None else _known_compression(name),
    )
    separator = description.get("dimension_separator", ".")
    return replace(_layout(description, shape, chunk, "", separator), encoding=encoding)


def _version_3(description: dict[str, Any]) -> _Layout:
    dtype = description.get("data_type")
    if not isinstance(dtype, str) or dtype not in ELEMENT_TYPES:
        raise ValueError(f"it has the element type {printable(str(dtype), 40)}, which is not read")
    shape = _shape(description.get("shape"))
    grid, settings = _named(description.get("chunk_grid"))
    if grid != "regular":
        raise ValueError("its chunks do not form a regular grid")
    chunk = _chunk_shape(settings.get("chunk_shape"))
    keys, how = _named(description.get("chunk_key_encoding"))
    separator = how.get("separator", "/" if keys == "default" else ".")
    prefix = "c" if keys == "default" else ""
    codecs = description.get("codecs")
    layout = _layout(description, shape, chunk, prefix, separator)
    names = [_named(codec) for codec in codecs] if isinstance(codecs, list) else []
    if len(names) != 1 or names[0][0] != "sharding_indexed":
        return replace(layout, encoding=_codecs(codecs, dtype))
    settings = names[0][1]
    inner = _chunk_shape(settings.get("chunk_shape"))
    if len(inner) != len(chunk) or any(a % b for a, b in zip(chunk, inner, strict=True)):
        raise ValueError("the chunks of a shard do not fill it")
    index = _codecs(settings.get("index_codecs"), "uint64")
    if index.big_endian or index.compression:
        raise ValueError("the index of a shard is encoded in a way that is not read")
    return replace(
        layout,
        encoding=_codecs(settings.get("codecs"), dtype),
        inner=inner,
        index_first=settings.get("index_location", "end") == "start",
        index_checksum=index.checksum,
    )


def _layout(
    description: dict[str, Any], shape: Shape, chunk: Shape, prefix: str, separator: object
) -> _Layout:
    """The layout but for its encoding."""
    if separator not in (".", "/"):
        raise ValueError("its chunks have names that are not read")
    # Larger chunks than the array would let a short description claim any amount of memory.
    if len(chunk) != len(shape) or any(n > max(1, s) for n, s in zip(chunk, shape, strict=True)):
        raise ValueError("its chunks do not fit its shape")

    def key(index: Shape) -> str:
        parts = ([prefix] if prefix else []) + [str(i) for i in index]
        return str(separator).join(parts) or "0"

    return _Layout(shape, chunk, _Encoding(""), description.get("fill_value"), key)


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


def _fill(value: object) -> complex:
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
