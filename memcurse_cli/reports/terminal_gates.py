"""The table of input-dependent gates that move: bands of τ, and E h² and κ against held gates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.text import Text

from memcurse_cli.diagnosis.report import LayerReport
from memcurse_cli.diagnosis.report_gates import GateFigure, GateSummary
from memcurse_cli.diagnosis.report_quantiles import Quantiles
from memcurse_cli.reports.console import LABEL, NAME, Screen
from memcurse_cli.reports.grid import Cell, Column, Drawn, draw, paragraph
from memcurse_cli.reports.numbers import ABSENT, DIVERGENT, count, number, setting
from memcurse_cli.reports.terminal_layers import Names, fitting, legend

NO_MOMENTS = "without E h² and κ"
NO_SENSITIVITIES = "without κ"
SHOWN = 6
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

        def table(names: Names) -> Drawn:
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
            missing.setdefault((lacking(gates), gates.reason), []).append(layer.name)
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


def lacking(gates: GateSummary) -> str:
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
    return (
        f"Assumes that every component of {seen} has RMS {setting(scale)} (--input-scale), "
        f"independent of the others and of the past{state}; gates are drawn anew at every step, "
        "for infinitely many."
    )
