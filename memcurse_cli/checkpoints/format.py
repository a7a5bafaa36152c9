"""What a file format offers to `open_checkpoint`: how it is recognised, and how it is opened."""

from __future__ import annotations

from typing import Protocol

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.untrusted.source import File


class CheckpointFormat(Protocol):
    """One format."""

    @property
    def name(self) -> str:
        """What reports and `memcurse formats` call it."""

    @property
    def extensions(self) -> tuple[str, ...]:
        """The usual extensions; they choose among a directory's files, never how one is read."""

    @property
    def recognised_by(self) -> str:
        """What in the content tells the format, in words."""

    def recognises(self, head: bytes, file: File) -> bool:
        """Whether the file has this format, judged by its first bytes and, if need be, more."""

    def open(self, file: File) -> LazyStore:
        """Read the headers; the store owns the file from then on.

        Raises:
            CheckpointError: the file is damaged or hostile.
        """
