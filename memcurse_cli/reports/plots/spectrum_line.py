"""A layer's time constants as one line of bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from memcurse_cli.reports.console import Glyphs
from memcurse_cli.schema.figures import TIME_CONSTANT_EDGES

Resolution = Literal["decade", "half-decade"]

BINS = len(TIME_CONSTANT_EDGES) + 1

AXES: dict[Resolution, str] = {
    "decade": " 1  1k 1M",
    "half-decade": " 1   100 10k 1M",
}
"""A heading that stands over the bars: each number is at the bar that begins there."""


def spectrum(
    histogram: Sequence[int], unstable: int, glyphs: Glyphs, resolution: Resolution
) -> str:
    """One bar per bin of log τ, from τ < 1 to τ ≥ 10⁶ steps, and a last one for |λ| ≥ 1.

    The heights are shares of the fullest bin, rounded up: a bin that holds a single eigenvalue
    is never drawn as empty. A histogram that was not taken draws as nothing.
    """
    if len(histogram) != BINS:
        return ""
    counts = [*_merged(histogram, resolution), unstable]
    fullest = max(*counts, 1)
    top = len(glyphs.bars) - 1
    return "".join(glyphs.bars[-(-top * count // fullest)] for count in counts)


def added(histograms: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The histogram of several layers together; empty if any of them has none."""
    if any(len(histogram) != BINS for histogram in histograms):
        return ()
    return tuple(map(sum, zip(*histograms, strict=True)))


def _merged(histogram: Sequence[int], resolution: Resolution) -> list[int]:
    """Half decades as they are, or pairs of them: 1 to 10, 10 to 100, …"""
    if resolution == "half-decade":
        return list(histogram)
    last = len(TIME_CONSTANT_EDGES)
    pairs = [histogram[low] + histogram[low + 1] for low in range(1, last, 2)]
    return [histogram[0], *pairs, histogram[last]]
