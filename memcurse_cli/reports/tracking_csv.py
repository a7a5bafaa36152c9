"""A tracked run as CSV (RFC 4180): one row for each step and layer."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from memcurse_cli.reports.console import to_ascii, visible
from memcurse_cli.schema.derived import Spread, TrackedLayer, TrackedStep, Tracking
from memcurse_cli.schema.figures import parameter_rank

LEVELS = ("min", "p10", "p50", "p90", "p99", "max")
COLUMNS = (
    "step",
    "path",
    "checkpoint_verdict",
    "error",
    "layer",
    "family",
    "verdict",
    "eigenvalues",
    "unstable",
    *(f"modulus_{level}" for level in LEVELS),
    *(f"time_constant_{level}" for level in LEVELS),
    "second_moment_max",
    "worst_parameter",
    "step_effect",
    "usable_rate",
    "diagonality",
    "sharpness",
    "adam_residual",
    "findings",
)
"""The columns that every run has; one ``relative_sensitivity:GROUP`` follows for each group."""

SENSITIVITY = "relative_sensitivity:"

Row = dict[str, object]


def to_text(tracking: Tracking, *, file: Path | None = None) -> str:
    """The table with a line of headings; a number that does not exist is an empty cell.

    Numbers have all their digits, and texts that a spreadsheet would compute start with an
    apostrophe. The text is ASCII where standard output can write nothing else and no file is named.
    """
    groups = dict.fromkeys(
        group.name
        for step in tracking.steps
        if step.snapshot is not None
        for layer in step.snapshot.layers
        for group in layer.groups
    )
    stream = io.StringIO()
    columns = [*COLUMNS, *(SENSITIVITY + group for group in groups)]
    unicode = file is not None or (sys.stdout.encoding or "").lower().startswith("utf")
    rows: list[Row] = [{column: column for column in columns}]
    rows += [row for step in tracking.steps for row in _rows(step)]
    csv.writer(stream).writerows(
        [_safe(row.get(column, ""), unicode=unicode) for column in columns] for row in rows
    )
    return stream.getvalue()


def _rows(step: TrackedStep) -> Iterator[Row]:
    row: Row = {"step": step.step, "path": step.path}
    if step.snapshot is None:
        yield {**row, "error": step.error or ""}
        return
    for layer in step.snapshot.layers:
        yield {**row, "checkpoint_verdict": step.snapshot.verdict, **_layer(layer)}


def _layer(layer: TrackedLayer) -> Row:
    worst = max(layer.groups, key=lambda group: parameter_rank(group)[1], default=None)
    hessian = layer.hessian
    return {
        "layer": layer.name,
        "family": layer.family,
        "verdict": layer.verdict,
        "eigenvalues": layer.count,
        "unstable": layer.unstable,
        **_spread("modulus", layer.modulus),
        **_spread("time_constant", layer.time_constant),
        "second_moment_max": _cell(layer.second_moment.max),
        "worst_parameter": "" if worst is None else worst.name,
        "step_effect": "" if worst is None else _cell(worst.step_effect),
        "usable_rate": "" if layer.usable_rate is None else _cell(layer.usable_rate.rate),
        "diagonality": "" if hessian is None else hessian.diagonality,
        "sharpness": "" if hessian is None else hessian.sharpness,
        "adam_residual": "" if hessian is None else hessian.adam_residual,
        "findings": " ".join(dict.fromkeys(layer.findings)),
        **{
            SENSITIVITY + group.name: _cell(group.relative_sensitivity.p99)
            for group in layer.groups
        },
    }


def _safe(cell: object, *, unicode: bool) -> object:
    """A text that no spreadsheet takes for a formula, since an apostrophe says what it is."""
    if not isinstance(cell, str):
        return cell
    shown = visible(cell)
    plain = to_ascii(shown)
    formula = plain.lstrip().startswith(("=", "+", "-", "@"))
    return "'" * formula + (shown if unicode else plain)


def _spread(name: str, spread: Spread) -> Row:
    return {f"{name}_{level}": _cell(getattr(spread, level)) for level in LEVELS}


def _cell(value: float | None) -> object:
    return "" if value is None else value
