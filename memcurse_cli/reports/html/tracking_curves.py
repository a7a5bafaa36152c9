"""The curves of a tracked run over its steps, as the page's script draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from memcurse_cli.reports.numbers import DIVERGENT
from memcurse_cli.schema.track import Summary, TrackedLayer, TrackedStep

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
