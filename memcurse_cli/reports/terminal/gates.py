"""The table of input-dependent gates that move: bands of τ, and E h² and κ against held gates.

The table of where GRUs and LSTMs work: mean field theory beside the simulated layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.text import Text

from memcurse_cli.reports.console import LABEL, NAME, Screen
from memcurse_cli.reports.grid import Cell, Column, RenderedTable, draw, paragraph
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, count, number, percent, setting
from memcurse_cli.reports.terminal.layers import Names, fitting, legend
from memcurse_cli.schema.figures import Quantiles
from memcurse_cli.schema.layer import (
    AGREEMENT,
    GateAtWork,
    GatedOperatingPoint,
    GateFigure,
    GateSummary,
    StateAtWork,
)
from memcurse_cli.schema.report import LayerReport

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

    def table(names: Names) -> RenderedTable:
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


NO_MOMENTS = "without E h² and κ"
NO_SENSITIVITIES = "without κ"

BANDS = 4


def gate_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """What gates that move make of τ, E h² and κ, those that move farthest first."""
    asked = [(layer, layer.gates) for layer in layers if layer.gates is not None]
    taken = [(layer, gates) for layer, gates in asked if gates.spread is not None]
    shown = taken
    if not all_layers and len(taken) > SHOWN:
        shown = sorted(taken, key=lambda pair: -_spread(pair[1]))[:SHOWN]
    if shown:

        def table(names: Names) -> RenderedTable:
            rows = [gate_row(names[layer.name], gates) for layer, gates in shown]
            return draw(screen, GATE_COLUMNS, rows)

        drawn, names = fitting(layers, [table])
        yield from drawn.lines
        hidden = len(taken) - len(shown)
        note = f"{count(hidden, 'more layer')} that move less: --all." if hidden else ""
        yield from legend(screen, drawn, names, note=note)
        yield from paragraph(screen, screen.sentence(gates_assume(taken), LABEL))
    missing: dict[tuple[str, str], list[str]] = {}
    for layer, gates in asked:
        if gates.reason is not None:
            missing.setdefault((missing_part(gates), gates.reason), []).append(layer.name)
    for (lacks, reason), of in missing.items():
        whose = of[0] if len(of) == 1 else count(len(of), "layer")
        yield from paragraph(screen, screen.sentence(f"{whose} {lacks}: {reason}.", LABEL))


GATE_COLUMNS = [
    Column("", align="left"),
    Column("layer", align="left", shrinks=True),
    Column("σ_z", meaning="σ_z: of the gates' pre-activations, median unit."),
    Column("τ 5 %", leaves=2),
    Column("τ -σ", leaves=4),
    Column("τ +σ", leaves=3),
    Column(
        "τ 95 %",
        leaves=1,
        meaning="τ: of the median unit, in steps, at these points of its gate's distribution.",
    ),
    Column(
        "E h²", meaning="E h² (p50), κ: with gates that move, over that of gates at their bias."
    ),
    Column("κ p50", leaves=5),
    Column("κ p99"),
]


def gate_row(name: str, gates: GateSummary) -> list[Cell]:
    """One layer's bands of τ, and its E h² and κ over those of gates at their bias."""
    times = [_level(band.time_constant, "p50") for band in gates.bands[:BANDS]]
    times += [ABSENT] * (BANDS - len(times))
    moved = [one.relative_sensitivity for one in gates.parameters]
    return [
        Cell(""),
        Cell(name, NAME),
        Cell(ABSENT if gates.spread is None else _level(gates.spread, "p50")),
        *map(Cell, times),
        Cell(ABSENT if gates.second_moment is None else _change(gates.second_moment, "p50")),
        *(Cell(_farthest(moved, level)) for level in ("p50", "p99")),
    ]


def missing_part(gates: GateSummary) -> str:
    """What a layer that gives a reason is without."""
    if gates.spread is None:
        return "left out"
    return NO_MOMENTS if gates.second_moment is None else NO_SENSITIVITIES


def _spread(gates: GateSummary) -> float:
    """What layers are ordered by."""
    return 0.0 if gates.spread is None else gates.spread.p50 or 0.0


def _level(quantiles: Quantiles, level: str) -> str:
    value = getattr(quantiles, level)
    if value is not None:
        return number(value)
    return DIVERGENT if quantiles.divergent else ABSENT


def _ratio(figure: GateFigure, level: str) -> float | None:
    """Of two quantiles, where both are finite and above 0."""
    nominal, moving = getattr(figure.nominal, level), getattr(figure.moving, level)
    ratio = moving / nominal if nominal and moving else 0.0
    return ratio if 0 < ratio < math.inf else None


def _change(figure: GateFigure, level: str) -> str:
    ratio = _ratio(figure, level)
    return ABSENT if ratio is None else f"×{number(ratio, 2)}"


def _farthest(figures: Sequence[GateFigure], level: str) -> str:
    """The change of the group that changes most."""
    ratios = [ratio for figure in figures if (ratio := _ratio(figure, level))]
    if not ratios:
        return ABSENT
    return f"×{number(max(ratios, key=lambda ratio: max(ratio, 1 / ratio)), 2)}"


def gates_assume(taken: Sequence[tuple[LayerReport, GateSummary]]) -> str:
    """What the figures rest on."""
    scale = taken[0][1].input_scale
    seen = " and ".join(dict.fromkeys(gates.sees for _, gates in taken))
    held = [gates.hidden_second_moment for _, gates in taken]
    state = ""
    if any(value is not None for value in held):
        state = ", and the state at the size that such inputs give it"
    error = max((gates.sampling_error or 0.0 for _, gates in taken), default=0.0)
    drawn = f" Drawn figures have a standard error of {percent(error, 2)}." if error else ""
    return (
        f"Assumes that every component of {seen} has RMS {setting(scale)} (--input-scale), "
        f"independent of the others and of the past{state}; gates are drawn anew at every step, "
        f"for infinitely many.{drawn}"
    )
