"""GGUF, the files of llama.cpp: typed metadata, descriptions of the tensors, then their elements.

The layout is that of ggml/docs/gguf.md, versions 2 and 3; dimensions are stored innermost first.
Quantised tensors are blocks of small integers that share scales, laid out as ggml's structs
(ggml/src/ggml-common.h), and are read as ``scale · integer + offset``. A block of the K types has
256 values in groups of 16 or 32, whose own scales are integers times the block's.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.select import MAX_TENSORS, select_flat
from memcurse_cli.checkpoints.store import LazyTensor, Shape, TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import MAX_NAME_LENGTH, printable
from memcurse_cli.checkpoints.untrusted.source import ByteRange, Cursor, File

Blocks = NDArray[np.uint8]
Values = NDArray[np.float64]


class BlockType(NamedTuple):
    """A quantised type: ggml's name, the values and bytes of a block, (count, bytes) to values."""

    name: str
    length: int
    bytes: int
    decode: Callable[[Blocks], Values]


def _halves(blocks: Blocks, start: int) -> Values:
    """A float16 of each block, (count, 1)."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float64)


def _bits(packed: Blocks, width: int) -> Blocks:
    """Integers of ``width`` bits, (count, 8 / width · bytes): the lowest of all bytes first."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    integers = (packed[:, None, :] >> shifts) & np.uint8((1 << width) - 1)
    return integers.reshape(len(packed), -1)


def _scaled(scale: Values, integers: Blocks | Values, offset: Values | None = None) -> Values:
    """Groups of integers, each times its scale and less its offset; (count, 256)."""
    values = scale[:, :, None] * integers
    if offset is not None:
        values -= offset[:, :, None]
    return values.reshape(-1, 256)


def _small(blocks: Blocks, *, minimum: bool = False, fifth: bool = False) -> Values:
    """32 integers of four bits, or of five, with a scale, and a minimum or none."""
    start = 4 if minimum else 2
    integers = _bits(blocks[:, start + 4 * fifth :], 4).astype(np.float64)
    if fifth:
        # The 32 bits of a little-endian integer, lowest first.
        integers += 16 * np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    if minimum:
        return _halves(blocks, 0) * integers + _halves(blocks, 2)
    return _halves(blocks, 0) * (integers - (16 if fifth else 8))


def _q8_0(blocks: Blocks) -> Values:
    return _halves(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)


def _with_minima(blocks: Blocks, integers: Blocks) -> Values:
    """Eight groups of 32, with scales and minima of six bits in twelve bytes (get_scale_min_k4)."""
    scales, minima, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    last_scales = (rest & 0x0F) | ((scales >> 2) & 0x30)
    last_minima = (rest >> 4) | ((minima >> 2) & 0x30)
    scale = _halves(blocks, 0) * np.concatenate([scales & 0x3F, last_scales], axis=1)
    offset = _halves(blocks, 2) * np.concatenate([minima & 0x3F, last_minima], axis=1)
    return _scaled(scale, integers.reshape(-1, 8, 32), offset)


def _q4_k(blocks: Blocks) -> Values:
    return _with_minima(blocks, _bits(blocks[:, 16:].reshape(-1, 32), 4))


def _q5_k(blocks: Blocks) -> Values:
    low = _bits(blocks[:, 48:].reshape(-1, 32), 4).reshape(-1, 256)
    return _with_minima(blocks, low + 16 * _bits(blocks[:, 16:48], 1))


def _q6_k(blocks: Blocks) -> Values:
    low = _bits(blocks[:, :128].reshape(-1, 64), 4).reshape(-1, 256)
    high = _bits(blocks[:, 128:192].reshape(-1, 32), 2).reshape(-1, 256)
    scale = _halves(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return _scaled(scale, (low + 16.0 * high - 32).reshape(-1, 16, 16))


def _q2_k(blocks: Blocks) -> Values:
    packed = blocks[:, :16]
    scale, offset = _halves(blocks, 80) * (packed & 0x0F), _halves(blocks, 82) * (packed >> 4)
    return _scaled(scale, _bits(blocks[:, 16:80].reshape(-1, 32), 2).reshape(-1, 16, 16), offset)


def _q3_k(blocks: Blocks) -> Values:
    packed = blocks[:, 96:108]
    low, high = _bits(packed[:, :8], 4), _bits(packed[:, 8:], 2)
    scale = _halves(blocks, 108) * ((low | high << 4) - 32.0)
    # A mask bit that is not set takes four away.
    integers = _bits(blocks[:, 32:96].reshape(-1, 32), 2).reshape(-1, 256)
    integers = integers + 4.0 * _bits(blocks[:, :32], 1) - 4
    return _scaled(scale, integers.reshape(-1, 16, 16))


# By ggml's number of the type.
BLOCK_TYPES = {
    2: BlockType("Q4_0", 32, 18, _small),
    3: BlockType("Q4_1", 32, 20, partial(_small, minimum=True)),
    6: BlockType("Q5_0", 32, 22, partial(_small, fifth=True)),
    7: BlockType("Q5_1", 32, 24, partial(_small, minimum=True, fifth=True)),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    10: BlockType("Q2_K", 256, 84, _q2_k),
    11: BlockType("Q3_K", 256, 110, _q3_k),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
}


MAX_ENTRIES = 65_536
MAX_TEXT = 4096
MAX_VALUES = 1 << 22
MAX_ARRAY_DEPTH = 4
MAX_DIMENSIONS = 8
MAX_ALIGNMENT = 1 << 20
ALIGNMENT = "general.alignment"
PLAIN_TYPES = {
    0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64",
    30: "bfloat16",
}  # fmt: skip
# The metadata's numbers by their type, in the letters of `struct`.
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9


def open_file(file: File) -> TensorStore:
    """Read the metadata and the descriptions of the tensors."""
    header = _Header(file)
    selected, notes = select_flat(header.tensors())
    for types, said in (
        (header.left_out, "of types that are not dequantised: {}: left out"),
        (header.quantised, "quantised: {}; values are those after dequantising"),
    ):
        listed = (f"{kind} ({n} tensor{'s' if n > 1 else ''})" for kind, n in sorted(types.items()))
        if types:
            notes.insert(0, said.format(", ".join(listed)))
    return TensorStore(file, selected, notes, metadata=header.metadata)


def _dequantised(content: ByteRange, block: BlockType, shape: Shape) -> Values:
    blocks = np.frombuffer(content.read(0, content.size), np.uint8)
    return block.decode(blocks.reshape(-1, block.bytes)).reshape(shape)


class _Header(Cursor):
    """What stands before the elements."""

    def __init__(self, file: File) -> None:
        # A big-endian machine writes the version's low byte last.
        self._big = file.read(4, 4)[:2] == b"\0\0"
        super().__init__(file, 4, "big" if self._big else "little")
        number = self.number(4)
        if number not in (2, 3):
            raise ValueError(f"it is of version {number}; 2 and 3 are read")
        self._count, entries = self.number(8), self.number(8)
        if entries > MAX_ENTRIES:
            raise ValueError(f"it claims {entries} entries of metadata, more than {MAX_ENTRIES}")
        if self._count > MAX_TENSORS:
            raise ValueError(f"it claims {self._count} tensors, more than {MAX_TENSORS}")
        self.metadata: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self.quantised: Counter[str] = Counter()
        self._values = 0
        for _ in range(entries):
            self._entry()

    def tensors(self) -> dict[str, LazyTensor]:
        """The tensors by name, in the file's order."""
        described = []
        for _ in range(self._count):
            name, dimensions = self._text(), self.number(4)
            if dimensions > MAX_DIMENSIONS:
                raise ValueError(f"tensor {printable(name, 60)} has {dimensions} dimensions")
            shape = tuple(self.number(8) for _ in range(dimensions))[::-1]
            described.append((name, shape, self.number(4), self.number(8)))
        alignment = int(self.metadata.get(ALIGNMENT, "32"))
        start = -(-self.position // alignment) * alignment
        tensors: dict[str, LazyTensor] = {}
        ranges = []
        for name, shape, kind, offset in described:
            label = f"tensor {printable(name, 60)}"
            if name in tensors:
                raise ValueError(f"{label} stands twice")
            if kind not in PLAIN_TYPES and kind not in BLOCK_TYPES:
                self.left_out[f"type {kind}"] += 1
                continue
            block = BLOCK_TYPES.get(kind)
            if block is None:
                spec = TensorSpec.plain(shape, PLAIN_TYPES[kind])
                place = start + offset
                tensors[name] = LazyTensor.at(self.source, place, spec, label, big_endian=self._big)
            elif not shape or shape[-1] % block.length or self._big:
                raise ValueError(f"{label} has rows that are not whole blocks of {block.name}")
            else:
                size = math.prod(shape) // block.length * block.bytes
                spec = TensorSpec(shape, block.name.lower(), size)
                content = self.source.part(start + offset, size, label)
                self.quantised[block.name] += 1
                tensors[name] = LazyTensor(spec, partial(_dequantised, content, block, shape))
            if spec.bytes:
                ranges.append((offset, offset + spec.bytes, label))
        for (_, end, _), (begin, _, label) in pairwise(sorted(ranges)):
            if begin < end:
                raise ValueError(f"{label} overlaps another")
        return tensors

    def _entry(self) -> None:
        key = self._text()
        if key in self.metadata:
            raise ValueError(f"the key {printable(key, 60)} stands twice")
        kind = self.number(4)
        if kind == _ARRAY:
            self._skip_array(0)
            return
        if kind in _NUMBERS:
            code = f"{'>' if self._big else '<'}{_NUMBERS[kind]}"
            (value,) = struct.unpack(code, self.take(struct.calcsize(code)))
        elif kind != _TEXT:
            raise ValueError(f"its metadata has the unknown type {kind}")
        elif (size := self.number(8)) <= MAX_TEXT:
            value = self.take(size).decode("utf-8", "replace")
        else:  # such as the template of a chat
            self.skip(size)
            value = f"({size} bytes of text)"
        self.metadata[key] = str(value)
        if key == ALIGNMENT and not (type(value) is int and 0 < value <= MAX_ALIGNMENT):
            raise ValueError(f"its alignment is {printable(str(value), 40)}")

    def _skip_array(self, depth: int) -> None:
        kind, count = self.number(4), self.number(8)
        if kind in _NUMBERS:
            self.skip(count * struct.calcsize(f"<{_NUMBERS[kind]}"))
            return
        if kind not in (_TEXT, _ARRAY) or depth >= MAX_ARRAY_DEPTH:
            raise ValueError(f"its metadata has the unknown type {kind}, nested {depth} deep")
        self._values += count
        if self._values > MAX_VALUES or 8 * count > self.left:
            raise ValueError(f"its metadata has an array of {count} values")
        for _ in range(count):
            if kind == _TEXT:
                self.skip(self.number(8))
            else:
                self._skip_array(depth + 1)

    def _text(self) -> str:
        size = self.number(8)
        if size > MAX_NAME_LENGTH:
            raise ValueError(f"it has a name of {size} bytes, more than {MAX_NAME_LENGTH}")
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError("it has a name that is not UTF-8") from error
