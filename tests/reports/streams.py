"""Text streams that say of themselves what a test wants."""

from __future__ import annotations

import io


class Stream(io.StringIO):
    """A text stream that is a terminal or not, in some encoding."""

    def __init__(self, *, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._terminal, self._encoding = terminal, encoding

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal
