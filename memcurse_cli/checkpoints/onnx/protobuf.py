"""Protocol buffers' wire format: numbered fields, read by range without a schema.

https://protobuf.dev/programming-guides/encoding/. A message is a sequence of fields; each is a tag
(its number and its wire type) and a varint, 4 bytes, 8 bytes, or a length and as many bytes, which
may be a message in turn. What a field means is up to the reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.untrusted.source import Bytes

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
MAX_FIELDS = 2_000_000
MAX_TEXT_BYTES = 100_000
_PAGE = 1 << 16
_LONGEST_VARINT = 10


@dataclass(frozen=True)
class Field:
    """One field: its number in the message, its wire type and what it holds.

    That is an unsigned ``value`` of a varint, 4 or 8 bytes, or for a length ``size`` bytes from
    ``start`` on.
    """

    number: int
    wire: int
    value: int
    start: int
    size: int

    @property
    def signed(self) -> int:
        """The value as an ``int64``."""
        return self.value - (1 << 64) if self.value >> 63 else self.value


class Messages:
    """The messages in a file, or in any other bytes."""

    def __init__(self, file: Bytes) -> None:
        self.file = file
        self._page: bytes | bytearray = b""
        self._start = self._count = 0

    def fields(self, start: int, size: int) -> Iterator[Field]:
        """The fields of the message in a range of the file."""
        position, end = start, start + size
        while position < end:
            self._count += 1
            if self._count > MAX_FIELDS:
                raise ValueError(f"it has more than {MAX_FIELDS} fields")
            tag, position = self._varint(position, end)
            number, wire = tag >> 3, tag & 7
            value = length = 0
            if wire == VARINT:
                value, position = self._varint(position, end)
            elif wire == LENGTH:
                length, position = self._varint(position, end)
            elif wire in (FOUR_BYTES, EIGHT_BYTES):
                length = 4 if wire == FOUR_BYTES else 8
            if number == 0 or wire not in (VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES):
                raise ValueError(f"there is no field before byte {position}")
            if length > end - position:
                raise ValueError(
                    f"a field of {length} bytes at byte {position} reaches beyond its end at {end}"
                )
            if wire in (FOUR_BYTES, EIGHT_BYTES):
                value = int.from_bytes(self.read(position, length), "little")
            yield Field(number, wire, value, position, length)
            position += length

    def read(self, start: int, size: int) -> bytes:
        """The bytes of a range."""
        return bytes(self.file.read(start, size))

    def text(self, field: Field) -> str:
        """The text of a field."""
        if field.size > MAX_TEXT_BYTES:
            raise ValueError(f"a name has {field.size} bytes")
        return self.read(field.start, field.size).decode("utf-8", "replace")

    def integers(self, field: Field) -> list[int]:
        """The signed integers of a repeated field, packed or not."""
        if field.wire == VARINT:
            return [field.signed]
        content = self.read(field.start, field.size)
        values: list[int] = decode_varints(content).view(np.int64).tolist()
        return values

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while position < min(end, self.file.size) and shift < 7 * _LONGEST_VARINT:
            index = position - self._start
            if not 0 <= index < len(self._page):
                self._start, index = position, 0
                self._page = self.file.read(position, min(_PAGE, self.file.size - position))
            byte = self._page[index]
            value |= (byte & 127) << shift
            position += 1
            if byte < 128:
                return value & (1 << 64) - 1, position
            shift += 7
        raise ValueError(f"there is no number before byte {position}")


def decode_varints(content: bytes) -> NDArray[np.uint64]:
    """Every varint in a packed field."""
    raw: NDArray[Any] = np.frombuffer(content, np.uint8)
    last = np.flatnonzero(raw < 128)
    if raw.size and (not last.size or last[-1] != raw.size - 1):
        raise ValueError("a list of numbers ends within one")
    first = np.concatenate(([0], last[:-1] + 1)).astype(np.intp)[: last.size]
    length = last - first + 1
    values = np.zeros(last.size, np.uint64)
    if last.size and length.max() > _LONGEST_VARINT:
        raise ValueError("a number has too many bytes")
    for byte in range(int(length.max(initial=0))):
        has = length > byte
        part = (raw[first[has] + byte] & 127).astype(np.uint64)
        values[has] |= part << np.uint64(7 * byte)
    return values
