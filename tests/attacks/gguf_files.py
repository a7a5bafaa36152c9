"""Attack files in GGUF."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from attacks.build import attack


def _text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def _tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _text(name) + dimensions + struct.pack("<IQ", kind, offset)


def _written(
    directory: Path, tensors: list[bytes], entries: list[bytes] | None = None, content: bytes = b""
) -> Path:
    entries = entries or []
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    head += b"".join(entries) + b"".join(tensors)
    head += bytes(-len(head) % 32)
    (directory / "a.gguf").write_bytes(head + content)
    return directory / "a.gguf"


@attack("lies at bytes")
def gguf_tensor_of_10_to_the_36_elements(directory: Path) -> Path:
    return _written(directory, [_tensor(b"w", (10**18, 10**18))], content=bytes(64))


@attack("lies at bytes")
def gguf_offset_beyond_64_bits(directory: Path) -> Path:
    return _written(directory, [_tensor(b"w", (2,), offset=2**64 - 4)], content=bytes(64))


@attack("overlaps")
def gguf_tensors_that_overlap(directory: Path) -> Path:
    tensors = [_tensor(b"v", (8,)), _tensor(b"w", (8,))]
    return _written(directory, tensors, content=bytes(64))


@attack("a name of 1000000 bytes")
def gguf_name_of_a_million_characters(directory: Path) -> Path:
    return _written(directory, [_tensor(b"w" * 10**6, (2,))], content=bytes(64))


@attack("opens")
def gguf_names_that_write_to_the_terminal(directory: Path) -> Path:
    entry = _text(b"general.name\x1b[2J") + struct.pack("<I", 8) + _text(b"\x1b]0;owned\x07")
    content = np.ones(8, np.float32).tobytes()
    return _written(directory, [_tensor(b"\x1b[31mssm_a", (8,))], [entry], content)


@attack("an array of")
def gguf_array_of_four_billion_texts(directory: Path) -> Path:
    entry = _text(b"tokens") + struct.pack("<IIQ", 9, 8, 2**32)
    return _written(directory, [_tensor(b"w", (2,))], [entry], bytes(64))


@attack("an array of")
def gguf_five_million_empty_arrays(directory: Path) -> Path:
    inner = struct.pack("<IQ", 8, 0)
    count = 5 * 10**6
    entry = _text(b"tokens") + struct.pack("<IIQ", 9, 9, count) + inner * count
    return _written(directory, [_tensor(b"w", (2,))], [entry], bytes(64))
