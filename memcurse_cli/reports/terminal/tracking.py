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

from memcurse_cli.reports.console import (
    ALARM,
    LABEL,
    SPECTRUM,
    VERDICT_STYLES,
    Page,
    Screen,
    capitalised,
    console_for,
    line_for,
    text_of,
    to_ascii,
    visible,
)
from memcurse_cli.reports.grid import GUTTER, Cell, Column, cells, draw, facts, paragraph
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, number, number_or_absent, setting
from memcurse_cli.reports.terminal.report import describe_horizon, describe_input
from memcurse_cli.schema.derived import Spread, Summary, TrackedLayer, TrackedStep, Tracking
from memcurse_cli.schema.figures import effect_rank
from memcurse_cli.tracking.track import modulus_text

MOST_ROWS = 24
"""More checkpoints than this are shown in a choice."""

Entry = tuple[TrackedStep, bool]
"""A checkpoint, and whether one layer is all there is, so that groups stand without its name."""


def _number(value: float | None) -> str:
    return DIVERGENT if value is None else number(value)


def _told(tell: Callable[[Summary], str]) -> Callable[[Entry], Cell]:
    """What the summary of a checkpoint says, where it could be read."""
    return lambda entry: (
        Cell(ABSENT, LABEL) if entry[0].snapshot is None else Cell(tell(entry[0].snapshot.summary))
    )


def _group(entry: Entry) -> Cell:
    snapshot = entry[0].snapshot
    worst = None if snapshot is None else snapshot.summary.worst
    if worst is None:
        return _told(lambda _: ABSENT)(entry)
    return Cell(worst.name if entry[1] else f"{worst.layer}: {worst.name}")


def _verdict(entry: Entry) -> Cell:
    if entry[0].snapshot is None:
        return Cell("error", ALARM)
    return Cell(entry[0].snapshot.verdict, VERDICT_STYLES[entry[0].snapshot.verdict])


COLUMNS = [
    Column("", _verdict, align="left"),
    Column("step", lambda entry: str(entry[0].step), shrinks=True),
    Column("max |λ|", _told(lambda one: modulus_text(one.modulus)), leaves=4),
    Column("|λ|≥1", _told(lambda one: str(one.unstable)), leaves=7),
    Column("τ median", _told(lambda one: _number(one.time_constant_median)), leaves=6),
    Column("τ max", _told(lambda one: _number(one.time_constant)), leaves=1),
    Column(
        "worst κ",
        _told(lambda one: _number(one.worst.relative_sensitivity) if one.worst else ABSENT),
        leaves=2,
    ),
    Column("of", _group, align="left", shrinks=True, leaves=3),
    Column("usable lr", _told(lambda one: number_or_absent(one.usable_rate, 2)), leaves=5),
]
LEGEND = (
    "τ: time constants of all eigenvalues, in steps of the sequence. Worst κ: the relative "
    "sensitivity of the parameter group that decides the verdict at a learning rate of {rate}."
)
GATES_ALONE = " Where gates see the state, as in an LSTM, |λ| and τ are those of the gates alone."

DIVERGES = "!"


def to_text(tracking: Tracking, *, every: bool = False, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    return text_of(partial(lines, tracking, every, MOST_ROWS), file)


def step_line(step: TrackedStep) -> str:
    """One checkpoint on one line, for a run that is watched through a pipe."""
    if step.snapshot is None:
        text = f"step {step.step}: not read: {step.error}"
    else:
        said = {
            one.heading: cell
            for one, cell in zip(COLUMNS, cells(COLUMNS, (step, False)), strict=True)
        }
        figures = [
            f"{name} {said[name].text}" for name in ("max |λ|", "τ max", "worst κ", "usable lr")
        ]
        text = f"step {step.step}: {step.snapshot.verdict}; {'; '.join(figures)}"
    return line_for(text, sys.stdout)


@contextmanager
def live() -> Iterator[Callable[[Tracking], None]]:
    """What keeps the page on a terminal up to date, and leaves its last state there."""
    from rich.live import Live

    with Live(console=console_for(sys.stdout), auto_refresh=False) as display:

        def show(tracking: Tracking) -> None:
            rows = max(display.console.height - len(_trends(tracking)) - 12, 3)
            page = Page(partial(lines, tracking, False, min(rows, MOST_ROWS)))
            display.update(page, refresh=True)

        yield show


def lines(tracking: Tracking, every: bool, most: int, screen: Screen) -> Iterator[Text]:
    """The page line by line."""
    read = [one.snapshot for one in tracking.steps if one.snapshot is not None]
    verdict = read[-1].verdict if read else ""
    lead = screen.sentence(f"{tracking.sentence}.")
    yield from paragraph(screen, lead, gutter=[(verdict, VERDICT_STYLES.get(verdict, LABEL))])
    if tracking.steps:
        yield Text()
        shown = list(tracking.steps) if every else choose(tracking.steps, most)
        layers = {layer.name for snapshot in read for layer in snapshot.layers}
        rows = [cells(COLUMNS, (step, len(layers) == 1)) for step in shown]
        yield from draw(screen, COLUMNS, rows).lines
        yield from _trend(screen, tracking)
        yield Text()
        if len(shown) < len(tracking.steps):
            part = f"{len(shown)} of {len(tracking.steps)} checkpoints; --all shows every one."
            yield from facts(screen, {"rows": part})
    if read:
        legend = LEGEND.format(rate=setting(read[0].input.learning_rate))
        if any(layer.hidden_feedback for snapshot in read for layer in snapshot.layers):
            legend += GATES_ALONE
        yield from paragraph(screen, screen.sentence(legend))
        given = read[0].input
        assumed = f"Input: {describe_input(given)}; {describe_horizon(given)}."
        yield from paragraph(screen, screen.sentence(assumed))
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
    verdicts = [None if one.snapshot is None else one.snapshot.verdict for one in steps]
    for index in range(1, last):
        if len(chosen) < most and verdicts[index] != verdicts[index - 1]:
            chosen.add(index)
    others = [index for index in range(last) if index not in chosen]
    free = most - len(chosen)
    chosen |= {others[(2 * k + 1) * len(others) // (2 * free)] for k in range(free)}
    return [steps[index] for index in sorted(chosen)]


def _trends(tracking: Tracking) -> dict[str, list[float | str | None]]:
    """The logarithms of what is drawn: None is not known, a text stands for itself."""
    summaries = [None if one.snapshot is None else one.snapshot.summary for one in tracking.steps]
    drawn: dict[str, list[float | str | None]] = {"τ max": [], "worst κ": [], "usable lr": []}
    for summary in summaries:
        worst = None if summary is None else summary.worst
        rate = None if summary is None else summary.usable_rate
        drawn["τ max"].append(None if summary is None else _mark(summary.time_constant))
        drawn["worst κ"].append(None if worst is None else _mark(worst.relative_sensitivity))
        drawn["usable lr"].append(None if rate is None else _mark(rate))
    return {name: marks for name, marks in drawn.items() if any(mark is not None for mark in marks)}


def _mark(value: float | None) -> float | str | None:
    if value is None:
        return DIVERGES
    return math.log(value) if value > 0 else None


def _trend(screen: Screen, tracking: Tracking) -> Iterator[Text]:
    """A bar for each checkpoint, on a logarithmic scale from the figure's least to its largest."""
    if len(tracking.steps) < 3:
        return
    trends = _trends(tracking)
    names = {name: screen.clean(name) for name in trends}
    width = max(map(len, names.values()), default=0)
    room = max(screen.width - GUTTER - width - 2, 4)
    yield Text()
    for index, (name, marks) in enumerate(trends.items()):
        line = Text(no_wrap=True)
        line.append("trend".ljust(GUTTER) if index == 0 else " " * GUTTER, LABEL)
        line.append(f"{names[name]:<{width}}  ", LABEL)
        line.append(sparkline(screen, marks, room), SPECTRUM)
        yield line


def sparkline(screen: Screen, marks: Sequence[float | str | None], room: int) -> str:
    """Bars of the heights of some numbers, in as many cells as there are numbers or room.

    Where there are more numbers than cells, a cell shows the last of its numbers.
    """
    if len(marks) > room:
        marks = [marks[(cell + 1) * len(marks) // room - 1] for cell in range(room)]
    heights = [mark for mark in marks if isinstance(mark, float)]
    low, high = min(heights, default=0.0), max(heights, default=0.0)
    missing, bars = screen.glyphs.bars[0], screen.glyphs.bars[1:]
    drawn = []
    for mark in marks:
        if mark is None or isinstance(mark, str):
            drawn.append(mark or missing)
            continue
        part = (mark - low) / (high - low) if high > low else 0.5
        drawn.append(bars[min(int(part * len(bars)), len(bars) - 1)])
    return "".join(drawn)


LEVELS = ("min", "p10", "p50", "p90", "p99", "max")
CSV_COLUMNS = (
    "step",
    "path",
    "checkpoint_verdict",
    "error",
    "layer",
    "family",
    "verdict",
    "eigenvalues",
    "unstable",
    *(f"modulus_{level}" for level in LEVELS),
    *(f"time_constant_{level}" for level in LEVELS),
    "second_moment_max",
    "worst_parameter",
    "step_effect",
    "usable_rate",
    "diagonality",
    "sharpness",
    "adam_residual",
    "findings",
)
"""The columns that every run has; one ``relative_sensitivity:GROUP`` follows for each group."""

SENSITIVITY = "relative_sensitivity:"

CsvRow = dict[str, object]


def to_csv(tracking: Tracking, *, file: Path | None = None) -> str:
    """The table with a line of headings; a number that does not exist is an empty cell.

    Numbers have all their digits, and texts that a spreadsheet would compute start with an
    apostrophe. The text is ASCII where standard output can write nothing else and no file is named.
    """
    groups = dict.fromkeys(
        group.name
        for step in tracking.steps
        if step.snapshot is not None
        for layer in step.snapshot.layers
        for group in layer.groups
    )
    stream = io.StringIO()
    columns = [*CSV_COLUMNS, *(SENSITIVITY + group for group in groups)]
    unicode = file is not None or (sys.stdout.encoding or "").lower().startswith("utf")
    rows: list[CsvRow] = [{column: column for column in columns}]
    rows += [row for step in tracking.steps for row in _csv_rows(step)]
    csv.writer(stream).writerows(
        [_safe(row.get(column, ""), unicode=unicode) for column in columns] for row in rows
    )
    return stream.getvalue()


def _csv_rows(step: TrackedStep) -> Iterator[CsvRow]:
    row: CsvRow = {"step": step.step, "path": step.path}
    if step.snapshot is None:
        yield {**row, "error": step.error or ""}
        return
    for layer in step.snapshot.layers:
        yield {**row, "checkpoint_verdict": step.snapshot.verdict, **_csv_layer(layer)}


def _csv_layer(layer: TrackedLayer) -> CsvRow:
    worst = max(layer.groups, key=lambda group: effect_rank(group), default=None)
    hessian = layer.hessian
    return {
        "layer": layer.name,
        "family": layer.family,
        "verdict": layer.verdict,
        "eigenvalues": layer.count,
        "unstable": layer.unstable,
        **_spread("modulus", layer.modulus),
        **_spread("time_constant", layer.time_constant),
        "second_moment_max": _cell(layer.second_moment.max),
        "worst_parameter": "" if worst is None else worst.name,
        "step_effect": "" if worst is None else _cell(worst.step_effect),
        "usable_rate": "" if layer.usable_rate is None else _cell(layer.usable_rate.rate),
        "diagonality": "" if hessian is None else hessian.diagonality,
        "sharpness": "" if hessian is None else hessian.sharpness,
        "adam_residual": "" if hessian is None else hessian.adam_residual,
        "findings": " ".join(dict.fromkeys(layer.findings)),
        **{
            SENSITIVITY + group.name: _cell(group.relative_sensitivity.p99)
            for group in layer.groups
        },
    }


def _safe(cell: object, *, unicode: bool) -> object:
    """A text that no spreadsheet takes for a formula, since an apostrophe says what it is."""
    if not isinstance(cell, str):
        return cell
    shown = visible(cell)
    plain = to_ascii(shown)
    formula = plain.lstrip().startswith(("=", "+", "-", "@"))
    return "'" * formula + (shown if unicode else plain)


def _spread(name: str, spread: Spread) -> CsvRow:
    return {f"{name}_{level}": _cell(getattr(spread, level)) for level in LEVELS}


def _cell(value: float | None) -> object:
    return "" if value is None else value
