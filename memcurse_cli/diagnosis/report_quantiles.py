"""The part of the schema that all the others are built of: order statistics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantiles:
    """Order statistics of one figure over a layer, in its unit; an entry that diverges is None.

    Attributes:
        min: the smallest element.
        p50: the median.
        p90: the 90th percentile, between elements by linear interpolation.
        p99: the 99th percentile.
        max: the largest element.
        divergent: how many elements are infinite; they sort above every finite one.
    """

    min: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    divergent: int = 0
