"""A landscape as a page of text: a table of basins, and the losses drawn over the distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rich.text import Text

from memcurse_cli.reports.console import (
    NAME,
    VERDICT_STYLES,
    Screen,
    text_of,
)
from memcurse_cli.reports.grid import Cell, Column, cells, draw, facts, paragraph
from memcurse_cli.reports.numbers import ABSENT, number, number_or_absent, percent, setting
from memcurse_cli.reports.plots import Axis, Curve, plot
from memcurse_cli.reports.terminal.report import describe_horizon, describe_input
from memcurse_cli.reports.terminal.steps import title
from memcurse_cli.reports.terminal.tables import GUTTER_COLUMN, legend
from memcurse_cli.schema.theory import LandscapeParameter, LandscapeReport, LandscapeView

LEAST_LOSS = 1e-6
AXIS = Axis(
    "distance of one parameter from its optimum",
    [(exponent, f"1e{exponent}" if exponent else "1") for exponent in range(-6, 2)],
)
CROSSED, NEAR = 1.0, 10.0
"""Steps of Adam across the basin from which on a parameter is called cursed, and to be watched."""


Entry = tuple[LandscapeView, int, LandscapeParameter]
"""A parametrisation and one of its parameters, by its place."""


def _verdict(steps: float | None) -> str:
    if steps is None or steps >= NEAR:
        return "ok"
    return "watch" if steps >= CROSSED else "cursed"


def _judged(write: Callable[[LandscapeParameter], str]) -> Callable[[Entry], Cell]:
    return lambda entry: Cell(write(entry[2]), VERDICT_STYLES[_verdict(entry[2].steps_across)])


_WHICH = [
    Column("written as", lambda row: "" if row[1] else title(row[0]), align="left"),
    Column("parameter", lambda row: Cell(row[2].name, NAME), align="left", shrinks=True),
]
COLUMNS = [
    Column("", _judged(lambda one: _verdict(one.steps_across)), align="left"),
    *_WHICH,
    Column("at", lambda row: number(row[2].value), leaves=3),
    Column(
        "κ",
        lambda row: number(row[2].relative_sensitivity),
        leaves=1,
        meaning="κ: the loss at a small distance δ is κ δ².",
    ),
    Column(
        "max SGD lr",
        lambda row: number_or_absent(row[2].max_stable_lr, 2),
        leaves=2,
        meaning="Max SGD lr: 2 / E|dh/dω|², for an input of unit variance.",
    ),
    Column("basin", _judged(lambda one: number_or_absent(one.basin))),
    Column("steps", _judged(lambda one: number_or_absent(one.steps_across, 2))),
]
START_COLUMNS = [
    GUTTER_COLUMN,
    *_WHICH,
    Column("from", lambda row: number_or_absent(row[2].start), leaves=2),
    Column("to", lambda row: number(row[2].value), leaves=3),
    Column(
        "gradient",
        lambda row: number_or_absent(row[2].gradient),
        leaves=1,
        meaning="Gradient: dL/dω there, for an input of unit variance.",
    ),
    Column(
        "Adam",
        lambda row: number_or_absent(row[2].adam_steps, 2),
        meaning="Adam: the way over lr, in steps.",
    ),
    Column(
        "SGD",
        lambda row: number_or_absent(row[2].sgd_steps, 2),
        meaning="SGD: the way over max SGD lr times the gradient, the pace at the start; "
        f"{ABSENT} where the gradient is 0 or leads away.",
    ),
]


def to_text(report: LandscapeReport, *, file: Path | None = None) -> str:
    """What standard output would show, or the text for a file."""
    return text_of(partial(lines, report), file)


def narrowest(view: LandscapeView) -> LandscapeParameter | None:
    """The parameter with the smallest basin."""
    known = [one for one in view.parameters if one.basin is not None]
    return min(known, key=lambda one: one.basin or math.inf, default=None)


def lines(report: LandscapeReport, screen: Screen) -> Iterator[Text]:
    """The page line by line."""
    yield from facts(screen, _facts(report))
    yield Text()
    entries = [(view, *one) for view in report.views for one in enumerate(view.parameters)]
    drawn = draw(screen, COLUMNS, [cells(COLUMNS, entry) for entry in entries])
    yield from drawn.lines
    yield from legend(screen, drawn, note=_basins(report))
    if report.start_modulus is not None:
        yield Text()
        yield from paragraph(screen, screen.sentence(_start(report), NAME))
        drawn = draw(screen, START_COLUMNS, [cells(START_COLUMNS, entry) for entry in entries])
        yield from drawn.lines
        yield from legend(screen, drawn)
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
