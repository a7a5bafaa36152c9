"""A matrix of magnitudes on a logarithmic scale, two rows to a line where there is colour.

Each half of a cell has a colour of its own: the upper half block is drawn in one on a ground of
the other. Without colour a cell is one of ten ASCII shades. Its
scale is that of a Hessian's heat map in a file, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.style import Style
from rich.text import Text

from memcurse_cli.reports.console import LABEL, Screen
from memcurse_cli.schema.hessian import HessianPicture

MOST_DECADES = 12
CORRELATION_DECADES = 3


def drawn_magnitudes(
    picture: HessianPicture, *, correlation: bool
) -> tuple[NDArray[np.float64], int, str]:
    """The values to draw, the decades of their scale, and what they are."""
    if correlation:
        return picture.correlation, CORRELATION_DECADES, "|H_ab| / √(H_aa H_bb)"
    positive = picture.magnitude[picture.magnitude > 0]
    decades = 1
    if positive.size:
        # The smallest tenth is most often rounding, and would take the contrast from the rest.
        low = float(np.quantile(positive, 0.1))
        decades = math.ceil(math.log10(float(positive.max()) / low))
    return picture.magnitude, min(max(decades, 1), MOST_DECADES), "|H_ab|"


Floats = NDArray[np.float64]

SHADES = " .:-=+*#%@"
LEAST_NAMES, MOST_NAMES = 6, 12
WIDEST = 96
"""Cells across; a heat map grows with the terminal up to here."""

# Matplotlib's `viridis` at equal steps, which stays readable without hues.
COLOURS = (
    (68, 1, 84),
    (72, 40, 120),
    (62, 74, 137),
    (49, 104, 142),
    (38, 130, 142),
    (31, 158, 137),
    (53, 183, 121),
    (109, 205, 89),
    (180, 222, 44),
    (253, 231, 37),
)


@dataclass(frozen=True)
class HeatMap:
    """What is drawn.

    Attributes:
        values: (cells, cells) non-negative.
        groups: the names of the groups of rows and columns.
        boundaries: (groups + 1,) the first cell of each group, and the end.
        decades: how many powers of 10 below the largest value the scale reaches.
        unit: what a value is, for the scale.
    """

    values: Floats
    groups: Sequence[str]
    boundaries: Sequence[int]
    decades: int
    unit: str


def heat_map(screen: Screen, drawn: HeatMap, *, coloured: bool) -> Iterator[Text]:
    """Draw a matrix: the groups' names on the left, bars between their columns, the scale below."""
    longest = max(map(len, drawn.groups))
    margin = min(max(longest, LEAST_NAMES), MOST_NAMES if screen.width >= 60 else LEAST_NAMES + 2)
    room = screen.width - margin - len(drawn.groups) - 2
    sizes = np.diff(drawn.boundaries)
    lines = _share(sizes, max(len(sizes), min(WIDEST, room) // 2))
    if not np.any(drawn.values):
        return
    shrunk = _pool(drawn.values, drawn.boundaries, 2 * lines)
    top = float(shrunk.max())
    with np.errstate(divide="ignore"):
        height = np.clip(1 + np.log10(shrunk / top) / drawn.decades, 0, 1)
    bar = "|" if screen.ascii_only else "│"
    ends = np.cumsum(2 * lines)
    row = 0
    for name, count in zip(drawn.groups, lines.tolist(), strict=True):
        for line in range(count):
            text = Text(no_wrap=True)
            label = screen.shorten(screen.clean(name), margin) if line == 0 else ""
            text.append(label.rjust(margin), LABEL).append(" " + bar, LABEL)
            for column in range(height.shape[1]):
                if column in ends[:-1]:
                    text.append(bar, LABEL)
                upper, lower = height[row, column], height[row + 1, column]
                if coloured:
                    text.append("▀", Style(color=_colour(upper), bgcolor=_colour(lower)))
                else:
                    text.append(_shade(max(upper, lower)))
            text.append(bar, LABEL)
            row += 2
            yield text
    yield from _scale(screen, drawn, top, margin, coloured=coloured)


def _share(sizes: NDArray[np.intp], lines: int) -> NDArray[np.intp]:
    """Lines for each group by its size, one at least."""
    wanted = sizes / sizes.sum() * lines
    shared = np.maximum(1, np.floor(wanted)).astype(np.intp)
    while shared.sum() < lines:
        shared[np.argmax(wanted - shared)] += 1
    while shared.sum() > lines and shared.max() > 1:
        shared[np.argmax(np.where(shared > 1, shared - wanted, -np.inf))] -= 1
    return shared


def _pool(values: Floats, boundaries: Sequence[int], counts: NDArray[np.intp]) -> Floats:
    """The root mean square under each cell of the screen, whose borders are the groups'.

    The largest value would paint over all that is not an extreme.
    """
    scale = float(values.max())
    squares = (values / scale) ** 2
    starts, ends = [], []
    for start, end, count in zip(boundaries, boundaries[1:], counts.tolist(), strict=False):
        edges = start + np.arange(count + 1) * (end - start) / count
        starts.extend(np.floor(edges[:-1]).astype(int).tolist())
        ends.extend(np.ceil(edges[1:]).astype(int).tolist())
    rows = np.stack(
        [squares[start:end].mean(axis=0) for start, end in zip(starts, ends, strict=True)]
    )
    pooled = np.stack(
        [rows[:, start:end].mean(axis=1) for start, end in zip(starts, ends, strict=True)], axis=1
    )
    return np.asarray(scale * np.sqrt(pooled))


def _scale(
    screen: Screen, drawn: HeatMap, top: float, margin: int, *, coloured: bool
) -> Iterator[Text]:
    """Every shade between the smallest and the largest value that are told apart."""
    exponent = math.log10(top)
    text = Text(" " * (margin + 2), no_wrap=True)
    text.append(f"{10 ** (exponent - drawn.decades):.1g} ", LABEL)
    for step in range(len(SHADES)):
        share = step / (len(SHADES) - 1)
        if coloured:
            text.append("█", Style(color=_colour(share)))
        else:
            text.append(SHADES[step])
    text.append(f" {top:.1g}", LABEL)
    unit = screen.clean(f"  {drawn.unit}")
    if len(text) + len(unit) <= screen.width:
        text.append(unit, LABEL)
    yield text


def _shade(height: float) -> str:
    return SHADES[round(height * (len(SHADES) - 1))]


def _colour(height: float) -> Color:
    """A colour between those of `COLOURS`."""
    place = height * (len(COLOURS) - 1)
    below = min(int(place), len(COLOURS) - 2)
    share = place - below
    return Color.from_rgb(
        *(
            round(first + share * (second - first))
            for first, second in zip(COLOURS[below], COLOURS[below + 1], strict=True)
        )
    )
