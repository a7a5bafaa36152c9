"""The page of a report, or of several: tables and sentences that the template only has to place."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.reports.grid import Column, cells, says
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
from memcurse_cli.reports.numbers import Level, count, number, percent, setting
from memcurse_cli.reports.numbers import size as file_size
from memcurse_cli.reports.ranking import SEVERITIES, layer_rank, worst_parameter
from memcurse_cli.reports.terminal.report import describe_horizon, describe_input
from memcurse_cli.reports.terminal.steps import (
    ADAM_COLUMNS,
    RATE_COLUMNS,
    WHAT_IF,
    adam_notes,
    what_if_notes,
)
from memcurse_cli.reports.terminal.structure import (
    DENSE,
    HESSIAN,
    HIDDEN,
    MOVING_GATES,
    STATE_AT_WORK,
    STRUCTURE,
    gates_assume,
    mean_field_assumes,
    missing_part,
)
from memcurse_cli.reports.terminal.tables import GUTTER_COLUMN, LayerTable
from memcurse_cli.schema.figures import ORDER, HessianPicture, ParameterSummary, Quantiles
from memcurse_cli.schema.json_codec import to_json
from memcurse_cli.schema.report import Finding, LayerReport, Report


@dataclass(frozen=True)
class Section:
    """A titled table of a layer, and what its columns mean and rest on."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


Tabulated = tuple[Sequence[Column], Sequence[Sequence[Any]], Sequence[str]]
"""Columns, rows of the terminal's cells, and notes."""


def sections(report: Report, layer: LayerReport) -> Iterator[Section]:
    """The tables that this layer has something to say in, without the columns that say nothing."""
    for title, tabulate in _TABLES.items():
        columns, rows, notes = tabulate(report, layer)
        if not rows:
            continue
        kept = [
            index
            for index, column in enumerate(columns)
            if column.heading != "layer" and says(rows, index)
        ]
        texts = tuple(tuple(row[index].text for index in kept) for row in rows)
        heads = tuple(
            columns[index].heading or ("verdict" if texts[0][place] in ORDER else "from")
            for place, index in enumerate(kept)
        )
        meanings = " ".join(columns[index].meaning for index in kept if columns[index].meaning)
        yield Section(title, heads, texts, (*([meanings] if meanings else []), *notes))


def _whole(
    table: LayerTable, notes: Callable[[LayerReport], Sequence[str]] = lambda _: ()
) -> Callable[[Report, LayerReport], Tabulated]:
    columns = [GUTTER_COLUMN, Column("layer"), *table.columns]

    def tabulate(report: Report, layer: LayerReport) -> Tabulated:
        rows = table.rows(layer, "")
        return columns, rows, notes(layer) if rows else ()

    return tabulate


def _work_notes(layer: LayerReport) -> list[str]:
    point = layer.operating_point
    assert point is not None  # it has rows
    return [mean_field_assumes(point), *([] if point.reason is None else [f"{point.reason}."])]


def _gate_notes(layer: LayerReport) -> list[str]:
    gates = layer.gates
    assert gates is not None  # it has rows
    lacks = [] if gates.reason is None else [f"The layer is {missing_part(gates)}: {gates.reason}."]
    return [gates_assume([gates]), *lacks]


def _rates(report: Report, layer: LayerReport) -> Tabulated:
    groups = () if layer.learning_rates is None else layer.learning_rates.groups
    return RATE_COLUMNS, [cells(RATE_COLUMNS, (group, "", 1)) for group in groups], ()


def _adam(report: Report, layer: LayerReport) -> Tabulated:
    stepped = [group for group in layer.adam if group.effective_step is not None]
    rows = [cells(ADAM_COLUMNS, ([group], "")) for group in stepped]
    notes = () if report.optimizer is None else [*adam_notes(layer.adam, report.optimizer)]
    return ADAM_COLUMNS, rows, notes


_TABLES: dict[str, Callable[[Report, LayerReport], Tabulated]] = {
    "What if": _whole(WHAT_IF, lambda one: [*what_if_notes([one], {one.name: one.name})]),
    "Learning rates": _rates,
    "Adam's effective steps": _adam,
    "Moving gates": _whole(MOVING_GATES, _gate_notes),
    "State at work": _whole(STATE_AT_WORK, _work_notes),
    "Hidden weights": _whole(HIDDEN),
    "Hessian at a perfect fit": _whole(HESSIAN),
    "Dense matrix": _whole(DENSE),
    "Beyond eigenvalues": _whole(STRUCTURE),
}


def to_html(reports: Sequence[Report]) -> str:
    """The page of some reports.

    Args:
        reports: made with every eigenvalue and with pictures of their Hessians, if charts of
            them are to be drawn.
    """
    documents = [to_json(report, values=False) for report in reports]
    return render(
        "report.html",
        reports=[view(report) for report in reports],
        charts=list(map(chart_data, reports)),
        document=documents[0] if len(documents) == 1 else documents,
    )


@dataclass(frozen=True)
class Detail:
    """One of a layer's other figures, or a titled group of them."""

    label: str
    text: str = ""
    members: tuple[Detail, ...] = ()


@dataclass(frozen=True)
class LayerView:
    """A layer's part of the page."""

    report: LayerReport
    index: int
    row: tuple[Cell, ...]
    parameters: tuple[tuple[Cell, ...], ...]
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    details: tuple[Detail, ...]


@dataclass(frozen=True)
class ReportView:
    """A report's part of the page."""

    report: Report
    facts: tuple[tuple[str, str], ...]
    layers: tuple[LayerView, ...]

    layer_columns: tuple[str, ...]
    parameter_columns: tuple[str, ...]


def _effect(parameter: ParameterSummary) -> Cell:
    divergent = parameter.relative_sensitivity.divergent
    return figure(parameter.step_effect, percent, divergent=divergent)


def _worst_effect(layer: LayerReport) -> Cell:
    worst = worst_parameter(layer)
    return figure(None) if worst is None else _effect(worst)


def _quantile(quantiles: Quantiles, level: Level, digits: int = 3) -> Cell:
    value = getattr(quantiles, level)
    return figure(value, lambda one: number(one, digits), divergent=quantiles.divergent)


LAYERS: Table = {
    "layer": lambda one: word(one.name),
    "family": lambda one: word(one.family),
    "verdict": lambda one: verdict_cell(one.verdict),
    "n": lambda one: figure(one.eigenvalues.count, "{:,}".format),
    "τ p50": lambda one: _quantile(one.eigenvalues.time_constant, "p50"),
    "τ max": lambda one: _quantile(one.eigenvalues.time_constant, "max"),
    "|λ| max": lambda one: _quantile(one.eigenvalues.modulus, "max", digits=6),
    "|λ| ≥ 1": lambda one: figure(one.eigenvalues.unstable, "{:,}".format),
    "worst step effect": _worst_effect,
    "usable lr": lambda one: figure(
        None if one.usable_rate is None else one.usable_rate.rate, absent=BEYOND
    ),
}
PARAMETERS: Table = {
    "parameter": lambda one: word(one.name),
    "size": lambda one: figure(one.size, "{:,}".format),
    "type": lambda one: word(one.dtype),
    "κ p99": lambda one: _quantile(one.relative_sensitivity, "p99"),
    "step effect": _effect,
}

SHOWN_ELSEWHERE = {
    "name",
    "family",
    "tensors",
    "verdict",
    "parameters",
    "findings",
    "assumptions",
    "hessian_reason",
    "eigenvalues",
    "picture",
}


def view(report: Report) -> ReportView:
    """A report as the template shows it, the worst layer first."""
    order = sorted(
        range(len(report.layers)), key=lambda index: layer_rank(report.layers[index]), reverse=True
    )
    return ReportView(
        report,
        tuple(_facts(report)),
        tuple(_layer(report, report.layers[index], index) for index in order),
        tuple(LAYERS),
        tuple(PARAMETERS),
    )


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    checkpoint = report.checkpoint
    read = f"{count(checkpoint.tensors, 'tensor')}; read {file_size(checkpoint.bytes_read)}"
    yield "file", f"{checkpoint.format}, {file_size(checkpoint.bytes)}, {read}"
    yield "input", describe_input(report.input)
    yield "horizon", describe_horizon(report.input)
    yield "step", f"one optimizer step moves a parameter by {setting(report.input.learning_rate)}"
    yield "memcurse", report.version


def _layer(report: Report, layer: LayerReport, index: int) -> LayerView:
    return LayerView(
        layer,
        index,
        row(LAYERS, layer),
        tuple(row(PARAMETERS, parameter) for parameter in layer.parameters),
        tuple(sorted(layer.findings, key=lambda one: -SEVERITIES.index(one.severity))),
        tuple(sections(report, layer)),
        tuple(_details(layer, skip=SHOWN_ELSEWHERE)),
    )


def _details(value: Any, *, skip: frozenset[str] | set[str] = frozenset()) -> Iterator[Detail]:
    """Every further figure of a layer, whatever a later version adds, by its name in the JSON."""
    for field in dataclasses.fields(value):
        if field.name not in skip:
            detail = _detail(field.name.replace("_", " "), getattr(value, field.name))
            if detail is not None:
                yield detail


def _detail(label: str, value: Any) -> Detail | None:
    if value is None or value == () or value == "":
        return None
    if isinstance(value, Quantiles):
        return _quantiles_detail(label, value)
    if dataclasses.is_dataclass(value):
        members = tuple(_details(value))
        return Detail(label, members=members) if members else None
    if isinstance(value, tuple):
        if all(isinstance(one, int | float | str) for one in value):
            return Detail(label, ", ".join(map(_scalar, value)))
        members = tuple(
            found
            for index, one in enumerate(value)
            if (found := _detail(str(getattr(one, "name", index + 1)), one)) is not None
        )
        return Detail(label, members=members) if members else None
    return Detail(label, _scalar(value))


def _quantiles_detail(label: str, quantiles: Quantiles) -> Detail | None:
    known = [
        f"{level} {number(value)}"
        for level in ("min", "p50", "p90", "p99", "max")
        if (value := getattr(quantiles, level)) is not None
    ]
    if quantiles.divergent:
        known.append(f"{quantiles.divergent:,} divergent")
    return Detail(label, ", ".join(known)) if known else None


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


POINTS_PER_LAYER = 512
POINTS_IN_ALL = 20_000
CELLS = 64


def chart_data(report: Report) -> dict[str, Any]:
    """The numbers of a report's charts, rounded to what a chart can show."""
    share = max(16, min(POINTS_PER_LAYER, POINTS_IN_ALL // max(1, len(report.layers))))
    return {
        "curves": [
            {
                "horizon": curve.horizon,
                "points": [
                    [_round(constant), _round(kappa)]
                    for constant, kappa in zip(
                        curve.time_constant, curve.relative_sensitivity, strict=False
                    )
                    if kappa is not None
                ],
            }
            for curve in report.curves
        ],
        "layers": [
            {
                "name": layer.name,
                "count": layer.eigenvalues.count,
                "points": _points(layer, share),
                "hessian": None if layer.picture is None else _heat_map(layer.picture),
            }
            for layer in report.layers
        ],
    }


def _points(layer: LayerReport, most: int) -> list[list[float | None]]:
    """[re, im, κ] of the eigenvalues, or of an even sample of them by |λ|, both ends included."""
    values = layer.eigenvalues.values
    if values is None:
        return []
    kappas = layer.eigenvalues.relative_sensitivities or ()
    kappas += (None,) * (len(values) - len(kappas))
    order = np.argsort([math.hypot(*value) for value in values], kind="stable")
    if len(values) > most:
        order = order[np.round(np.linspace(0, len(values) - 1, most)).astype(np.intp)]
    return [
        [_round(values[index][0]), _round(values[index][1]), _round(kappas[index])]
        for index in order.tolist()
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


def _heat_map(picture: HessianPicture) -> dict[str, Any]:
    """The square roots of the correlations as bytes, 255 for 1."""
    step = -(-len(picture.correlation) // CELLS)
    shade = np.sqrt(np.clip(_shrink(picture.correlation, step), 0, 1))
    return {
        "cells": len(shade),
        "order": picture.order,
        "groups": list(picture.groups),
        "boundaries": [boundary / step for boundary in picture.boundaries],
        "shades": base64.b64encode(np.round(255 * shade).astype(np.uint8).tobytes()).decode(),
    }


def _shrink(matrix: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    """The largest of every ``step`` by ``step`` cells."""
    starts = np.arange(0, len(matrix), step)
    rows = np.maximum.reduceat(matrix, starts, axis=0)
    return np.asarray(np.maximum.reduceat(rows, starts, axis=1))
