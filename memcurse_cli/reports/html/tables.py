"""The tables and sentences of the page, as text that the template only has to place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memcurse_cli.reports.html.sections import Section, sections
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, count, effect, number, setting
from memcurse_cli.reports.numbers import size as file_size
from memcurse_cli.reports.ranking import SEVERITIES, VERDICTS, layer_rank, worst_parameter
from memcurse_cli.reports.terminal.report import describe_horizon, describe_input
from memcurse_cli.schema.figures import ParameterSummary, Quantiles
from memcurse_cli.schema.report import Finding, LayerReport, Report


@dataclass(frozen=True)
class Cell:
    """A cell: what it shows, and what its column is sorted by."""

    text: str
    key: float | str

    @property
    def numeric(self) -> bool:
        """Whether it is a number, set to the right."""
        return not isinstance(self.key, str)


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

    @property
    def layer_columns(self) -> tuple[str, ...]:
        """The heads of the table of layers."""
        return LAYER_COLUMNS

    @property
    def parameter_columns(self) -> tuple[str, ...]:
        """The heads of the tables of parameters."""
        return PARAMETER_COLUMNS


LAYER_COLUMNS = (
    "layer",
    "family",
    "verdict",
    "n",
    "τ p50",
    "τ max",
    "|λ| max",
    "|λ| ≥ 1",
    "worst step effect",
    "usable lr",
)
PARAMETER_COLUMNS = ("parameter", "verdict", "size", "type", "κ p99", "step effect", "max lr")

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
    worst = worst_parameter(layer)
    spectrum = layer.eigenvalues
    usable = layer.usable_rate
    row = (
        Cell(layer.name, layer.name),
        Cell(layer.family, layer.family),
        Cell(layer.verdict, str(VERDICTS.index(layer.verdict))),
        Cell(f"{spectrum.count:,}", spectrum.count),
        _quantile(spectrum.time_constant, spectrum.time_constant.p50),
        _quantile(spectrum.time_constant, spectrum.time_constant.max),
        _quantile(spectrum.modulus, spectrum.modulus.max, digits=6),
        Cell(f"{spectrum.unstable:,}", spectrum.unstable),
        Cell(ABSENT, -1.0) if worst is None else _effect(worst),
        _optional(None if usable is None else usable.rate, absent=float("inf")),
    )
    return LayerView(
        layer,
        index,
        row,
        tuple(_parameter(parameter) for parameter in layer.parameters),
        tuple(sorted(layer.findings, key=lambda one: -SEVERITIES.index(one.severity))),
        tuple(sections(report, layer)),
        tuple(_details(layer, skip=SHOWN_ELSEWHERE)),
    )


def _parameter(parameter: ParameterSummary) -> tuple[Cell, ...]:
    return (
        Cell(parameter.name, parameter.name),
        Cell(parameter.verdict, str(VERDICTS.index(parameter.verdict))),
        Cell(f"{parameter.size:,}", parameter.size),
        Cell(parameter.dtype, parameter.dtype),
        _quantile(parameter.relative_sensitivity, parameter.relative_sensitivity.p99),
        _effect(parameter),
        _optional(parameter.max_lr, absent=float("inf")),
    )


def _effect(parameter: ParameterSummary) -> Cell:
    divergent = parameter.relative_sensitivity.divergent
    key = parameter.step_effect
    if key is None:
        key = 1e308 if divergent else -1.0
    return Cell(effect(parameter.step_effect, divergent=divergent), key)


def _quantile(quantiles: Quantiles, value: float | None, digits: int = 3) -> Cell:
    if value is not None:
        return Cell(number(value, digits), value)
    return Cell(DIVERGENT, 1e308) if quantiles.divergent else Cell(ABSENT, -1.0)


def _optional(value: float | None, *, absent: float) -> Cell:
    if value is None:
        return Cell(ABSENT, 1e308 if absent == float("inf") else absent)
    return Cell(number(value), value)


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
