"""Stored element types: their names, sizes and conversion to float64 or complex128."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

ML_DTYPES = frozenset(
    {
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    }
)
# Two elements to a byte, the first in its low half; sign, two bits of exponent and one of mantissa.
FLOAT4 = "float4_e2m1fn"
FLOAT4_VALUES = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
NUMERIC_KINDS = "biufc"
# Every name that a file may give an element type; NumPy's parser sees no other text of a file.
ELEMENT_TYPES = ML_DTYPES | {
    "bool",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
}


def element_type(name: str) -> np.dtype[Any]:
    """NumPy's dtype of this name; ``ml_dtypes`` is imported for the names that only it knows.

    Raises:
        TypeError: no dtype has this name.
    """
    if name in ML_DTYPES:
        import ml_dtypes

        scalar: type[np.generic] = getattr(ml_dtypes, name)
        return np.dtype(scalar)
    return np.dtype(name)


def element_bytes(name: str) -> int:
    """The size of one element in bytes, without importing ``ml_dtypes``."""
    if name in ML_DTYPES:
        return 2 if name == "bfloat16" else 1
    return np.dtype(name).itemsize


def element_count(shape: tuple[int, ...]) -> int:
    """The product of the dimensions, in Python integers so that it cannot overflow."""
    return math.prod(shape)


def to_double(array: NDArray[Any]) -> NDArray[Any]:
    """The array as float64, or as complex128 where it is complex."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def decode(
    content: bytes | bytearray,
    name: str,
    shape: tuple[int, ...],
    big_endian: bool = False,
    fortran: bool = False,
) -> NDArray[Any]:
    """Elements in C order, little-endian unless said otherwise, as float64 or complex128."""
    if fortran:
        return decode(content, name, shape[::-1], big_endian).T
    if name == FLOAT4:
        packed = np.frombuffer(content, np.uint8)
        return np.array(FLOAT4_VALUES)[np.stack((packed & 15, packed >> 4), -1)].reshape(shape)
    dtype = element_type(name)
    if name not in ML_DTYPES:
        dtype = dtype.newbyteorder(">" if big_endian else "<")
    elif big_endian and dtype.itemsize > 1:
        swapped = np.frombuffer(content, dtype=f">u{dtype.itemsize}")
        content = swapped.astype(f"<u{dtype.itemsize}").tobytes()
    return to_double(np.frombuffer(content, dtype=dtype).reshape(shape))
