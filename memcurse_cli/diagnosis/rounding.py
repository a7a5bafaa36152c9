"""What storing a parameter group in fewer bits does to the state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.quantiles import quantiles
from memcurse_cli.diagnosis.report import Rounding
from memcurse_cli.theory.rounding import rounding_error


def summarise_rounding(
    relative_sensitivity: NDArray[np.float64], values: NDArray[np.float64]
) -> Rounding:
    """The p99 relative error of the state when a group is stored in each type."""
    errors = {
        dtype: quantiles(rounding_error(relative_sensitivity, values, dtype)).p99
        for dtype in ("bfloat16", "float16", "float32")
    }
    return Rounding(**errors)
