"""What storing a parameter group in fewer bits does to the state."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.finite import finite
from memcurse_cli.diagnosis.quantiles import quantiles
from memcurse_cli.diagnosis.report_figures import Rounding
from memcurse_cli.theory.rounding import Dtype, rounding_error

Floats = NDArray[np.float64]


DTYPES: tuple[Dtype, ...] = (
    "bfloat16",
    "float16",
    "float32",
    "int8",
    "float8_e4m3fn",
    "float8_e5m2",
)
"""In the order of the fields of `Rounding`."""


def summarise_rounding(relative_sensitivity: Floats, values: Floats) -> Rounding:
    """The p99 relative error of the state when a group is stored in each type."""
    return Rounding(
        *(quantiles(rounding_error(relative_sensitivity, values, dtype)).p99 for dtype in DTYPES)
    )


def summarise_matrix_rounding(relative_sensitivity: Floats, matrix: Floats) -> Rounding:
    """The relative error of the state when every entry of a dense matrix is rounded at once.

    The errors of the entries are independent, so their squares add.
    """
    errors = [
        math.sqrt(float(np.sum(rounding_error(relative_sensitivity, matrix, dtype) ** 2)))
        for dtype in DTYPES
    ]
    return Rounding(*map(finite, errors))
