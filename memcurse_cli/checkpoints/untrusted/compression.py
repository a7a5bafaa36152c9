"""Compressed blocks from untrusted hands: none yields more bytes than its reader expects."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from memcurse_cli.errors import CheckpointError

_PIECE = 1 << 20
# Deflate cannot do better than 1032 to 1. Trained weights reach 10 to 1, so that a large block
# which claims much more is made to exhaust memory.
MAX_DEFLATE_RATIO = 1032
MAX_LARGE_RATIO = 100
LARGE_BLOCK = 1 << 28
# Zstandard's own default for decoders: a window of 128 MiB.
MAX_ZSTD_WINDOW = 1 << 27


def check_ratio(size: int, compressed: int) -> None:
    """Refuse a large size that so few compressed bytes cannot honestly have.

    Raises:
        ValueError: the ratio is beyond what trained weights reach.
    """
    if size > LARGE_BLOCK and size > compressed * MAX_LARGE_RATIO:
        raise ValueError(f"it claims {size} bytes from {compressed} compressed ones")


def inflate(content: bytes, limit: int) -> bytes:
    """A gzip or zlib stream of at most ``limit`` bytes.

    Raises:
        ValueError: the stream is damaged, cut off or longer.
    """
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def piece(size: int) -> bytes:
        nonlocal content
        try:
            made = inflater.decompress(content, size)
        except zlib.error as error:
            raise ValueError(f"a block cannot be decompressed ({error})") from error
        content = inflater.unconsumed_tail
        return made

    return _joined(piece, len(content), limit)


def decompress_zstd(content: bytes, limit: int) -> bytes:
    """A Zstandard frame of at most ``limit`` bytes.

    Raises:
        ValueError: the frame is damaged or longer.
        CheckpointError: the package that decompresses it is not installed.
    """
    try:
        import zstandard
    except ImportError as error:
        raise CheckpointError(
            "its blocks are compressed with Zstandard, and the package zstandard is not installed",
            remedy="run `pip install 'memcurse-cli[orbax]'`",
        ) from error
    reader = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW).stream_reader(content)
    try:
        return _joined(reader.read, len(content), limit)
    except zstandard.ZstdError as error:
        raise ValueError("a block cannot be decompressed by Zstandard") from error


def _joined(piece: Callable[[int], bytes], compressed: int, limit: int) -> bytes:
    check_ratio(limit, compressed)
    joined = bytearray()
    while made := piece(min(_PIECE, limit + 1 - len(joined))):
        joined += made
        if len(joined) > limit:
            raise ValueError(f"a block has more than the {limit} bytes that it should have")
    return bytes(joined)
