"""Numbers of a report, of which those that diverge have none."""

from __future__ import annotations

import math


def finite(value: float) -> float | None:
    """A number as a report holds it; None for inf and NaN, which JSON has not."""
    return float(value) if math.isfinite(value) else None
