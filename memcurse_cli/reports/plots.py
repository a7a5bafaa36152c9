"""Pictures in characters: curves on logarithmic axes, and the heat map of a matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from rich.color import Color
from rich.style import Style
from rich.text import Text

from memcurse_cli.reports.console import LABEL, Screen
from memcurse_cli.schema.hessian import HessianPicture
from memcurse_cli.theory.linalg import Floats, Integers

HEIGHT = 16
MARGIN = 7  # cells left of the plot, for the numbers of the vertical axis

STYLES = ("cyan", "magenta", "yellow", "green", "red", "blue")
KEYS = "abcdefghijklmnopqrstuvwxyz"

Point = tuple[float, float]
"""The exponents of 10 of a point: a point of zero or of infinity has none."""

# The dots of a braille cell, from the top down, in its left and its right column.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK = 0x2800


class Curve(Struct, frozen=True):
    """A named line through points; both coordinates are exponents of 10."""

    name: str
    points: Sequence[Point]


class Axis(Struct, frozen=True):
    """The ticks of the horizontal axis: exponents of 10 and what stands below them."""

    label: str
    ticks: Sequence[tuple[float, str]]


def plot(screen: Screen, axis: Axis, curves: Sequence[Curve]) -> Iterator[Text]:
    """Draw curves, each with a letter at its end, over the horizontal axis and a legend."""
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return
    canvas = _Canvas(max(screen.width - MARGIN - 2 - len(drawn), 10), drawn)
    for index, curve in enumerate(drawn):
        canvas.draw(index, curve)
    for row in range(HEIGHT):
        yield canvas.line(screen, row)
    yield from canvas.axis(screen, axis)
    for index, curve in enumerate(drawn):
        key = Text(" " * (MARGIN + 1) + _key(index) + "  ", _style(index))
        yield key.append(screen.clean(curve.name), LABEL)


class _Canvas:
    """A grid of cells, each of them 2 by 4 dots that belong to one curve."""

    def __init__(self, width: int, curves: Sequence[Curve]) -> None:
        across, up = zip(*(point for curve in curves for point in curve.points), strict=True)
        self.left, self.right = min(across), max(across)
        self.bottom, self.top = math.floor(min(up)), math.ceil(max(up))
        if self.bottom == self.top:
            self.top += 1
        self.width = width
        self.dots = np.zeros((HEIGHT, width), np.intp)
        self.owners = np.full((HEIGHT, width), -1)
        self.ends: list[list[int]] = [[] for _ in range(HEIGHT)]
        # The power of 10 that a line stands for; at most every third line has one.
        apart = max(1, math.ceil((self.top - self.bottom) * 3 / HEIGHT))
        self.ticks = {
            round(self.height(exponent)) // 4: f"1e{exponent}" if exponent else "1"
            for exponent in range(self.top, self.bottom - 1, -apart)
        }

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
                column, row = round(x + share * (next_x - x)), round(y + share * (next_y - y))
                self.dots[row // 4, column // 2] |= _DOTS[column % 2][row % 4]
                self.owners[row // 4, column // 2] = index
        self.ends[round(dots[-1][1]) // 4].append(index)

    def line(self, screen: Screen, row: int) -> Text:
        """One line of the plot: the vertical axis, the cells, the letters of what ends here."""
        tick = self.ticks.get(row, "")
        bar = "|" if screen.ascii_only else "┤" if tick else "│"
        text = Text(no_wrap=True).append(tick.rjust(MARGIN) + bar, LABEL)
        for dots, owner in zip(self.dots[row].tolist(), self.owners[row].tolist(), strict=True):
            if owner < 0:
                text.append(" ")
            elif screen.ascii_only:
                text.append(_key(owner))
            else:
                text.append(chr(_BLANK + dots), _style(owner))
        text.append(" ")
        for index in self.ends[row]:
            text.append(_key(index), _style(index))
        text.rstrip()
        return text

    def axis(self, screen: Screen, axis: Axis) -> Iterator[Text]:
        """The horizontal axis: its line, the labels that there is room for, and its name."""
        rule, tick, corner = "-++" if screen.ascii_only else "─┬└"
        line, labels = [rule] * self.width, [" "] * (self.width + MARGIN + 1)
        free = 0
        for x, said in axis.ticks:
            if not self.left - 1e-9 <= x <= self.right + 1e-9:
                continue
            column = round(self.column(x)) // 2
            start = min(max(MARGIN + 1 + column - len(said) // 2, 0), len(labels) - len(said))
            if start >= free:
                line[column] = tick
                labels[start : start + len(said)] = said
                free = start + len(said) + 1
        yield Text(" " * MARGIN + corner + "".join(line), LABEL, no_wrap=True)
        yield Text(screen.clean("".join(labels).rstrip()), LABEL, no_wrap=True)
        yield Text(" " * (MARGIN + 1) + screen.clean(axis.label), LABEL)


def _style(index: int) -> str:
    return STYLES[index % len(STYLES)]


def _key(index: int) -> str:
    return KEYS[index % len(KEYS)]


MOST_DECADES = 12
CORRELATION_DECADES = 3


def drawn_magnitudes(picture: HessianPicture, *, correlation: bool) -> tuple[Floats, int, str]:
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


SHADES = " .:-=+*#%@"
LEAST_NAMES, MOST_NAMES = 6, 12
WIDEST = 96  # cells across; a heat map grows with the terminal up to here
VIRIDIS = "440154 482878 3e4a89 31688e 26828e 1f9e89 35b779 6dcd59 b4de2c fde725"
"""Matplotlib's colours of that name at equal steps, which stay readable without hues."""


def heat_map(screen: Screen, picture: HessianPicture, *, correlation: bool) -> Iterator[Text]:
    """Draw a block: the groups' names on the left, bars between their columns, the scale below."""
    values, decades, unit = drawn_magnitudes(picture, correlation=correlation)
    if not np.any(values):
        return
    longest = max(map(len, picture.groups))
    margin = min(max(longest, LEAST_NAMES), MOST_NAMES if screen.width >= 60 else LEAST_NAMES + 2)
    room = screen.width - margin - len(picture.groups) - 2
    sizes = np.diff(picture.boundaries)
    lines = _share(sizes, max(len(sizes), min(WIDEST, room) // 2))
    shrunk = _pool(values, picture.boundaries, 2 * lines)
    top = float(shrunk.max())
    with np.errstate(divide="ignore"):
        height = np.clip(1 + np.log10(shrunk / top) / decades, 0, 1)
    coloured = screen.coloured and not screen.ascii_only
    colours = _colours(height) if coloured else []
    bar = "|" if screen.ascii_only else "│"
    ends = np.cumsum(2 * lines)
    names = dict(zip([0, *ends], picture.groups, strict=False))
    for row in range(0, len(height), 2):
        text = Text(no_wrap=True)
        label = screen.shorten(screen.clean(names.get(row, "")), margin)
        text.append(f"{label.rjust(margin)} {bar}", LABEL)
        for column in range(len(height)):
            if column in ends[:-1]:
                text.append(bar, LABEL)
            if coloured:
                upper, lower = (colours[one][column] for one in (row, row + 1))
                text.append("▀", Style(color=upper, bgcolor=lower))
            else:
                darkest = height[row : row + 2, column].max()
                text.append(SHADES[round(darkest * (len(SHADES) - 1))])
        yield text.append(bar, LABEL)
    # Every shade between the smallest and the largest value that are told apart.
    scale = Text(" " * (margin + 2), no_wrap=True)
    scale.append(f"{10 ** (math.log10(top) - decades):.1g} ", LABEL)
    if coloured:
        for colour in _colours(np.linspace(0, 1, len(SHADES))[None])[0]:
            scale.append("█", Style(color=colour))
    else:
        scale.append(SHADES)
    scale.append(f" {top:.1g}", LABEL)
    said = screen.clean(f"  {unit}")
    if len(scale) + len(said) <= screen.width:
        scale.append(said, LABEL)
    yield scale


def _share(sizes: Integers, lines: int) -> Integers:
    """Lines for each group by its size, one at least."""
    wanted = sizes / sizes.sum() * lines
    shared = np.maximum(1, np.floor(wanted)).astype(np.intp)
    while shared.sum() < lines:
        shared[np.argmax(wanted - shared)] += 1
    while shared.sum() > lines and shared.max() > 1:
        shared[np.argmax(np.where(shared > 1, shared - wanted, -np.inf))] -= 1
    return shared


def _pool(values: Floats, boundaries: Sequence[int], counts: Integers) -> Floats:
    """The root mean square under each cell of the screen, whose borders are the groups'.

    The largest value would paint over all that is not an extreme.
    """
    scale, place = float(values.max()), np.arange(len(values))
    weights = []
    for start, end, count in zip(boundaries, boundaries[1:], counts.tolist(), strict=False):
        edges = start + np.arange(count + 1) * (end - start) / count
        for low, high in zip(np.floor(edges[:-1]), np.ceil(edges[1:]), strict=True):
            weights.append(((low <= place) & (place < high)) / (high - low))
    mean = np.array(weights)
    return np.asarray(scale * np.sqrt(mean @ (values / scale) ** 2 @ mean.T))


def _colours(heights: Floats) -> list[list[Color]]:
    """The colours between those of `VIRIDIS` of rows of heights."""
    known = [tuple(bytes.fromhex(colour)) for colour in VIRIDIS.split()]
    places = np.linspace(0, 1, len(known))
    channels = [np.interp(heights, places, channel) for channel in zip(*known, strict=True)]
    rows = np.rint(np.stack(channels, axis=-1)).tolist()
    return [[Color.from_rgb(*colour) for colour in row] for row in rows]
