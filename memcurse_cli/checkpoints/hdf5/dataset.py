"""An HDF5 dataset: where its elements lie, and how they are read.

Elements are contiguous, part of the header, or in chunks, which may be deflated, shuffled and
checksummed. Chunks are listed by version 1 B-trees, or since HDF5 1.10 by one of the indices of the
File Format Specification 3.0, VII. Whatever would lie outside the file is refused.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.hdf5.header import (
    CHUNKS,
    DATASPACE,
    DATATYPE,
    EXTERNAL_FILES,
    FILTERED_CHUNKS,
    FILTERS,
    LAYOUT,
    UNDEFINED,
    Messages,
    Shape,
    first_message,
    parse_datatype,
    parse_space,
    structure,
    text_attribute,
    tree_entries,
    tree_records,
    unpack,
)
from memcurse_cli.checkpoints.store import TensorSpec, decode, element_count
from memcurse_cli.checkpoints.untrusted.archive import (
    LARGE_BLOCK,
    MAX_DEFLATE_RATIO,
    MAX_LARGE_RATIO,
)
from memcurse_cli.checkpoints.untrusted.source import ByteRange, Bytes, File, InlineBytes

MAX_CHUNKS = 250_000
TREE_1, SINGLE, IMPLICIT, FIXED, EXTENSIBLE, TREE_2 = range(6)
# How many bytes each index has of its own before its address.
_PARAMETERS = {IMPLICIT: 0, FIXED: 1, EXTENSIBLE: 5, TREE_2: 6}
_LIST = "list of chunks"


class Chunk(NamedTuple):
    """One stored chunk: its corner in the dataset, where it lies, and the filters it skips."""

    corner: Shape
    address: int
    size: int
    skipped: int


class Chunking(NamedTuple):
    """How a dataset is cut into chunks: their extent, and what lists them or the only one."""

    extent: Shape
    kind: int
    address: int
    single: tuple[int, int] | None = None  # size and skipped filters of the only one


def parse_chunking(body: bytes) -> Chunking:
    """The chunks of a layout message."""
    version = body[0]
    if version == 3:
        rank, address = unpack("BQ", body, 2)
        return Chunking(unpack(f"{rank}I", body, 11)[:-1], TREE_1, address)
    flags, rank, width = unpack("BBB", body, 2)
    position = 5 + rank * width
    if flags & 1:
        raise ValueError("its chunks at the edge skip their filters, which h5py does not write")
    if not 0 < width <= 8 or rank > 33:
        raise ValueError("its chunks have an impossible shape")
    sizes = [int.from_bytes(body[at : at + width], "little") for at in range(5, position, width)]
    (index,) = unpack("B", body, position)
    position += 1
    single = None
    if index == SINGLE and flags & 2:
        size, skipped = unpack("QI", body, position)
        single = (size, skipped)
        position += 12
    elif index != SINGLE and index not in _PARAMETERS:
        raise ValueError("its chunks are listed in an unknown way")
    (address,) = unpack("Q", body, position + _PARAMETERS.get(index, 0))
    return Chunking(tuple(sizes[:-1]), index, address, single)


def chunks_of(
    file: File, chunking: Chunking, shape: Shape, limits: Shape, size: int
) -> list[Chunk]:
    """Every chunk that is stored; ``size`` is the bytes of one without filters."""
    extent, index, address, _ = chunking
    if address == UNDEFINED:
        return []
    if index == TREE_1:
        return _tree_1(file, address, len(shape))
    if index == TREE_2:
        return list(_tree_2(file, address, extent, size))
    entry = _entries(file, chunking, size)
    numbered = sorted(_numbered(shape, limits, extent, index))
    chunks = (Chunk(corner, *entry(number)) for number, corner in numbered)
    return [chunk for chunk in chunks if chunk.address != UNDEFINED]


def _numbered(
    shape: Shape, limits: Shape, extent: Shape, index: int
) -> Iterator[tuple[int, Shape]]:
    """The number of each chunk in its index, and its corner."""
    grid = [-(-most // n) for most, n in zip(limits, extent, strict=True)]
    order = list(range(len(shape)))
    if index == EXTENSIBLE and UNDEFINED in limits:
        # The dimension that grows comes first, so that the others give the step.
        first = limits.index(UNDEFINED)
        order.insert(0, order.pop(first))
    steps = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        steps[axis] = step
        step *= grid[axis]
    places = (range(-(-most // n)) for most, n in zip(shape, extent, strict=True))
    for place in itertools.product(*places):
        number = sum(at * step for at, step in zip(place, steps, strict=True))
        yield number, tuple(at * n for at, n in zip(place, extent, strict=True))


def _entries(file: File, chunking: Chunking, size: int) -> Callable[[int], tuple[int, int, int]]:
    """What gives a chunk's address, size and skipped filters by its number."""
    _, index, address, single = chunking
    if index == SINGLE:
        return lambda number: (address, *(single or (size, 0)))
    if index == IMPLICIT:
        return lambda number: (address + number * size, size, 0)
    array = (FixedArray if index == FIXED else ExtensibleArray)(file, address)
    return lambda number: _decoded(array.element(number), size)


def _decoded(element: bytes, size: int) -> tuple[int, int, int]:
    """An address, alone or with the size of what is compressed and the filters that it skips."""
    if not element:
        return UNDEFINED, 0, 0
    (address,) = unpack("Q", element)
    if len(element) == 8:
        return address, size, 0
    if not 12 < len(element) <= 20:
        raise ValueError("its list of chunks has entries of an unknown size")
    (skipped,) = unpack("I", element, len(element) - 4)
    return address, int.from_bytes(element[8:-4], "little"), skipped


def _tree_1(file: File, root: int, rank: int) -> list[Chunk]:
    found: list[Chunk] = []
    entries = tree_entries(file, root, 1, f"II{rank + 2}Q", _LIST)
    for size, skipped, *corner, _, address in entries:
        found.append(Chunk(tuple(corner), address, size, skipped))
        if len(found) > MAX_CHUNKS:
            raise ValueError("its list of chunks leads back to itself")
    return found


def _tree_2(file: File, address: int, extent: Shape, size: int) -> Iterator[Chunk]:
    """The records of a version 2 B-tree: an entry, then the place of the chunk in the grid."""
    (kind,) = structure(file, address, b"BTHD", "xB", _LIST)
    if kind not in (CHUNKS, FILTERED_CHUNKS):
        raise ValueError(f"there is no list of chunks at byte {address}")
    for record in tree_records(file, address, kind):
        split = len(record) - 8 * len(extent)
        if split < 8 or (kind == CHUNKS) != (split == 8):
            raise ValueError("its list of chunks has entries of an unknown size")
        place = unpack(f"{len(extent)}Q", record, split)
        corner = tuple(at * n for at, n in zip(place, extent, strict=True))
        yield Chunk(corner, *_decoded(record[:split], size))


class _Array:
    """Elements of one size in blocks, of which the last one read is kept."""

    def __init__(self, file: File, width: int, page_bits: int) -> None:
        self._file, self._width, self._page = file, width, 1 << page_bits
        self._block, self._start = b"", -1

    def _at(self, block: int, index: int, count: int) -> bytes:
        """An element of the block of ``count`` elements at an address."""
        if block != self._start:
            self._block = bytes(self._file.read(block, count * self._width))
            self._start = block
        return self._block[index * self._width : (index + 1) * self._width]

    def _in_block(self, start: int, number: int, count: int, bits: int | None, bit: int) -> bytes:
        """An element of a data block, in pages where it is large, of which each has a checksum.

        The map at ``bits`` says, from its ``bit`` on, which pages there are.
        """
        if count <= self._page:
            return self._at(start, number, count)
        page, index = divmod(number, self._page)
        if bits is not None:
            (byte,) = self._file.read(bits + (bit + page) // 8, 1)
            if not byte >> (7 - (bit + page) % 8) & 1:
                return b""
        left = min(self._page, count - page * self._page)
        return self._at(start + 4 + page * (self._page * self._width + 4), index, left)


class FixedArray(_Array):
    """As many elements as the dataset can have chunks, in pages where they are many."""

    def __init__(self, file: File, address: int) -> None:
        layout = structure(file, address, b"FAHD\0", "xBBQQ", _LIST)
        width, bits, self._count, self._data = layout
        if not width or bits > 32:
            raise ValueError(f"there is no list of chunks at byte {address}")
        super().__init__(file, width, bits)
        if self._data != UNDEFINED:
            structure(file, self._data, b"FADB", "", _LIST)

    def element(self, number: int) -> bytes:
        """The element of a number; nothing where it was never set."""
        if number >= self._count:
            raise ValueError("its list of chunks is too short")
        if self._data == UNDEFINED:
            return b""
        bits = self._data + 14
        pages = -(-self._count // self._page) if self._count > self._page else 0
        return self._in_block(bits + -(-pages // 8), number, self._count, bits, 0)


class ExtensibleArray(_Array):
    """Elements in an index block, then in data blocks that grow, which super blocks list.

    The sizes follow from the header's parameters alone (H5EAhdr.c, H5EA__hdr_init).
    """

    def __init__(self, file: File, address: int) -> None:
        width, bits, self._inside, self._least, pointers, page, self._index = structure(
            file, address, b"EAHD\0", "x6B48xQ", _LIST
        )
        if not width or bits > 64:
            raise ValueError(f"there is no list of chunks at byte {address}")
        if not all(n and not n & (n - 1) for n in (self._least, pointers)):
            raise ValueError("its list of chunks has an impossible shape")
        super().__init__(file, width, page)
        # What stands before the elements of a data block, and the maps of a super block.
        self._prefix = 14 + -(-bits // 8)
        self._levels = 1 + bits - (self._least.bit_length() - 1)
        # So many levels have their data blocks in the index block, the rest in super blocks.
        self._direct = 2 * (pointers.bit_length() - 1)
        self._direct_blocks = 2 * (pointers - 1)
        if self._index != UNDEFINED:
            structure(file, self._index, b"EAIB", "", _LIST)

    def element(self, number: int) -> bytes:
        """The element of a number; nothing where it was never set."""
        if self._index == UNDEFINED:
            return b""
        start = self._index + 14
        if number < self._inside:
            return self._at(start, number, self._inside)
        start += self._inside * self._width
        number -= self._inside
        first = 0
        for level in range(self._levels):
            blocks, each = 1 << level // 2, self._least << (level + 1) // 2
            if number < blocks * each:
                break
            number -= blocks * each
            first += blocks
        else:
            raise ValueError("its list of chunks is too short")
        block, number = divmod(number, each)
        bits, pages, pointers = None, 0, start + 8 * first
        if level >= self._direct:
            place = self._pointer(start + 8 * (self._direct_blocks + level - self._direct))
            if place == UNDEFINED:
                return b""
            structure(self._file, place, b"EASB", "", _LIST)
            # One map lists the pages of all data blocks, bit after bit.
            bits = place + self._prefix
            pages = each // self._page if each > self._page else 0
            pointers = bits + blocks * -(-pages // 8)
        place = self._pointer(pointers + 8 * block)
        if place == UNDEFINED:
            return b""
        return self._in_block(place + self._prefix, number, each, bits, block * pages)

    def _pointer(self, place: int) -> int:
        return int.from_bytes(self._file.read(place, 8), "little")


DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
_COMPACT, _CONTIGUOUS, _CHUNKED, _VIRTUAL = 0, 1, 2, 3
# The third is of every library; the fourth and fifth are those of libver='latest'.
_LAYOUTS = (3, 4, 5)
_NOT_NUMBERS = ("", "opaque", "text", "variable text")


class Dataset:
    """A dataset, whose ``spec`` is None where it holds something else than numbers."""

    def __init__(self, file: File, messages: Messages) -> None:
        self._file = file
        self.spec: TensorSpec | None = None
        self._content: Bytes = InlineBytes(b"")
        self._chunking: Chunking | None = None
        self._parse_layout(first_message(messages, LAYOUT) or b"")
        if first_message(messages, EXTERNAL_FILES) is not None:
            raise ValueError("it keeps its elements in another file, which is not opened")
        self._filters = _filters(first_message(messages, FILTERS))
        space, datatype = first_message(messages, DATASPACE), first_message(messages, DATATYPE)
        if space is None or datatype is None:
            return
        self._type = parse_datatype(datatype)
        shape, self._limits = parse_space(space)
        kind = self._type.kind
        if kind == "opaque" and self._type.size == 2:
            # Keras stores a bfloat16 as two opaque bytes, and says so.
            kind = "bfloat16" if text_attribute(file, messages, "dtype") == "bfloat16" else ""
        if shape is None or kind in _NOT_NUMBERS:
            return
        self.spec = TensorSpec(shape, kind, element_count(shape) * self._type.size)
        if self._chunking is not None:
            self._check_chunks(self.spec, self._chunking)
        elif self.spec.bytes > self._content.size:
            raise ValueError(f"it claims {self.spec.bytes} bytes and has {self._content.size}")

    def load(self) -> NDArray[Any]:
        """Every element, as float64."""
        assert self.spec is not None
        if self._chunking is not None and self.spec.bytes:
            return self._assemble(self.spec, self._chunking)
        content = self._content.read(0, self.spec.bytes)
        return decode(content, self.spec.dtype, self.spec.shape, self._type.big_endian)

    def _parse_layout(self, body: bytes) -> None:
        version, kind = unpack("BB", body)
        if kind == _VIRTUAL:
            raise ValueError("it is a view of other files, which are not opened")
        if version not in _LAYOUTS:
            raise ValueError(f"its elements have layout {version}, which no library writes")
        if kind == _COMPACT:
            (size,) = unpack("H", body, 2)
            self._content = InlineBytes(body[4 : 4 + size])
        elif kind == _CONTIGUOUS:
            address, size = unpack("QQ", body, 2)
            size = min(size, self._file.size - address)
            if size > 0:  # nothing was ever written where the address is undefined
                self._content = ByteRange(self._file, address, size)
        elif kind == _CHUNKED:
            self._chunking = parse_chunking(body)
        else:
            raise ValueError("its elements have an unknown layout")

    def _check_chunks(self, spec: TensorSpec, chunking: Chunking) -> None:
        extent = chunking.extent
        if len(extent) != len(spec.shape) or 0 in extent:
            raise ValueError("its chunks do not fit its shape")
        count = element_count(tuple(-(-n // c) for n, c in zip(spec.shape, extent, strict=True)))
        # A chunk is inflated as a whole, however little of it belongs to the dataset.
        self._chunk_bytes = element_count(extent) * self._type.size
        inflated = max(spec.bytes, self._chunk_bytes)
        ratio = 1
        if any(identity == DEFLATE for identity, _ in self._filters):
            ratio = MAX_LARGE_RATIO if inflated > LARGE_BLOCK else MAX_DEFLATE_RATIO
        # All but the chunks that need no index are listed by an address each.
        listed = 0 if chunking.kind in (SINGLE, IMPLICIT) else 8 * count
        most = self._file.size
        if count > MAX_CHUNKS or listed > most or inflated > most * ratio:
            raise ValueError(
                f"it claims {spec.bytes} bytes in {count} chunks, and the file has {most} bytes"
            )

    def _assemble(self, spec: TensorSpec, chunking: Chunking) -> NDArray[Any]:
        extent, shape = chunking.extent, spec.shape
        corners = (range(0, n, c) for n, c in zip(shape, extent, strict=True))
        missing = set(itertools.product(*corners))
        chunks = chunks_of(self._file, chunking, shape, self._limits, self._chunk_bytes)
        if missing != {chunk.corner for chunk in chunks} or len(missing) != len(chunks):
            raise ValueError(f"it has {len(chunks)} chunks of the {len(missing)} that it needs")
        array = np.empty(shape)
        for chunk in chunks:
            content = self._unfilter(bytes(self._file.read(chunk.address, chunk.size)), chunk)
            part = decode(content, spec.dtype, extent, self._type.big_endian)
            inside = tuple(slice(at, at + n) for at, n in zip(chunk.corner, extent, strict=True))
            # A chunk may reach beyond the edge.
            array[inside] = part[tuple(slice(n) for n in array[inside].shape)]
        return array

    def _unfilter(self, content: bytes, chunk: Chunk) -> bytes:
        for index, (identity, values) in reversed(list(enumerate(self._filters))):
            if chunk.skipped >> index & 1:
                continue
            if identity == FLETCHER32:
                content = content[:-4]
            elif identity == DEFLATE:
                try:
                    content = zlib.decompressobj().decompress(content, self._chunk_bytes + 4)
                except zlib.error as error:
                    raise ValueError(f"a chunk cannot be decompressed ({error})") from error
            else:
                width = values[0] if values else self._type.size
                if width > 1 and len(content) % width == 0:
                    content = np.frombuffer(content, np.uint8).reshape(width, -1).T.tobytes()
        if len(content) != self._chunk_bytes:
            raise ValueError(f"a chunk has {len(content)} bytes and needs {self._chunk_bytes}")
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
