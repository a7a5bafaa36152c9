"""The table of what-ifs: each layer as it is, and with its eigenvalues in other parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from memcurse_cli.reports.console import LABEL, NAME, VERDICT_STYLES, Screen
from memcurse_cli.reports.grid import Cell, Column, RenderedTable, draw, paragraph
from memcurse_cli.reports.numbers import (
    ABSENT,
    count,
    effect,
    largest,
    number,
    number_or_absent,
    percent,
    setting,
)
from memcurse_cli.reports.ranking import layer_rank
from memcurse_cli.reports.terminal.layers import Names, fitting, legend
from memcurse_cli.schema.figures import HessianSummary, ParameterSummary
from memcurse_cli.schema.report import LayerReport, WhatIf

SHOWN = 3
GAINS = {"held": "", "own": "γ own", "coupled": "γ coupled"}


def what_if_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """Every parameter group of the worst layers, as it is and as it would be."""
    asked = [layer for layer in layers if layer.what_if]
    shown = asked
    if not all_layers and len(asked) > SHOWN:
        shown = sorted(asked, key=layer_rank, reverse=True)[:SHOWN]
    if not shown:
        return

    def table(names: Names) -> RenderedTable:
        rows = [row for layer in shown for row in what_if_rows(names[layer.name], layer)]
        columns = list(WHAT_IF_COLUMNS)
        if len(layers) == 1:
            del columns[1]
            for cells in rows:
                del cells[1]
        return draw(screen, columns, rows)

    drawn, names = fitting(layers, [table])
    yield from drawn.lines
    hidden = len(asked) - len(shown)
    note = f"{count(hidden, 'more layer')}: --all." if hidden else ""
    yield from legend(screen, drawn, names, note=note)
    for words in dict.fromkeys(what_if_notes(shown, names)):
        yield from paragraph(screen, screen.sentence(words, LABEL))


def title(version: WhatIf) -> str:
    """What a rewriting is called: ``lru, γ own``."""
    named = [version.parametrization or "as it is"]
    if GAINS[version.gain]:
        named.append(GAINS[version.gain])
    return ", ".join(named)


WHAT_IF_COLUMNS = [
    Column("", align="left"),
    Column("layer", align="left", shrinks=True),
    Column("written as", align="left"),
    Column("parameter", align="left", shrinks=True),
    Column("κ p99", leaves=3),
    Column("effect"),
    Column("max lr", leaves=2),
    Column("Adam left", leaves=4),
    Column("output", leaves=5),
]


def what_if_rows(name: str, layer: LayerReport) -> Iterator[list[Cell]]:
    """Every parameter group of one layer, as it is and as it would be."""
    yield from _version_rows([name, "now"], layer.parameters, layer.hessian)
    for version in layer.what_if:
        yield from _version_rows(["", title(version)], version.parameters, version.hessian)


def _version_rows(
    heads: Sequence[str], parameters: Sequence[ParameterSummary], hessian: HessianSummary | None
) -> Iterator[list[Cell]]:
    """One row per group; the scores of the Hessian, which is that of all, in the first one."""
    scores = [Cell(ABSENT), Cell(ABSENT)]
    if hessian is not None:
        output = hessian.output_step_effect
        scores = [
            Cell(number(hessian.adam_residual)),
            Cell(ABSENT if output is None else percent(output)),
        ]
    for index, parameter in enumerate(parameters):
        first = index == 0
        style = VERDICT_STYLES[parameter.verdict]
        relative = parameter.relative_sensitivity
        yield [
            Cell(parameter.verdict, style),
            Cell(heads[0] if first else "", NAME),
            Cell(heads[1] if first else ""),
            Cell(parameter.name, NAME),
            Cell(largest([relative], "p99")),
            Cell(effect(parameter.step_effect, divergent=relative.divergent), style),
            Cell(number_or_absent(parameter.max_lr, 2)),
            *(scores if first else [Cell(""), Cell("")]),
        ]
    if not parameters:
        absent = [Cell(ABSENT) for _ in range(4)]
        yield [Cell(""), Cell(heads[0], NAME), Cell(heads[1]), *absent, *scores]


def what_if_notes(layers: Sequence[LayerReport], names: Names) -> Iterator[str]:
    """What the rewritings assume, and what they cannot hold."""
    versions = [version for layer in layers for version in layer.what_if]
    gains = {version.gain for version in versions}
    if "held" in gains:
        yield "γ stands as it is, and no parameter moves it: --normalize own or coupled."
    if "own" in gains:
        yield "γ own: γ = √(1-|λ|²) now, learnt as gamma_log on its own."
    if "coupled" in gains:
        yield "γ coupled: γ = √(1-|λ|²), computed from λ, so that a step on λ moves it too."
    for step_size in {one.step_size for one in versions if one.step_size is not None}:
        yield f"s4 has a step size Δ = {setting(step_size)} for all eigenvalues."
    if any(layer.dense is not None for layer in layers):
        yield "A dense matrix is written as its eigenvalues, one of each conjugate pair."
    for layer in layers:
        left_out: dict[int, list[str]] = {}
        for version in layer.what_if:
            left_out.setdefault(version.left_out, []).append(title(version))
        for eigenvalues, titles in left_out.items():
            if eigenvalues:
                yield (
                    f"{names[layer.name]} as {' or '.join(titles)}: without "
                    f"{count(eigenvalues, 'eigenvalue')} with |λ| ≥ 1, which it cannot hold."
                )
        for version in layer.what_if:
            if version.reason:
                yield f"{names[layer.name]} as {title(version)}: {version.reason}."
