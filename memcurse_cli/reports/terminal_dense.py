"""The table of what the eigenvalues of dense matrices do not tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from memcurse_cli.diagnosis.report import LayerReport
from memcurse_cli.diagnosis.report_dense import DenseStructure
from memcurse_cli.reports.console import NAME, Screen
from memcurse_cli.reports.grid import Cell, Column, Drawn, draw
from memcurse_cli.reports.numbers import ABSENT, count, number_or_absent, percent
from memcurse_cli.reports.terminal_layers import Names, fitting, legend

SHOWN = 6


def structure_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """The parts of each sensitivity, eigenvalue conditions and transients, the largest first."""
    scored = [
        (layer, layer.dense.structure)
        for layer in layers
        if layer.dense is not None and says_something(layer.dense.structure)
    ]
    taken = [(layer, structure) for layer, structure in scored if structure is not None]
    if not taken:
        return
    hidden = 0
    if not all_layers and len(taken) > SHOWN:
        hidden = len(taken) - SHOWN
        taken = sorted(taken, key=lambda pair: -_worst_condition(pair[1]))[:SHOWN]

    def table(names: Names) -> Drawn:
        rows = [structure_row(names[layer.name], structure) for layer, structure in taken]
        return draw(screen, STRUCTURE_COLUMNS, rows)

    drawn, names = fitting(layers, [table])
    yield from drawn.lines
    note = f"{count(hidden, 'more layer')} better conditioned: --all." if hidden else ""
    yield from legend(screen, drawn, names, note=note)


STRUCTURE_COLUMNS = [
    Column("", align="left"),
    Column("layer", align="left", shrinks=True),
    Column(
        "λ part",
        leaves=1,
        meaning="λ part, P part: of E‖dh/dA‖², what moves eigenvalues alone and eigenvectors "
        "alone; with what both share they add up to 100 %.",
    ),
    Column("P part", leaves=2),
    Column("both", leaves=3),
    Column(
        "cond λ p50",
        leaves=5,
        meaning="Cond λ: how far a change of A of norm 1 moves an eigenvalue, 1 if A is normal.",
    ),
    Column("cond λ max"),
    Column(
        "max ‖A^k‖",
        meaning="Max ‖A^k‖: the growth before the decay, at step k, at least the Kreiss constant.",
    ),
    Column("k", leaves=4),
    Column("Kreiss ≥", leaves=6),
]


def says_something(structure: DenseStructure | None) -> bool:
    """Whether a dense matrix has a figure beyond its eigenvalues."""
    return structure is not None and (
        structure.eigenvalue_part is not None
        or structure.transient_growth is not None
        or structure.eigenvalue_condition.max is not None
    )


def _worst_condition(structure: DenseStructure) -> float:
    worst = structure.eigenvalue_condition.max
    return float("inf") if worst is None else worst


def structure_row(name: str, structure: DenseStructure) -> list[Cell]:
    """The parts of the sensitivity, the eigenvalue conditions and the transient of one matrix."""
    parts = (structure.eigenvalue_part, structure.eigenvector_part, structure.cross_part)
    condition, step = structure.eigenvalue_condition, structure.transient_step
    return [
        Cell(""),
        Cell(name, NAME),
        *(Cell(ABSENT if part is None else percent(part)) for part in parts),
        Cell(number_or_absent(condition.p50)),
        Cell(number_or_absent(condition.max)),
        Cell(number_or_absent(structure.transient_growth)),
        Cell(ABSENT if step is None else str(step)),
        Cell(number_or_absent(structure.kreiss_bound)),
    ]
