"""An HDF5 dataset: where its elements lie, and how they are read.

Elements are contiguous, part of the header, or in chunks, which may be deflated, shuffled and
checksummed. Whatever would lie outside the file is refused.
"""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.elements import decode, element_count
from memcurse_cli.checkpoints.hdf5.chunks import (
    IMPLICIT,
    MAX_CHUNKS,
    SINGLE,
    Chunk,
    Chunking,
    chunks_of,
    parse_chunking,
)
from memcurse_cli.checkpoints.hdf5.dense import UNDEFINED, unpack
from memcurse_cli.checkpoints.hdf5.header import (
    DATASPACE,
    DATATYPE,
    EXTERNAL_FILES,
    FILTERS,
    LAYOUT,
    Messages,
    first_message,
    parse_datatype,
    parse_limits,
    parse_shape,
    text_attribute,
)
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.compression import (
    LARGE_BLOCK,
    MAX_DEFLATE_RATIO,
    MAX_LARGE_RATIO,
)
from memcurse_cli.checkpoints.untrusted.source import File

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
_COMPACT, _CONTIGUOUS, _CHUNKED, _VIRTUAL = 0, 1, 2, 3
# The third is of every library; the fourth and fifth are those of libver='latest'.
_LAYOUTS = (3, 4, 5)
_NOT_NUMBERS = ("", "opaque", "text", "variable text")


class Dataset:
    """A dataset, described by the messages of its header.

    Attributes:
        spec: its shape and type, or None where it holds something else than numbers.

    Raises:
        ValueError: it is damaged, its elements lie outside the file, or need a plug-in.
    """

    def __init__(self, file: File, messages: Messages) -> None:
        self._file = file
        self.spec: TensorSpec | None = None
        self._address = self._stored = 0
        self._inline = b""
        self._chunking: Chunking | None = None
        self._chunk: tuple[int, ...] = ()
        self._limits: tuple[int, ...] = ()
        self._parse_layout(first_message(messages, LAYOUT) or b"")
        if first_message(messages, EXTERNAL_FILES) is not None:
            raise ValueError("it keeps its elements in another file, which is not opened")
        self._filters = _filters(first_message(messages, FILTERS))
        space, datatype = first_message(messages, DATASPACE), first_message(messages, DATATYPE)
        if space is None or datatype is None:
            return
        shape, self._type = parse_shape(space), parse_datatype(datatype)
        self._limits = parse_limits(space)
        kind = self._type.kind
        if kind == "opaque" and self._type.size == 2:
            # Keras stores a bfloat16 as two opaque bytes, and says so.
            kind = "bfloat16" if text_attribute(file, messages, "dtype") == "bfloat16" else ""
        if shape is None or kind in _NOT_NUMBERS:
            return
        self.spec = TensorSpec(shape, kind, element_count(shape) * self._type.size)
        if self._class == _CHUNKED:
            self._check_chunks(self.spec)
        elif self.spec.bytes > self._stored or self._address + self.spec.bytes > file.size:
            raise ValueError(f"it claims {self.spec.bytes} bytes and has {self._stored}")

    def load(self) -> NDArray[Any]:
        """Every element, as float64.

        Raises:
            ValueError: a chunk is missing or damaged.
        """
        assert self.spec is not None
        if self._class == _CHUNKED and self.spec.bytes:
            return self._assemble(self.spec)
        content = self._inline[: self.spec.bytes]
        if self._class == _CONTIGUOUS and self.spec.bytes:
            content = bytes(self._file.read(self._address, self.spec.bytes))
        return decode(content, self.spec.dtype, self.spec.shape, self._type.big_endian)

    def _parse_layout(self, body: bytes) -> None:
        version, self._class = unpack("BB", body)
        if self._class == _VIRTUAL:
            raise ValueError("it is a view of other files, which are not opened")
        if version not in _LAYOUTS:
            raise ValueError(f"its elements have layout {version}, which no library writes")
        if self._class == _COMPACT:
            (size,) = unpack("H", body, 2)
            self._inline = body[4 : 4 + size]
            self._stored = len(self._inline)
        elif self._class == _CONTIGUOUS:
            self._address, self._stored = unpack("QQ", body, 2)
            if self._address == UNDEFINED:  # nothing was ever written
                self._address = self._stored = 0
        elif self._class == _CHUNKED:
            self._chunking = parse_chunking(body)
            self._chunk = self._chunking.extent
        else:
            raise ValueError("its elements have an unknown layout")

    def _check_chunks(self, spec: TensorSpec) -> None:
        if len(self._chunk) != len(spec.shape) or 0 in self._chunk:
            raise ValueError("its chunks do not fit its shape")
        count = element_count(
            tuple(-(-n // c) for n, c in zip(spec.shape, self._chunk, strict=True))
        )
        # A chunk is inflated as a whole, however little of it belongs to the dataset.
        inflated = max(spec.bytes, element_count(self._chunk) * self._type.size)
        ratio = 1
        if any(identity == DEFLATE for identity, _ in self._filters):
            ratio = MAX_LARGE_RATIO if inflated > LARGE_BLOCK else MAX_DEFLATE_RATIO
        # All but the chunks that need no index are listed by an address each.
        listed = 0 if self._chunking and self._chunking.index in (SINGLE, IMPLICIT) else 8 * count
        most = self._file.size
        if count > MAX_CHUNKS or listed > most or inflated > most * ratio:
            raise ValueError(
                f"it claims {spec.bytes} bytes in {count} chunks, and the file has "
                f"{self._file.size} bytes"
            )

    def _assemble(self, spec: TensorSpec) -> NDArray[Any]:
        corners = (range(0, n, c) for n, c in zip(spec.shape, self._chunk, strict=True))
        missing = set(itertools.product(*corners))
        assert self._chunking is not None
        size = element_count(self._chunk) * self._type.size
        chunks = chunks_of(self._file, self._chunking, spec.shape, self._limits, size)
        if missing != {chunk.corner for chunk in chunks} or len(missing) != len(chunks):
            raise ValueError(f"it has {len(chunks)} chunks of the {len(missing)} that it needs")
        array = np.empty(spec.shape)
        for chunk in chunks:
            content = self._unfilter(bytes(self._file.read(chunk.address, chunk.size)), chunk)
            part = decode(content, spec.dtype, self._chunk, self._type.big_endian)
            extent = tuple(
                min(size, whole - start)
                for start, size, whole in zip(chunk.corner, self._chunk, spec.shape, strict=True)
            )
            inside = tuple(
                slice(start, start + n) for start, n in zip(chunk.corner, extent, strict=True)
            )
            array[inside] = part[tuple(slice(n) for n in extent)]
        return array

    def _unfilter(self, content: bytes, chunk: Chunk) -> bytes:
        size = element_count(self._chunk) * self._type.size
        for index, (identity, values) in reversed(list(enumerate(self._filters))):
            if chunk.skipped >> index & 1:
                continue
            if identity == FLETCHER32:
                content = content[:-4]
            elif identity == DEFLATE:
                try:
                    content = zlib.decompressobj().decompress(content, size + 4)
                except zlib.error as error:
                    raise ValueError(f"a chunk cannot be decompressed ({error})") from error
            else:
                width = values[0] if values else self._type.size
                if width > 1 and len(content) % width == 0:
                    content = np.frombuffer(content, np.uint8).reshape(width, -1).T.tobytes()
        if len(content) != size:
            raise ValueError(f"a chunk has {len(content)} bytes and needs {size}")
        return content


def _filters(body: bytes | None) -> list[tuple[int, tuple[int, ...]]]:
    """The filters in the order in which they were applied, and their values."""
    if body is None:
        return []
    version, count = unpack("BB", body)
    if version not in (1, 2):
        raise ValueError("its filters are of an unknown version")
    position = 8 if version == 1 else 2
    filters: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(count):
        (identity,) = unpack("H", body, position)
        if identity not in (DEFLATE, SHUFFLE, FLETCHER32):
            raise ValueError(f"it is compressed by filter {identity}, which needs a plug-in")
        # Version 2 leaves out the names of the filters that everyone has, and all padding.
        if version == 1:
            length, _, values = unpack("HHH", body, position + 2)
            position += 8 + -(-length // 8) * 8
        else:
            _, values = unpack("HH", body, position + 2)
            position += 6
        filters.append((identity, unpack(f"{values}I", body, position)))
        position += 4 * (values + (values % 2 if version == 1 else 0))
    return filters
