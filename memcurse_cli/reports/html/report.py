"""The page of a report, or of several: the answer in a box, and below it what it rests on."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, structs
from msgspec.structs import replace

from memcurse_cli.reports import answer
from memcurse_cli.reports.console import FILE_WIDTH, Screen
from memcurse_cli.reports.grid import cells, says
from memcurse_cli.reports.html.page import (
    BEYOND,
    Cell,
    Table,
    figure,
    fragment,
    render,
    row,
    sample,
    verdict_cell,
)
from memcurse_cli.reports.numbers import Level, count, percent, setting, size
from memcurse_cli.reports.ranking import grouped, layer_rank, together, told_once
from memcurse_cli.reports.terminal import state, steps, structure
from memcurse_cli.reports.terminal.layers import (
    SIMULATED,
    SIMULATED_GROUPS,
    SIMULATED_STATE,
)
from memcurse_cli.reports.terminal.tables import LayerTable, Page, SharedTable, part_of
from memcurse_cli.schema.figures import HessianPicture, ParameterSummary, Quantiles
from memcurse_cli.schema.json_codec import to_json
from memcurse_cli.schema.report import LayerReport, Report, by_rate

Part = dict[str, Any]  # a part of the page, by the names that the template has for what it holds


def sections(
    report: Report, layer: LayerReport, tables: Sequence[LayerTable | SharedTable]
) -> Iterator[Part]:
    """The tables that this layer has something to say in, without the columns that say nothing."""
    page = Page(Screen(FILE_WIDTH), structs.replace(report, layers=(layer,)))
    for table in tables:
        columns = table.columns
        rows = [cells(columns, one) for one in table.entries(layer)]
        kept = [index for index in range(len(columns)) if says(rows, index)]
        if rows:
            yield {
                "title": table.title,
                "heads": [columns[index].heading for index in kept],
                "tips": [columns[index].meaning for index in kept],
                "rows": [[row[index].text for index in kept] for row in rows],
                "notes": [*table.notes(page)],
            }


TABS = (
    SIMULATED,
    SIMULATED_GROUPS,
    steps.WHAT_IF,
    steps.RATES,
    structure.MOVING_GATES,
    state.STATE,
    state.MOVING_STATE,
    SIMULATED_STATE,
    structure.STATE_AT_WORK,
    structure.HIDDEN,
)
FOR_RESEARCHERS = (structure.HESSIAN, steps.ADAM, structure.DENSE, structure.STRUCTURE)


def to_html(reports: Sequence[Report]) -> str:
    """The page of some reports, with charts of the eigenvalues and pictures that they keep."""
    documents = [to_json(report, values=False) for report in reports]
    return render(
        "report.html",
        reports=[view(report, f"r{place}") for place, report in enumerate(reports)],
        overview=[row(OVERVIEW, one, f"r{place}") for place, one in enumerate(reports)],
        columns={"overview": tuple(OVERVIEW), "layers": tuple(LAYERS)},
        charts=list(map(chart_data, reports)),
        document=documents[0] if len(documents) == 1 else documents,
    )


def box(report: Report) -> str:
    """The answer alone, for a page of somebody else's: it brings its style and has no script."""
    return fragment(view(report, ""))


class RateBar(Struct, frozen=True):
    """Your rate and the usable one on a logarithmic axis, of the layer where they are worst."""

    yours: float
    usable: float
    low: float
    high: float

    @property
    def ends(self) -> tuple[float, float]:
        """The exponents of 10 that the axis runs between."""
        least, most = min(self.low, self.yours), max(self.high, self.yours)
        return math.log10(least) - 0.5, math.log10(most) + 0.5

    def place(self, rate: float) -> float:
        """Where a rate stands, in per cent of the axis."""
        left, right = self.ends
        return round(100 * (math.log10(rate) - left) / (right - left), 2)


def rate_bar(report: Report) -> RateBar | None:
    """That of the layer whose rate is largest against its usable one; None without one."""
    for _, layer, rate in by_rate(report.layers):
        low, high = (part_of(layer.usable_rate, end) for end in ("low", "high"))
        rates = layer.learning_rate, rate, low, high
        if layer.verdict != "not_judged" and all(rates) and min(rates) > 0:
            return RateBar(*rates)
    return None


def _effect(effect: float | None, *, divergent: object) -> Cell:
    return replace(figure(effect, percent, divergent=divergent), kind="scales")


def _worst_effect(layers: Sequence[LayerReport]) -> Cell:
    worst = answer.worst_step(layers)
    return figure(None) if worst is None else _effect(worst.effect, divergent=worst.divergent)


def _quantile(quantiles: Quantiles, level: Level) -> Cell:
    return figure(getattr(quantiles, level), divergent=quantiles.divergent)


def _memory(memory: float | None) -> Cell:
    return Cell(answer.steps(memory), BEYOND if memory is None else memory)


OVERVIEW: Table = {
    "checkpoint": lambda one: one.checkpoint.path,
    "verdict": lambda one: verdict_cell(one.verdict),
    "your rate": lambda one: figure(one.input.learning_rate, setting),
    "usable rate": lambda one: figure(one.usable_rate.rate, answer.rate_words),
    "memory": lambda one: _memory(one.memory),
    "step effect": lambda one: _worst_effect(one.layers),
}
LAYERS: Table = {
    "layer": lambda one: one.name,
    "verdict": lambda one: verdict_cell(one.verdict),
    "units": lambda one: figure(one.eigenvalues.count, "{:,}".format),
    "median memory": lambda one: _quantile(one.eigenvalues.time_constant, "p50"),
    "memory": lambda one: _memory(one.memory),
    "never fade": lambda one: figure(one.eigenvalues.unstable, "{:,}".format),
    "step effect": lambda one: _worst_effect([one]),
    "your rate": lambda one: figure(one.learning_rate, setting),
    "usable rate": lambda one: figure(part_of(one, "usable_rate.rate"), answer.rate_words),
}
GROUPS: Table = {
    "parameter group": lambda one: one.name,
    "size": lambda one: figure(one.size, "{:,}".format),
    "sensitivity κ": lambda one: _quantile(one.relative_sensitivity, "p99"),
    "step effect": lambda one: _effect(
        one.step_effect, divergent=one.relative_sensitivity.divergent
    ),
    "a step is": lambda one: one.direction,
    "stored": lambda one: one.dtype,
}
TOO_COARSE = 0.1  # the error of the state that findings warn of


def _groups(groups: Sequence[ParameterSummary]) -> tuple[list[str], list[Part]]:
    """The table of parameter groups, with the types that are worth asking about."""
    stored = {group.dtype for group in groups}
    types = answer.TYPES | {
        said: dtype for said, dtype in answer.EIGHT_BITS.items() if dtype in stored
    }
    table: Table = {**GROUPS, **{said: partial(_light, dtype) for said, dtype in types.items()}}
    return list(table), [row(table, one) for one in groups]


def _light(dtype: str, group: ParameterSummary) -> Cell:
    """How far the state is off where a group is stored in a type, in words that have a colour."""
    error = getattr(group.rounding, dtype)
    if error is None:
        known = answer.rounding_known(group)
        return replace(figure(None, divergent=known), kind="bad" if known else "")
    said = "fine" if error <= answer.COARSE else "coarse" if error <= TOO_COARSE else "bad"
    words = "too coarse" if said == "bad" else said
    return Cell(f"{words}, {percent(error, 2)}", error, said)


def view(report: Report, place: str) -> Part:
    """A report as the template shows it, the worst layer first."""
    layers = report.layers
    order = sorted(range(len(layers)), key=lambda index: layer_rank(layers[index]), reverse=True)
    told = told_once(report)
    named = grouped((group.name, group) for layer in layers for group in layer.parameters)
    return {
        "report": report,
        "place": place,
        "subject": answer.subject(report),
        "bar": rate_bar(report),
        "state": answer.state_words(report),
        "findings": [one for one in told if one.finding.severity != "info"],
        "notes": [one for one in told if one.finding.severity == "info"],
        "places": {layer.name: index for index, layer in enumerate(layers)},
        "groups": _groups(list(map(together, named.values()))),
        "rows": [row(LAYERS, layers[index], f"{place}-l{index}", of=index) for index in order],
        "layers": [
            {
                "report": layers[index],
                "index": index,
                "groups": _groups(layers[index].parameters),
                "sections": [*sections(report, layers[index], TABS)],
                "for_researchers": [*sections(report, layers[index], FOR_RESEARCHERS)],
            }
            for index in order
        ],
        "about": [*_about(report)],
    }


def _about(report: Report) -> Iterator[tuple[str, str]]:
    checkpoint = report.checkpoint
    yield "Assumed", answer.assumed_words(report.input)
    yield "Another horizon", "moves every figure but the memories: inspect with --horizon"
    missing: dict[str, Callable[[LayerReport], Sequence[str | None]]] = {
        "Assumed": lambda layer: layer.assumptions,
        "Not judged": lambda layer: [layer.not_judged],
        "No Hessian": lambda layer: [layer.hessian_reason],
        "No state in fewer bits": lambda layer: [layer.storage_reason],
    }
    for label, tell in missing.items():
        words = [said for layer in report.layers for said in dict.fromkeys(tell(layer)) if said]
        for said, layers in Counter(words).items():
            yield label, said + (f" ({count(layers, 'layer')})" if len(report.layers) > 1 else "")
    for skipped in report.skipped:
        yield "Not read", f"{skipped.name} ({skipped.family}): {skipped.reason}"
    for other in report.not_recurrent:
        named = count(other.count, f"{other.kind} layer")
        yield "Not looked at", f"{named}: {', '.join(other.names)}"
    for note in checkpoint.notes:
        yield "Note", note
    yield "File", f"{answer.file_words(checkpoint)}; read {size(checkpoint.bytes_read)}"
    yield "memcurse", report.version


CELLS = 64


def chart_data(report: Report) -> dict[str, Any]:
    """What charts need beyond the report's JSON, rounded to what they can show."""
    index = {id(layer): place for place, layer in enumerate(report.layers)}
    depth = [(place, layer and index[id(layer)]) for place, layer in answer.by_depth(report)]
    return {
        "rate": getattr(rate_bar(report), "yours", None),
        "depth": depth or [(place, place) for place in range(len(report.layers))],
        "curves": list(map(structs.asdict, report.curves)),
        "layers": [
            {
                "points": _points(layer, len(report.layers)),
                "hessian": None if layer.picture is None else _heat_map(layer.picture),
            }
            for layer in report.layers
        ],
    }


def _points(layer: LayerReport, layers: int) -> list[list[float | None]]:
    """[re, im, κ] of the eigenvalues, as far as they are drawn."""
    values = layer.eigenvalues.values or ()
    kappas = [*(layer.eigenvalues.relative_sensitivities or ()), *[None] * len(values)]
    rows = [(*value, kappa) for value, kappa in zip(values, kappas, strict=False)]
    return sample(rows, np.array([math.hypot(*value) for value in values]), layers)


def _heat_map(picture: HessianPicture) -> dict[str, Any]:
    """The square roots of the correlations as bytes, 255 for 1."""
    correlation = picture.correlation
    step = -(-len(correlation) // CELLS)
    starts = np.arange(0, len(correlation), step)  # the largest of so many neighbours
    largest = np.maximum.reduceat(np.maximum.reduceat(correlation, starts, axis=0), starts, axis=1)
    shade = np.sqrt(np.clip(largest, 0, 1))
    return {
        "cells": len(shade),
        "groups": list(picture.groups),
        "boundaries": [boundary / step for boundary in picture.boundaries],
        "shades": base64.b64encode(np.round(255 * shade).astype(np.uint8).tobytes()).decode(),
    }
