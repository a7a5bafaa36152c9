"""The list of families: one block each, since six texts do not fit beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memcurse_cli.reports.console import LABEL, NAME, Screen, text_for, text_for_file

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


@dataclass(frozen=True)
class FamilyEntry:
    """What the list says of one family.

    Attributes:
        name: its name in ``--family``.
        title: its name in words.
        facts: (label, text) of each line under the name.
    """

    name: str
    title: str
    facts: Sequence[tuple[str, str]]


class FamilyList:
    """The families in the order in which they are looked for."""

    def __init__(self, entries: Sequence[FamilyEntry]) -> None:
        self._entries = entries

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        screen = Screen.of(options)
        for index, entry in enumerate(self._entries):
            if index:
                yield Text()
            yield Text.assemble((screen.clean(entry.name), NAME), "  ", screen.clean(entry.title))
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(style=LABEL, no_wrap=True)
            table.add_column(overflow="fold")  # no word is cut, however many choices it lists
            for label, text in entry.facts:
                table.add_row(screen.clean(label), Text(screen.clean(text)))
            yield Padding(table, (0, 0, 0, 2))


def to_text(entries: Sequence[FamilyEntry], *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    families = FamilyList(entries)
    text = text_for(families, None) if file is None else text_for_file(families)
    return "\n".join(line.rstrip() for line in text.splitlines())
