"""Order statistics in which an infinite element is counted, never printed."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.diagnosis.report_quantiles import Quantiles

LEVELS = (0.0, 0.5, 0.9, 0.99, 1.0)


def quantiles(elements: NDArray[np.float64]) -> Quantiles:
    """The quantiles of a layer's figure, with linear interpolation between elements.

    Infinite elements sort above every finite one; a quantile that touches one is None. An empty
    layer has no quantiles.

    Raises:
        ValueError: an element is nan, which is always a defect of the caller.
    """
    ordered = np.sort(elements, axis=None)
    if ordered.size == 0:
        return Quantiles(None, None, None, None, None)
    last = ordered.item(-1)
    if math.isnan(last):
        raise ValueError("a figure of the report is not a number")
    divergent = int(ordered.size - np.searchsorted(ordered, np.inf)) if last == math.inf else 0
    if ordered.item(0) == last and math.isfinite(last):  # one element, or all alike
        return Quantiles(last, last, last, last, last)
    low, middle, high, higher, top = (_interpolate(ordered, level) for level in LEVELS)
    return Quantiles(low, middle, high, higher, top, divergent)


def _interpolate(ordered: NDArray[np.float64], level: float) -> float | None:
    # Python's floats: a layer may have one element, and NumPy's scalars take ten times as long.
    place = level * (ordered.size - 1)
    floor = int(place)
    below, above = ordered.item(floor), ordered.item(math.ceil(place))
    if math.isinf(above):
        return None
    return float(below + (above - below) * (place - floor))
