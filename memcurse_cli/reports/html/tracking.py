"""The page of a tracked run: verdicts, time constants, sensitivities and rates over its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memcurse_cli.diagnosis.verdicts import ORDER
from memcurse_cli.reports.html.page import render
from memcurse_cli.reports.html.tables import Cell
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, effect, number, setting
from memcurse_cli.reports.terminal import describe_horizon, describe_input
from memcurse_cli.reports.tracking import choose
from memcurse_cli.reports.tracking_json import to_json
from memcurse_cli.tracking.changes import modulus_text
from memcurse_cli.tracking.series import (
    Snapshot,
    Spread,
    Summary,
    TrackedLayer,
    TrackedStep,
    Tracking,
)

STEPS_DRAWN = 200
FIGURES_OF_LAYERS = 8_000
"""More layers times steps than this, and the JSON in the page is without its layers."""

LEVELS = {"max": "max", "90 %": "p90", "median": "p50", "10 %": "p10"}
STEP_COLUMNS = (
    "step",
    "verdict",
    "|λ| max",
    "|λ| ≥ 1",
    "τ median",
    "τ max",
    "worst κ",
    "of",
    "usable lr",
    "file",
)
LAYER_COLUMNS = (
    "layer",
    "family",
    "verdict",
    "n",
    "|λ| max",
    "τ max before",
    "τ max",
    "worst step effect",
    "usable lr",
)

Mark = float | str | None
"""A point of a curve: a number, `DIVERGENT`, or None where nothing is known."""


@dataclass(frozen=True)
class LayerView:
    """A layer's part of the page."""

    name: str
    index: int
    family: str
    verdict: str
    row: tuple[Cell, ...]


def to_html(tracking: Tracking) -> str:
    """The page of a run."""
    read = [one.snapshot for one in tracking.steps if one.snapshot is not None]
    drawn = choose(tracking.steps, STEPS_DRAWN)
    names = list(dict.fromkeys(layer.name for snapshot in read for layer in snapshot.layers))
    whole = len(names) * len(read) <= FIGURES_OF_LAYERS
    return render(
        "tracking.html",
        tracking=tracking,
        verdict=read[-1].verdict if read else "",
        facts=tuple(_facts(tracking, read)),
        step_columns=STEP_COLUMNS,
        steps=tuple({"cells": _step(one), "href": ""} for one in tracking.steps),
        layer_columns=LAYER_COLUMNS,
        layers=tuple(_layer(name, index + 1, read) for index, name in enumerate(names)),
        drawn=len(drawn),
        whole=whole,
        charts=[
            {
                "steps": [one.step for one in drawn],
                "verdicts": [
                    "error" if one.snapshot is None else one.snapshot.verdict for one in drawn
                ],
                "layers": [_run_chart(drawn), *(_layer_chart(name, drawn) for name in names)],
            }
        ],
        document=to_json(tracking, layers=whole),
    )


def _facts(tracking: Tracking, read: Sequence[Snapshot]) -> Iterator[tuple[str, str]]:
    steps = tracking.steps
    if steps:
        failed = f", {tracking.failed} not read" if tracking.failed else ""
        yield "checkpoints", f"{len(steps)}, step {steps[0].step} to {steps[-1].step}{failed}"
    if read:
        yield "input", describe_input(read[0].input)
        yield "horizon", describe_horizon(read[0].input)
        rate = setting(read[0].input.learning_rate)
        yield "step", f"one optimizer step moves a parameter by {rate}"
    for note in tracking.notes:
        yield "note", note
    yield "memcurse", tracking.version


def _step(step: TrackedStep) -> tuple[Cell, ...]:
    if step.snapshot is None:
        blank = [Cell(ABSENT, -1.0) for _ in STEP_COLUMNS[2:-2]]
        error = step.error or ""
        file = Cell(step.path, step.path)
        return (Cell(str(step.step), step.step), Cell("error", "3"), *blank, Cell(error, ""), file)
    summary = step.snapshot.summary
    worst = summary.worst
    return (
        Cell(str(step.step), step.step),
        Cell(step.snapshot.verdict, str(ORDER.index(step.snapshot.verdict))),
        Cell(modulus_text(summary.modulus), summary.modulus),
        Cell(f"{summary.unstable:,}", summary.unstable),
        _cell(summary.time_constant_median),
        _cell(summary.time_constant),
        Cell(ABSENT, -1.0) if worst is None else _cell(worst.relative_sensitivity),
        Cell(ABSENT, "") if worst is None else Cell(f"{worst.layer}: {worst.name}", worst.name),
        _rate(summary.usable_rate),
        Cell(step.path, step.path),
    )


def _layer(name: str, index: int, read: Sequence[Snapshot]) -> LayerView:
    """A layer as it is at the last step that has it, beside the first."""
    states = [layer for snapshot in read for layer in snapshot.layers if layer.name == name]
    first, last = states[0], states[-1]
    return LayerView(
        name,
        index,
        last.family,
        last.verdict,
        (
            Cell(name, name),
            Cell(last.family, last.family),
            Cell(last.verdict, str(ORDER.index(last.verdict))),
            Cell(f"{last.count:,}", last.count),
            _quantile(last.modulus, modulus_text),
            _quantile(first.time_constant),
            _quantile(last.time_constant),
            _worst_effect(last),
            _rate(None if last.usable_rate is None else last.usable_rate.rate),
        ),
    )


def _worst_effect(layer: TrackedLayer) -> Cell:
    if any(one.step_effect is None and one.relative_sensitivity.divergent for one in layer.groups):
        return Cell(DIVERGENT, 1e308)
    effects = [one.step_effect for one in layer.groups if one.step_effect is not None]
    worst = max(effects, default=None)
    return Cell(effect(worst, divergent=False), -1.0 if worst is None else worst)


def _cell(value: float | None) -> Cell:
    return Cell(DIVERGENT, 1e308) if value is None else Cell(number(value), value)


def _rate(value: float | None) -> Cell:
    return Cell(ABSENT, 1e308) if value is None else Cell(number(value, 2), value)


def _quantile(spread: Spread, write: Callable[[float], str] = number) -> Cell:
    if spread.max is not None:
        return Cell(write(spread.max), spread.max)
    return Cell(DIVERGENT, 1e308) if spread.divergent else Cell(ABSENT, -1.0)


def _run_chart(steps: Sequence[TrackedStep]) -> dict[str, Any]:
    """The curves of all layers together."""

    def curve(figure: Callable[[Summary], Mark]) -> list[Mark]:
        return [None if one.snapshot is None else figure(one.snapshot.summary) for one in steps]

    return {
        "name": "all layers",
        "panels": [
            _panel(
                "τ, steps",
                {
                    "max": curve(lambda summary: _mark(summary.time_constant)),
                    "median": curve(lambda summary: _mark(summary.time_constant_median)),
                },
            ),
            _panel(
                "κ of the worst group",
                {
                    "worst": curve(
                        lambda summary: (
                            None
                            if summary.worst is None
                            else _mark(summary.worst.relative_sensitivity)
                        )
                    )
                },
            ),
            _panel(
                "usable learning rate",
                {"usable lr": curve(lambda summary: summary.usable_rate)},
            ),
            _panel("eigenvalues with |λ| ≥ 1", {"|λ| ≥ 1": curve(lambda one: one.unstable)}),
        ],
    }


def _layer_chart(name: str, steps: Sequence[TrackedStep]) -> dict[str, Any]:
    """The curves of one layer; it may be missing at some of the steps."""
    states = [
        next((layer for layer in one.snapshot.layers if layer.name == name), None)
        if one.snapshot is not None
        else None
        for one in steps
    ]
    groups = dict.fromkeys(group.name for state in states if state for group in state.groups)
    time_constants = {
        said: [None if state is None else _level(state.time_constant, level) for state in states]
        for said, level in LEVELS.items()
    }
    rates: list[Mark] = [
        None if state is None or state.usable_rate is None else state.usable_rate.rate
        for state in states
    ]
    return {
        "name": name,
        "panels": [
            _panel("τ, steps", time_constants),
            _panel("κ p99", {group: _sensitivities(states, group) for group in groups}),
            _panel("usable learning rate", {"usable lr": rates}),
        ],
    }


def _sensitivities(states: Sequence[TrackedLayer | None], name: str) -> list[Mark]:
    marks: list[Mark] = []
    for state in states:
        group = next((one for one in state.groups if one.name == name), None) if state else None
        marks.append(None if group is None else _level(group.relative_sensitivity, "p99"))
    return marks


def _level(quantiles: Any, level: str) -> Mark:
    value: float | None = getattr(quantiles, level)
    if value is None:
        return DIVERGENT if quantiles.divergent else None
    return value


def _mark(value: float | None) -> Mark:
    return DIVERGENT if value is None else value


def _panel(title: str, curves: dict[str, list[Mark]]) -> dict[str, Any]:
    """One chart on a logarithmic scale, whose curves have four digits and no zeros."""
    return {
        "title": title,
        "curves": [
            {"name": name, "values": [_rounded(mark) for mark in marks]}
            for name, marks in curves.items()
        ],
    }


def _rounded(mark: Mark) -> Mark:
    if isinstance(mark, str) or mark is None:
        return mark
    rounded = float(f"{mark:.4g}")
    return rounded if 0 < rounded < math.inf else None
