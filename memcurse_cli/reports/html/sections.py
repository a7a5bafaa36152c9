"""The further tables of a layer: those of the terminal page, each for one layer alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memcurse_cli.reports.grid import Cell, Column
from memcurse_cli.reports.numbers import ABSENT
from memcurse_cli.reports.ranking import VERDICTS
from memcurse_cli.reports.terminal.gates import (
    GATE_COLUMNS,
    MEAN_FIELD_COLUMNS,
    gate_row,
    gates_assume,
    mean_field_assumes,
    mean_field_rows,
    missing_part,
)
from memcurse_cli.reports.terminal.learning_rates import (
    ADAM_COLUMNS,
    RATE_COLUMNS,
    adam_notes,
    adam_row,
    rate_row,
)
from memcurse_cli.reports.terminal.structure import (
    DENSE_COLUMNS,
    HESSIAN_COLUMNS,
    HIDDEN_COLUMNS,
    STRUCTURE_COLUMNS,
    dense_row,
    hessian_row,
    hidden_row,
    says_something,
    structure_row,
)
from memcurse_cli.reports.terminal.what_if import WHAT_IF_COLUMNS, what_if_notes, what_if_rows
from memcurse_cli.schema.report import LayerReport, Report


@dataclass(frozen=True)
class Section:
    """A titled table of a layer, and what its columns mean and rest on."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def sections(report: Report, layer: LayerReport) -> Iterator[Section]:
    """The tables that this layer has something to say in."""
    for title, tabulate in _TABLES.items():
        columns, rows, notes = tabulate(report, layer)
        if rows:
            yield _section(title, columns, rows, notes)


SILENT = ("", ABSENT)
Table = tuple[Sequence[Column], Sequence[Sequence[Cell]], Sequence[str]]


def _section(
    title: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], notes: Sequence[str]
) -> Section:
    """Without the columns that say nothing in a table of one layer."""
    kept = [
        index
        for index, column in enumerate(columns)
        if column.heading != "layer" and any(row[index].text not in SILENT for row in rows)
    ]
    texts = tuple(tuple(row[index].text for index in kept) for row in rows)
    heads = tuple(
        columns[index].heading or ("verdict" if texts[0][place] in VERDICTS else "from")
        for place, index in enumerate(kept)
    )
    meanings = [columns[index].meaning for index in kept if columns[index].meaning]
    legend = [" ".join(meanings)] if meanings else []
    return Section(title, heads, texts, (*legend, *notes))


def _hessian(report: Report, layer: LayerReport) -> Table:
    rows = [] if layer.hessian is None else [hessian_row("", layer.hessian)]
    return HESSIAN_COLUMNS, rows, ()


def _dense(report: Report, layer: LayerReport) -> Table:
    rows = [] if layer.dense is None else [dense_row("", layer.dense)]
    return DENSE_COLUMNS, rows, ()


def _structure(report: Report, layer: LayerReport) -> Table:
    structure = None if layer.dense is None else layer.dense.structure
    rows = []
    if structure is not None and says_something(structure):
        rows = [structure_row("", structure)]
    return STRUCTURE_COLUMNS, rows, ()


def _hidden(report: Report, layer: LayerReport) -> Table:
    return HIDDEN_COLUMNS, [hidden_row("", spectrum) for spectrum in layer.hidden_spectra], ()


def _mean_field(report: Report, layer: LayerReport) -> Table:
    point = layer.operating_point
    if point is None:
        return MEAN_FIELD_COLUMNS, [], ()
    reason = [] if point.reason is None else [f"{point.reason}."]
    return MEAN_FIELD_COLUMNS, [*mean_field_rows("", point)], [mean_field_assumes(point), *reason]


def _gates(report: Report, layer: LayerReport) -> Table:
    gates = layer.gates
    if gates is None or gates.spread is None:
        return GATE_COLUMNS, [], ()
    lacks = [] if gates.reason is None else [f"The layer is {missing_part(gates)}: {gates.reason}."]
    return GATE_COLUMNS, [gate_row("", gates)], [gates_assume([(layer, gates)]), *lacks]


def _rates(report: Report, layer: LayerReport) -> Table:
    groups = () if layer.learning_rates is None else layer.learning_rates.groups
    rows = [rate_row((group, layer, 1), {layer.name: ""}) for group in groups]
    return RATE_COLUMNS, rows, ()


def _adam(report: Report, layer: LayerReport) -> Table:
    stepped = [group for group in layer.adam if group.effective_step is not None]
    rows = [adam_row(([group], layer), {layer.name: ""}) for group in stepped]
    if report.optimizer is None:
        return ADAM_COLUMNS, rows, ()
    return ADAM_COLUMNS, rows, [*adam_notes(layer.adam, report.optimizer)]


def _what_if(report: Report, layer: LayerReport) -> Table:
    if not layer.what_if:
        return WHAT_IF_COLUMNS, [], ()
    rows = [*what_if_rows("", layer)]
    return WHAT_IF_COLUMNS, rows, [*what_if_notes([layer], {layer.name: layer.name})]


_TABLES: dict[str, Callable[[Report, LayerReport], Table]] = {
    "What if": _what_if,
    "Learning rates": _rates,
    "Adam's effective steps": _adam,
    "Moving gates": _gates,
    "State at work": _mean_field,
    "Hidden weights": _hidden,
    "Hessian at a perfect fit": _hessian,
    "Dense matrix": _dense,
    "Beyond eigenvalues": _structure,
}
