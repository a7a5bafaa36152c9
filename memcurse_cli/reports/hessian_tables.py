"""The tables of a Hessian: its groups, what they share, its steepest directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from memcurse_cli.diagnosis.hessian_report import (
    HessianScores,
    LayerHessianReport,
    TopEigenvector,
)
from memcurse_cli.reports.console import LABEL, NAME, Screen
from memcurse_cli.reports.grid import Cell, Column, draw, paragraph
from memcurse_cli.reports.numbers import ABSENT, number, number_or_absent, percent
from memcurse_cli.reports.terminal_structure import at_least

PAIRS_SHOWN = 6
EIGENVECTORS_SHOWN = 5
LEAST_SHARE = 1e-4
LEAST_WEIGHT = 0.05


_GROUP_COLUMNS = [
    Column("", align="left"),
    Column("group", align="left", shrinks=True),
    Column("N"),
    Column("tr H", leaves=2, meaning="tr H: the group's share of the trace."),
    Column("diagonal", leaves=1, meaning="Diagonal: 100 % if no two parameters interact."),
    Column("Adam left", leaves=4, meaning="Adam left: λ_max of D^-½ H D^-½, from 1 to N."),
    Column("spread", leaves=5, meaning="Spread: coordinates that carry a top eigenvector."),
    Column("λ_max", leaves=3),
    Column("max SGD lr", meaning="Max SGD lr: 2/λ_max of the group alone."),
]


def group_lines(screen: Screen, layer: LayerHessianReport, whole: HessianScores) -> Iterator[Text]:
    """The scores of each group beside those of all."""

    def cells(name: str, style: str, order: int, scores: HessianScores | None) -> list[Cell]:
        if scores is None:
            return [Cell(""), Cell(name, style), Cell(str(order)), *[Cell(ABSENT)] * 6]
        return [
            Cell(""),
            Cell(name, style),
            Cell(str(order)),
            Cell(_share(scores.trace / whole.trace)),
            Cell(percent(scores.diagonality)),
            Cell(at_least(scores.adam_residual, scores.adam_residual_error)),
            Cell(number_or_absent(scores.concentration)),
            Cell(at_least(scores.sharpness, scores.sharpness_error)),
            Cell(number(scores.max_stable_lr, 2)),
        ]

    rows = [cells("all", NAME, whole.order, whole)]
    rows += [cells(group.name, "", group.size, group.scores) for group in layer.groups]
    drawn = draw(screen, _GROUP_COLUMNS, rows)
    yield from drawn.lines
    yield from _legend(screen, [said for said in drawn.meanings if said])


_PAIR_COLUMNS = [
    Column("", align="left"),
    Column("pair", align="left", shrinks=True),
    Column("‖H‖²", meaning="‖H‖²: the pair's share of it."),
    Column("mean |corr|", meaning="Mean |corr|: of |H_ab|/√(H_aa H_bb), a and b distinct."),
]


def _share(fraction: float) -> str:
    return "<0.01 %" if 0 < fraction < LEAST_SHARE else percent(fraction)


def pair_lines(screen: Screen, layer: LayerHessianReport) -> Iterator[Text]:
    """Where ‖H‖² lies, and which groups interact the most."""
    largest = [pair for pair in layer.pairs if pair.norm_share >= LEAST_SHARE][:PAIRS_SHOWN]
    shown = largest or list(layer.pairs[:1])
    several = {group.name for group in layer.groups if group.size > 1}
    rest = [
        pair
        for pair in layer.pairs
        if pair not in shown and pair.mean_correlation and {pair.first, pair.second} <= several
    ]
    rest.sort(key=lambda pair: -(pair.mean_correlation or 0))
    shown += rest[: max(2, PAIRS_SHOWN - len(shown))]
    rows = [
        [
            Cell(""),
            Cell(pair.first if pair.first == pair.second else f"{pair.first} × {pair.second}"),
            Cell(_share(pair.norm_share)),
            Cell(number_or_absent(pair.mean_correlation, 2)),
        ]
        for pair in shown
    ]
    drawn = draw(screen, _PAIR_COLUMNS, rows)
    yield from drawn.lines
    yield from _legend(screen, [said for said in drawn.meanings if said])


_EIGENVECTOR_COLUMNS = [
    Column("", align="left"),
    Column("eigenvalue"),
    Column("spread", leaves=2),
    Column("groups", align="left", shrinks=True),
    Column("where in the layer", align="left", shrinks=True, leaves=1),
]


def eigenvector_lines(screen: Screen, layer: LayerHessianReport) -> Iterator[Text]:
    """The steepest directions, what they are made of and whose memory they belong to."""
    names = [group.name for group in layer.groups]
    rows = [
        [
            Cell(f"v{index}", LABEL),
            Cell(number(vector.eigenvalue)),
            Cell(number_or_absent(vector.concentration)),
            Cell(_weights(vector, names)),
            Cell(_seats(vector)),
        ]
        for index, vector in enumerate(layer.eigenvectors[:EIGENVECTORS_SHOWN], 1)
    ]
    yield from draw(screen, _EIGENVECTOR_COLUMNS, rows).lines


def _weights(vector: TopEigenvector, names: Sequence[str]) -> str:
    heaviest = sorted(zip(vector.weights, names, strict=True), reverse=True)
    shown = [pair for pair in heaviest if pair[0] >= LEAST_WEIGHT] or heaviest[:1]
    return ", ".join(f"{name} {percent(weight, 2)}" for weight, name in shown)


def _seats(vector: TopEigenvector) -> str:
    said = []
    for seat in vector.seats[:2]:
        memory = "|λ|≥1" if seat.time_constant is None else f"τ {number(seat.time_constant)}"
        if seat.weight >= LEAST_WEIGHT:
            said.append(f"#{seat.index} ({memory}) {percent(seat.weight, 2)}")
    if said:
        return ", ".join(said)
    # A scalar that moves several eigenvalues has a name of its own.
    return ", ".join(
        f"{one.group}[{one.index}] {percent(one.weight, 2)}"
        for one in vector.coordinates[:2]
        if one.weight >= LEAST_WEIGHT
    )


def _legend(screen: Screen, meanings: Sequence[str]) -> Iterator[Text]:
    yield from paragraph(screen, Text(screen.clean(" ".join(meanings)), LABEL))
