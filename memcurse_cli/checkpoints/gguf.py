"""GGUF, the files of llama.cpp: typed metadata, descriptions of the tensors, then their elements.

The layout is that of ggml/docs/gguf.md, versions 2 and 3. Dimensions are stored innermost first;
elements begin at a multiple of ``general.alignment``. Quantised tensors are read dequantised, and
a note says so.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.cursor import Cursor
from memcurse_cli.checkpoints.elements import decode, element_bytes, element_count
from memcurse_cli.checkpoints.gguf_blocks import BLOCK_TYPES, BlockType
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor
from memcurse_cli.checkpoints.names import MAX_NAME_LENGTH, printable
from memcurse_cli.checkpoints.source import File
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.training_state import select_flat
from memcurse_cli.checkpoints.tree import MAX_TENSORS
from memcurse_cli.errors import CheckpointError

MAGIC = b"GGUF"
MAX_ENTRIES = 65_536
MAX_TEXT = 4096
MAX_VALUES = 1 << 22
MAX_ARRAY_DEPTH = 4
MAX_DIMENSIONS = 8
MAX_ALIGNMENT = 1 << 20
ALIGNMENT = "general.alignment"
PLAIN_TYPES = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}
# The metadata's types by number: uint8 to int32 and float32, …; 8 is text, 9 an array.
_INTEGERS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 10: 8, 11: 8}
_SIGNED = (1, 3, 5, 11)
_FLOATS = {6: "f", 12: "d"}
_BOOLEAN, _TEXT, _ARRAY = 7, 8, 9
_SIZES = _INTEGERS | {6: 4, 7: 1, 12: 8}


class Gguf:
    """One GGUF file."""

    name = "GGUF"
    extensions = (".gguf",)
    recognised_by = "its first four letters, GGUF"

    def recognises(self, head: bytes, file: File) -> bool:
        """The four letters."""
        return head.startswith(MAGIC)

    def open(self, file: File) -> LazyStore:
        """Read the metadata and the descriptions of the tensors."""
        try:
            header = _Header(file)
            tensors = header.tensors()
        except ValueError as error:
            _refuse(file, str(error))
        quantised = Counter(
            tensor.load.block.name for tensor in tensors.values() if tensor.load.block is not None
        )
        selected, notes = select_flat(tensors)
        if header.left_out:
            notes.insert(
                0, f"of types that are not dequantised: {_listed(header.left_out)}: left out"
            )
        if quantised:
            notes.insert(0, f"quantised: {_listed(quantised)}; values are those after dequantising")
        return LazyStore(
            path=file.path,
            format=self.name,
            bytes=file.size,
            tensors=selected,
            metadata=header.metadata,
            notes=notes,
            resources=[file],
        )


def _listed(types: Counter[str]) -> str:
    return ", ".join(
        f"{kind} ({count} tensor{'s' if count > 1 else ''})"
        for kind, count in sorted(types.items())
    )


class _Elements:
    """Reads one tensor."""

    def __init__(
        self, file: File, offset: int, spec: TensorSpec, block: BlockType | None, big: bool
    ) -> None:
        self._file, self._offset, self._spec = file, offset, spec
        self.block, self._big = block, big

    def __call__(self) -> NDArray[Any]:
        content = self._file.read(self._offset, self._spec.bytes)
        if self.block is None:
            return decode(content, self._spec.dtype, self._spec.shape, self._big)
        blocks = np.frombuffer(content, np.uint8).reshape(-1, self.block.bytes)
        return self.block.decode(blocks).reshape(self._spec.shape)


class _Tensor(LazyTensor):
    load: _Elements


class _Header:
    """What stands before the elements."""

    def __init__(self, file: File) -> None:
        self._file = file
        version = file.read(4, 4)
        # A big-endian machine writes the version's low byte last.
        self._big = version[:2] == b"\0\0"
        self._cursor = Cursor(file, 4, "big" if self._big else "little")
        number = self._cursor.number(4)
        if number not in (2, 3):
            raise ValueError(f"it is of version {number}; 2 and 3 are read")
        self._count, entries = self._cursor.number(8), self._cursor.number(8)
        if entries > MAX_ENTRIES:
            raise ValueError(f"it claims {entries} entries of metadata, more than {MAX_ENTRIES}")
        if self._count > MAX_TENSORS:
            raise ValueError(f"it claims {self._count} tensors, more than {MAX_TENSORS}")
        self.metadata: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self._values = 0
        for _ in range(entries):
            self._entry()

    def tensors(self) -> dict[str, _Tensor]:
        """The tensors by name, in the file's order."""
        described = [self._described() for _ in range(self._count)]
        alignment = int(self.metadata.get(ALIGNMENT, "32"))
        start = -(-self._cursor.position // alignment) * alignment
        tensors: dict[str, _Tensor] = {}
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
                dtype = PLAIN_TYPES[kind]
                size = element_count(shape) * element_bytes(dtype)
            else:
                if not shape or shape[-1] % block.length or self._big:
                    raise ValueError(f"{label} has rows that are not whole blocks of {block.name}")
                dtype = block.name.lower()
                size = element_count(shape) // block.length * block.bytes
            if start + offset + size > self._file.size:
                raise ValueError(
                    f"{label} lies at bytes {start + offset} to "
                    f"{printable(str(start + offset + size), 40)} of {self._file.size}"
                )
            spec = TensorSpec(shape, dtype, size)
            elements = _Elements(self._file, start + offset, spec, block, self._big)
            tensors[name] = _Tensor(spec, elements)
            ranges.append((offset, offset + size, name))
        position = 0
        for begin, end, name in sorted(ranges):
            if begin < min(position, end):
                raise ValueError(f"tensor {printable(name, 60)} overlaps another")
            position = max(position, end)
        return tensors

    def _entry(self) -> None:
        key = self._text(MAX_NAME_LENGTH)
        if key in self.metadata:
            raise ValueError(f"the key {printable(key, 60)} stands twice")
        kind = self._cursor.number(4)
        if kind == _ARRAY:
            self._skip_array(0)
        else:
            value = self._value(kind)
            self.metadata[key] = str(value)
            valid = type(value) is int and 0 < value <= MAX_ALIGNMENT
            if key == ALIGNMENT and not valid:
                raise ValueError(f"its alignment is {printable(str(value), 40)}")

    def _value(self, kind: int) -> object:
        if kind in _INTEGERS:
            return self._cursor.number(_INTEGERS[kind], signed=kind in _SIGNED)
        if kind in _FLOATS:
            code = f"{'>' if self._big else '<'}{_FLOATS[kind]}"
            return struct.unpack(code, self._cursor.take(_SIZES[kind]))[0]
        if kind == _BOOLEAN:
            return self._cursor.number(1) != 0
        if kind == _TEXT:
            size = self._cursor.number(8)
            if size > MAX_TEXT:  # such as the template of a chat
                self._cursor.skip(size)
                return f"({size} bytes of text)"
            return self._cursor.take(size).decode("utf-8", "replace")
        raise ValueError(f"its metadata has the unknown type {kind}")

    def _skip_array(self, depth: int) -> None:
        kind, count = self._cursor.number(4), self._cursor.number(8)
        if kind in _SIZES:
            self._cursor.skip(count * _SIZES[kind])
            return
        if kind not in (_TEXT, _ARRAY) or depth >= MAX_ARRAY_DEPTH:
            raise ValueError(f"its metadata has the unknown type {kind}, nested {depth} deep")
        self._values += count
        if self._values > MAX_VALUES or 8 * count > self._cursor.left:
            raise ValueError(f"its metadata has an array of {count} values")
        for _ in range(count):
            if kind == _TEXT:
                self._cursor.skip(self._cursor.number(8))
            else:
                self._skip_array(depth + 1)

    def _text(self, limit: int) -> str:
        size = self._cursor.number(8)
        if size > limit:
            raise ValueError(f"it has a name of {size} bytes, more than {limit}")
        try:
            return self._cursor.take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError("it has a name that is not UTF-8") from error

    def _described(self) -> tuple[str, tuple[int, ...], int, int]:
        """A tensor's name, shape, type and offset."""
        name, dimensions = self._text(MAX_NAME_LENGTH), self._cursor.number(4)
        if dimensions > MAX_DIMENSIONS:
            raise ValueError(f"tensor {printable(name, 60)} has {dimensions} dimensions")
        shape = tuple(self._cursor.number(8) for _ in range(dimensions))[::-1]
        return name, shape, self._cursor.number(4), self._cursor.number(8)


def _refuse(file: File, fault: str) -> NoReturn:
    raise CheckpointError(
        f"this GGUF file cannot be read: {fault}",
        where=file.path,
        remedy="copy or download it again, or convert it to F32 or Q8_0",
    )
