"""Files that no format recognises: what they are, as far as their first bytes tell."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memcurse_cli.checkpoints.registry import HEAD_BYTES, Format
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import File
from memcurse_cli.errors import CheckpointError

GIT_LFS = b"version https://git-lfs.github.com/spec/"


def unknown_file(file: File, formats: Sequence[Format]) -> CheckpointError:
    """The error that says what the file is instead, and what to do."""
    head = bytes(file.read(0, min(HEAD_BYTES, file.size)))
    if not head:
        return CheckpointError(
            "the file is empty", where=file.path, remedy="copy or download it again"
        )
    if head.startswith(GIT_LFS):
        return CheckpointError(
            "this is a git-LFS pointer, not the file that it stands for",
            where=file.path,
            remedy="run `git lfs pull` in its repository",
        )
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return CheckpointError(
            "this is a web page saved under a checkpoint's name",
            where=file.path,
            remedy="download the file itself: log in if it is private, and use the raw link",
        )
    elements = re.search(r"\.data-\d{5}-of-\d{5}$", file.path)
    if elements is not None:
        return CheckpointError(
            "these are the elements of a TensorFlow checkpoint without their names",
            where=file.path,
            remedy=f"give {file.path[: elements.start()].rpartition('/')[2]}.index beside it",
        )
    if not head.strip(b"\0"):
        return CheckpointError(
            f"its first {len(head)} bytes are zero, as in a file whose writing was cut short",
            where=file.path,
            remedy="copy or download it again",
        )
    names = ", ".join(format.name for format in formats)
    return CheckpointError(
        f"this is not a format that memcurse reads; its first bytes are {shown_bytes(head)}",
        where=file.path,
        remedy=f"it reads {names}",
    )


def shown_bytes(head: bytes) -> str:
    """The first bytes, as text where they are text and in hexadecimal where not."""
    start = head[:16]
    if start.isascii() and start.decode("ascii").isprintable():
        return f'"{printable(start.decode("ascii"))}"'
    return start[:8].hex(" ")
