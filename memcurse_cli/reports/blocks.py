"""Tables of numbers whose columns come in titled blocks that are never torn apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from memcurse_cli.reports.console import LABEL, SPECTRUM, Screen
from memcurse_cli.reports.numbers import DIVERGENT

GAP = "  "


@dataclass(frozen=True)
class Block:
    """Columns under one title; a column is its heading and its cells."""

    title: str
    columns: Mapping[str, Sequence[str]]


def pack(screen: Screen, leader: Block, blocks: Sequence[Block]) -> list[list[Block]]:
    """Spread blocks over as few tables as fit the screen, each of them led by the same block."""
    tables: list[list[Block]] = []
    for block in blocks:
        if not tables or width(screen, [*tables[-1], block]) > screen.width:
            tables.append([leader])
        tables[-1].append(block)
    return tables


def width(screen: Screen, blocks: Sequence[Block]) -> int:
    """The cells that the widest line of a table takes."""
    return sum(map(sum, _widths(screen, blocks))) + len(GAP) * (
        sum(len(block.columns) for block in blocks) - 1
    )


def lines(screen: Screen, blocks: Sequence[Block], bars: Sequence[str]) -> Iterator[Text]:
    """A table: titles where there are any, headings, rows, and a bar at the end of each row."""
    widths = _widths(screen, blocks)
    titles, headings = Text(no_wrap=True), Text(no_wrap=True)
    for block, cells in zip(blocks, widths, strict=True):
        room = sum(cells) + len(GAP) * (len(cells) - 1)
        titles.append(screen.clean(block.title).rjust(room) + GAP, LABEL)
        for heading, cell in zip(block.columns, cells, strict=True):
            headings.append(screen.clean(heading).rjust(cell) + GAP, LABEL)
    for line in (titles, headings):
        line.rstrip()
        if line.plain:
            yield line
    for index in range(len(next(iter(blocks[0].columns.values())))):
        line = Text(no_wrap=True)
        for block, cells in zip(blocks, widths, strict=True):
            for column, cell in zip(block.columns.values(), cells, strict=True):
                said = screen.clean(column[index])
                line.append(said.rjust(cell) + GAP, "yellow" if said == DIVERGENT else "")
        line.append(bars[index] if bars else "", SPECTRUM)
        line.rstrip()
        yield line


def _widths(screen: Screen, blocks: Sequence[Block]) -> list[list[int]]:
    """The cells of each column; the first one of a block makes room for a long title."""
    widths = []
    for block in blocks:
        cells = [
            max(cell_len(screen.clean(said)) for said in (heading, *column))
            for heading, column in block.columns.items()
        ]
        spare = cell_len(screen.clean(block.title)) - sum(cells) - len(GAP) * (len(cells) - 1)
        cells[0] += max(spare, 0)
        widths.append(cells)
    return widths
