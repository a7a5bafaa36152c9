"""A tracked run as a page of text, a row for each checkpoint and the trend below, and as CSV."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.text import Text

from memcurse_cli.diagnosis.model import unseen_memory
from memcurse_cli.reports.answer import assumed_words, rate_words, steps, worst_effect, worst_step
from memcurse_cli.reports.console import (
    ALARM,
    LABEL,
    SPECTRUM,
    Screen,
    capitalised,
    console_for,
    drawn_on,
    line_for,
    to_ascii,
    visible,
    writes_unicode,
)
from memcurse_cli.reports.grid import GUTTER, Cell, Column, cells, draw, facts, paragraph
from memcurse_cli.reports.numbers import ABSENT, count, setting
from memcurse_cli.reports.terminal.tables import part_of, verdict_cell
from memcurse_cli.schema.derived import TrackedStep, Tracking
from memcurse_cli.schema.report import LayerReport, Report
from memcurse_cli.tracking.track import STILL, unstable

MOST_ROWS = 24  # more checkpoints are shown in a choice


def _told(tell: Callable[[Report], Cell | str]) -> Callable[[TrackedStep], Cell | str]:
    """What a checkpoint says, where it could be read."""
    return lambda one: Cell(ABSENT, LABEL) if one.report is None else tell(one.report)


def _verdict(one: TrackedStep) -> Cell:
    return Cell("error", ALARM) if one.report is None else verdict_cell(one.report.verdict)


COLUMNS = [
    Column(""),
    Column("step", lambda one: str(one.step), shrinks=True),
    Column("verdict", _verdict, align="left"),
    Column("memory", _told(lambda one: steps(one.memory))),
    Column("never fade", _told(lambda one: str(unstable(one) or "")), leaves=4, optional=True),
    Column("your rate", _told(lambda one: setting(one.input.learning_rate)), leaves=3),
    Column("usable rate", _told(lambda one: rate_words(one.usable_rate.rate)), leaves=1),
    Column("step effect", _told(lambda one: worst_effect(one.layers)), align="left", leaves=2),
]


def step_line(step: TrackedStep) -> str:
    """One checkpoint on one line, for a run that is watched through a pipe."""
    if step.report is None:
        text = f"step {step.step}: not read: {step.error}"
    else:
        said = zip(COLUMNS[3:], cells(COLUMNS[3:], step), strict=True)
        figures = [f"{column.heading} {cell.text}" for column, cell in said if cell.text]
        text = f"step {step.step}: {_verdict(step).text}; {'; '.join(figures)}"
    return line_for(text, sys.stdout)


@contextmanager
def live() -> Iterator[Callable[[Tracking], None]]:
    """What keeps the page on a terminal up to date, and leaves its last state there."""
    from rich.live import Live

    with Live(console=console_for(sys.stdout), auto_refresh=False) as display:

        def show(tracking: Tracking) -> None:
            rows = max(display.console.height - 15, 3)
            page = partial(lines, tracking, most=min(rows, MOST_ROWS))
            display.update(drawn_on(display.console, page), refresh=True)

        yield show


def lines(
    tracking: Tracking, screen: Screen, *, every: bool = False, most: int = MOST_ROWS
) -> Iterator[Text]:
    """The page line by line, with every checkpoint or so many of them."""
    read = [one.report for one in tracking.steps if one.report is not None]
    if tracking.steps:
        first, last = tracking.steps[0].step, tracking.steps[-1].step
        span = f"{count(len(tracking.steps), 'checkpoint')}, step {first} to {last}"
        head = Text(no_wrap=True)
        if read:
            verdict = verdict_cell(read[-1].verdict)
            head.append(f"{verdict.text.upper()}  ", verdict.style)
        yield head.append(span, LABEL)
        yield Text()
    yield from paragraph(screen, screen.sentence(f"{capitalised(tracking.sentence)}."))
    if tracking.steps:
        yield Text()
        shown = choose(tracking.steps, len(tracking.steps) if every else most)
        yield from draw(screen, COLUMNS, [cells(COLUMNS, step) for step in shown]).lines
        yield from _trend(screen, tracking)
        yield Text()
        if len(shown) < len(tracking.steps):
            part = f"{len(shown)} of {len(tracking.steps)} checkpoints; --all shows every one."
            yield from facts(screen, {"rows": part})
    if read:
        yield from facts(screen, {"Assumed": assumed_words(read[-1].input)})
    if any(unseen_memory(layer) for report in read for layer in report.layers):
        yield from facts(screen, {"note": "Memories are those of the gates alone (--spectra)."})
    yield from facts(screen, [("note", f"{capitalised(note)}.") for note in tracking.notes])
    for step in tracking.steps:
        if step.error is not None:
            said = screen.sentence(f"step {step.step}: {step.error}")
            yield from paragraph(screen, said, gutter=[("error", ALARM)])


def choose(steps: Sequence[TrackedStep], most: int) -> list[TrackedStep]:
    """At most so many checkpoints: the ends, where the verdict changes, and evenly between them.

    Where it changes so often that they alone are too many, the later changes are left out.
    """
    if len(steps) <= most:
        return list(steps)
    last = len(steps) - 1
    chosen = {0, last}
    verdicts = [None if one.report is None else one.report.verdict for one in steps]
    for index in range(1, last):
        if len(chosen) < most and verdicts[index] != verdicts[index - 1]:
            chosen.add(index)
    others = [index for index in range(last) if index not in chosen]
    free = most - len(chosen)
    chosen |= {others[(2 * k + 1) * len(others) // (2 * free)] for k in range(free)}
    return [steps[index] for index in sorted(chosen)]


Marks = Sequence[float | str | None]
"""What is drawn of each checkpoint: None is not known, a text stands for itself."""


def _trend(screen: Screen, tracking: Tracking) -> Iterator[Text]:
    """A bar for each checkpoint; both rates stand on one scale."""
    if len(tracking.steps) < 3:
        return

    def marks(tell: Callable[[Report], float | str | None]) -> Marks:
        return [None if one.report is None else tell(one.report) for one in tracking.steps]

    memory = marks(lambda one: "!" if one.memory is None else one.memory)
    usable = marks(lambda one: one.usable_rate.rate)
    yours = marks(lambda one: one.input.learning_rate)
    trends = [("trend", "memory", memory, memory)]
    if any(usable):
        rates = [*usable, *yours]
        trends += [("", "usable rate", usable, rates), ("", "your rate", yours, rates)]
    yield Text()
    for label, name, drawn, scale in trends:
        bars = sparkline(screen, drawn, screen.width - GUTTER - 13, scale)
        yield Text(f"{label:<{GUTTER}}{name:<13}", LABEL).append(bars, SPECTRUM)


def sparkline(screen: Screen, marks: Marks, room: int, scale: Marks) -> str:
    """Bars of numbers on a logarithmic scale, in as many cells as there are numbers or room.

    It is flat where nothing changes by some per cent, and else spans a factor of 2 at least.
    Where there are more numbers than cells, a cell shows the last of its numbers.
    """
    room = max(room, 4)
    if len(marks) > room:
        marks = [marks[(cell + 1) * len(marks) // room - 1] for cell in range(room)]
    known = [math.log(one) for one in scale if isinstance(one, float) and one > 0]
    low, high = min(known, default=0.0), max(known, default=0.0)
    missing, bars = screen.bars[0], screen.bars[1:]
    flat, span = high - low < math.log(STILL), max(high - low, math.log(2))

    def bar(mark: float) -> str:
        part = 0.5 if flat else 0.5 + (math.log(mark) - (low + high) / 2) / span
        return bars[min(int(part * len(bars)), len(bars) - 1)]

    return "".join(
        one if isinstance(one, str) else bar(one) if one is not None and one > 0 else missing
        for one in marks
    )


LEVELS = ("min", "p50", "p90", "p99", "max")


def _of(name: str) -> Callable[[LayerReport], object]:
    return partial(part_of, name=name)


CSV: dict[str, Callable[[LayerReport], object]] = {
    "layer": _of("name"),
    **{name: _of(name) for name in ("family", "verdict", "memory", "learning_rate")},
    "usable_rate": _of("usable_rate.rate"),
    "eigenvalues": _of("eigenvalues.count"),
    "unstable": _of("eigenvalues.unstable"),
    **{f"modulus_{level}": _of(f"eigenvalues.modulus.{level}") for level in LEVELS},
    **{f"time_constant_{level}": _of(f"eigenvalues.time_constant.{level}") for level in LEVELS},
    "second_moment_max": _of("state.second_moment.max"),
    "worst_parameter": lambda one: part_of(worst_step([one]), "group"),
    "step_effect": lambda one: part_of(worst_step([one]), "effect"),
    **{name: _of(f"hessian.{name}") for name in ("diagonality", "sharpness", "adam_residual")},
    "findings": lambda one: " ".join(dict.fromkeys(found.code for found in one.findings)),
}
"""What a row says of a layer; one ``relative_sensitivity:GROUP`` follows for each group."""

STEP_COLUMNS = ("step", "path", "checkpoint_verdict", "error")
SENSITIVITY = "relative_sensitivity:"


def to_csv(tracking: Tracking, *, file: Path | None = None) -> str:
    """The table with a line of headings; a number that does not exist is an empty cell.

    Numbers have all their digits, and texts that a spreadsheet would compute start with an
    apostrophe. The text is ASCII where standard output can write nothing else and no file is named.
    """
    rows = [row for step in tracking.steps for row in _csv_rows(step)]
    groups = dict.fromkeys(name for row in rows for name in row if name.startswith(SENSITIVITY))
    columns = [*STEP_COLUMNS, *CSV, *groups]
    unicode = writes_unicode(sys.stdout if file is None else None)
    stream = io.StringIO()
    writer = csv.writer(stream)
    headings: dict[str, object] = dict(zip(columns, columns, strict=True))
    for row in (headings, *rows):
        writer.writerow([_safe(row.get(column), unicode=unicode) for column in columns])
    return stream.getvalue()


def _csv_rows(step: TrackedStep) -> Iterator[dict[str, object]]:
    row: dict[str, object] = {"step": step.step, "path": step.path, "error": step.error}
    if step.report is None:
        yield row
        return
    for layer in step.report.layers:
        yield {
            **row,
            "checkpoint_verdict": step.report.verdict,
            **{column: tell(layer) for column, tell in CSV.items()},
            **{SENSITIVITY + one.name: one.relative_sensitivity.p99 for one in layer.parameters},
        }


def _safe(cell: object, *, unicode: bool) -> object:
    """A text that no spreadsheet takes for a formula, since an apostrophe says what it is."""
    if not isinstance(cell, str):
        return cell
    shown = visible(cell)
    plain = to_ascii(shown)
    formula = plain.lstrip().startswith(("=", "+", "-", "@"))
    return "'" * formula + (shown if unicode else plain)
