"""What storing a recurrent parameter in fewer bits does to the state."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Dtype = Literal["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"]


class _Format(NamedTuple):
    """A binary floating-point format: bits of the fraction, exponents of 2, largest value."""

    fraction_bits: int
    smallest_exponent: int
    largest: float


_FORMATS: dict[Dtype, _Format] = {
    "bfloat16": _Format(7, -126, 2.0**127 * (2 - 2.0**-7)),
    "float16": _Format(10, -14, 2.0**15 * (2 - 2.0**-10)),
    "float32": _Format(23, -126, 2.0**127 * (2 - 2.0**-23)),
    # Without infinities, whose place finite numbers take; of all bits set only nan is left.
    "float8_e4m3fn": _Format(3, -6, 448.0),
    "float8_e5m2": _Format(2, -14, 57344.0),
}
LARGEST_INTEGER = 127
"""int8 without -128, so that it is symmetric."""


def spacing(
    values: NDArray[np.float64], dtype: Dtype, largest: float | None = None
) -> NDArray[np.float64]:
    """The distance between neighbours of a type at each value: its unit in the last place.

    Below the smallest normal number it is the constant spacing of the subnormal ones. A value
    that rounds beyond the largest number of the type has no neighbours: inf.

    int8 stands for integers times one scale, max|ω|/127, so that its spacing is that scale at every
    value. The scale is that of the values, or of a whole tensor whose ``largest`` |ω| is given;
    finer schemes, with a scale per row or per block, are more exact.
    """
    if dtype == "int8":
        if largest is None:
            largest = float(np.abs(values).max(initial=0.0))
        return np.full(values.shape, largest / LARGEST_INTEGER)
    form = _FORMATS[dtype]
    magnitude = np.abs(values)
    normal = np.maximum(magnitude, 2.0**form.smallest_exponent)
    _, exponent = np.frexp(normal)  # normal = m 2^exponent with m in [1/2, 1)
    unit = np.ldexp(1.0, exponent - (1 + form.fraction_bits))
    half_unit = math.ldexp(0.5, math.frexp(form.largest)[1] - 1 - form.fraction_bits)
    return np.where(magnitude < form.largest + half_unit, unit, np.inf)


def rounded(
    values: NDArray[np.float64], dtype: Dtype, largest: float | None = None
) -> NDArray[np.float64]:
    """The nearest number of a type to each value, of two alike the even one, as casts round.

    inf where a value is beyond the range of the type.
    """
    unit = spacing(values, dtype, largest)
    beyond = np.isinf(unit)
    divisor = np.where(beyond | (unit == 0), 1.0, unit)  # int8 has no unit where all is 0
    nearest = np.rint(values / divisor) * divisor
    return np.where(beyond, np.copysign(np.inf, values), nearest)


def rounding_steps(
    values: NDArray[np.float64],
    dtype: Dtype,
    *,
    stored: bool = False,
    largest: float | None = None,
) -> NDArray[np.float64]:
    """δω = round(ω) - ω of every element when ω is stored in a type; 0 where that holds it exactly.

    Of values that are stored in the type already, what they were before is not known: the error is
    uniform over one spacing, of variance spacing²/12 whose root this is, and a zero was a zero.

    Args:
        values: (size,) ω.
        dtype: the type to store ω in.
        stored: whether ω is stored in it already.
        largest: the largest |ω| of the tensor, where the values are a part of it.

    Returns:
        (size,) δω; not finite where ω is beyond the range of the type.
    """
    if stored:
        return np.where(values == 0, 0.0, spacing(values, dtype, largest) / np.sqrt(12))
    return rounded(values, dtype, largest) - values


def rounding_error(
    relative_sensitivity: NDArray[np.float64], steps: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The relative error √(E|δh|² / E|h|²) of the state when ω moves by δω, to first order.

    The state moves by ``δω dh/dω``, so the error is ``√κ(ω) |δω|`` while that is small against 1.

    Args:
        relative_sensitivity: (size,) κ(ω), inf where it diverges.
        steps: (size,) δω, as `rounding_steps` has it.

    Returns:
        (size,) the error; inf where κ diverges or δω is not finite.
    """
    moved = np.abs(steps)
    fits = np.isfinite(moved)
    exact = moved == 0  # nothing moves, however sensitive the state is
    kappa = np.where(exact, 0.0, relative_sensitivity)
    return np.where(fits, np.sqrt(kappa) * np.where(fits, moved, 1.0), np.inf)
