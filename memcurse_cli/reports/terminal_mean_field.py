"""The table of where GRUs and LSTMs work: mean field theory beside the simulated layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.text import Text

from memcurse_cli.diagnosis.report import LayerReport
from memcurse_cli.diagnosis.report_mean_field import (
    AGREEMENT,
    GateAtWork,
    GatedOperatingPoint,
    StateAtWork,
)
from memcurse_cli.reports.console import LABEL, NAME, Screen
from memcurse_cli.reports.grid import Cell, Column, Drawn, draw, paragraph
from memcurse_cli.reports.numbers import ABSENT, count, number, setting
from memcurse_cli.reports.terminal_layers import Names, fitting, legend

SHOWN = 6
SINGULAR_VALUES = "s²"


def mean_field_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """E h², gates and χ of each layer, those that forget last first."""
    taken = [
        (layer, layer.operating_point) for layer in layers if layer.operating_point is not None
    ]
    if not taken:
        return
    shown = taken
    if not all_layers and len(taken) > SHOWN:
        shown = sorted(taken, key=lambda pair: -_growth(pair[1]))[:SHOWN]

    known = any(point.mean_squared_singular_value is not None for _, point in shown)
    columns = [
        column for column in MEAN_FIELD_COLUMNS if known or column.heading != SINGULAR_VALUES
    ]

    def table(names: Names) -> Drawn:
        rows = [
            [
                cell
                for cell, column in zip(row, MEAN_FIELD_COLUMNS, strict=True)
                if column in columns
            ]
            for layer, point in shown
            for row in mean_field_rows(names[layer.name], point)
        ]
        return draw(screen, columns, rows)

    drawn, names = fitting(layers, [table])
    yield from drawn.lines
    hidden = len(taken) - len(shown)
    note = f"{count(hidden, 'more layer')} with less: --all." if hidden else ""
    yield from legend(screen, drawn, names, note=note)
    yield from paragraph(screen, screen.sentence(mean_field_assumes(taken[0][1]), LABEL))
    apart = [layer.name for layer, point in taken if point.agrees is False]
    if apart:
        whose = apart[0] if len(apart) == 1 else count(len(apart), "layer")
        said = (
            f"{whose}: the two are more than a factor {setting(AGREEMENT)} apart; weights that "
            "stay, or that were learnt, make the difference. Go by the simulated layer."
        )
        yield from paragraph(screen, screen.sentence(said, LABEL))
    reasons: dict[str, list[str]] = {}
    for layer, point in taken:
        if point.reason is not None:
            reasons.setdefault(point.reason, []).append(layer.name)
    for reason, of in reasons.items():
        whose = of[0] if len(of) == 1 else count(len(of), "layer")
        yield from paragraph(screen, screen.sentence(f"{whose}: {reason}.", LABEL))


MEAN_FIELD_COLUMNS = [
    Column("", align="left"),
    Column("layer", align="left", shrinks=True),
    Column("", align="left"),
    Column("E h²", meaning="E h²: of a unit."),
    Column(
        "gates",
        align="left",
        leaves=1,
        meaning="Gates: mean ± spread of how far they are open, over units and steps.",
    ),
    Column(
        SINGULAR_VALUES,
        leaves=2,
        meaning="s²: squared singular values of dh'/dh, mean ± spread; 1 ± 0 keeps every gradient.",
    ),
    Column("χ", meaning="χ: what a step makes of the square of a small change of the state."),
    Column("τ", meaning="τ = -2/log χ: the steps in which the change itself falls to 1/e."),
]


def mean_field_rows(name: str, point: GatedOperatingPoint) -> Iterator[list[Cell]]:
    """Mean field theory of one layer, and the simulation of it."""
    points = {"mean field": point.predicted, "simulated": point.simulated}
    for source, state in points.items():
        if state is None:
            continue
        yield [
            Cell(""),
            Cell(name, NAME),
            Cell(source),
            Cell(number(state.second_moment)),
            Cell(" ".join(_gate(gate) for gate in state.gates)),
            Cell(_singular_values(point) if state is point.predicted else ABSENT),
            Cell(number(state.growth)),
            Cell("no decay" if state.time_constant is None else number(state.time_constant)),
        ]
        name = ""


def _singular_values(point: GatedOperatingPoint) -> str:
    mean, variance = point.mean_squared_singular_value, point.singular_value_variance
    if mean is None:
        return ABSENT
    return number(mean) + ("" if variance is None else f"±{number(math.sqrt(max(variance, 0.0)))}")


def _gate(gate: GateAtWork) -> str:
    mean, spread = (f"{value:.2f}".removeprefix("0") for value in (gate.mean, gate.spread))
    return f"{gate.name[:1]} {mean}±{spread}"


def _growth(point: GatedOperatingPoint) -> float:
    states: list[StateAtWork] = [s for s in (point.simulated, point.predicted) if s is not None]
    return states[0].growth if states else 0.0


def mean_field_assumes(point: GatedOperatingPoint) -> str:
    """What the figures rest on."""
    return (
        "Mean field: many units, the layer's own biases, and independent weights of the layer's "
        "mean and variance that are drawn anew at every step. Simulated: the layer itself. Both "
        f"under white Gaussian inputs of RMS {setting(point.input_scale)} (--input-scale)."
    )
