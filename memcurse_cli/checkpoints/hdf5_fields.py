"""The fields of HDF5's structures: little-endian integers in fixed places."""

from __future__ import annotations

import struct
from typing import Any

UNDEFINED = 2**64 - 1


def unpack(layout: str, content: bytes | bytearray, offset: int = 0) -> tuple[Any, ...]:
    """Little-endian integers.

    Raises:
        ValueError: the content ends before that.
    """
    try:
        return struct.unpack_from(f"<{layout}", content, offset)
    except struct.error as error:
        raise ValueError("one of its fields ends too early") from error
