"""Protocol buffers' wire format: numbered fields, read by range without a schema.

https://protobuf.dev/programming-guides/encoding/. A message is a sequence of fields; each is a tag
(its number and its wire type) and a varint, 4 bytes, 8 bytes, or a length and as many bytes, which
may be a message in turn. What a field means is up to the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.untrusted.source import Bytes

VARINT, LENGTH = 0, 2
_WIDTHS = {1: 8, 5: 4}  # of the wire types that have a fixed number of bytes
MAX_FIELDS = 2_000_000
MAX_TEXT_BYTES = 100_000
_PAGE = 1 << 16
_LONGEST_VARINT = 10


class Field(NamedTuple):
    """One field: an unsigned ``value``, or for a length ``size`` bytes from ``start`` on."""

    source: Reader
    number: int
    wire: int
    value: int
    start: int
    size: int

    @property
    def signed(self) -> int:
        """The value as an ``int64``."""
        return self.value - (1 << 64) if self.value >> 63 else self.value

    def fields(self) -> Iterator[Field]:
        """The fields of the message that it holds."""
        return self.source.fields(self.start, self.size)

    def read(self, most: int | None = None) -> bytes:
        """Its bytes."""
        size = self.size if most is None else min(self.size, most)
        return bytes(self.source.file.read(self.start, size))

    def text(self) -> str:
        """The text that it holds."""
        if self.size > MAX_TEXT_BYTES:
            raise ValueError(f"a name has {self.size} bytes")
        return self.read().decode("utf-8", "replace")

    def integers(self) -> list[int]:
        """The signed integers of a repeated field, packed or not."""
        if self.wire == VARINT:
            return [self.signed]
        values: list[int] = decode_varints(self.read()).view(np.int64).tolist()
        return values


class Message:
    """The fields of one message by number; where one should stand once, the last counts."""

    def __init__(self, fields: Iterable[Field]) -> None:
        self._fields: dict[int, list[Field]] = {}
        for field in fields:
            self._fields.setdefault(field.number, []).append(field)

    def __getitem__(self, number: int) -> list[Field]:
        return self._fields.get(number, [])

    def text(self, number: int) -> str:
        """The text of a field; "" where it is left out."""
        return self[number][-1].text() if self[number] else ""

    def texts(self, number: int) -> list[str]:
        """The texts of a repeated field."""
        return [field.text() for field in self[number]]

    def value(self, number: int, default: int = 0) -> int:
        """The signed integer of a field."""
        return self[number][-1].signed if self[number] else default

    def inside(self, number: int) -> Iterator[Message]:
        """The messages of a repeated field."""
        return (Message(field.fields()) for field in self[number] if field.wire == LENGTH)


class Reader:
    """Reads the messages in a file, or in any other bytes."""

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
            value, length = 0, _WIDTHS.get(wire, 0)
            if wire == VARINT:
                value, position = self._varint(position, end)
            elif wire == LENGTH:
                length, position = self._varint(position, end)
            if number == 0 or wire not in (VARINT, LENGTH, *_WIDTHS):
                raise ValueError(f"there is no field before byte {position}")
            if length > end - position:
                raise ValueError(
                    f"a field of {length} bytes at byte {position} reaches beyond its end at {end}"
                )
            if wire in _WIDTHS:
                value = int.from_bytes(self.file.read(position, length), "little")
            yield Field(self, number, wire, value, position, length)
            position += length

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


def message_of(content: Bytes) -> Message:
    """The message that a whole file is."""
    return Message(Reader(content).fields(0, content.size))


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
