"""Flax's msgpack files (flax.serialization.to_bytes): nested maps whose leaves are arrays.

An array is the extension type 1, itself a msgpack list of its shape, its dtype's name and its
elements in C order; a NumPy scalar is the type 3, laid out alike. An array of more than 2^30 bytes
is a map with the key ``__msgpack_chunked_array__`` (flax/serialization.py;
https://github.com/msgpack/msgpack/blob/master/spec.md). Elements stay in the file until asked for.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.select import MAX_DEPTH, MAX_NODES, collect, name_jax
from memcurse_cli.checkpoints.store import ELEMENT_TYPES, Array, LazyTensor, TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import ByteRange, Cursor, File, naturals

# A longer text is no name of a parameter, and is passed over unread.
MAX_TEXT = 4096
CHUNKED = "__msgpack_chunked_array__"
ARRAY, SCALAR = 1, 3


def recognises(head: bytes, file: File) -> bool:
    """A map that is not empty, and the key that follows."""
    reader = _Reader(head, order="big")
    with suppress(ValueError):
        kind, size = reader.mark()
        return kind == "map" and size > 0 and bool(reader.key())
    return False


def open_file(file: File) -> TensorStore:
    """Read the maps and the descriptions of the arrays."""
    reader = _Reader(file, order="big")
    root = reader.value(0)
    if reader.left:
        raise ValueError(f"{reader.left} bytes follow its end")
    found = collect(root, lambda node: node if isinstance(node, LazyTensor) else None)
    tensors, notes = name_jax(found)
    return TensorStore(file, tensors, notes, contents=found)


# The first and last of the marks that hold a size themselves, and what they mark.
_SHORT = (
    (0x00, 0x7F, "value"), (0x80, 0x8F, "map"), (0x90, 0x9F, "list"), (0xA0, 0xBF, "text"),
)  # fmt: skip
# The others, and of how many bytes the size or the integer is that follows.
_LONG = {
    0xDE: ("map", 2), 0xDF: ("map", 4), 0xDC: ("list", 2), 0xDD: ("list", 4),
    0xD9: ("text", 1), 0xDA: ("text", 2), 0xDB: ("text", 4),
    0xC4: ("bytes", 1), 0xC5: ("bytes", 2), 0xC6: ("bytes", 4),
    0xC7: ("extension", 1), 0xC8: ("extension", 2), 0xC9: ("extension", 4),
    0xCC: ("value", 1), 0xCD: ("value", 2), 0xCE: ("value", 4), 0xCF: ("value", 8),
    0xD0: ("value", 1), 0xD1: ("value", 2), 0xD2: ("value", 4), 0xD3: ("value", 8),
}  # fmt: skip
_FIXED = {
    0xD4: ("extension", 1), 0xD5: ("extension", 2), 0xD6: ("extension", 4), 0xD7: ("extension", 8),
    0xD8: ("extension", 16), 0xCA: ("float", 4), 0xCB: ("float", 8),
    0xC0: ("value", None), 0xC2: ("value", False), 0xC3: ("value", True),
}  # fmt: skip


class _Reader(Cursor):
    """The values of a msgpack file: arrays become `LazyTensor`, long texts stay unread."""

    _entries = 0

    def mark(self) -> tuple[str, Any]:
        """What the next value is, and its size, or a number or constant itself."""
        code = self.number(1)
        for first, last, kind in _SHORT:
            if first <= code <= last:
                return kind, code - first
        if code in _LONG:
            kind, width = _LONG[code]
            return kind, self.number(width, signed=kind == "value" and code >= 0xD0)
        if code in _FIXED:
            return _FIXED[code]
        if code == 0xC1:
            at = self.position - 1
            raise ValueError(f"it has the unknown mark {code:#04x} at byte {at}")
        return "value", code - 0x100

    def value(self, depth: int) -> object:
        self._entries += 1
        if self._entries > MAX_NODES:
            raise ValueError(f"it holds more than {MAX_NODES} entries")
        if depth > MAX_DEPTH:
            raise ValueError(f"its maps are nested more than {MAX_DEPTH} deep")
        kind, size = self.mark()
        if kind == "value":
            return size
        if kind == "map":
            return self._map(size, depth)
        if kind == "list":
            self._check_size(size)
            return [self.value(depth + 1) for _ in range(size)]
        if kind == "extension":
            return self._extension(self.number(1, signed=True), size, depth)
        if kind == "text" and size <= MAX_TEXT:
            return self._characters(size)
        return self.skip(size)

    def key(self) -> str:
        kind, size = self.mark()
        if kind != "text":
            raise ValueError("it has a key that is not text")
        if size > MAX_TEXT:
            raise ValueError(f"it has a key of {size} bytes, more than {MAX_TEXT}")
        return self._characters(size)

    def _characters(self, size: int) -> str:
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError("it has a text that is not UTF-8") from error

    def _map(self, size: int, depth: int) -> object:
        # An entry has two bytes at least, so that a claim beyond the file is told at once.
        self._check_size(2 * size)
        entries: dict[str, object] = {}
        for _ in range(size):
            key = self.key()
            if key in entries:
                raise ValueError(f"the key {printable(key, 60)} stands twice in one map")
            entries[key] = self.value(depth + 1)
        return _joined(entries) if CHUNKED in entries else entries

    def _check_size(self, needed: int) -> None:
        if needed > self.left:
            claim = f"a map or list at byte {self.position} claims at least {needed} bytes"
            raise ValueError(f"{claim} and the file has {self.left} left")

    def _extension(self, kind: int, size: int, depth: int) -> object:
        if kind not in (ARRAY, SCALAR):
            return self.skip(size)
        end = self.position + size
        parts = self.value(depth + 1)
        if self.position != end or not isinstance(parts, list) or len(parts) != 3:
            raise ValueError("it has a malformed array")
        return _array(*parts)


def _array(shape: object, dtype: object, content: object) -> object:
    sizes = naturals(shape, "it has an array whose shape is not of natural numbers")
    if not isinstance(dtype, str) or not isinstance(content, ByteRange):
        raise ValueError("it has an array without a type or without elements")
    if dtype not in ELEMENT_TYPES:  # text, dates, four-bit integers
        return None
    spec = TensorSpec.plain(sizes, dtype)
    spec.require(content.size, f"an array of {dtype} {printable(str(shape), 80)}")
    return LazyTensor.at(content, 0, spec)


def _joined(entries: dict[str, object]) -> LazyTensor:
    """The array that Flax has cut into chunks of its flattened elements."""
    shape, chunks = _indexed(entries.get("shape")), _indexed(entries.get("chunks"))
    parts = [chunk for chunk in chunks if isinstance(chunk, LazyTensor)]
    if not parts or len(parts) < len(chunks):
        raise ValueError("it has a malformed array of chunks")
    dtype = parts[0].spec.dtype
    if any(part.spec.dtype != dtype or len(part.spec.shape) != 1 for part in parts):
        raise ValueError("it has an array whose chunks do not fit together")
    spec = TensorSpec.plain(naturals(shape, "it has a malformed array of chunks"), dtype)
    if spec.bytes != sum(part.spec.bytes for part in parts):
        raise ValueError("it has an array whose chunks do not fill its shape")

    def load() -> Array:
        return np.concatenate([part.load() for part in parts]).reshape(spec.shape)

    return LazyTensor(spec, load)


def _indexed(entries: object) -> list[object]:
    """Flax's maps for tuples: {"0": first, "1": second, …}."""
    if not isinstance(entries, dict) or any(str(i) not in entries for i in range(len(entries))):
        raise ValueError("it has a malformed array of chunks")
    return [entries[str(index)] for index in range(len(entries))]
