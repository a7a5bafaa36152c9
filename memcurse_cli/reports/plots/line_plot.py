"""Curves on logarithmic axes, drawn with braille dots or, where there is only ASCII, letters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from memcurse_cli.reports.console import LABEL, Screen

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
