"""The page of a tracked run: verdicts, time constants, sensitivities and rates over its steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from memcurse_cli.reports.html.page import (
    BEYOND,
    Cell,
    Table,
    figure,
    render,
    row,
    verdict_cell,
    word,
)
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, number, percent, setting
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
from memcurse_cli.schema.figures import diverges
from memcurse_cli.schema.json_codec import encode, to_json
from memcurse_cli.tracking.track import modulus_text

STEPS_DRAWN = 200
STRETCHES_SHOWN = 40
MARKS_DRAWN = 160_000
"""Of all curves of all layers together, some seven bytes each."""
FEWEST_STEPS = 20
LAYERS_BYTES = 1_500_000
"""More JSON of layers than this, and the page holds that of their summaries alone."""


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
    table = _steps_table(folder, alone=len(names) == 1)
    return render(
        "tracking.html",
        tracking=tracking,
        verdict=read[-1].verdict if read else "",
        stretches=tuple(stretches[:STRETCHES_SHOWN]),
        more_stretches=max(len(stretches) - STRETCHES_SHOWN, 0),
        facts=tuple(_facts(tracking, read, folder)),
        step_columns=tuple(table),
        steps=tuple({"cells": row(table, one), "href": ""} for one in tracking.steps),
        unread=tuple(_unread(tracking.steps, folder)),
        layer_columns=tuple(LAYERS),
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


def _of_summary(value: Callable[[Summary], Cell], absent: Cell | None = None) -> Any:
    """A cell of a step's summary; one that could not be read has none."""
    nothing = figure(None) if absent is None else absent
    return lambda one: nothing if one.snapshot is None else value(one.snapshot.summary)


def _steps_table(folder: str, *, alone: bool) -> Table:
    """What a checkpoint's row says; where one layer is all there is, groups lack its name."""

    def group(summary: Summary) -> Cell:
        worst = summary.worst
        if worst is None:
            return Cell(ABSENT, "")
        return word(worst.name if alone else f"{worst.layer}: {worst.name}")

    return {
        "step": lambda one: figure(one.step, str),
        "verdict": lambda one: (
            Cell("error", "3") if one.snapshot is None else verdict_cell(one.snapshot.verdict)
        ),
        "|λ| max": _of_summary(lambda one: figure(one.modulus, modulus_text)),
        "|λ| ≥ 1": _of_summary(lambda one: figure(one.unstable, "{:,}".format)),
        "τ median": _of_summary(lambda one: figure(one.time_constant_median, divergent=True)),
        "τ max": _of_summary(lambda one: figure(one.time_constant, divergent=True)),
        "worst κ": _of_summary(
            lambda one: figure(
                getattr(one.worst, "relative_sensitivity", None), divergent=one.worst
            )
        ),
        "of": _of_summary(group, Cell(ABSENT, "")),
        "usable lr": _of_summary(lambda one: _rate(one.usable_rate), _rate(None)),
        "file": lambda one: Cell(one.path.removeprefix(folder), one.path),
    }


def _layer(name: str, index: int, read: Sequence[Snapshot]) -> LayerView:
    """A layer as it is at the last step that has it, beside the first."""
    states = [layer for snapshot in read for layer in snapshot.layers if layer.name == name]
    last = states[-1]
    return LayerView(name, index, last.family, last.verdict, row(LAYERS, (states[0], last)))


def _worst_effect(layer: TrackedLayer) -> Cell:
    effects = [one.step_effect for one in layer.groups if one.step_effect is not None]
    if any(map(diverges, layer.groups)):
        return figure(None, divergent=True)
    return figure(max(effects, default=None), percent)


def _rate(value: float | None) -> Cell:
    return figure(value, lambda one: number(one, 2), absent=BEYOND)


def _largest(spread: Spread, write: Callable[[float], str] = number) -> Cell:
    return figure(spread.max, write, divergent=spread.divergent)


LAYERS: Table = {
    "layer": lambda one: word(one[1].name),
    "family": lambda one: word(one[1].family),
    "verdict": lambda one: verdict_cell(one[1].verdict),
    "n": lambda one: figure(one[1].count, "{:,}".format),
    "|λ| max": lambda one: _largest(one[1].modulus, modulus_text),
    "τ max before": lambda one: _largest(one[0].time_constant),
    "τ max": lambda one: _largest(one[1].time_constant),
    "worst step effect": lambda one: _worst_effect(one[1]),
    "usable lr": lambda one: _rate(one[1].usable_rate and one[1].usable_rate.rate),
}

LEVELS = {"max": "max", "90 %": "p90", "median": "p50", "10 %": "p10"}
CURVES = len(LEVELS) + 1
"""Of a layer, beside one for each of its parameter groups."""

Mark = float | str | None
"""A point of a curve: a number, `DIVERGENT`, or None where nothing is known."""

Panels = Mapping[str, Mapping[str, Callable[[Any], Mark]]]
"""The titles of charts, and what each of their curves shows of a state."""


def _mark(value: float | None) -> Mark:
    return DIVERGENT if value is None else value


def _level(quantiles: Any, level: str) -> Mark:
    value: float | None = getattr(quantiles, level)
    return value if value is not None else DIVERGENT if quantiles.divergent else None


RUN: Panels = {
    "time constant τ in steps": {
        "max": lambda one: _mark(one.time_constant),
        "median": lambda one: _mark(one.time_constant_median),
    },
    "κ of the worst group": {
        "worst": lambda one: one.worst and _mark(one.worst.relative_sensitivity)
    },
    "usable learning rate": {"usable lr": lambda one: one.usable_rate},
    "eigenvalues with |λ| ≥ 1": {"|λ| ≥ 1": lambda one: one.unstable},
}


def _time_constant(level: str) -> Callable[[TrackedLayer], Mark]:
    return lambda layer: _level(layer.time_constant, level)


def _sensitivity(name: str) -> Callable[[TrackedLayer], Mark]:
    def value(layer: TrackedLayer) -> Mark:
        group = next((one for one in layer.groups if one.name == name), None)
        return None if group is None else _level(group.relative_sensitivity, "p99")

    return value


def run_chart(steps: Sequence[TrackedStep]) -> dict[str, Any]:
    """The curves of all layers together."""
    return _chart("all layers", [one.snapshot and one.snapshot.summary for one in steps], RUN)


def layer_chart(name: str, steps: Sequence[TrackedStep]) -> dict[str, Any]:
    """The curves of one layer; it may be missing at some of the steps."""
    states = [
        next((layer for layer in one.snapshot.layers if layer.name == name), None)
        if one.snapshot is not None
        else None
        for one in steps
    ]
    groups = dict.fromkeys(group.name for state in states if state for group in state.groups)
    panels: Panels = {
        "time constant τ in steps": {said: _time_constant(one) for said, one in LEVELS.items()},
        "κ p99": {group: _sensitivity(group) for group in groups},
        "usable learning rate": {"usable lr": lambda one: one.usable_rate and one.usable_rate.rate},
    }
    return _chart(name, states, panels)


def _chart(name: str, states: Sequence[Any], panels: Panels) -> dict[str, Any]:
    """Panels on logarithmic scales, whose curves have four digits and no zeros."""
    return {
        "name": name,
        "panels": [
            {
                "title": title,
                "curves": [
                    {"name": curve, "values": [state and _rounded(mark(state)) for state in states]}
                    for curve, mark in curves.items()
                ],
            }
            for title, curves in panels.items()
        ],
    }


def _rounded(mark: Mark) -> Mark:
    if isinstance(mark, str) or mark is None:
        return mark
    rounded = float(f"{mark:.4g}")
    return rounded if 0 < rounded < math.inf else None
