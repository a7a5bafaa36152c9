"""Pictures in characters: curves on logarithmic axes, and the heat map of a matrix."""

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

HEIGHT = 16
MARGIN = 7
"""Cells left of the plot, for the numbers of the vertical axis."""

STYLES = ("cyan", "magenta", "yellow", "green", "red", "blue")
KEYS = "abcdefghijklmnopqrstuvwxyz"

Point = tuple[float, float]
"""The exponents of 10 of a point: a point of zero or of infinity has none."""

# The dots of a braille cell, from the top down, in its left and its right column.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK = 0x2800


@dataclass(frozen=True)
class Curve:
    """A named line through points; both coordinates are exponents of 10."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Axis:
    """The ticks of the horizontal axis: exponents of 10 and what stands below them."""

    label: str
    ticks: Sequence[tuple[float, str]]


def plot(screen: Screen, axis: Axis, curves: Sequence[Curve]) -> Iterator[Text]:
    """Draw curves, each with a letter at its end, over the horizontal axis and a legend."""
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return
    width = max(screen.width - MARGIN - 2 - len(drawn), 10)
    canvas = _Canvas(width, drawn)
    for index, curve in enumerate(drawn):
        canvas.draw(index, curve)
    for row in range(HEIGHT):
        yield canvas.line(screen, row)
    yield from _horizontal_axis(screen, axis, canvas)
    for index, curve in enumerate(drawn):
        key = Text(" " * (MARGIN + 1) + KEYS[index % len(KEYS)] + "  ", _style(index))
        yield key.append(screen.clean(curve.name), LABEL)


class _Canvas:
    """A grid of cells, each of them 2 by 4 dots that belong to one curve."""

    def __init__(self, width: int, curves: Sequence[Curve]) -> None:
        across = [x for curve in curves for x, _ in curve.points]
        up = [y for curve in curves for _, y in curve.points]
        self.left, self.right = min(across), max(across)
        self.bottom, self.top = math.floor(min(up)), math.ceil(max(up))
        if self.bottom == self.top:
            self.top += 1
        self.width = width
        self.dots = [[0] * width for _ in range(HEIGHT)]
        self.owners = [[-1] * width for _ in range(HEIGHT)]
        self.ends: list[list[int]] = [[] for _ in range(HEIGHT)]

    def column(self, x: float) -> float:
        """The dot column of an exponent, from 0 to 2·width - 1."""
        return (x - self.left) / ((self.right - self.left) or 1) * (2 * self.width - 1)

    def height(self, y: float) -> float:
        """The dot row of an exponent, counted from the top."""
        return (self.top - round(y, 9)) / (self.top - self.bottom) * (4 * HEIGHT - 1)

    def draw(self, index: int, curve: Curve) -> None:
        """Join the points of a curve, and note in which row it ends."""
        dots = sorted((self.column(x), self.height(y)) for x, y in curve.points)
        for (x, y), (next_x, next_y) in zip(dots, dots[1:] or dots, strict=False):
            steps = max(1, math.ceil(max(abs(next_x - x), abs(next_y - y))))
            for step in range(steps + 1):
                share = step / steps
                self._set(index, round(x + share * (next_x - x)), round(y + share * (next_y - y)))
        self.ends[round(dots[-1][1]) // 4].append(index)

    def _set(self, index: int, x: int, y: int) -> None:
        self.dots[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
        self.owners[y // 4][x // 2] = index

    def line(self, screen: Screen, row: int) -> Text:
        """One line of the plot: the vertical axis, the cells, the letters of what ends here."""
        text = Text(no_wrap=True)
        text.append(self._tick(row).rjust(MARGIN), LABEL)
        text.append("|" if screen.ascii_only else "┤" if self._tick(row) else "│", LABEL)
        for dots, owner in zip(self.dots[row], self.owners[row], strict=True):
            if owner < 0:
                text.append(" ")
            elif screen.ascii_only:
                text.append(KEYS[owner % len(KEYS)])
            else:
                text.append(chr(_BLANK + dots), _style(owner))
        text.append(" ")
        for index in self.ends[row]:
            text.append(KEYS[index % len(KEYS)], _style(index))
        text.rstrip()
        return text

    def _tick(self, row: int) -> str:
        """The power of 10 that a line stands for; at most every third line has one."""
        decades = self.top - self.bottom
        step = max(1, math.ceil(decades * 3 / HEIGHT))
        for exponent in range(self.top, self.bottom - 1, -step):
            if round(self.height(exponent)) // 4 == row:
                return f"1e{exponent}" if exponent else "1"
        return ""


def _horizontal_axis(screen: Screen, axis: Axis, canvas: _Canvas) -> Iterator[Text]:
    line = ["-" if screen.ascii_only else "─"] * canvas.width
    labels = [" "] * (canvas.width + MARGIN + 1)
    free = 0
    for x, said in axis.ticks:
        if not canvas.left - 1e-9 <= x <= canvas.right + 1e-9:
            continue
        column = round(canvas.column(x)) // 2
        start = min(max(MARGIN + 1 + column - len(said) // 2, 0), len(labels) - len(said))
        if start >= free:
            line[column] = "+" if screen.ascii_only else "┬"
            labels[start : start + len(said)] = said
            free = start + len(said) + 1
    corner = "+" if screen.ascii_only else "└"
    yield Text(" " * MARGIN + corner + "".join(line), LABEL, no_wrap=True)
    yield Text(screen.clean("".join(labels).rstrip()), LABEL, no_wrap=True)
    yield Text(" " * (MARGIN + 1) + screen.clean(axis.label), LABEL)


def _style(index: int) -> str:
    return STYLES[index % len(STYLES)]


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
    """What is drawn."""

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
