"""The quantised types of GGUF: blocks of small integers that share scales.

The layouts are those of ggml's structs (ggml/src/ggml-common.h); a value is
``scale · integer + offset``, in double precision. A block of the K types has 256 values in groups
of 16 or 32, whose own scales are integers times the block's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.uint8]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class BlockType:
    """One quantised type.

    Attributes:
        name: ggml's name.
        length: the values of one block.
        bytes: the size of one block.
        decode: blocks (count, bytes) to values (count, length).
    """

    name: str
    length: int
    bytes: int
    decode: Callable[[Blocks], Values]


def _halves(blocks: Blocks, start: int) -> Values:
    """A float16 of each block, (count, 1)."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float64)


def _nibbles(packed: Blocks) -> Values:
    """Four-bit integers: the low ones of all bytes, then the high ones."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1).astype(np.float64)


def _bits(packed: Blocks, width: int) -> Blocks:
    """Integers of ``width`` bits, (count, 8 / width, bytes): the lowest of all bytes first."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return (packed[:, None, :] >> shifts) & np.uint8((1 << width) - 1)


def _fifth_bits(blocks: Blocks, start: int) -> Values:
    """The 32 bits of a little-endian integer, lowest first."""
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    return bits.astype(np.float64)


def _scaled(scale: Values, integers: Values, offset: Values | None = None) -> Values:
    """Groups of integers, each times its scale and less its offset; (count, 256)."""
    values = scale[:, :, None] * integers
    if offset is not None:
        values -= offset[:, :, None]
    return values.reshape(-1, 256)


def _q4_0(blocks: Blocks) -> Values:
    return _halves(blocks, 0) * (_nibbles(blocks[:, 2:]) - 8)


def _q4_1(blocks: Blocks) -> Values:
    return _halves(blocks, 0) * _nibbles(blocks[:, 4:]) + _halves(blocks, 2)


def _q5_0(blocks: Blocks) -> Values:
    integers = _nibbles(blocks[:, 6:]) + 16 * _fifth_bits(blocks, 2) - 16
    return _halves(blocks, 0) * integers


def _q5_1(blocks: Blocks) -> Values:
    integers = _nibbles(blocks[:, 8:]) + 16 * _fifth_bits(blocks, 4)
    return _halves(blocks, 0) * integers + _halves(blocks, 2)


def _q8_0(blocks: Blocks) -> Values:
    return _halves(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)


def _scales_and_minima(packed: Blocks) -> tuple[Values, Values]:
    """Eight scales and eight minima of six bits in twelve bytes (get_scale_min_k4)."""
    scales, minima, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    last_scales = (rest & 0x0F) | ((scales >> 2) & 0x30)
    last_minima = (rest >> 4) | ((minima >> 2) & 0x30)
    return (
        np.concatenate([scales & 0x3F, last_scales], axis=1).astype(np.float64),
        np.concatenate([minima & 0x3F, last_minima], axis=1).astype(np.float64),
    )


def _with_minima(blocks: Blocks, integers: Values) -> Values:
    """Eight groups of 32, each with a scale and a minimum."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    scale, offset = _halves(blocks, 0) * scales, _halves(blocks, 2) * minima
    return _scaled(scale, integers.reshape(-1, 8, 32), offset)


def _q4_k(blocks: Blocks) -> Values:
    return _with_minima(blocks, _nibbles(blocks[:, 16:].reshape(-1, 32)))


def _q5_k(blocks: Blocks) -> Values:
    low = _nibbles(blocks[:, 48:].reshape(-1, 32)).reshape(-1, 256)
    return _with_minima(blocks, low + 16 * _bits(blocks[:, 16:48], 1).reshape(-1, 256))


def _q6_k(blocks: Blocks) -> Values:
    low = _nibbles(blocks[:, :128].reshape(-1, 64)).reshape(-1, 256)
    high = _bits(blocks[:, 128:192].reshape(-1, 32), 2).reshape(-1, 256)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    scale = _halves(blocks, 208) * scales
    return _scaled(scale, (low + 16.0 * high - 32).reshape(-1, 16, 16))


def _q2_k(blocks: Blocks) -> Values:
    packed = blocks[:, :16]
    scale, offset = _halves(blocks, 80) * (packed & 0x0F), _halves(blocks, 82) * (packed >> 4)
    integers = _bits(blocks[:, 16:80].reshape(-1, 32), 2).reshape(-1, 16, 16)
    return _scaled(scale, integers.astype(np.float64), offset)


def _q3_k(blocks: Blocks) -> Values:
    packed = blocks[:, 96:108]
    low = np.concatenate([packed[:, :8] & 0x0F, packed[:, :8] >> 4], axis=1)
    high = _bits(packed[:, 8:], 2).reshape(-1, 16)
    scale = _halves(blocks, 108) * ((low | high << 4).astype(np.float64) - 32)
    integers = _bits(blocks[:, 32:96].reshape(-1, 32), 2).reshape(-1, 256).astype(np.float64)
    # A mask bit that is not set takes four away.
    integers -= 4.0 * (1 - _bits(blocks[:, :32], 1).reshape(-1, 256))
    return _scaled(scale, integers.reshape(-1, 16, 16))


# By ggml's number of the type.
BLOCK_TYPES = {
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    10: BlockType("Q2_K", 256, 84, _q2_k),
    11: BlockType("Q3_K", 256, 110, _q3_k),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
}
