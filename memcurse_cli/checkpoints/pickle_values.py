"""What a pickle is made of once it is read as data: names, calls that nobody makes, and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class Bytes(Protocol):
    """Bytes that are read by ranges: a file, a member of an archive, or a part of either."""

    @property
    def size(self) -> int:
        """How many there are."""

    def read(self, offset: int, length: int) -> bytes | bytearray:
        """Exactly ``length`` bytes from ``offset``."""


class ByteRange:
    """A part of other bytes."""

    def __init__(self, source: Bytes, offset: int, size: int) -> None:
        self._source, self._offset, self.size = source, offset, size

    def read(self, offset: int, length: int) -> bytes | bytearray:
        """Exactly ``length`` bytes from ``offset``."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise PickleError(f"it needs {length} bytes from byte {offset} of {self.size}")
        return self._source.read(self._offset + offset, length)


class InlineBytes:
    """Bytes that are in memory already."""

    def __init__(self, content: bytes) -> None:
        self._content, self.size = content, len(content)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise PickleError(f"it needs {length} bytes from byte {offset} of {self.size}")
        return self._content[offset : offset + length]


class PickleError(ValueError):
    """What is wrong with a pickle, as a clause."""


@dataclass(frozen=True, slots=True)
class Global:
    """A name in a module, as the file spells it."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Record:
    """An object that the pickle would make: what it would call, with what, and what it holds."""

    __slots__ = ("arguments", "entries", "function", "items", "state")

    def __init__(self, function: object, arguments: tuple[object, ...] = ()) -> None:
        self.function = function
        self.arguments = arguments
        self.state: object = None
        self.items: list[object] = []
        self.entries: dict[Any, object] = {}

    def build(self, state: object) -> None:
        """Keep the state that the object would be given."""
        self.state = state
