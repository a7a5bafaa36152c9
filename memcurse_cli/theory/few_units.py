"""Some of a layer's units, evenly taken, where running all would take long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UNITS = 256
"""At most so many stand for a layer."""


def evenly_taken(size: int) -> NDArray[np.intp]:
    """Their indices, ascending; all where there are no more than `UNITS`."""
    return np.unique(np.linspace(0, size - 1, UNITS).astype(np.intp))
