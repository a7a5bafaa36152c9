"""Bytes that are read by ranges, and the one check that a range lies within them."""

from __future__ import annotations

from typing import Literal, Protocol

MAX_DIMENSIONS = 64  # as in NumPy and PyTorch
_CHUNK = 1 << 12


class Bytes(Protocol):
    """Bytes that are read by ranges: a file, a member of an archive, or a part of either."""

    @property
    def size(self) -> int:
        """How many there are."""

    def read(self, offset: int, length: int) -> bytes | bytearray:
        """Exactly ``length`` bytes from ``offset``."""


def require_range(offset: int, length: int, size: int) -> None:
    """Refuse a range that a file claims and that is not within the bytes that there are.

    Raises:
        ValueError: with the fault as a clause.
    """
    if offset < 0 or length < 0 or offset + length > size:
        raise ValueError(f"it needs {length} bytes from byte {offset} of {size}")


def naturals(values: object) -> tuple[int, ...] | None:
    """The sizes that a file claims of a shape, a stride or a place.

    Returns:
        At most `MAX_DIMENSIONS` natural numbers that an index of 64 bits can hold; None where the
        file gives anything else.
    """
    if not isinstance(values, list | tuple) or len(values) > MAX_DIMENSIONS:
        return None
    return tuple(values) if all(type(n) is int and 0 <= n < 2**62 for n in values) else None


class ByteRange:
    """A part of other bytes."""

    def __init__(self, source: Bytes, offset: int, size: int) -> None:
        self._source, self._offset, self.size = source, offset, size

    def read(self, offset: int, length: int) -> bytes | bytearray:
        """Exactly ``length`` bytes from ``offset``; ValueError where there are not so many."""
        require_range(offset, length, self.size)
        return self._source.read(self._offset + offset, length)


class InlineBytes:
    """Bytes that are in memory already."""

    def __init__(self, content: bytes | bytearray) -> None:
        self._content, self.size = content, len(content)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``; ValueError where there are not so many."""
        require_range(offset, length, self.size)
        return bytes(self._content[offset : offset + length])


class Cursor:
    """Reads one field after another.

    Args:
        source: the bytes.
        position: where the first field begins.
        order: the byte order of its integers.
    """

    def __init__(
        self, source: Bytes, position: int = 0, order: Literal["little", "big"] = "little"
    ) -> None:
        self._source, self._order = source, order
        self._chunk = memoryview(b"")
        self._start, self._index = position, 0

    @property
    def position(self) -> int:
        """Where the next field begins."""
        return self._start + self._index

    @property
    def left(self) -> int:
        """How many bytes follow."""
        return self._source.size - self.position

    def take(self, count: int) -> bytes:
        """The next bytes.

        Raises:
            ValueError: there are not so many.
        """
        end = self._index + count
        if end > len(self._chunk):
            start, left = self.position, self.left
            if count > left:
                raise ValueError(f"it ends at byte {self._source.size}, in the middle of a field")
            self._chunk = memoryview(self._source.read(start, min(left, max(count, _CHUNK))))
            self._start, self._index, end = start, 0, count
        piece = self._chunk[self._index : end]
        self._index = end
        return bytes(piece)

    def number(self, count: int, signed: bool = False) -> int:
        """The integer in the next bytes."""
        return int.from_bytes(self.take(count), self._order, signed=signed)

    def skip(self, count: int) -> ByteRange:
        """Pass over the next bytes, and return them unread.

        Raises:
            ValueError: there are not so many.
        """
        if count > self.left:
            raise ValueError(
                f"it ends at byte {self._source.size}, before the {count} bytes that follow "
                f"byte {self.position}"
            )
        range_ = ByteRange(self._source, self.position, count)
        if self._index + count <= len(self._chunk):
            self._index += count
        else:
            self._start, self._index = self.position + count, 0
            self._chunk = memoryview(b"")
        return range_
