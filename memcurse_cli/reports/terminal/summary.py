"""Several reports in one table, so that checkpoints compare at a glance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memcurse_cli.reports.console import (
    NAME,
    TITLE,
    VERDICT_STYLES,
    Screen,
    text_of,
)
from memcurse_cli.reports.grid import Cell, Column, draw, paragraph
from memcurse_cli.reports.numbers import (
    ABSENT,
    effect,
    largest,
    number_or_absent,
    setting,
)
from memcurse_cli.reports.ranking import lowest_rate, together
from memcurse_cli.schema.figures import parameter_rank
from memcurse_cli.schema.report import Report

COLUMNS = [
    Column("", align="left"),
    Column("checkpoint", align="left", shrinks=True),
    Column("τ max", leaves=2),
    Column("|λ|≥1", leaves=3),
    Column("worst step", align="left", leaves=1),
    Column("effect"),
    Column("max lr", leaves=5, meaning="Max lr: the lowest of all groups."),
    Column("a step is", align="left", leaves=4),
]


def summary_text(reports: Sequence[Report], *, file: Path | None = None) -> str:
    """The table as text for standard output, or for a file."""
    return text_of(Summary(tuple(reports)), file)


@dataclass(frozen=True)
class Summary:
    """Reports that a console can draw in one table."""

    reports: tuple[Report, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table line by line."""
        yield from self._lines(Screen.of(options))

    def _lines(self, screen: Screen) -> Iterator[Text]:
        yield Text("Side by side", TITLE)
        rows = [
            _row(name, report) for name, report in zip(self._names(), self.reports, strict=True)
        ]
        drawn = draw(screen, COLUMNS, rows)
        yield from drawn.lines
        rates = sorted({report.input.learning_rate for report in self.reports})
        said = ", ".join(setting(rate) for rate in rates)
        legend = f"Effect: what one step at {said} on the worst parameter group does to the state."
        legend = " ".join(filter(None, [legend, *drawn.meanings]))
        if any(layer.hidden_feedback for report in self.reports for layer in report.layers):
            legend += " Where gates see the state, as in an LSTM, τ max is that of the gates alone."
        yield from paragraph(screen, Text(screen.clean(legend)))

    def _names(self) -> list[str]:
        """The files' stems where they tell the checkpoints apart, else their whole paths."""
        paths = [report.checkpoint.path for report in self.reports]
        stems = [PurePath(path).stem for path in paths]
        return stems if len(set(stems)) == len(set(paths)) else paths


def _row(name: str, report: Report) -> list[Cell]:
    parameters = [one for layer in report.layers for one in layer.parameters]
    parameter = max(parameters, key=parameter_rank, default=None)
    step, group, direction = ABSENT, ABSENT, ABSENT
    if parameter is not None:
        parameter = together([one for one in parameters if one.name == parameter.name])
        group, direction = parameter.name, parameter.direction
        divergent = parameter.relative_sensitivity.divergent
        step = effect(parameter.step_effect, divergent=divergent)
    return [
        Cell(report.verdict, VERDICT_STYLES[report.verdict]),
        Cell(name, NAME),
        Cell(largest([one.eigenvalues.time_constant for one in report.layers], "max")),
        Cell(str(sum(one.eigenvalues.unstable for one in report.layers))),
        Cell(group),
        Cell(step),
        Cell(number_or_absent(lowest_rate(parameters), 2)),
        Cell(direction),
    ]
