"""The page of a tracked run: verdicts, memories, rates and step effects over its steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from memcurse_cli.reports.answer import assumed_words, rate_words, steps, worst_effect, worst_step
from memcurse_cli.reports.grid import Column, cells
from memcurse_cli.reports.html.page import BEYOND, Cell, Table, figure, render, row, verdict_cell
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, count, setting
from memcurse_cli.reports.ranking import grouped
from memcurse_cli.reports.terminal.tracking import COLUMNS, choose
from memcurse_cli.schema.derived import TrackedStep, Tracking
from memcurse_cli.schema.json_codec import encode, to_json
from memcurse_cli.schema.report import LayerReport, Report, step_effects
from memcurse_cli.tracking.track import unstable

STEPS_DRAWN = 200
MARKS_DRAWN = 160_000  # of all curves of all layers together, some seven bytes each
FEWEST_STEPS = 20
LAYERS_BYTES = 2_200_000
"""More JSON of layers than this, and the page holds that of their summaries alone."""


def to_html(tracking: Tracking) -> str:
    """The page of a run."""
    read = [one.report for one in tracking.steps if one.report is not None]
    curves = sum(CURVES + len(layer.parameters) for layer in read[-1].layers) if read else 0
    most = min(STEPS_DRAWN, MARKS_DRAWN // max(curves, 1))
    drawn = choose(tracking.steps, max(most, FEWEST_STEPS))
    named = grouped((layer.name, layer) for report in read for layer in report.layers)
    last = (json.dumps(encode(one.layers), separators=(",", ":")) for one in read[-1:])
    whole = len(read) * sum(map(len, last)) <= LAYERS_BYTES  # as if all were like the last
    fade = not any(map(unstable, read))
    shown = (one for one in COLUMNS[1:] if not (one.optional and fade))
    table: Table = {
        **{one.heading: partial(column_cell, one) for one in shown},
        "verdict": lambda one: verdict_cell(one.report.verdict) if one.report else "error",
        "step effect": lambda one: _worst(one.report.layers) if one.report else ABSENT,
        "file": lambda one: one.path,
    }
    return render(
        "tracking.html",
        tracking=tracking,
        verdict=read[-1].verdict if read else "",
        facts=tuple(_facts(tracking, read)),
        step_columns=tuple(table),
        steps=[row(table, one) for one in tracking.steps],
        unread=tuple(_unread(tracking.steps)),
        layer_columns=tuple(LAYERS),
        layers=[
            row(LAYERS, (states[0], states[-1]), f"l{index}", name=name)
            for index, (name, states) in enumerate(named.items(), 1)
        ],
        drawn=len(drawn),
        whole=whole,
        charts=[
            {
                "steps": [one.step for one in drawn],
                "verdicts": [
                    "error" if one.report is None else one.report.verdict for one in drawn
                ],
                "layers": [
                    _chart("all layers", [one.report for one in drawn], RUN),
                    *(layer_chart(name, drawn) for name in named),
                ],
            }
        ],
        document=to_json(tracking if whole else _without_layers(tracking)),
    )


def _without_layers(tracking: Tracking) -> Tracking:
    steps = (
        replace(one, report=one.report and replace(one.report, layers=())) for one in tracking.steps
    )
    return replace(tracking, steps=tuple(steps))


def _unread(steps: Sequence[TrackedStep]) -> Iterator[tuple[str, str, str]]:
    """(steps, what, why) of each checkpoint, and of each layer, that could not be read."""
    skipped: dict[tuple[str, str], list[int]] = {}
    for one in steps:
        if one.report is None:
            yield str(one.step), one.path, one.error or ""
            continue
        for layer in one.report.skipped:
            skipped.setdefault((layer.name, layer.reason), []).append(one.step)
    for (name, reason), where in skipped.items():
        span = str(where[0]) if len(where) == 1 else f"{where[0]} to {where[-1]}"
        yield span, f"layer {name}", reason


def _facts(tracking: Tracking, read: Sequence[Report]) -> Iterator[tuple[str, str]]:
    if tracking.steps:
        failed = f", {tracking.failed} not read" if tracking.failed else ""
        first, last = tracking.steps[0].step, tracking.steps[-1].step
        said = count(len(tracking.steps), "checkpoint")
        yield "run", f"{said}, step {first} to {last}{failed}"
    if read:
        yield "assumed", assumed_words(read[-1].input)
    for note in tracking.notes:
        yield "note", note
    yield "memcurse", tracking.version


def column_cell(column: Column, entry: object) -> Cell | str:
    """What a column of the terminal's says of an entry, with what it is sorted by."""
    (said,) = cells([column], entry)
    return said.text if column.align == "left" else sorted_cell(said.text)


def _worst(layers: Sequence[LayerReport]) -> Cell:
    worst = worst_step(layers)
    ranked = figure(worst and worst.effect, divergent=worst and worst.divergent)
    return replace(ranked, text=worst_effect(layers))


def sorted_cell(text: str) -> Cell:
    """A number as written, sorted by what comes after →: endless memory first, unknown last."""
    after = text.rpartition(" → ")[2].partition(" ")[0]
    try:
        return Cell(text, float(after))
    except ValueError:
        return Cell(text, -1.0 if after in ("", ABSENT) else BEYOND)


LAYERS: Table = {
    "layer": lambda one: one[1].name,
    "family": lambda one: one[1].family,
    "verdict": lambda one: verdict_cell(one[1].verdict),
    "memory before": lambda one: sorted_cell(steps(one[0].memory)),
    "memory": lambda one: sorted_cell(steps(one[1].memory)),
    "your rate": lambda one: figure(one[1].learning_rate, setting),
    "usable rate": lambda one: figure(one[1].usable_rate and one[1].usable_rate.rate, rate_words),
    "step effect": lambda one: _worst(one[1:]),
}
"""Of a layer at the first step that has it, and at the last."""

LEVELS = {"90 %": "p90", "median": "p50", "shortest": "min"}
CURVES = len(LEVELS) + 3  # of a layer, beside one for each of its parameter groups

Curves = Mapping[str, Callable[[Any], float | None]]
"""What each curve shows of a state: infinity where it diverges, None where it is not known."""

MEMORY: Curves = {"longest": lambda one: math.inf if one.memory is None else one.memory}
RATES: Curves = {
    "usable rate": lambda one: one.usable_rate and one.usable_rate.rate,
    "your rate": lambda one: (one.input if isinstance(one, Report) else one).learning_rate,
}
RUN: Mapping[str, Curves] = {
    "memory in steps": MEMORY,
    "learning rates": RATES,
    "eigenvalues that never fade": {"never": unstable},
}


def _memory(level: str, layer: LayerReport) -> float | None:
    spectrum = layer.eigenvalues.time_constant
    found: float | None = getattr(spectrum, level)
    return math.inf if found is None and spectrum.divergent else found


def _effect(group: str, layer: LayerReport) -> float | None:
    effects = (effect for one, effect in step_effects(layer) if one.name == group)
    return max((effect for effect in effects if effect is not None), default=None)


def layer_chart(name: str, steps: Sequence[TrackedStep]) -> dict[str, Any]:
    """The curves of one layer; it may be missing at some of the steps."""
    read = [one.report.layers if one.report else () for one in steps]
    states = [next((one for one in layers if one.name == name), None) for layers in read]
    groups = dict.fromkeys(
        group.name for state in states if state for group, _ in step_effects(state)
    )
    levels: Curves = {said: partial(_memory, level) for said, level in LEVELS.items()}
    panels: Mapping[str, Curves] = {
        "memory in steps": {**MEMORY, **levels},
        "learning rates": RATES,
        "step effect": {group: partial(_effect, group) for group in groups},
    }
    return _chart(name, states, panels)


def _chart(name: str, states: Sequence[Any], panels: Mapping[str, Curves]) -> dict[str, Any]:
    """Panels on logarithmic scales, whose curves have four digits and no zeros."""
    return {
        "name": name,
        "panels": [
            {
                "title": title,
                "curves": [
                    {"name": curve, "values": [state and _mark(tell(state)) for state in states]}
                    for curve, tell in curves.items()
                ],
            }
            for title, curves in panels.items()
        ],
    }


def _mark(value: float | None) -> float | str | None:
    if value == math.inf:
        return DIVERGENT
    rounded = float(f"{value or 0:.4g}")
    return rounded if 0 < rounded < math.inf else None
