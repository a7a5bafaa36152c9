"""The further tables of a layer: those of the terminal page, each for one layer alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memcurse_cli.reports.grid import Cell, Column, cells
from memcurse_cli.reports.ranking import VERDICTS
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
from memcurse_cli.reports.terminal.tables import GUTTER_COLUMN, LayerTable, says
from memcurse_cli.schema.report import LayerReport, Report


@dataclass(frozen=True)
class Section:
    """A titled table of a layer, and what its columns mean and rest on."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


Table = tuple[Sequence[Column], Sequence[Sequence[Cell]], Sequence[str]]


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
            columns[index].heading or ("verdict" if texts[0][place] in VERDICTS else "from")
            for place, index in enumerate(kept)
        )
        meanings = " ".join(columns[index].meaning for index in kept if columns[index].meaning)
        yield Section(title, heads, texts, (*([meanings] if meanings else []), *notes))


def _whole(
    table: LayerTable, notes: Callable[[LayerReport], Sequence[str]] = lambda _: ()
) -> Callable[[Report, LayerReport], Table]:
    columns = [GUTTER_COLUMN, Column("layer"), *table.columns]

    def tabulate(report: Report, layer: LayerReport) -> Table:
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


def _rates(report: Report, layer: LayerReport) -> Table:
    groups = () if layer.learning_rates is None else layer.learning_rates.groups
    return RATE_COLUMNS, [cells(RATE_COLUMNS, (group, "", 1)) for group in groups], ()


def _adam(report: Report, layer: LayerReport) -> Table:
    stepped = [group for group in layer.adam if group.effective_step is not None]
    rows = [cells(ADAM_COLUMNS, ([group], "")) for group in stepped]
    notes = () if report.optimizer is None else [*adam_notes(layer.adam, report.optimizer)]
    return ADAM_COLUMNS, rows, notes


_TABLES: dict[str, Callable[[Report, LayerReport], Table]] = {
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
