"""The outcome of `memcurse check` as a page of text.

What the renderings of a check share: one failure's name, place and sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memcurse_cli.reports.console import (
    ALARM,
    LABEL,
    NAME,
    TITLE,
    VERDICT_STYLES,
    Screen,
    capitalised,
    text_of,
)
from memcurse_cli.reports.grid import paragraph
from memcurse_cli.reports.numbers import count, percent
from memcurse_cli.schema.derived import Check, CheckedReport, Judgement


def subject(judgement: Judgement) -> str:
    """``layer`` or ``layer, group``."""
    return ", ".join(part for part in (judgement.layer, judgement.subject) if part)


def sentence(judgement: Judgement) -> str:
    """What is wrong, who set the limit, and what to do about it."""
    said = judgement.message
    if judgement.origin:
        said += f" ({judgement.origin})"
    return f"{said}; {judgement.advice}" if judgement.advice else said


def summary(check: Check) -> str:
    """How many failures in how many layers, in one line."""
    failures = sum(len(report.failures) for report in check.reports)
    layers = sum(report.layers for report in check.reports)
    if not failures:
        said = f"nothing fails in {count(layers, 'layer')}"
    else:
        failing = sum(len(failing_layers(report)) for report in check.reports)
        said = f"{count(failures, 'failure')} in {failing:,} of {count(layers, 'layer')}"
    known = sum(len(report.known) for report in check.reports)
    if check.tolerance is not None:
        said += f"; {known:,} no worse than in the baseline, within {percent(check.tolerance)}"
    if check.default_policy:
        said += "; no limit is set, so cursed layers and findings of severity error fail"
    return said


def failing_layers(report: CheckedReport) -> set[str]:
    """The names of the layers that something fails in."""
    return {judgement.layer for judgement in report.failures}


NAME_WIDTH = 48


def to_text(check: Check, *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    return text_of(Page(check), file)


@dataclass(frozen=True)
class Page:
    """A check that a console can draw."""

    check: Check

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the page line by line."""
        screen = Screen.of(options)
        for report in self.check.reports:
            yield from _report(screen, report)
        word, style = ("passed", VERDICT_STYLES["ok"]) if self.check.passed else ("failed", ALARM)
        said = summary(self.check)
        yield from paragraph(
            screen,
            screen.sentence(f"{capitalised(said)}.", TITLE),
            gutter=[(word, style)],
        )


def _report(screen: Screen, report: CheckedReport) -> Iterator[Text]:
    yield Text(screen.shorten(screen.clean(report.path), screen.width).rstrip(), TITLE)
    for judgement in report.failures:
        yield from _line(screen, judgement, "fail", ALARM)
    for judgement in report.missing:
        yield from _line(screen, judgement, "missing", VERDICT_STYLES["watch"])
    for judgement in report.known:
        yield from _line(screen, judgement, "known", LABEL)
    yield Text()


def _line(screen: Screen, judgement: Judgement, word: str, style: str) -> Iterator[Text]:
    place = Text(screen.shorten(screen.clean(judgement.layer), NAME_WIDTH), NAME)
    place.append(": ", LABEL).append_text(screen.sentence(judgement.message))
    if judgement.origin:
        place.append(f" ({screen.clean(judgement.origin)})", LABEL)
    said = [place]
    if judgement.advice and judgement.fails:
        advice = Text(f"{screen.glyphs.advice} ", LABEL)
        said.append(advice.append_text(screen.sentence(judgement.advice)))
    code = judgement.rule if judgement.outcome == "found" else ""
    yield from paragraph(screen, *said, gutter=[(word, style), (screen.clean(code), LABEL)])
