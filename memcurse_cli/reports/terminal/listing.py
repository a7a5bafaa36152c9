"""What the commands print that list what memcurse knows: a plain table, or a block for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memcurse_cli.reports.console import (
    CODE,
    LABEL,
    NAME,
    TITLE,
    Lines,
    Screen,
    text_of,
)
from memcurse_cli.reports.grid import facts, paragraph
from memcurse_cli.schema.listings import FamilyDocument
from memcurse_cli.schema.report import RuleDocument


def listing(headings: Sequence[str], rows: Sequence[Sequence[str]], file: Path | None) -> str:
    """Rows of texts under headings; the last column wraps, the first is set off."""

    def lines(screen: Screen) -> Iterator[RenderableType]:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style=LABEL, pad_edge=False)
        for index, heading in enumerate(headings):
            table.add_column(screen.clean(heading), style=NAME if index == 0 else "")
        for row in rows:
            table.add_row(*(Text(screen.clean(text)) for text in row))
        yield table

    return _to_text(lines, file)


def family_list(families: Sequence[FamilyDocument], file: Path | None) -> str:
    """The families, one block each, since six texts do not fit beside each other."""

    def lines(screen: Screen) -> Iterator[RenderableType]:
        for index, family in enumerate(families):
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

    return _to_text(lines, file)


def _to_text(lines: Lines, file: Path | None) -> str:
    return "\n".join(line.rstrip() for line in text_of(lines, file).splitlines())


def rule_text(rule: RuleDocument, *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    return text_of(partial(_rule_lines, rule), file)


def _rule_lines(rule: RuleDocument, screen: Screen) -> Iterator[Text]:
    yield from paragraph(
        screen, screen.sentence(rule.title, TITLE), gutter=[(screen.clean(rule.code), CODE)]
    )
    for label in ("what", "why", "equation", "change", "source"):
        yield Text()
        yield from facts(screen, {label: getattr(rule, label)})
