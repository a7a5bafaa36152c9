"""The NumPy and JAX arrays of a pickle, as data (numpy/_core/multiarray.py, jax/_src/array.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.elements import (
    ML_DTYPES,
    NUMERIC_KINDS,
    decode,
    element_bytes,
    element_count,
)
from memcurse_cli.checkpoints.lazy import LazyTensor
from memcurse_cli.checkpoints.pickle_machine import Constructor
from memcurse_cli.checkpoints.pickle_values import (
    ByteRange,
    Bytes,
    Global,
    InlineBytes,
    PickleError,
)
from memcurse_cli.checkpoints.store import TensorSpec

MAX_DIMENSIONS = 64


class ElementType:
    """A NumPy dtype that the pickle describes: its name, and its byte order once that is set."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.big_endian = False

    def build(self, state: object) -> None:
        """Take ``(version, byte order, …)``."""
        if isinstance(state, tuple) and len(state) > 1:
            self.big_endian = state[1] in (">", b">")


class PickledArray:
    """A NumPy array: `tensor` is set once its state has come."""

    def __init__(self) -> None:
        self.tensor: LazyTensor | None = None

    def build(self, state: object) -> None:
        """Take ``(version, shape, dtype, is Fortran-ordered, bytes)``.

        Arrays of objects or texts stay without a tensor.

        Raises:
            PickleError: the state is malformed, or the bytes are not as many as the shape needs.
        """
        if not isinstance(state, tuple) or len(state) not in (4, 5):
            raise PickleError("it has an array with a malformed state")
        shape, dtype, fortran, content = state[-4:]
        if isinstance(dtype, ElementType) and dtype.name:
            self.tensor = _array(content, dtype, shape, "F" if fortran is True else "C")


def _array(content: object, dtype: ElementType, shape: object, order: str) -> LazyTensor:
    if isinstance(content, str):  # Python 2 wrote bytes as text
        content = content.encode("latin-1", "replace")
    if isinstance(content, bytes):
        content = InlineBytes(content)
    if not isinstance(content, ByteRange | InlineBytes):
        raise PickleError("it has an array without bytes")
    sizes = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
    if len(sizes) > MAX_DIMENSIONS or not all(type(n) is int and 0 <= n < 2**62 for n in sizes):
        raise PickleError("it has an array whose shape is not made of natural numbers")
    needed = element_count(sizes) * element_bytes(dtype.name)
    if needed != content.size:
        raise PickleError(f"an array needs {needed} bytes and has {content.size}")
    reader = _Reader(content, dtype.name, sizes, order == "F", dtype.big_endian)
    return LazyTensor(TensorSpec(sizes, dtype.name, needed), reader)


class _Reader:
    def __init__(
        self, content: Bytes, dtype: str, shape: tuple[int, ...], fortran: bool, big_endian: bool
    ) -> None:
        self._content, self._dtype, self._shape = content, dtype, shape
        self._fortran, self._big_endian = fortran, big_endian

    def __call__(self) -> NDArray[Any]:
        content = self._content.read(0, self._content.size)
        shape = self._shape[::-1] if self._fortran else self._shape
        array = decode(content, self._dtype, shape, self._big_endian)
        return array.T if self._fortran else array


def _element_type(code: object, *_: object) -> ElementType:
    if isinstance(code, ElementType):
        return code
    if isinstance(code, Global):  # dtype(ml_dtypes.bfloat16), dtype(numpy.float32)
        code = code.name
    if code in ML_DTYPES:
        return ElementType(str(code))
    try:
        dtype = np.dtype(code) if isinstance(code, str) and len(code) < 32 else np.dtype("O")
    except TypeError as error:
        raise PickleError("it has an array of an unknown type") from error
    # An element type without a name: texts and objects, whose arrays are passed over.
    return ElementType(dtype.name if dtype.kind in NUMERIC_KINDS else "")


def _reconstruct(*_: object) -> PickledArray:
    return PickledArray()


def _from_buffer(content: object, dtype: object, shape: object, order: object) -> PickledArray:
    array = PickledArray()
    if isinstance(dtype, ElementType) and dtype.name:
        array.tensor = _array(content, dtype, shape, "F" if order == "F" else "C")
    return array


def _jax_array(function: object, arguments: object, state: object, *_: object) -> PickledArray:
    array = PickledArray()
    array.build(state)
    return array


def _scalar(dtype: object, content: object = b"") -> object:
    # A training checkpoint's loss or learning rate: no tensor.
    return None


def numpy_constructors() -> dict[Global, Constructor]:
    """How to build the arrays that NumPy and JAX pickle."""
    table: dict[Global, Constructor] = {
        Global("numpy", "dtype"): _element_type,
        Global("jax._src.array", "_reconstruct_array"): _jax_array,
        Global("jax._src.device_array", "reconstruct_device_array"): _jax_array,
    }
    for core in ("numpy.core", "numpy._core"):
        table[Global(f"{core}.multiarray", "_reconstruct")] = _reconstruct
        table[Global(f"{core}.multiarray", "scalar")] = _scalar
        table[Global(f"{core}.numeric", "_frombuffer")] = _from_buffer
    return table
