"""A position in bytes that are read in order: small fields are buffered, large values skipped."""

from __future__ import annotations

from typing import Literal

from memcurse_cli.checkpoints.torch.pickle_machine import ByteRange, Bytes

_CHUNK = 1 << 12


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
