"""What the commands print that list what memcurse knows: a plain table, or a block for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memcurse_cli.diagnosis.findings.facts import Rule
from memcurse_cli.reports.console import (
    CODE,
    LABEL,
    NAME,
    TITLE,
    Screen,
    text_for,
    text_for_file,
    text_of,
)
from memcurse_cli.reports.grid import paragraph

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from memcurse_cli.schema.listings import FamilyDocument


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


class FamilyList:
    """The families, one block each, since six texts do not fit beside each other.

    Args:
        families: in the order in which they are looked for.
    """

    def __init__(self, families: Sequence[FamilyDocument]) -> None:
        self._families = families

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        screen = Screen.of(options)
        for index, family in enumerate(self._families):
            if index:
                yield Text()
            yield Text.assemble((screen.clean(family.name), NAME), "  ", screen.clean(family.title))
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(style=LABEL, no_wrap=True)
            table.add_column(overflow="fold")  # no word is cut, however many choices it lists
            table.add_row("recognised by", Text(screen.clean(family.recognised_by)))
            table.add_row("equation", Text(screen.clean(family.equation)))
            table.add_row("source", Text(screen.clean(family.source)))
            for one in family.assumptions:
                values = "|".join(one.choices) or "NUMBER"
                said = f"{one.key}={values} ({one.default}): {one.meaning}"
                table.add_row("--assume", Text(screen.clean(said)))
            yield Padding(table, (0, 0, 0, 2))


def to_text(page: Listing | FamilyList, *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    text = text_for(page, None) if file is None else text_for_file(page)
    return "\n".join(line.rstrip() for line in text.splitlines())


def rule_text(rule: Rule, *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    return text_of(RulePage(rule), file)


@dataclass(frozen=True)
class RulePage:
    """A rule that a console can draw."""

    rule: Rule

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the page from the top."""
        screen, rule = Screen.of(options), self.rule
        yield from paragraph(
            screen, screen.sentence(rule.title, TITLE), gutter=[(screen.clean(rule.code), CODE)]
        )
        for label in ("what", "why", "equation", "change", "source"):
            yield Text()
            said = screen.sentence(getattr(rule, label))
            yield from paragraph(screen, said, gutter=[(label, LABEL)])
