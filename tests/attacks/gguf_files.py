"""Attack files in GGUF."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
from attacks.build import attacks

TEXTS, ARRAYS = 8, 9


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def tensor(name: bytes, shape: tuple[int, ...], offset: int = 0, kind: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def _array(kind: int, count: int, content: bytes = b"") -> bytes:
    return text(b"tokens") + struct.pack("<IIQ", ARRAYS, kind, count) + content


def _file(
    outcome: str, *tensors: bytes, entries: Callable[[], bytes] | None = None
) -> tuple[str, Callable[[], bytes]]:
    def content() -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1 if entries else 0)
        head += (entries() if entries else b"") + b"".join(tensors)
        return head + bytes(-len(head) % 32) + np.ones(16, np.float32).tobytes()

    return outcome, content


W = tensor(b"w", (2,))
attacks(
    "a.gguf",
    {
        "gguf_tensor_of_10_to_the_36_elements": _file(
            "lies at bytes", tensor(b"w", (10**18, 10**18))
        ),
        "gguf_offset_beyond_64_bits": _file("lies at bytes", tensor(b"w", (2,), offset=2**64 - 4)),
        "gguf_tensors_that_overlap": _file("overlaps", tensor(b"v", (8,)), tensor(b"w", (8,))),
        "gguf_name_of_a_million_characters": _file(
            "a name of 1000000 bytes", tensor(b"w" * 10**6, (2,))
        ),
        "gguf_names_that_write_to_the_terminal": _file(
            "opens",
            tensor(b"\x1b[31mssm_a", (8,)),
            entries=lambda: (
                text(b"general.name\x1b[2J") + struct.pack("<I", TEXTS) + text(b"\x1b]0;owned\x07")
            ),
        ),
        "gguf_array_of_four_billion_texts": _file(
            "an array of", W, entries=lambda: _array(TEXTS, 2**32)
        ),
        "gguf_five_million_empty_arrays": _file(
            "an array of",
            W,
            entries=lambda: _array(ARRAYS, 5 * 10**6, struct.pack("<IQ", TEXTS, 0) * 5 * 10**6),
        ),
    },
)
