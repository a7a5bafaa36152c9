"""Tables of layers, which the terminal shows of all of them together and a page of each alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from memcurse_cli.reports.console import LABEL, NAME, Screen
from memcurse_cli.reports.grid import Cell, Column, RenderedTable, Row, cells, draw, paragraph
from memcurse_cli.reports.numbers import ABSENT, count, effect
from memcurse_cli.schema.figures import ParameterSummary
from memcurse_cli.schema.report import LayerReport

Names = Mapping[str, str]
"""What each layer is called in a table."""

GUTTER_COLUMN = Column("", align="left")


@dataclass(frozen=True)
class LayerTable:
    """A table whose rows are about parts of layers."""

    title: str  # what stands above it
    columns: tuple[Column, ...]  # those beside the gutter and the layer's name
    # the parts of a layer that have a row; none where it has no place in the table
    entries: Callable[[LayerReport], Sequence[Any]]
    rank: Callable[[LayerReport], Any]  # the largest is shown, where there are too many
    more: str = ""  # what the layers have in common that are not shown
    shown: int = 6  # how many layers are
    gutter: Callable[[Any], Cell] = lambda _: Cell("")  # what a row says there
    alone: bool = True  # whether the name stands even where there is one layer

    def rows(self, layer: LayerReport, name: str) -> list[list[Cell]]:
        """Those of one layer, the first of them under its name."""
        return [
            [self.gutter(one), Cell("" if index else name, NAME), *cells(self.columns, one)]
            for index, one in enumerate(self.entries(layer))
        ]

    def lines(
        self, screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
    ) -> Generator[Text, None, Names]:
        """The table of those layers that have a place in it; what they are called comes back."""
        taken = shown = [layer for layer in layers if self.entries(layer)]
        if not all_layers and len(taken) > self.shown:
            shown = sorted(taken, key=self.rank, reverse=True)[: self.shown]
        if not shown:
            return {}
        columns = [GUTTER_COLUMN, Column("layer", align="left", shrinks=True), *self.columns]
        said = [row for layer in shown for row in self.rows(layer, "")]
        kept = [
            index
            for index, column in enumerate(columns)
            if (index != 1 or self.alone or len(layers) > 1)
            and (not column.optional or says(said, index))
        ]

        def rows(names: Names) -> list[Row]:
            return [
                [row[index] for index in kept]
                for layer in shown
                for row in self.rows(layer, names[layer.name])
            ]

        hidden = len(taken) - len(shown)
        note = f"{count(hidden, 'more layer')}{self.more}: --all." if hidden else ""
        return (yield from table_lines(screen, layers, [columns[i] for i in kept], rows, note=note))


def says(rows: Sequence[Sequence[Cell]], index: int) -> bool:
    """Whether a row has something to say in a column."""
    return any(row[index].text not in ("", ABSENT) for row in rows)


def table_lines(
    screen: Screen,
    layers: Sequence[LayerReport],
    columns: Sequence[Column],
    rows: Callable[[Names], Sequence[Row]],
    *,
    note: str,
) -> Generator[Text, None, Names]:
    """A table with names as long as there is room for, and its legend; the names come back."""
    drawn, names = fitting(layers, [lambda names: draw(screen, columns, rows(names))])
    yield from drawn.lines
    yield from legend(screen, drawn, names, note=note)
    return names


def fitting(
    layers: Sequence[LayerReport], tables: Sequence[Callable[[Names], RenderedTable]]
) -> tuple[RenderedTable, Names]:
    """The first of some tables, widest first, that loses nothing: with full names, then short."""
    full = {layer.name: layer.name for layer in layers}
    short = short_names(list(full))
    for names in (full, short):
        for table in tables:
            drawn = table(names)
            if not drawn.left_out and not drawn.shrunk:
                return drawn, names
    return drawn, names


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names without the dotted components that all of them begin and end with.

    The last common component in front stays, since a bare number says little:
    `backbone.layers.3.mixer` becomes `layers.3`.
    """
    parts = [name.split(".") for name in names]
    if len(parts) < 2:
        return {name: name for name in names}
    front = max(_common(parts) - 1, 0)
    back = _common([part[front:][::-1] for part in parts])
    return {
        name: ".".join(part[front : len(part) - back]) or name
        for name, part in zip(names, parts, strict=True)
    }


def _common(parts: Sequence[Sequence[str]]) -> int:
    """How many components at the start are the same everywhere; never all of them."""
    shortest = min(map(len, parts))
    for index in range(shortest - 1):
        if len({part[index] for part in parts}) > 1:
            return index
    return shortest - 1


def legend(screen: Screen, drawn: RenderedTable, names: Names, *, note: str = "") -> Iterator[Text]:
    """What the columns mean, how names were shortened, and what there was no room for."""
    sentences = [*drawn.meanings, note]
    cut = [(short, full) for full, short in names.items() if short != full]
    if cut:
        sentences.append(f"{cut[0][0]} is {cut[0][1]}.")
    if drawn.left_out:
        sentences.append(f"Left out at this width: {', '.join(drawn.left_out)}.")
    said = screen.sentence(" ".join(filter(None, sentences)), LABEL)
    if said:
        yield from paragraph(screen, said)


def notes(screen: Screen, sentences: Iterator[str] | Sequence[str]) -> Iterator[Text]:
    """Sentences below a table, each of them once."""
    for words in dict.fromkeys(sentences):
        yield from paragraph(screen, screen.sentence(words, LABEL))


def whose(names: Sequence[str]) -> str:
    """The name of one layer, or how many there are."""
    return names[0] if len(names) == 1 else count(len(names), "layer")


def effect_cell(group: ParameterSummary) -> Cell:
    """What one step on a group does to the state."""
    return Cell(effect(group.step_effect, divergent=group.relative_sensitivity.divergent))
