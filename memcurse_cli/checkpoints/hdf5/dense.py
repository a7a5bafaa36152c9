"""HDF5's dense storage, which groups of many links or attributes have since version 1.8.

A version 2 B-tree lists records; each names an object in a fractal heap, whose blocks double in
size from row to row (HDF5 File Format Specification 3.0, III.A.2 and III.G).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
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
    """Little-endian integers.

    Raises:
        ValueError: the content ends before that.
    """
    try:
        return struct.unpack_from(f"<{layout}", content, offset)
    except struct.error as error:
        raise ValueError("one of its fields ends too early") from error


def tree_records(file: File, address: int, kind: int) -> Iterator[bytes]:
    """The records of a version 2 B-tree.

    Args:
        file: the file.
        address: of the tree's header.
        kind: the type that the tree must have.

    Raises:
        ValueError: it is damaged, of another type, or leads back to itself.
    """
    header = bytes(file.read(address, 38))
    version, found, node_size, width, depth = unpack("BBIHH", header, 4)
    root, count, total = unpack("QHQ", header, 16)
    if not header.startswith(b"BTHD") or version or found != kind:
        raise ValueError(f"there is no list of names or chunks at byte {address}")
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
    """A heap of small objects.

    Raises:
        ValueError: it is damaged, or its blocks are compressed.
    """

    def __init__(self, file: File, address: int) -> None:
        self._file = file
        header = bytes(file.read(address, 144))
        version, _, filters, _, largest = unpack("BHHBI", header, 4)
        if not header.startswith(b"FRHP") or version:
            raise ValueError(f"there is no heap at byte {address}")
        if filters:
            raise ValueError("it compresses its names, which h5py does not")
        # Sizes of huge and tiny objects and of free space stand between.
        self._width, self._start, self._direct = unpack("HQQ", header, 110)
        bits, _, self._root, self._rows = unpack("HHQH", header, 128)
        sizes = (self._start, self._direct)
        if not self._width or bits > 64 or not all(n and not n & (n - 1) for n in sizes):
            raise ValueError(f"the heap at byte {address} has an impossible shape")
        if self._direct < self._start:
            raise ValueError(f"the heap at byte {address} has an impossible shape")
        self._offset_bytes = -(-bits // 8)
        block = -(-(self._direct.bit_length() - 1) // 8)
        self._length_bytes = min(block, _bytes_for(largest))
        self._direct_rows = self._direct.bit_length() - self._start.bit_length() + 2

    def object(self, identity: bytes) -> bytes | None:
        """The object of this identity; None where it is a huge one, stored by itself.

        Raises:
            ValueError: there is no such object.
        """
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
            row, column, start, size = self._cell(offset)
            if row >= rows:
                break
            # Signature, version, the heap's address and the block's own offset come first.
            entry = address + 13 + self._offset_bytes + 8 * (row * self._width + column)
            if bytes(self._file.read(address, 4)) != b"FHIB":
                break
            (address,) = unpack("Q", bytes(self._file.read(entry, 8)))
            offset -= start
            first = (self._start * self._width).bit_length()
            rows = 0 if row < self._direct_rows else size.bit_length() - first + 1
            if row >= self._direct_rows and rows < 1:
                break
        raise ValueError("an object lies in no block of its heap")

    def _cell(self, offset: int) -> tuple[int, int, int, int]:
        """The row and column of the block of an offset, where it begins, and its size."""
        row, start, size = 0, 0, self._start
        while offset >= start + size * self._width:
            start += size * self._width
            row += 1
            # The first two rows have blocks of the same size.
            size = self._start << max(0, row - 1)
        column = (offset - start) // size
        return row, column, start + column * size, size


def _bytes_for(largest: int) -> int:
    """How many bytes a number up to this takes."""
    return max(1, -(-largest.bit_length() // 8))
