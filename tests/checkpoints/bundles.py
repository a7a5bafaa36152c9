"""Writes indexes of TensorFlow's checkpoints by their published layout, honest and otherwise."""

from __future__ import annotations

from pathlib import Path

from memcurse_cli.checkpoints.tensorflow import masked_crc

MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
HEADER = b"\x08\x01\x1a\x02\x08\x01"


def number(value: int) -> bytes:
    """A varint; negative numbers have ten bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def entry(shape: list[int], offset: int, size: int, dtype: int = 1, shard: int = 0) -> bytes:
    """A BundleEntryProto."""
    sizes = [b"\x08" + number(length) for length in shape]
    dims = b"".join(b"\x12" + number(len(dim)) + dim for dim in sizes)
    fields = b"\x08" + number(dtype) + b"\x12" + number(len(dims)) + dims
    return fields + b"\x18" + number(shard) + b"\x20" + number(offset) + b"\x28" + number(size)


def block(pairs: list[tuple[bytes, bytes]], kind: int = 0) -> bytes:
    """A block whose keys share nothing, with its trailer."""
    content = b"".join(
        number(0) + number(len(key)) + number(len(value)) + key + value for key, value in pairs
    )
    content += bytes(4) + (1).to_bytes(4, "little") + bytes([kind])
    return content + masked_crc(content).to_bytes(4, "little")


def table(data: bytes, handles: list[tuple[int, int]] | None = None) -> bytes:
    """A table of one data block, or of what the handles claim."""
    handles = handles if handles is not None else [(0, len(data) - 5)]
    index = block(
        [(b"%08d" % i, number(at) + number(size)) for i, (at, size) in enumerate(handles)]
    )
    footer = number(0) + number(0) + number(len(data)) + number(len(index) - 5)
    return data + index + footer.ljust(40, b"\0") + MAGIC


def bundle(
    directory: Path,
    entries: dict[str, bytes],
    content: bytes = b"",
    header: bytes = HEADER,
    kind: int = 0,
) -> Path:
    """A checkpoint ``model`` with one file of elements."""
    pairs = [(b"", header), *sorted((name.encode(), value) for name, value in entries.items())]
    (directory / "model.data-00000-of-00001").write_bytes(content)
    (directory / "model.index").write_bytes(table(block(pairs, kind)))
    return directory / "model.index"
