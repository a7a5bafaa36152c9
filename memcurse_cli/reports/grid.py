"""Aligned columns that give way as the screen gets narrower: gaps, then names, then columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from memcurse_cli.reports.console import LABEL, Screen
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT

GUTTER = 9  # the cells of the left margin that verdicts, severities and labels stand in
LEAST_NAME = 12

TIE = "\ue000"
"""Stands for a space that no line may end at; cleaned text never holds it."""


class Cell(Struct, frozen=True):
    """What one row says in one column."""

    text: str
    style: str = ""


class Column(Struct, frozen=True):
    """One column."""

    heading: str  # its name; empty for a column that needs none
    # what it says of the entry that a row is about
    value: Callable[[Any], Cell | str] = lambda _: ""
    align: Literal["left", "right"] = "right"  # numbers stand on the right
    shrinks: bool = False  # may be cut in the middle, down to 12 cells
    leaves: int = 0  # 0 stays at any width; otherwise the highest leaves first
    meaning: str = ""  # the sentence that the legend explains it with
    optional: bool = False  # left out where no row says anything in it
    above: str = ""  # what stands over its heading


name_column = partial(Column, align="left", shrinks=True)
"""A column of names, which may be cut."""


def cells(columns: Sequence[Column], entry: Any) -> list[Cell]:
    """The row of one entry; that something is divergent stands out."""
    said = (column.value(entry) for column in columns)
    return [
        Cell(one, "yellow" * (one == DIVERGENT)) if isinstance(one, str) else one for one in said
    ]


class RenderedTable(Struct, frozen=True):
    """A drawn grid."""

    lines: tuple[Text, ...]
    meanings: tuple[str, ...]
    left_out: tuple[str, ...]


Row = Sequence[Cell]


def draw(
    screen: Screen, columns: Sequence[Column], rows: Sequence[Row], *, gutter: int = GUTTER
) -> RenderedTable:
    """Lay rows out under their columns; the cells' text is cleaned here.

    The first column is a gutter of some cells, or as many as it needs; of 0, it is as any other.
    What does not fit gets gaps of two cells, gaps of one, shorter names, and then fewer columns.
    """
    kept = [i for i, column in enumerate(columns) if not column.optional or says(rows, i)]
    heads = [[Cell(column.heading, LABEL) for column in columns]]
    if any(column.above for column in columns):
        heads.insert(0, [Cell(column.above, LABEL) for column in columns])
    clean = [[Cell(screen.clean(one.text), one.style) for one in row] for row in (*heads, *rows)]
    natural = [max(cell_len(cell.text) for cell in column) for column in zip(*clean, strict=True)]
    natural[0] = max(natural[0], gutter - 1)
    least = [
        min(width, LEAST_NAME) if column.shrinks else width
        for width, column in zip(natural, columns, strict=True)
    ]

    def spare(widths: Sequence[int], gap: int) -> int:
        first = 1 if gutter else gap
        return screen.width - sum(widths[i] for i in kept) - first - gap * (len(kept) - 2)

    dropped = []
    while True:
        tried = ((2, natural), (1, natural), (2, least), (1, least))
        gap = next((gap for gap, widths in tried if spare(widths, gap) >= 0), 0)
        last = max(kept, key=lambda index: columns[index].leaves)
        if gap or columns[last].leaves == 0:
            break
        kept.remove(last)
        dropped.append(last)
    gap = gap or 1
    widths = list(least)
    for index in kept:  # what room there is goes back to the names, the first one first
        widths[index] += max(0, min(spare(widths, gap), natural[index] - least[index]))
    if spare(widths, gap) < 0:  # not even the essential columns fit
        names = [index for index in kept[1:] if columns[index].shrinks]
        name = names[0] if names else max(kept[1:], key=widths.__getitem__)
        widths[name] = max(1, widths[name] + spare(widths, gap))

    def line(row: Row) -> Text:
        text = Text(no_wrap=True)
        for index in kept:
            cell = Text(screen.shorten(row[index].text, widths[index]), row[index].style)
            cell.align(columns[index].align, widths[index])
            text.append_text(cell).append(" " * (1 if gutter and index == 0 else gap))
        text.truncate(screen.width)
        text.rstrip()
        return text

    return RenderedTable(
        lines=tuple(map(line, clean)),
        meanings=tuple(columns[index].meaning for index in kept),
        left_out=tuple(columns[index].heading for index in sorted(dropped)),
    )


def says(rows: Sequence[Row], index: int) -> bool:
    """Whether a row has something to say in a column."""
    return any(row[index].text not in ("", ABSENT) for row in rows)


def parted(*parts: Iterable[Text]) -> Iterator[Text]:
    """The parts of a page that say anything, in turn, with a blank line between them."""
    written = False
    for part in parts:
        lines = [*part]
        if lines and written:
            yield Text()
        yield from lines
        written = written or bool(lines)


def facts(screen: Screen, said: Mapping[str, str] | Iterable[tuple[str, str]]) -> Iterator[Text]:
    """A sentence for each label, which stands beside it; none where there is nothing to say."""
    for label, words in said.items() if isinstance(said, Mapping) else said:
        if words:
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
    words = [*gutter, *[("", "")] * (len(body) - len(gutter))]
    for line, (word, style) in zip(body, words, strict=True):
        beside = Text(no_wrap=True)
        beside.append(screen.shorten(word, margin - 1).ljust(margin), style).append_text(line)
        beside.rstrip()
        yield beside
