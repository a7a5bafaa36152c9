"""HDF5's object headers, B-trees and heaps, in the forms that h5py and Keras write.

https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html (File Format Specification 3.0).
Groups of many links or attributes have dense storage: a version 2 B-tree of records, each of which
names an object in a fractal heap, whose blocks double in size from row to row (III.G).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memcurse_cli.checkpoints.untrusted.source import File

UNDEFINED = 2**64 - 1
MAX_RECORDS = 1_000_000
MAX_DEPTH = 32
MAX_OBJECT_BYTES = 1 << 24
LINK_NAMES, ATTRIBUTE_NAMES, CHUNKS, FILTERED_CHUNKS = 5, 8, 10, 11
# A signature, a version and a type at the start, and a checksum at the end of each node.
_NODE_OVERHEAD = 10
_MANAGED, _TINY = 0, 2


def unpack(layout: str, content: bytes | bytearray, offset: int = 0) -> tuple[Any, ...]:
    """Little-endian integers."""
    try:
        return struct.unpack_from(f"<{layout}", content, offset)
    except struct.error as error:
        raise ValueError("one of its fields ends too early") from error


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
        body = bytes(file.read(address + 24, used * size))
        for position in range(0, len(body), size):
            entry = unpack(layout, body, position)
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
        for position in range(6, 6 + count * width, width):
            yield node[position : position + width]
        position = 6 + count * width
        for _ in range(count + 1 if level else 0):
            (child,) = unpack("Q", node, position)
            used = int.from_bytes(node[position + 8 : position + 8 + counted], "little")
            pending.append((child, used, level - 1))
            position += pointers[level]


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
            row, size = 0, self._start
            while offset >= size * self._width:
                offset -= size * self._width
                row += 1
                # The first two rows have blocks of the same size.
                size = self._start << max(0, row - 1)
            if row >= rows:
                break
            column, offset = divmod(offset, size)
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
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Datatype:
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


def first_message(messages: Messages, kind: int) -> bytes | None:
    """The content of the first message of a kind."""
    return next((body for other, body in messages if other == kind), None)


def parse_space(body: bytes) -> tuple[Shape | None, Shape]:
    """The dimensions in a dataspace message, and what they may grow to; None where it is null.

    `UNDEFINED` stands for no limit.
    """
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
