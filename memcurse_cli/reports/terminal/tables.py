"""Tables of layers, which the terminal shows of all of them together and a page of each alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from operator import attrgetter
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text

from memcurse_cli.reports.answer import short_names
from memcurse_cli.reports.console import LABEL, NAME, TITLE, VERDICT_STYLES, Screen
from memcurse_cli.reports.grid import (
    Cell,
    Column,
    RenderedTable,
    Row,
    cells,
    draw,
    name_column,
    paragraph,
)
from memcurse_cli.reports.numbers import ABSENT, count, effect, number
from memcurse_cli.reports.ranking import Shared, shared
from memcurse_cli.schema.figures import ParameterSummary
from memcurse_cli.schema.report import LayerReport, Report

Item = TypeVar("Item")
SHOWN = 8

GUTTER_COLUMN = Column("", align="left")
NAME_COLUMN = name_column("layer", optional=True)


def figure(
    heading: str, name: str, leaves: int = 0, write: Callable[[Any], Cell | str] = number
) -> Column:
    """The column of a part of its entries."""

    def value(entry: Any) -> Cell | str:
        found = part_of(entry, name)
        return ABSENT if found is None else write(found)

    return Column(heading, value, leaves=leaves)


def part_of(entry: Any, name: str) -> Any:
    """An attribute, or one of an attribute that may be None: ``usable_rate.rate``."""
    for part in name.split("."):
        entry = None if entry is None else getattr(entry, part)
    return entry


def explained(meanings: Mapping[str, str], *columns: Column) -> tuple[Column, ...]:
    """Columns with what the legend says of them, by their headings."""
    return tuple(replace(one, meaning=meanings.get(one.heading, "")) for one in columns)


@dataclass
class Page:
    """Where sections are written to, and what the legend at the end has to explain of them."""

    screen: Screen
    report: Report
    all_layers: bool = False
    drawn: dict[str, RenderedTable] = field(default_factory=dict)

    @property
    def layers(self) -> Sequence[LayerReport]:
        """The layers that the sections are about."""
        return self.report.layers

    @cached_property
    def names(self) -> dict[str, str]:
        """What each layer is called in a table."""
        return short_names([layer.name for layer in self.layers])

    def table(
        self, title: str, columns: Sequence[Column], rows: Sequence[Row], hidden: Sequence[str]
    ) -> Iterator[Text]:
        """A table, and what it does not show."""
        self.drawn[title] = draw(self.screen, columns, rows)
        yield from self.drawn[title].lines
        yield from self.notes(hidden)

    def label(self, layer: str) -> str:
        """What stands beside a row of a layer: nothing where there is no other."""
        return self.names[layer] if len(self.layers) > 1 else ""

    def shown(
        self, ranked: Sequence[Item], most: int, more: str
    ) -> tuple[Sequence[Item], Sequence[str]]:
        """The first of some items, or all, and a note on those that are not shown."""
        if self.all_layers or len(ranked) <= most:
            return ranked, ()
        noun, _, rest = more.partition(" ")
        said = f"{count(len(ranked) - most, f'more {noun}')} {rest}".strip()
        return ranked[:most], [f"{said}: --all."]

    def notes(self, sentences: Iterable[str]) -> Iterator[Text]:
        """Sentences below a table, each of them once."""
        for words in dict.fromkeys(sentences):
            yield from paragraph(self.screen, self.screen.sentence(words, LABEL))

    def whose(self, layers: Sequence[str]) -> str:
        """The name of one layer, or how many there are."""
        if len(layers) > 1:
            return count(len(layers), "layer")
        return self.names.get(layers[0], layers[0])

    def legend(self) -> Iterator[Text]:
        """What the columns of all tables mean, and how names were shortened."""
        if not self.drawn:
            return
        yield Text("What it means", TITLE)
        for title, drawn in self.drawn.items():
            yield from legend(self.screen, drawn, title=title)
        cut = [f"Names: {short} is {full}." for full, short in self.names.items() if short != full]
        yield from self.notes(cut[:1])


class LayerTable(Struct, frozen=True):
    """A table whose rows are about parts of layers."""

    title: str  # what stands above it
    columns: tuple[Column, ...]  # those beside the gutter and the layer's name
    # the parts of a layer that have a row; none where it has no place in the table
    entries: Callable[[LayerReport], Sequence[Any]]
    rank: Callable[[LayerReport], Any]  # the largest is shown, where there are too many
    more: str = ""  # what the layers have in common that are not shown
    shown: int = 6  # how many layers are
    gutter: Callable[[Any], Cell] = lambda _: Cell("")  # what a row says there
    named: bool = False  # whether a layer is named where there is no other
    notes: Callable[[Page], Iterable[str]] = lambda _: ()  # what its figures rest on

    def taken(self, page: Page) -> tuple[Sequence[LayerReport], Sequence[str]]:
        """The layers that have rows on a page, and a note on those that have none."""
        taken = [layer for layer in page.layers if self.entries(layer)]
        if not page.all_layers and len(taken) > self.shown:
            taken.sort(key=self.rank, reverse=True)
        return page.shown(taken, self.shown, f"layer{self.more}")

    def lines(self, page: Page) -> Iterator[Text]:
        """The table of those layers that have a place in it, and its notes."""
        shown, hidden = self.taken(page)
        label = page.names.__getitem__ if self.named else page.label
        rows = [  # the first of a layer under its name
            [self.gutter(one), Cell(name, NAME), *cells(self.columns, one)]
            for layer in shown
            for one, name in zip_longest(self.entries(layer), [label(layer.name)], fillvalue="")
        ]
        if rows:
            columns = [GUTTER_COLUMN, NAME_COLUMN, *self.columns]
            yield from page.table(self.title, columns, rows, hidden)
        yield from page.notes(self.notes(page))


class SharedTable(Struct, frozen=True):
    """A table whose rows are about parts that layers share, as `ranking.shared` finds them."""

    title: str
    columns: tuple[Column, ...]
    parts: Callable[[LayerReport], Sequence[Any]]  # those of a layer
    rank: Callable[[Any], Any]  # of a part: the largest stands first
    more: str  # what the parts are that are not shown
    together: Callable[[Sequence[Any]], Any] | None = None  # one part for those that share a row
    key: Callable[[Any], object] = attrgetter("name")  # what parts that share a row have in common
    notes: Callable[[Page], Iterable[str]] = lambda _: ()  # what its figures rest on

    def entries(self, layer: LayerReport) -> list[Shared]:
        """The parts of one layer, which share a row with no other."""
        return [Shared([part], "") for part in self.parts(layer)]

    def lines(self, page: Page, *rest: Row) -> Iterator[Text]:
        """The table of those parts that are worst, or of all, above further rows, and its notes."""
        found = shared(page.layers, self.parts, self.rank, self.key, every=page.all_layers)
        shown, hidden = page.shown(found, SHOWN, self.more)
        rows = []
        for parts, layer in shown:
            more = f" +{len(parts) - 1}" if len(parts) > 1 else ""
            told = [self.together(parts)] if self.together else parts
            rows.append(cells(self.columns, Shared(told, page.label(layer) + more)))
        if rows:
            yield from page.table(self.title, self.columns, [*rows, *rest], hidden)
        yield from page.notes(self.notes(page))


def legend(
    screen: Screen, drawn: RenderedTable, *, title: str = "", note: str = ""
) -> Iterator[Text]:
    """What the columns of a table mean, and what there was no room for."""
    sentences = [*drawn.meanings, note]
    if drawn.left_out:
        sentences.append(f"Left out at this width: {', '.join(drawn.left_out)}.")
    words = " ".join(filter(None, sentences))
    if words:
        said = screen.sentence(f"{title}. {words}" if title else words, LABEL)
        said.stylize(NAME, 0, len(title))
        yield from paragraph(screen, said)


def table_lines(
    screen: Screen, columns: Sequence[Column], entries: Iterable[Any], *, note: str = ""
) -> Iterator[Text]:
    """A table with a row for each entry, and its legend."""
    drawn = draw(screen, columns, [cells(columns, entry) for entry in entries])
    yield from drawn.lines
    yield from legend(screen, drawn, note=note)


def effect_cell(group: ParameterSummary) -> Cell:
    """What one step on a group does to the state."""
    return Cell(effect(group.step_effect, divergent=group.relative_sensitivity.divergent))


def verdict_cell(verdict: str) -> Cell:
    """A verdict in its colour."""
    return Cell(verdict.replace("_", " "), VERDICT_STYLES[verdict])
