"""The page of a tracked run: verdicts, time constants, sensitivities and rates over its steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from memcurse_cli.reports.html.page import render
from memcurse_cli.reports.html.report import Cell
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, effect, number, setting
from memcurse_cli.reports.terminal.report import describe_horizon, describe_input
from memcurse_cli.reports.terminal.tracking import choose
from memcurse_cli.schema.derived import (
    Snapshot,
    Spread,
    Summary,
    TrackedLayer,
    TrackedStep,
    Tracking,
)
from memcurse_cli.schema.figures import ORDER
from memcurse_cli.schema.json_codec import encode, to_json
from memcurse_cli.tracking.track import modulus_text

STEPS_DRAWN = 200
STRETCHES_SHOWN = 40
MARKS_DRAWN = 160_000
"""Of all curves of all layers together, some seven bytes each."""
FEWEST_STEPS = 20
LAYERS_BYTES = 1_500_000
"""More JSON of layers than this, and the page holds that of their summaries alone."""

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


@dataclass(frozen=True)
class LayerView:
    """A layer's part of the page."""

    name: str
    index: int
    family: str
    verdict: str
    row: tuple[Cell, ...]


@dataclass(frozen=True)
class Stretch:
    """Neighbouring checkpoints of one verdict."""

    verdict: str
    first: int
    last: int
    count: int


def to_html(tracking: Tracking) -> str:
    """The page of a run."""
    read = [one.snapshot for one in tracking.steps if one.snapshot is not None]
    curves = sum(CURVES + len(layer.groups) for layer in read[-1].layers) if read else 0
    most = min(STEPS_DRAWN, MARKS_DRAWN // max(curves, 1))
    drawn = choose(tracking.steps, max(most, FEWEST_STEPS))
    names = list(dict.fromkeys(layer.name for snapshot in read for layer in snapshot.layers))
    whole = _layers_bytes(read) <= LAYERS_BYTES
    stretches = list(_stretches(tracking.steps))
    folder = common_folder([one.path for one in tracking.steps])
    return render(
        "tracking.html",
        tracking=tracking,
        verdict=read[-1].verdict if read else "",
        stretches=tuple(stretches[:STRETCHES_SHOWN]),
        more_stretches=max(len(stretches) - STRETCHES_SHOWN, 0),
        facts=tuple(_facts(tracking, read, folder)),
        step_columns=STEP_COLUMNS,
        steps=tuple(
            {"cells": _step(one, folder, alone=len(names) == 1), "href": ""}
            for one in tracking.steps
        ),
        unread=tuple(_unread(tracking.steps, folder)),
        layer_columns=LAYER_COLUMNS,
        layers=tuple(_layer(name, index + 1, read) for index, name in enumerate(names)),
        drawn=len(drawn),
        whole=whole,
        charts=[
            {
                "steps": [one.step for one in drawn],
                "verdicts": [_verdict(one) for one in drawn],
                "layers": [run_chart(drawn), *(layer_chart(name, drawn) for name in names)],
            }
        ],
        document=to_json(tracking if whole else _without_layers(tracking)),
    )


def _without_layers(tracking: Tracking) -> Tracking:
    """The run with nothing but the summary of each snapshot."""
    steps = (
        replace(one, snapshot=one.snapshot and replace(one.snapshot, layers=()))
        for one in tracking.steps
    )
    return replace(tracking, steps=tuple(steps))


def _layers_bytes(read: Sequence[Snapshot]) -> int:
    """What the JSON of all layers takes, if all checkpoints are like the last."""
    if not read:
        return 0
    last = json.dumps(encode(read[-1].layers), separators=(",", ":"))
    return len(read) * len(last)


def common_folder(paths: Sequence[str]) -> str:
    """What all paths begin with, up to and with a slash; empty where they share no folder."""
    low, high = min(paths, default=""), max(paths, default="")
    same = next(
        (index for index, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low)
    )
    return low[: low.rfind("/", 0, same) + 1]


def _verdict(step: TrackedStep) -> str:
    return "error" if step.snapshot is None else step.snapshot.verdict


def _stretches(steps: Sequence[TrackedStep]) -> Iterator[Stretch]:
    for verdict, group in groupby(steps, _verdict):
        members = list(group)
        yield Stretch(verdict, members[0].step, members[-1].step, len(members))


def _unread(steps: Sequence[TrackedStep], folder: str) -> Iterator[tuple[str, str, str]]:
    """(steps, what, why) of each checkpoint, and of each layer, that could not be read."""
    skipped: dict[tuple[str, str], list[int]] = {}
    for one in steps:
        if one.snapshot is None:
            yield str(one.step), one.path.removeprefix(folder), one.error or ""
            continue
        for layer in one.snapshot.skipped:
            skipped.setdefault((layer.name, layer.reason), []).append(one.step)
    for (name, reason), where in skipped.items():
        span = str(where[0]) if len(where) == 1 else f"{where[0]} to {where[-1]}"
        yield span, f"layer {name}", reason


def _facts(tracking: Tracking, read: Sequence[Snapshot], folder: str) -> Iterator[tuple[str, str]]:
    steps = tracking.steps
    if steps:
        failed = f", {tracking.failed} not read" if tracking.failed else ""
        yield "checkpoints", f"{len(steps)}, step {steps[0].step} to {steps[-1].step}{failed}"
    if folder:
        yield "folder", folder
    if read:
        yield "input", describe_input(read[0].input)
        yield "horizon", describe_horizon(read[0].input)
        rate = setting(read[0].input.learning_rate)
        yield "step", f"one optimizer step moves a parameter by {rate}"
    for note in tracking.notes:
        yield "note", note
    yield "memcurse", tracking.version


def _step(step: TrackedStep, folder: str, *, alone: bool) -> tuple[Cell, ...]:
    """A checkpoint's row; where one layer is all there is, groups stand without its name."""
    file = Cell(step.path.removeprefix(folder), step.path)
    if step.snapshot is None:
        blank = [Cell(ABSENT, -1.0) for _ in STEP_COLUMNS[2:-3]]
        return (
            Cell(str(step.step), step.step),
            Cell("error", "3"),
            *blank,
            Cell(ABSENT, ""),
            _rate(None),
            file,
        )
    summary = step.snapshot.summary
    worst = summary.worst
    group = "" if worst is None else worst.name if alone else f"{worst.layer}: {worst.name}"
    return (
        Cell(str(step.step), step.step),
        Cell(step.snapshot.verdict, str(ORDER.index(step.snapshot.verdict))),
        Cell(modulus_text(summary.modulus), summary.modulus),
        Cell(f"{summary.unstable:,}", summary.unstable),
        _cell(summary.time_constant_median),
        _cell(summary.time_constant),
        Cell(ABSENT, -1.0) if worst is None else _cell(worst.relative_sensitivity),
        Cell(ABSENT, "") if worst is None else Cell(group, group),
        _rate(summary.usable_rate),
        file,
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


LEVELS = {"max": "max", "90 %": "p90", "median": "p50", "10 %": "p10"}
CURVES = len(LEVELS) + 1
"""Of a layer, beside one for each of its parameter groups."""

Mark = float | str | None
"""A point of a curve: a number, `DIVERGENT`, or None where nothing is known."""


def run_chart(steps: Sequence[TrackedStep]) -> dict[str, Any]:
    """The curves of all layers together."""

    def curve(figure: Callable[[Summary], Mark]) -> list[Mark]:
        return [None if one.snapshot is None else figure(one.snapshot.summary) for one in steps]

    return {
        "name": "all layers",
        "panels": [
            _panel(
                "time constant τ in steps",
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


def layer_chart(name: str, steps: Sequence[TrackedStep]) -> dict[str, Any]:
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
            _panel("time constant τ in steps", time_constants),
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
