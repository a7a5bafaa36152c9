"""A plain table of texts, for the commands that list what memcurse knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memcurse_cli.reports.console import LABEL, NAME, Screen, text_for, text_for_file

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


class Listing:
    """Rows of texts under headings; the last column wraps, the first is set off.

    Args:
        headings: the columns' names.
        rows: each as many texts as there are headings.
    """

    def __init__(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._headings, self._rows = headings, rows

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        from rich.table import Table
        from rich.text import Text

        screen = Screen.of(options)
        table = Table(box=None, padding=(0, 2, 0, 0), header_style=LABEL, pad_edge=False)
        for index, heading in enumerate(self._headings):
            table.add_column(screen.clean(heading), style=NAME if index == 0 else "")
        for row in self._rows:
            table.add_row(*(Text(screen.clean(text)) for text in row))
        yield table


def to_text(listing: Listing, *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    text = text_for(listing, None) if file is None else text_for_file(listing)
    return "\n".join(line.rstrip() for line in text.splitlines())
