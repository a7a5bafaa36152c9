"""How files are written: whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path


def write_whole(
    path: Path,
    content: bytes,
    mode: int = 0o666,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Write a file beside its place, then rename it; raises `OSError` and leaves nothing behind.

    The umask takes its bits from ``mode``, as of any file. A ``check`` reads it before it is moved.
    """
    beside = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with open(beside, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(content)
        if check is not None:
            check(beside)
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
