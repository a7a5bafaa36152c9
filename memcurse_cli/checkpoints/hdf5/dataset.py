"""HDF5's objects and their datasets: what their headers say, and where the elements lie.

Elements are contiguous, part of the header, or in chunks, which may be deflated, shuffled and
checksummed. Chunks are listed by version 1 B-trees, or since HDF5 1.10 by one of the indices of the
File Format Specification 3.0, VII. Whatever would lie outside the file is refused. Groups of many
links or attributes have dense storage: a version 2 B-tree of records, each of which names an object
in a fractal heap, whose blocks double in size from row to row (III.G).
https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from memcurse_cli.checkpoints.store import Array, Shape, TensorSpec, assembled, decode
from memcurse_cli.checkpoints.untrusted.archive import inflate, largest_ratio
from memcurse_cli.checkpoints.untrusted.source import ByteRange, Bytes, Cursor, File, InlineBytes

UNDEFINED = 2**64 - 1
MAX_RECORDS = 1_000_000
MAX_DEPTH = 32
MAX_OBJECT_BYTES = 1 << 24
LINK_NAMES, ATTRIBUTE_NAMES, CHUNKS, FILTERED_CHUNKS = 5, 8, 10, 11
# A signature, a version and a type at the start, and a checksum at the end of each node.
_NODE_OVERHEAD = 10
_MANAGED, _TINY = 0, 2


class Fields(Cursor):
    """Little-endian integers, one after another."""

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count > self.left:
            raise ValueError("one of its fields ends too early")
        return super().take(count)

    def unpack(self, layout: str) -> tuple[Any, ...]:
        """The next integers."""
        return struct.unpack(f"<{layout}", self.take(struct.calcsize(f"<{layout}")))


def unpack(layout: str, content: bytes, offset: int = 0) -> tuple[Any, ...]:
    """The integers at an offset."""
    return Fields(content, offset).unpack(layout)


def structure(file: File, address: int, mark: bytes, layout: str, what: str) -> tuple[Any, ...]:
    """The integers that follow a mark at an address."""
    content = bytes(file.read(address, len(mark) + struct.calcsize(f"<{layout}")))
    if not content.startswith(mark):
        raise ValueError(f"there is no {what} at byte {address}")
    return unpack(layout, content, len(mark))


def tree_entries(
    file: File, root: int, kind: int, layout: str, what: str
) -> Iterator[tuple[Any, ...]]:
    """The entries of a version 1 B-tree's leaves, in any order: a key and the child after it."""
    size = struct.calcsize(f"<{layout}")
    pending, seen = [root], set[int]()
    while pending:
        address = pending.pop()
        if address in seen or len(seen) > MAX_RECORDS:
            raise ValueError(f"its {what} leads back to itself")
        seen.add(address)
        level, used = structure(file, address, b"TREE" + bytes([kind]), "BH", what)
        for entry in struct.iter_unpack(f"<{layout}", file.read(address + 24, used * size)):
            if level:
                pending.append(entry[-1])
            else:
                yield entry


def tree_records(file: File, address: int, kind: int) -> Iterator[bytes]:
    """The records of a version 2 B-tree."""
    mark = b"BTHD\0" + bytes([kind])
    node_size, width, depth, root, count, total = structure(
        file, address, mark, "IHH2xQHQ", "list of names or chunks"
    )
    if not width or width + _NODE_OVERHEAD > node_size or depth > MAX_DEPTH:
        raise ValueError("a list of names or chunks has an impossible shape")
    if total > MAX_RECORDS:
        raise ValueError(f"a list claims {total} entries, more than {MAX_RECORDS}")
    # How many records a node of each depth has room for, and all below it.
    room = [(node_size - _NODE_OVERHEAD) // width]
    below = [room[0]]
    counted = _bytes_for(room[0])
    pointers = [0]
    for level in range(1, depth + 1):
        pointers.append(8 + counted + (_bytes_for(below[-1]) if level > 1 else 0))
        free = node_size - _NODE_OVERHEAD - pointers[level]
        room.append(max(0, free) // (width + pointers[level]))
        below.append((room[level] + 1) * below[-1] + room[level])
    pending = [(root, count, depth)] if root != UNDEFINED else []
    seen: set[int] = set()
    while pending:
        place, count, level = pending.pop()
        if place in seen or len(seen) > MAX_RECORDS:
            raise ValueError("a list of names or chunks leads back to itself")
        seen.add(place)
        if count > room[level]:
            raise ValueError(f"a node claims {count} entries and has room for {room[level]}")
        node = bytes(file.read(place, node_size))
        if node[:4] != (b"BTIN" if level else b"BTLF"):
            raise ValueError(f"there is no node of a list at byte {place}")
        fields = Fields(node, 6)
        for _ in range(count):
            yield fields.take(width)
        for _ in range(count + 1 if level else 0):
            child = fields.position
            pending.append((fields.number(8), fields.number(counted), level - 1))
            fields.position = child + pointers[level]


class FractalHeap:
    """A heap of small objects."""

    def __init__(self, file: File, address: int) -> None:
        self._file = file
        # Sizes of huge and tiny objects and of free space stand between.
        filters, largest, self._width, self._start, self._direct, bits, self._root, self._rows = (
            structure(file, address, b"FRHP\0", "2xHxI96xHQQH2xQH", "heap")
        )
        if filters:
            raise ValueError("it compresses its names, which h5py does not")
        sizes = (self._start, self._direct)
        powers = all(n and not n & (n - 1) for n in sizes)
        if not self._width or bits > 64 or not powers or self._direct < self._start:
            raise ValueError(f"the heap at byte {address} has an impossible shape")
        self._offset_bytes = -(-bits // 8)
        block = -(-(self._direct.bit_length() - 1) // 8)
        self._length_bytes = min(block, _bytes_for(largest))
        self._direct_rows = self._direct.bit_length() - self._start.bit_length() + 2

    def object(self, identity: bytes) -> bytes | None:
        """The object of this identity; None where it is a huge one, stored by itself."""
        if not identity or identity[0] >> 6:
            raise ValueError("a name in a heap has an unknown form")
        kind = identity[0] >> 4 & 3
        if kind == _TINY:
            return identity[1 : 2 + (identity[0] & 15)]
        if kind != _MANAGED:
            return None
        middle = 1 + self._offset_bytes
        offset = int.from_bytes(identity[1:middle], "little")
        length = int.from_bytes(identity[middle : middle + self._length_bytes], "little")
        if length > MAX_OBJECT_BYTES:
            raise ValueError(f"an object in a heap claims {length} bytes")
        return bytes(self._file.read(self._place(offset), length))

    def _place(self, offset: int) -> int:
        """Where a position in the heap's own space lies in the file."""
        address, rows = self._root, self._rows
        for _ in range(MAX_DEPTH):
            if address == UNDEFINED:
                break
            if not rows:
                return int(address + offset)
            # The first two rows have blocks of the same size, so that row n holds as much as all
            # before it.
            row = (offset // (self._start * self._width)).bit_length()
            size = self._start << max(0, row - 1)
            if row >= rows:
                break
            column, offset = divmod(offset - (size * self._width if row else 0), size)
            # Signature, version, the heap's address and the block's own offset come first.
            entry = address + 13 + self._offset_bytes + 8 * (row * self._width + column)
            if bytes(self._file.read(address, 4)) != b"FHIB":
                break
            (address,) = unpack("Q", bytes(self._file.read(entry, 8)))
            first = (self._start * self._width).bit_length()
            rows = 0 if row < self._direct_rows else size.bit_length() - first + 1
            if row >= self._direct_rows and rows < 1:
                break
        raise ValueError("an object lies in no block of its heap")


def _bytes_for(largest: int) -> int:
    """How many bytes a number up to this takes."""
    return max(1, -(-largest.bit_length() // 8))


def dense_objects(
    file: File, body: bytes, order_bytes: int, kind: int, start: int
) -> Iterator[bytes | None]:
    """The objects in the heap that a message of information on links or attributes names.

    ``order_bytes`` is what the order of creation takes in it where that is kept, ``kind`` the
    B-tree's, and ``start`` where in a record of it the object's identity begins.
    """
    (flags,) = unpack("xB", body)
    address, names = unpack("QQ", body, 2 + (order_bytes if flags & 1 else 0))
    if address != UNDEFINED:
        heap = FractalHeap(file, address)
        for record in tree_records(file, names, kind):
            yield heap.object(record[start : start + 8])


MAX_MESSAGES = 100_000
MAX_PARTS = 1000
MAX_TEXT_BYTES = 100_000_000

DATASPACE, LINK_INFO, DATATYPE, LINK, EXTERNAL_FILES, LAYOUT = 1, 2, 3, 6, 7, 8
FILTERS, ATTRIBUTE, CONTINUATION, SYMBOL_TABLE, ATTRIBUTE_INFO = 11, 12, 16, 17, 21

_FIXED, _FLOAT, _STRING, _OPAQUE, _ENUM, _VARIABLE = 0, 1, 3, 5, 8, 9
_KINDS = {_STRING: "text", _OPAQUE: "opaque", _ENUM: "bool", _VARIABLE: "variable text"}
# By size in bytes, bits of the exponent and bits of the mantissa.
_FLOATS = {
    (2, 5, 10): "float16", (2, 8, 7): "bfloat16", (4, 8, 23): "float32", (8, 11, 52): "float64",
}  # fmt: skip

Messages = list[tuple[int, bytes]]


class Datatype(Struct, frozen=True):
    """The type of one element."""

    kind: str  # a NumPy name, ``opaque``, ``text``, ``variable text``, or "" for any other
    size: int  # bytes per element
    big_endian: bool = False  # the byte order


def read_messages(file: File, address: int) -> Messages:
    """The type and content of every message of the object header at an address."""
    start = bytes(file.read(address, 16))
    dense = start.startswith(b"OHDR")  # version 2
    if dense:
        version, flags = unpack("BB", start, 4)
        place = address + 6 + (16 if flags & 32 else 0) + (4 if flags & 16 else 0)
        width = 1 << (flags & 3)
        length = int.from_bytes(file.read(place, width), "little")
        place, count = place + width, MAX_MESSAGES
        # The order of creation may follow.
        layout, head = "BHB", 6 if flags & 4 else 4
    else:
        version, count, length = unpack("BxH4xI", start)
        place, layout, head = address + 16, "HHB", 8
    if version != (2 if dense else 1):
        raise ValueError(f"there is no object header at byte {address}")
    messages: Messages = []
    # The first part, and those that its messages say it continues in.
    parts: list[tuple[Any, ...]] = [(place, length)]
    seen: set[int] = set()
    for number, (place, length) in enumerate(parts):
        if number > MAX_PARTS:
            raise ValueError(f"an object header has more than {MAX_PARTS} parts")
        if place in seen:
            raise ValueError("an object header continues where it has begun")
        seen.add(place)
        content = bytes(file.read(place, length))
        if dense and number:
            if not content.startswith(b"OCHK"):
                raise ValueError("an object header does not continue where it says")
            content = content[4:-4]  # without its checksum
        position = 0
        while position + head <= len(content) and len(messages) < count:
            kind, size, flags = unpack(layout, content, position)
            body = content[position + head : position + head + size]
            position += head + size
            # A shared message, such as a committed type, has its content in another object.
            messages.append((-1 if flags & 2 else kind, body))
            if messages[-1][0] == CONTINUATION:
                parts.append(unpack("QQ", body))
    return messages


def first_messages(messages: Messages) -> dict[int, bytes]:
    """The content of the first message of each kind."""
    return dict(reversed(messages))


def parse_space(body: bytes) -> tuple[Shape | None, Shape]:
    """The dimensions of a dataspace and their limits (`UNDEFINED`: none); None where it is null."""
    version, rank, flags = unpack("BBB", body)
    if version not in (1, 2) or rank > 32:
        raise ValueError("a dataspace of an unknown version")
    if version == 2 and body[3:4] == b"\x02":
        return None, ()
    start = 8 if version == 1 else 4
    shape = unpack(f"{rank}Q", body, start)
    return shape, unpack(f"{rank}Q", body, start + 8 * rank) if flags & 1 else shape


def parse_datatype(body: bytes) -> Datatype:
    """The element type in a datatype message."""
    first, bits, _, _, size = unpack("BBBBI", body)
    kind, big_endian = first & 15, bool(bits & 1)
    if kind == _FIXED:
        _, precision = unpack("HH", body, 8)
        if size in (1, 2, 4, 8) and precision == 8 * size:
            return Datatype(f"{'' if bits & 8 else 'u'}int{precision}", size, big_endian)
    elif kind == _FLOAT and not bits & 64:
        _, _, _, exponent, _, mantissa = unpack("HHBBBB", body, 8)
        return Datatype(_FLOATS.get((size, exponent, mantissa), ""), size, big_endian)
    elif (kind == _ENUM and size != 1) or (kind == _VARIABLE and bits & 15 != 1):
        return Datatype("", size)
    return Datatype(_KINDS.get(kind, ""), size)


def text_attribute(file: File, messages: Messages, name: str) -> str:
    """The value of a text attribute that holds one text; "" where there is none."""
    for body in _attributes(file, messages):
        version, _, *sizes = unpack("BBHHH", body)
        step = 8 if version == 1 else 1
        position = 9 if version == 3 else 8
        parts = []
        for size in sizes:
            parts.append(body[position : position + size])
            position += -(-size // step) * step
        if parts[0].rstrip(b"\0") == name.encode() and parse_space(parts[2])[0] in ((), (1,)):
            datatype = parse_datatype(parts[1])
            if datatype.kind == "text":
                return _decode(body[position : position + datatype.size])
            if datatype.kind == "variable text":
                size, collection, index = unpack("IQI", body, position)
                return _decode(_heap_object(file, collection, index, size)) if size else ""
    return ""


def _attributes(file: File, messages: Messages) -> Iterator[bytes]:
    """The attribute messages, in the header or in a heap."""
    for kind, body in messages:
        if kind == ATTRIBUTE:
            yield body
        elif kind == ATTRIBUTE_INFO:
            found = dense_objects(file, body, 2, ATTRIBUTE_NAMES, 0)
            yield from (attribute for attribute in found if attribute is not None)


def _decode(content: bytes) -> str:
    return content.rstrip(b"\0").decode("utf-8", "replace")


def _heap_object(file: File, address: int, wanted: int, size: int) -> bytes:
    """The first bytes of an object of a global heap collection."""
    (total,) = structure(file, address, b"GCOL", "4xQ", "heap of texts")
    if size > MAX_TEXT_BYTES:
        raise ValueError(f"there is no heap of texts at byte {address}")
    position = 16
    for _ in range(MAX_MESSAGES):
        if position + 16 > total:
            break
        index, _, _, length = unpack("HHIQ", bytes(file.read(address + position, 16)))
        if index == wanted and size <= length:
            return bytes(file.read(address + position + 16, size))
        position += 16 + -(-length // 8) * 8
    raise ValueError(f"the heap of texts at byte {address} lacks one of them")


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
    fields = Fields(body, 2)
    flags, rank, width = fields.unpack("BBB")
    if flags & 1:
        raise ValueError("its chunks at the edge skip their filters, which h5py does not write")
    if not 0 < width <= 8 or rank > 33:
        raise ValueError("its chunks have an impossible shape")
    sizes = [fields.number(width) for _ in range(rank)]
    index, single = fields.number(1), None
    if index == SINGLE and flags & 2:
        single = (fields.number(8), fields.number(4))
    elif index != SINGLE and index not in _PARAMETERS:
        raise ValueError("its chunks are listed in an unknown way")
    fields.position += _PARAMETERS.get(index, 0)
    return Chunking(tuple(sizes[:-1]), index, fields.number(8), single)


def chunks_of(
    file: File, chunking: Chunking, shape: Shape, limits: Shape, size: int
) -> list[Chunk]:
    """Every chunk that is stored; ``size`` is the bytes of one without filters."""
    extent, index, address = chunking[:3]
    if address == UNDEFINED:
        return []
    if index == TREE_1:
        listed = tree_entries(file, address, 1, f"II{len(shape) + 2}Q", _LIST)
        entries = list(islice(listed, MAX_CHUNKS + 1))
        if len(entries) > MAX_CHUNKS:
            raise ValueError("its list of chunks leads back to itself")
        return [Chunk(tuple(corner), at, n, skipped) for n, skipped, *corner, _, at in entries]
    if index == TREE_2:
        return list(_tree_2(file, address, extent, size))
    numbered = sorted(_numbered(shape, limits, extent, index))
    if index == SINGLE:
        places = [(address, *(chunking.single or (size, 0)))] * len(numbered)
    elif index == IMPLICIT:
        places = [(address + number * size, size, 0) for number, _ in numbered]
    else:
        array = (FixedArray if index == FIXED else ExtensibleArray)(file, address)
        places = [_decoded(array.element(number), size) for number, _ in numbered]
    chunks = (Chunk(corner, *place) for (_, corner), place in zip(numbered, places, strict=True))
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
    places = (range(-(-most // n)) for most, n in zip(shape, extent, strict=True))
    for place in product(*places):
        number = 0
        for axis in order:
            number = number * grid[axis] + place[axis]
        yield number, tuple(at * n for at, n in zip(place, extent, strict=True))


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
        # Each level has twice the elements of the one before.
        level = (number // self._least + 1).bit_length() - 1
        if level >= self._levels:
            raise ValueError("its list of chunks is too short")
        blocks, each = 1 << level // 2, self._least << (level + 1) // 2
        first = sum(1 << before // 2 for before in range(level))
        block, number = divmod(number - self._least * ((1 << level) - 1), each)
        bits, pages, pointers = None, 0, start + 8 * first
        if level >= self._direct:
            entry = start + 8 * (self._direct_blocks + level - self._direct)
            (place,) = structure(self._file, entry, b"", "Q", _LIST)
            if place == UNDEFINED:
                return b""
            structure(self._file, place, b"EASB", "", _LIST)
            # One map lists the pages of all data blocks, bit after bit.
            bits = place + self._prefix
            pages = each // self._page if each > self._page else 0
            pointers = bits + blocks * -(-pages // 8)
        (place,) = structure(self._file, pointers + 8 * block, b"", "Q", _LIST)
        if place == UNDEFINED:
            return b""
        return self._in_block(place + self._prefix, number, each, bits, block * pages)


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
        held = first_messages(messages)
        self._layout = self._parse_layout(held[LAYOUT])
        if EXTERNAL_FILES in held:
            raise ValueError("it keeps its elements in another file, which is not opened")
        self._filters = _filters(held[FILTERS]) if FILTERS in held else []
        if not held.keys() >= {DATASPACE, DATATYPE}:
            return
        self._type = parse_datatype(held[DATATYPE])
        shape, self._limits = parse_space(held[DATASPACE])
        kind = self._type.kind
        if kind == "opaque" and self._type.size == 2:
            # Keras stores a bfloat16 as two opaque bytes, and says so.
            kind = "bfloat16" if text_attribute(file, messages, "dtype") == "bfloat16" else ""
        if shape is None or kind in _NOT_NUMBERS:
            return
        self.spec = TensorSpec(shape, kind, math.prod(shape) * self._type.size)
        if isinstance(self._layout, Chunking):
            self._check_chunks(self.spec, self._layout)
        elif self.spec.bytes > self._layout.size:
            raise ValueError(f"it claims {self.spec.bytes} bytes and has {self._layout.size}")

    def load(self) -> Array:
        """Every element, as float64."""
        assert self.spec is not None
        if not self.spec.bytes:
            return np.zeros(self.spec.shape)
        if isinstance(self._layout, Chunking):
            return self._assemble(self.spec, self._layout)
        content = self._layout.read(0, self.spec.bytes)
        return decode(content, self.spec.dtype, self.spec.shape, self._type.big_endian)

    def _parse_layout(self, body: bytes) -> Bytes | Chunking:
        version, kind = unpack("BB", body)
        if kind == _VIRTUAL:
            raise ValueError("it is a view of other files, which are not opened")
        if version not in _LAYOUTS:
            raise ValueError(f"its elements have layout {version}, which no library writes")
        if kind == _COMPACT:
            (size,) = unpack("H", body, 2)
            return InlineBytes(body[4 : 4 + size])
        if kind == _CONTIGUOUS:
            address, size = unpack("QQ", body, 2)
            # Nothing was ever written where the address is undefined.
            return ByteRange(self._file, address, max(0, min(size, self._file.size - address)))
        if kind == _CHUNKED:
            return parse_chunking(body)
        raise ValueError("its elements have an unknown layout")

    def _check_chunks(self, spec: TensorSpec, chunking: Chunking) -> None:
        extent = chunking.extent
        if len(extent) != len(spec.shape) or 0 in extent:
            raise ValueError("its chunks do not fit its shape")
        count = math.prod(-(-n // c) for n, c in zip(spec.shape, extent, strict=True))
        # A chunk is inflated as a whole, however little of it belongs to the dataset.
        self._chunk_bytes = math.prod(extent) * self._type.size
        inflated = max(spec.bytes, self._chunk_bytes)
        deflated = any(identity == DEFLATE for identity, _ in self._filters)
        ratio = largest_ratio(inflated) if deflated else 1
        # All but the chunks that need no index are listed by an address each.
        listed = 0 if chunking.kind in (SINGLE, IMPLICIT) else 8 * count
        most = self._file.size
        if count > MAX_CHUNKS or listed > most or inflated > most * ratio:
            claim = f"it claims {spec.bytes} bytes in {count} chunks"
            raise ValueError(f"{claim}, and the file has {most} bytes")

    def _assemble(self, spec: TensorSpec, chunking: Chunking) -> Array:
        extent, shape = chunking.extent, spec.shape
        corners = (range(0, n, c) for n, c in zip(shape, extent, strict=True))
        missing = set(product(*corners))
        chunks = chunks_of(self._file, chunking, shape, self._limits, self._chunk_bytes)
        if missing != {chunk.corner for chunk in chunks} or len(missing) != len(chunks):
            raise ValueError(f"it has {len(chunks)} chunks of the {len(missing)} that it needs")
        big_endian = self._type.big_endian
        parts = (
            (chunk.corner, decode(self._unfiltered(chunk), spec.dtype, extent, big_endian))
            for chunk in chunks
        )
        return assembled(spec, parts)

    def _unfiltered(self, chunk: Chunk) -> bytes:
        content = bytes(self._file.read(chunk.address, chunk.size))
        for index, (identity, values) in reversed(list(enumerate(self._filters))):
            if chunk.skipped >> index & 1:
                continue
            if identity == FLETCHER32:
                content = content[:-4]
            elif identity == DEFLATE:
                content = inflate(content, self._chunk_bytes + 4)
            else:
                width = values[0] if values else self._type.size
                if width > 1 and len(content) % width == 0:
                    content = np.frombuffer(content, np.uint8).reshape(width, -1).T.tobytes()
        if len(content) != self._chunk_bytes:
            raise ValueError(f"a chunk has {len(content)} bytes and needs {self._chunk_bytes}")
        return content


def _filters(body: bytes) -> list[tuple[int, tuple[int, ...]]]:
    """The filters in the order in which they were applied, and their values."""
    fields = Fields(body)
    version, count = fields.unpack("BB")
    if version not in (1, 2):
        raise ValueError("its filters are of an unknown version")
    fields.position = 8 if version == 1 else 2
    filters: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(count):
        identity = fields.number(2)
        if identity not in (DEFLATE, SHUFFLE, FLETCHER32):
            raise ValueError(f"it is compressed by filter {identity}, which needs a plug-in")
        # Version 2 leaves out the names of the filters that everyone has, and all padding.
        length = fields.number(2) if version == 1 else 0
        _, values = fields.unpack("HH")
        fields.position += -(-length // 8) * 8
        filters.append((identity, fields.unpack(f"{values}I")))
        fields.position += 4 * (values % 2) if version == 1 else 0
    return filters
