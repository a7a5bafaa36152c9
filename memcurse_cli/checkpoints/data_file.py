"""Files of a directory that a checkpoint names by the hundred: none is kept open."""

from __future__ import annotations

from memcurse_cli.checkpoints.names import printable
from memcurse_cli.checkpoints.source import LocalDirectory


class DataFile:
    """A file of the directory, opened for each read and closed again.

    Attributes:
        path: its path, printable.
        claimed: the bytes of all values that are said to lie in it.
    """

    def __init__(self, directory: LocalDirectory, name: str) -> None:
        self._directory, self._name = directory, name
        self.path = printable(f"{directory.path}/{name}")
        self._size = -1
        self.claimed = 0

    @property
    def size(self) -> int:
        """Its length in bytes."""
        if self._size < 0:
            file = self._directory.open(self._name)
            self._size = file.size
            file.close()
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``."""
        file = self._directory.open(self._name)
        try:
            return bytes(file.read(offset, length))
        finally:
            file.close()
