"""A landscape as a page of text: a table of basins, and the losses drawn over the distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

from memcurse_cli.reports.answer import describe_horizon, describe_input, rate_words
from memcurse_cli.reports.console import NAME, VERDICT_STYLES, Screen
from memcurse_cli.reports.grid import Cell, Column, facts, paragraph, parted
from memcurse_cli.reports.numbers import ABSENT, number, percent, setting
from memcurse_cli.reports.plots import Axis, Curve, plot
from memcurse_cli.reports.terminal.steps import title
from memcurse_cli.reports.terminal.tables import GUTTER_COLUMN, explained, figure, table_lines
from memcurse_cli.schema.theory import LandscapeParameter, LandscapeReport, LandscapeView

LEAST_LOSS = 1e-6
AXIS = Axis(
    "distance of one parameter from its optimum",
    [(exponent, f"1e{exponent}" if exponent else "1") for exponent in range(-6, 2)],
)
CROSSED, NEAR = 1.0, 10.0
"""Steps of Adam across the basin from which on a parameter is called cursed, and to be watched."""


class Entry(NamedTuple):
    """A parametrisation and one of its parameters, by its place."""

    view: LandscapeView
    place: int
    one: LandscapeParameter


def _verdict(steps: float | None) -> str:
    across = math.inf if steps is None else steps
    return "ok" if across >= NEAR else "watch" if across >= CROSSED else "cursed"


def _judged(write: Callable[[LandscapeParameter], str]) -> Callable[[Entry], Cell]:
    return lambda row: Cell(write(row.one), VERDICT_STYLES[_verdict(row.one.steps_across)])


_WHICH = [
    Column("written as", lambda row: "" if row.place else title(row.view), align="left"),
    Column("parameter", lambda row: Cell(row.one.name, NAME), align="left", shrinks=True),
]
COLUMNS = explained(
    {
        "κ": "κ: the loss at a small distance δ is κ δ².",
        "max SGD lr": "Max SGD lr: 2 / E|dh/dω|², for an input of unit variance.",
    },
    Column("", _judged(lambda one: _verdict(one.steps_across)), align="left"),
    *_WHICH,
    figure("at", "one.value", 3),
    figure("κ", "one.relative_sensitivity", 1),
    figure("max SGD lr", "one.max_stable_lr", 2, rate_words),
    Column("basin", _judged(lambda one: number(one.basin))),
    Column("steps", _judged(lambda one: rate_words(one.steps_across))),
)
START_COLUMNS = explained(
    {
        "gradient": "Gradient: dL/dω there, for an input of unit variance.",
        "Adam": "Adam: the way over lr, in steps.",
        "SGD": "SGD: the way over max SGD lr times the gradient, the pace at the start; "
        f"{ABSENT} where the gradient is 0 or leads away.",
    },
    GUTTER_COLUMN,
    *_WHICH,
    figure("from", "one.start", 2),
    figure("to", "one.value", 3),
    figure("gradient", "one.gradient", 1),
    figure("Adam", "one.adam_steps", 0, rate_words),
    figure("SGD", "one.sgd_steps", 0, rate_words),
)


def narrowest(view: LandscapeView) -> LandscapeParameter | None:
    """The parameter with the smallest basin."""
    known = [one for one in view.parameters if one.basin is not None]
    return min(known, key=lambda one: one.basin or math.inf, default=None)


def lines(report: LandscapeReport, screen: Screen) -> Iterator[Text]:
    """The page line by line."""
    entries = [Entry(view, *one) for view in report.views for one in enumerate(view.parameters)]
    curves = [_curve(report, view) for view in report.views]
    return parted(
        facts(screen, _facts(report)),
        table_lines(screen, COLUMNS, entries, note=_basins(report)),
        _way(screen, report, entries),
        plot(screen, AXIS, [curve for curve in curves if len(curve.points) > 1]),
        paragraph(screen, screen.sentence(_conclusion(report), NAME)),
    )


def _facts(report: LandscapeReport) -> Iterator[tuple[str, str]]:
    given = report.input
    tau = "" if report.time_constant is None else f", τ = {number(report.time_constant)} steps"
    yield "target", f"|λ*| = {report.modulus:.6g}{tau}, angle {setting(report.angle)} rad"
    yield "loss", "½ E|h - h*|² over ½ E|h*|², the loss of a student that is silent"
    yield "input", describe_input(given.autocorrelation)
    yield "horizon", describe_horizon(given.horizon, given.readout, given.horizon_source)
    yield "step", f"one step of Adam moves a parameter by lr = {setting(given.learning_rate)}"


def _basins(report: LandscapeReport) -> str:
    """What holds of the basins whatever columns there is room for."""
    step_size = "" if report.step_size is None else f" Δ of s4 is {setting(report.step_size)}."
    return (
        "Basin: how far the parameter may be off, to the nearer side, before the loss is "
        f"{percent(report.level, 2)}. Steps: of Adam, from the optimum out of the basin; below "
        f"{NEAR:g} to watch, below {CROSSED:g} cursed.{step_size}"
    )


def _way(screen: Screen, report: LandscapeReport, entries: Sequence[Entry]) -> Iterator[Text]:
    """Where training starts, the loss there, one or the least and the most, and the way."""
    if report.start_modulus is None:
        return
    losses = sorted(view.start_loss for view in report.views if view.start_loss is not None)
    ends = dict.fromkeys(map(number, (*losses[:1], *losses[-1:])))
    said = (
        f"From |λ| = {report.start_modulus:.6g}, angle {setting(report.start_angle or 0.0)} rad, "
        f"where the loss is {' to '.join(ends) or 'beyond any number'}"
    )
    yield from paragraph(screen, screen.sentence(said, NAME))
    yield from table_lines(screen, START_COLUMNS, entries)


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
    found = [
        (one.basin, one.name, title(view))
        for view in report.views
        if (one := narrowest(view)) is not None and one.basin is not None
    ]
    if not found:
        return "No parameter raises the loss to the level."
    (least, name, narrow), (most, _, wide) = min(found), max(found)
    said = f"The narrowest basin is that of {name} of {narrow}, {number(least)}"
    if most > 1.05 * least:
        said += f"; written as {wide} a student may be off {number(most / least)} times as far"
    return f"{said}."
