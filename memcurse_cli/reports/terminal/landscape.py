"""A landscape as a page of text: a table of basins, and the losses drawn over the distance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memcurse_cli.reports.console import (
    LABEL,
    NAME,
    VERDICT_STYLES,
    Screen,
    text_of,
)
from memcurse_cli.reports.grid import Cell, Column, draw, paragraph
from memcurse_cli.reports.numbers import ABSENT, number, number_or_absent, percent, setting
from memcurse_cli.reports.plots import Axis, Curve, plot
from memcurse_cli.reports.terminal.report import describe_horizon, describe_input
from memcurse_cli.reports.terminal.tables import legend
from memcurse_cli.schema.theory import LandscapeParameter, LandscapeReport, LandscapeView

GAINS = {"none": "", "own": ", γ own", "coupled": ", γ coupled"}
LEAST_LOSS = 1e-6
AXIS = Axis(
    "distance of one parameter from its optimum",
    [(exponent, f"1e{exponent}" if exponent else "1") for exponent in range(-6, 2)],
)
COLUMNS = [
    Column("", align="left"),
    Column("written as", align="left"),
    Column("parameter", align="left", shrinks=True),
    Column("at", leaves=3),
    Column("κ", leaves=1, meaning="κ: the loss at a small distance δ is κ δ²."),
    Column(
        "max SGD lr",
        leaves=2,
        meaning="Max SGD lr: 2 / E|dh/dω|², for an input of unit variance.",
    ),
    Column("basin"),
    Column("steps"),
]
START_COLUMNS = [
    Column("", align="left"),
    Column("written as", align="left"),
    Column("parameter", align="left", shrinks=True),
    Column("from", leaves=2),
    Column("to", leaves=3),
    Column("gradient", leaves=1, meaning="Gradient: dL/dω there, for an input of unit variance."),
    Column("Adam", meaning="Adam: the way over lr, in steps."),
    Column(
        "SGD",
        meaning="SGD: the way over max SGD lr times the gradient, the pace at the start; "
        f"{ABSENT} where the gradient is 0 or leads away.",
    ),
]
CROSSED, NEAR = 1.0, 10.0
"""Steps of Adam across the basin from which on a parameter is called cursed, and to be watched."""


def to_text(report: LandscapeReport, *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    return text_of(Page(report), file)


def title(view: LandscapeView) -> str:
    """What a parametrisation is called: ``lru, γ own``."""
    return f"{view.parametrization}{GAINS[view.gain]}"


def narrowest(view: LandscapeView) -> LandscapeParameter | None:
    """The parameter with the smallest basin."""
    known = [one for one in view.parameters if one.basin is not None]
    return min(known, key=lambda one: one.basin or math.inf, default=None)


@dataclass(frozen=True)
class Page:
    """A landscape that a console can draw."""

    report: LandscapeReport

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the page line by line."""
        screen, report = Screen.of(options), self.report
        for label, said in _facts(report):
            yield from paragraph(screen, screen.sentence(said), gutter=[(label, LABEL)])
        yield Text()
        drawn = draw(screen, COLUMNS, [row for view in report.views for row in _rows(view)])
        yield from drawn.lines
        yield from legend(screen, drawn, {}, note=_basins(report))
        if report.start_modulus is not None:
            yield Text()
            yield from paragraph(screen, screen.sentence(_start(report), NAME))
            drawn = draw(
                screen, START_COLUMNS, [row for view in report.views for row in _ways(view)]
            )
            yield from drawn.lines
            yield from legend(screen, drawn, {})
        yield Text()
        curves = [_curve(report, view) for view in report.views]
        yield from plot(screen, AXIS, [curve for curve in curves if len(curve.points) > 1])
        yield Text()
        yield from paragraph(screen, screen.sentence(_conclusion(report), NAME))


def _facts(report: LandscapeReport) -> Iterator[tuple[str, str]]:
    tau = "" if report.time_constant is None else f", τ = {number(report.time_constant)} steps"
    yield "target", f"|λ*| = {report.modulus:.6g}{tau}, angle {setting(report.angle)} rad"
    yield "loss", "½ E|h - h*|² over ½ E|h*|², the loss of a student that is silent"
    yield "input", describe_input(report.input)
    yield "horizon", describe_horizon(report.input)
    rate = setting(report.input.learning_rate)
    yield "step", f"one step of Adam moves a parameter by lr = {rate}"


def _basins(report: LandscapeReport) -> str:
    """What holds of the basins whatever columns there is room for."""
    level = percent(report.level, 2)
    said = (
        "Basin: how far the parameter may be off, to the nearer side, before the loss "
        f"is {level}. Steps: of Adam, from the optimum out of the basin; below {NEAR:g} to watch, "
        f"below {CROSSED:g} cursed."
    )
    if report.step_size is not None:
        said += f" Δ of s4 is {setting(report.step_size)}."
    return said


def _rows(view: LandscapeView) -> Iterator[list[Cell]]:
    for index, one in enumerate(view.parameters):
        verdict = _verdict(one.steps_across)
        style = VERDICT_STYLES[verdict]
        yield [
            Cell(verdict, style),
            Cell(title(view) if index == 0 else ""),
            Cell(one.name, NAME),
            Cell(number(one.value)),
            Cell(number(one.relative_sensitivity)),
            Cell(number_or_absent(one.max_stable_lr, 2)),
            Cell(number_or_absent(one.basin), style),
            Cell(number_or_absent(one.steps_across, 2), style),
        ]


def _start(report: LandscapeReport) -> str:
    """Where training starts, and the loss there: one for all γ, or from the least to the most."""
    losses = [view.start_loss for view in report.views if view.start_loss is not None]
    said = (
        " to ".join(dict.fromkeys(map(number, (min(losses), max(losses)))))
        if losses
        else "beyond any number"
    )
    return (
        f"From |λ| = {report.start_modulus:.6g}, angle {setting(report.start_angle or 0.0)} rad, "
        f"where the loss is {said}"
    )


def _ways(view: LandscapeView) -> Iterator[list[Cell]]:
    for index, one in enumerate(view.parameters):
        yield [
            Cell(""),
            Cell(title(view) if index == 0 else ""),
            Cell(one.name, NAME),
            Cell(number_or_absent(one.start)),
            Cell(number(one.value)),
            Cell(number_or_absent(one.gradient)),
            Cell(number_or_absent(one.adam_steps, 2)),
            Cell(number_or_absent(one.sgd_steps, 2)),
        ]


def _verdict(steps: float | None) -> str:
    if steps is None or steps >= NEAR:
        return "ok"
    return "watch" if steps >= CROSSED else "cursed"


def _curve(report: LandscapeReport, view: LandscapeView) -> Curve:
    """The losses along the narrowest parameter, where they can be told from 0."""
    one = narrowest(view)
    if one is None:
        return Curve(title(view), ())
    points = [
        (math.log10(offset), math.log10(loss))
        for offset, loss in zip(report.offsets, one.loss, strict=True)
        if loss is not None and LEAST_LOSS <= loss <= 10
    ]
    return Curve(f"{title(view)}: {one.name}", points)


def _conclusion(report: LandscapeReport) -> str:
    """The narrowest and the widest parametrisation, by their narrowest parameter."""
    found = [
        (one.basin, f"{one.name} of {title(view)}")
        for view in report.views
        if (one := narrowest(view)) is not None and one.basin is not None
    ]
    if not found:
        return "No parameter raises the loss to the level."
    least, most = min(found), max(found)
    said = f"The narrowest basin is that of {least[1]}, {number(least[0])}"
    if len(found) > 1 and most[0] > 1.05 * least[0]:
        said += (
            f"; written as {most[1].partition(' of ')[2]} a student may be off "
            f"{number(most[0] / least[0])} times as far"
        )
    return f"{said}."
