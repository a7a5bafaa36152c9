"""Aligned columns that give way as the screen gets narrower: gaps, then names, then columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from memcurse_cli.reports.console import LABEL, Screen
from memcurse_cli.reports.numbers import ABSENT

GUTTER = 9
"""The cells of the left margin that verdicts, severities and labels stand in."""

LEAST_NAME = 12

TIE = "\ue000"
"""Stands for a space that no line may end at; cleaned text never holds it."""


@dataclass(frozen=True)
class Cell:
    """What one row says in one column."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Column:
    """One column."""

    heading: str  # its name; empty for a column that needs none
    # what it says of the entry that a row is about
    value: Callable[[Any], Cell | str] = lambda _: ""
    align: Literal["left", "right"] = "right"  # numbers stand on the right
    shrinks: bool = False  # may be cut in the middle, down to 12 cells
    leaves: int = 0  # 0 stays at any width; otherwise the highest leaves first
    meaning: str = ""  # the sentence that the legend explains it with
    optional: bool = False  # left out where no row says anything in it


def cells(columns: Sequence[Column], entry: Any) -> list[Cell]:
    """The row of one entry."""
    said = (column.value(entry) for column in columns)
    return [Cell(one) if isinstance(one, str) else one for one in said]


@dataclass(frozen=True)
class RenderedTable:
    """A drawn grid."""

    lines: tuple[Text, ...]
    meanings: tuple[str, ...]
    left_out: tuple[str, ...]


Row = Sequence[Cell]


def draw(
    screen: Screen, columns: Sequence[Column], rows: Sequence[Row], *, gutter: int = GUTTER
) -> RenderedTable:
    """Lay rows out under their columns; the cells' text is cleaned here.

    The first column is a gutter of some cells, or as many as it needs. What does not fit is tried
    in this order: gaps of two cells, gaps of one, shorter names, and only then fewer columns.
    """
    grid = _Grid(screen, columns, rows, gutter)
    kept = [i for i, column in enumerate(columns) if not column.optional or says(rows, i)]
    while True:
        for gap, shrink in ((2, False), (1, False), (2, True), (1, True)):
            if grid.width(kept, gap, shrink=shrink) <= screen.width:
                return grid.drawn(kept, gap)
        index = max(kept, key=lambda index: columns[index].leaves)
        if columns[index].leaves == 0:
            return grid.drawn(kept, 1)
        kept.remove(index)


def says(rows: Sequence[Row], index: int) -> bool:
    """Whether a row has something to say in a column."""
    return any(row[index].text not in ("", ABSENT) for row in rows)


class _Grid:
    def __init__(
        self, screen: Screen, columns: Sequence[Column], rows: Sequence[Row], gutter: int
    ) -> None:
        self.screen = screen
        self.columns = columns
        self.headings = [screen.clean(column.heading) for column in columns]
        self.rows = [[Cell(screen.clean(cell.text), cell.style) for cell in row] for row in rows]
        self.natural = [
            max([cell_len(heading), *(cell_len(row[index].text) for row in self.rows)])
            for index, heading in enumerate(self.headings)
        ]
        self.natural[0] = max(self.natural[0], gutter - 1)

    def least(self, index: int) -> int:
        natural = self.natural[index]
        return min(natural, LEAST_NAME) if self.columns[index].shrinks else natural

    def width(self, kept: Sequence[int], gap: int, *, shrink: bool) -> int:
        cells = sum(self.least(index) if shrink else self.natural[index] for index in kept[1:])
        return self.natural[0] + 1 + cells + gap * (len(kept) - 2)

    def drawn(self, kept: Sequence[int], gap: int) -> RenderedTable:
        widths = {index: self.least(index) for index in kept}
        spare = self.screen.width - self.width(kept, gap, shrink=True)
        for index in kept[1:]:  # what room there is goes back to the names, the first one first
            more = max(0, min(spare, self.natural[index] - widths[index]))
            widths[index] += more
            spare -= more
        if spare < 0:  # not even the essential columns fit
            names = [index for index in kept[1:] if self.columns[index].shrinks]
            name = names[0] if names else max(kept[1:], key=widths.__getitem__)
            widths[name] = max(1, widths[name] + spare)
        headings = [Cell(heading, LABEL) for heading in self.headings]
        return RenderedTable(
            lines=tuple(self.line(row, kept, widths, gap) for row in (headings, *self.rows)),
            meanings=tuple(self.columns[index].meaning for index in kept),
            left_out=tuple(
                column.heading
                for index, column in enumerate(self.columns)
                if index not in kept and not (column.optional and not says(self.rows, index))
            ),
        )

    def line(
        self, cells: Sequence[Cell], kept: Sequence[int], widths: dict[int, int], gap: int
    ) -> Text:
        line = Text(no_wrap=True)
        for place, index in enumerate(kept):
            cell, width = cells[index], widths[index]
            text = self.screen.shorten(cell.text, width)
            padding = " " * (width - cell_len(text))
            if self.columns[index].align == "right":
                line.append(padding)
                padding = ""
            line.append(text, cell.style)
            between = 0 if place == len(kept) - 1 else 1 if place == 0 else gap
            line.append(padding + " " * between)
        line.truncate(self.screen.width)
        line.rstrip()
        return line


def facts(screen: Screen, said: Mapping[str, str] | Iterable[tuple[str, str]]) -> Iterator[Text]:
    """A sentence for each label, which stands beside it."""
    for label, words in said.items() if isinstance(said, Mapping) else said:
        yield from paragraph(screen, screen.sentence(words), gutter=[(label, LABEL)])


def paragraph(
    screen: Screen,
    *texts: Text,
    gutter: Sequence[tuple[str, str]] = (),
    margin: int = GUTTER,
    orphans: bool = True,
) -> Iterator[Text]:
    """Wrapped texts beside a margin, whose first lines carry a (word, style) each.

    A number and its % sign stay on one line; without ``orphans`` the last two words do too.
    """
    width = max(screen.width - margin, 1)
    console = Console(width=width)
    body: list[Text] = []
    for text in texts:
        tied = text.copy()
        tied.plain = text.plain.replace(" %", f"{TIE}%")
        if not orphans:
            tied.plain = TIE.join(tied.plain.rsplit(" ", 1))
        for line in tied.wrap(console, width, overflow="fold"):
            line.plain = line.plain.replace(TIE, " ")
            body.append(line)
    body.extend(Text() for _ in range(len(gutter) - len(body)))
    for index, line in enumerate(body):
        word, style = gutter[index] if index < len(gutter) else ("", "")
        beside = Text(no_wrap=True)
        beside.append(screen.shorten(word, margin - 1).ljust(margin), style).append_text(line)
        beside.rstrip()
        yield beside
