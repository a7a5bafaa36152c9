"""One rule as a page of text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memcurse_cli.reports.console import CODE, LABEL, TITLE, Screen, text_of
from memcurse_cli.reports.grid import paragraph
from memcurse_cli.schema.listings import RuleDocument


def to_text(rule: RuleDocument, *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    return text_of(Page(rule), file)


@dataclass(frozen=True)
class Page:
    """A rule that a console can draw."""

    rule: RuleDocument

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
