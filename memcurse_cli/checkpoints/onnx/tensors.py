"""ONNX's tensors: raw bytes, lists of numbers, or a range of a file beside the model.

The layout is that of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, message TensorProto.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.elements import decode, element_bytes, element_count
from memcurse_cli.checkpoints.lazy import LazyTensor
from memcurse_cli.checkpoints.onnx.protobuf import VARINT, Field, Messages, decode_varints
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import File

MAX_DIMENSIONS = 64
MAX_EXTERNAL_FILES = 10_000
_DIMS, _TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_FLOATS, _INT32, _INT64, _DOUBLES, _UINT64 = 4, 5, 7, 10, 11
_LISTS = (_FLOATS, _INT32, _INT64, _DOUBLES, _UINT64)

# The name of each element type, and the list that holds it where it has no raw bytes.
ELEMENTS: dict[int, tuple[str, int]] = {
    1: ("float32", _FLOATS),
    2: ("uint8", _INT32),
    3: ("int8", _INT32),
    4: ("uint16", _INT32),
    5: ("int16", _INT32),
    6: ("int32", _INT32),
    7: ("int64", _INT64),
    9: ("bool", _INT32),
    10: ("float16", _INT32),
    11: ("float64", _DOUBLES),
    12: ("uint32", _UINT64),
    13: ("uint64", _UINT64),
    14: ("complex64", _FLOATS),
    15: ("complex128", _DOUBLES),
    16: ("bfloat16", _INT32),
    17: ("float8_e4m3fn", _INT32),
    18: ("float8_e4m3fnuz", _INT32),
    19: ("float8_e5m2", _INT32),
    20: ("float8_e5m2fnuz", _INT32),
    24: ("float8_e8m0fnu", _INT32),
}


class ExternalFiles:
    """The files beside a model that hold its tensors, each opened once."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._opened: dict[str, File] = {}

    @property
    def bytes(self) -> int:
        """Their size on disk."""
        return sum(file.size for file in self._opened.values())

    def open(self, location: str) -> File:
        """The file at a location, a relative path with ``/``.

        Raises:
            CheckpointError: it is missing, or leads outside the model's directory.
            ValueError: there are too many.
        """
        name = location.removeprefix("./")
        if name not in self._opened:
            if len(self._opened) >= MAX_EXTERNAL_FILES:
                raise ValueError(f"it names more than {MAX_EXTERNAL_FILES} files")
            self._opened[name] = self._file.directory().open(name)
        return self._opened[name]

    def close(self) -> None:
        """Release them."""
        for file in self._opened.values():
            file.close()


class Tensor:
    """One TensorProto.

    Attributes:
        name: its name; "" for a constant.
        start: where it begins in the file.
        lazy: its spec and reader, or None where it has elements that are not read.

    Raises:
        CheckpointError: its external data cannot be opened.
        ValueError: it is damaged.
    """

    def __init__(self, messages: Messages, external: ExternalFiles, field: Field) -> None:
        self._messages = messages
        self.start = field.start
        self.name = ""
        shape: list[int] = []
        code = 0
        raw: Field | None = None
        lists: dict[int, list[Field]] = {}
        pairs: dict[str, str] = {}
        is_external = False
        for inner in messages.fields(field.start, field.size):
            if inner.number == _DIMS:
                shape += messages.integers(inner)
            elif inner.number == _TYPE:
                code = inner.value
            elif inner.number == _NAME:
                self.name = messages.text(inner)
            elif inner.number == _RAW:
                raw = inner
            elif inner.number in _LISTS:
                lists.setdefault(inner.number, []).append(inner)
            elif inner.number == _EXTERNAL:
                entry = {
                    part.number: messages.text(part)
                    for part in messages.fields(inner.start, inner.size)
                }
                pairs[entry.get(1, "")] = entry.get(2, "")
            elif inner.number == _LOCATION:
                is_external = inner.value == 1
        self._label = f"tensor {printable(self.name, 80)}"
        if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
            raise ValueError(f"{self._label} has no valid shape")
        self.lazy: LazyTensor | None = None
        if code in ELEMENTS:
            dtype, container = ELEMENTS[code]
            size = element_count(tuple(shape)) * element_bytes(dtype)
            spec = TensorSpec(tuple(shape), dtype, size)
            if is_external:
                load = self._external(external, pairs, spec)
            elif raw is not None:
                load = self._raw(raw, spec)
            else:
                load = self._listed(lists.get(container, []), container, spec)
            self.lazy = LazyTensor(spec, load)

    def _external(
        self, files: ExternalFiles, pairs: dict[str, str], spec: TensorSpec
    ) -> Callable[[], NDArray[Any]]:
        file = files.open(pairs.get("location", ""))
        offset, length = (pairs.get(key, "") for key in ("offset", "length"))
        if not all(text.isascii() and (text.isdigit() or not text) for text in (offset, length)):
            raise ValueError(f"{self._label} has no valid place in its file")
        start = int(offset[:20] or 0)
        self._require(int(length[:20] or spec.bytes), spec)
        if start + spec.bytes > file.size:
            raise ValueError(f"{self._label} lies beyond the end of {file.path}")
        return lambda: decode(file.read(start, spec.bytes), spec.dtype, spec.shape)

    def _raw(self, field: Field, spec: TensorSpec) -> Callable[[], NDArray[Any]]:
        self._require(field.size, spec)
        read = self._messages.read
        return lambda: decode(read(field.start, field.size), spec.dtype, spec.shape)

    def _listed(
        self, fields: list[Field], container: int, spec: TensorSpec
    ) -> Callable[[], NDArray[Any]]:
        if container in (_FLOATS, _DOUBLES):
            self._require(sum(field.size for field in fields), spec)
            return lambda: decode(self._joined(fields), spec.dtype, spec.shape)
        # A varint has at least one byte.
        least = sum(max(1, field.size) for field in fields)
        if element_count(spec.shape) > least:
            self._require(least * element_bytes(spec.dtype), spec)
        return lambda: self._varints(fields, spec)

    def _varints(self, fields: list[Field], spec: TensorSpec) -> NDArray[Any]:
        parts = [
            np.array([field.value], np.uint64)
            if field.wire == VARINT
            else decode_varints(self._messages.read(field.start, field.size))
            for field in fields
        ]
        values = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
        self._require(values.size * element_bytes(spec.dtype), spec)
        # Each is sign-extended to 64 bits; its low bits are the element, or its bit pattern.
        width = element_bytes(spec.dtype)
        return decode(values.astype(f"<u{width}").tobytes(), spec.dtype, spec.shape)

    def _joined(self, fields: list[Field]) -> bytes:
        return b"".join(self._messages.read(field.start, field.size) for field in fields)

    def _require(self, size: int, spec: TensorSpec) -> None:
        if size != spec.bytes:
            raise ValueError(
                f"{self._label} needs {printable(str(spec.bytes), 40)} bytes for its shape "
                f"and has {size}"
            )
