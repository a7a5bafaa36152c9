"""The tables of layers and of parameter groups: one row each, those that look alike under one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from rich.text import Text

from memcurse_cli.reports.console import (
    ALARM,
    LABEL,
    NAME,
    SPECTRUM,
    VERDICT_STYLES,
    Glyphs,
    Screen,
)
from memcurse_cli.reports.grid import Cell, Column, RenderedTable, Row, cells, draw
from memcurse_cli.reports.numbers import ABSENT, count, largest, percent
from memcurse_cli.reports.ranking import Alike, alike, layer_rank, together
from memcurse_cli.reports.terminal.tables import Names, effect_cell, fitting, legend, table_lines
from memcurse_cli.schema.figures import TIME_CONSTANT_EDGES, ParameterSummary, effect_rank
from memcurse_cli.schema.report import LayerReport

NAME_WIDTH = 24


def layer_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """The table of layers and the line that explains it."""
    if not layers:
        return
    families = {
        family: alike(members, all_layers=all_layers)
        for family, members in by_family(layers).items()
    }

    def table(names: Names, resolution: Resolution) -> RenderedTable:
        rows: list[Row] = []
        for family, groups in families.items():
            rows.append(_family_line(screen, family, groups))
            rows.extend(_group_rows(screen, groups, names, resolution))
        return draw(screen, _columns(resolution), rows)

    drawn, names = fitting(
        layers, [lambda names: table(names, "half-decade"), lambda names: table(names, "decade")]
    )
    yield from drawn.lines
    shared = any(group.others for groups in families.values() for group in groups)
    note = "Where layers share a row, counts are added, the rest is the largest." if shared else ""
    yield from legend(screen, drawn, names, note=note)


def by_family(layers: Sequence[LayerReport]) -> dict[str, list[LayerReport]]:
    """Layers under their family, both in the checkpoint's order."""
    families: dict[str, list[LayerReport]] = {}
    for layer in layers:
        families.setdefault(layer.family, []).append(layer)
    return families


def _family_line(screen: Screen, family: str, groups: Sequence[Alike]) -> str:
    layers = [layer for group in groups for layer in (*group.shown, *group.others)]
    said = [f"{screen.shorten(screen.clean(family), NAME_WIDTH)}, {count(len(layers), 'layer')}"]
    if all(layer.stable_by_construction for layer in layers):
        said.append("|λ| < 1 by construction")
    if all(layer.input_dependent for layer in layers):
        feedback = all(layer.hidden_feedback for layer in layers)
        said.append("gates alone, at zero input" if feedback else "gates at zero input")
    multiplicities = {layer.eigenvalues.multiplicity for layer in layers}
    if multiplicities != {1} and len(multiplicities) == 1:
        said.append(f"{multiplicities.pop():,} states per eigenvalue")
    return "; ".join(said)


def _columns(resolution: Resolution) -> list[Column]:
    bars = "Bars: eigenvalues by log τ, the first τ < 1, the last |λ| ≥ 1."
    drive = "E|h|²: the largest, for a drive of unit variance."
    return [
        Column("", align="left"),
        Column("layer", align="left", shrinks=True, meaning="τ = -1/log|λ| in steps."),
        Column("n", leaves=6),
        Column(AXES[resolution], align="left", leaves=3, called="bars", meaning=bars),
        Column("τ p50", leaves=7),
        Column("τ max"),
        Column("|λ|≥1", leaves=5),
        Column("E|h|²", leaves=4, meaning=drive),
        Column("worst step", align="left", shrinks=True, leaves=1),
        Column("effect"),
    ]


def _group_rows(
    screen: Screen, groups: Sequence[Alike], names: Names, resolution: Resolution
) -> Iterator[Row]:
    for group in groups:
        for layer in group.shown:
            yield _row(screen, names[layer.name], NAME, [layer], resolution)
        if group.others:
            title = f"+{len(group.others):,} more"
            yield _row(screen, title, LABEL, group.others, resolution)


def _row(
    screen: Screen,
    title: str,
    style: str,
    layers: Sequence[LayerReport],
    resolution: Resolution,
) -> list[Cell]:
    worst = max(layers, key=layer_rank)
    eigenvalues = [layer.eigenvalues for layer in layers]
    counts = sorted({one.count for one in eigenvalues})
    unstable = sum(one.unstable for one in eigenvalues)
    bars = spectrum(
        added([one.time_constant_histogram for one in eigenvalues]),
        unstable,
        screen.glyphs,
        resolution,
    )
    parameters = [parameter for layer in layers for parameter in layer.parameters]
    parameter = max(parameters, key=effect_rank, default=None)
    step = Cell(ABSENT)
    if parameter is not None:
        parameter = together([one for one in parameters if one.name == parameter.name])
        step = effect_cell(parameter)
    return [
        Cell(worst.verdict, VERDICT_STYLES[worst.verdict]),
        Cell(title, style),
        Cell(str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"),
        Cell(bars, SPECTRUM),
        Cell(largest([one.time_constant for one in eigenvalues], "p50")),
        Cell(largest([one.time_constant for one in eigenvalues], "max")),
        Cell(str(unstable), ALARM if unstable else LABEL),
        Cell(largest([layer.state.second_moment for layer in layers], "max")),
        Cell(ABSENT if parameter is None else parameter.name),
        step,
    ]


Resolution = Literal["decade", "half-decade"]

BINS = len(TIME_CONSTANT_EDGES) + 1

AXES: dict[Resolution, str] = {
    "decade": " 1  1k 1M",
    "half-decade": " 1   100 10k 1M",
}
"""A heading that stands over the bars: each number is at the bar that begins there."""


def spectrum(
    histogram: Sequence[int], unstable: int, glyphs: Glyphs, resolution: Resolution
) -> str:
    """One bar per bin of log τ, from τ < 1 to τ ≥ 10⁶ steps, and a last one for |λ| ≥ 1.

    The heights are shares of the fullest bin, rounded up: a bin that holds a single eigenvalue
    is never drawn as empty. A histogram that was not taken draws as nothing.
    """
    if len(histogram) != BINS:
        return ""
    counts = [*_merged(histogram, resolution), unstable]
    fullest = max(*counts, 1)
    top = len(glyphs.bars) - 1
    return "".join(glyphs.bars[-(-top * count // fullest)] for count in counts)


def added(histograms: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The histogram of several layers together; empty if any of them has none."""
    if any(len(histogram) != BINS for histogram in histograms):
        return ()
    return tuple(map(sum, zip(*histograms, strict=True)))


def _merged(histogram: Sequence[int], resolution: Resolution) -> list[int]:
    """Half decades as they are, or pairs of them: 1 to 10, 10 to 100, …"""
    if resolution == "half-decade":
        return list(histogram)
    last = len(TIME_CONSTANT_EDGES)
    pairs = [histogram[low] + histogram[low + 1] for low in range(1, last, 2)]
    return [histogram[0], *pairs, histogram[last]]


SHOWN = 8
WHERE = "worst in"
EIGHT_BITS = ("int8", "e4m3", "e5m2")
EIGHT_BITS_FROM = 100
"""The cells from which there is room for the 8-bit types; below, findings name what needs more."""
LEAST_ERROR = 1e-4

Entry = tuple[ParameterSummary, str, int]
"""A parameter group, the layer where it is worst, and how many layers the entry stands for."""


def parameter_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """The worst parameter groups, one row per name and family; every single one for all layers."""
    entries = _entries(layers, every=all_layers)
    shown = entries if all_layers else entries[:SHOWN]
    if not shown:
        return
    places = {name for _, name, _ in shown}
    columns = [
        column
        for column in _parameter_columns(
            {layer.dense is not None for layer in layers if layer.name in places}
        )
        if (column.heading != WHERE or len(layers) > 1)
        and (column.heading not in EIGHT_BITS or screen.width >= EIGHT_BITS_FROM)
    ]

    def rows(names: Names) -> list[Row]:
        return [cells(columns, (group, names[name], shared)) for group, name, shared in shown]

    hidden = len(entries) - len(shown)
    notes = []
    if any(shared > 1 for *_, shared in shown):
        notes.append("Where layers share a row, each figure is their worst.")
    if hidden:
        notes.append(f"{count(hidden, 'more group')} with smaller effects: --all.")
    yield from table_lines(screen, layers, columns, rows, note=" ".join(notes))


def _entries(layers: Sequence[LayerReport], *, every: bool) -> list[Entry]:
    groups: dict[object, list[tuple[ParameterSummary, str]]] = {}
    for layer in layers:
        for parameter in layer.parameters:
            key = (id(layer), id(parameter)) if every else (layer.family, parameter.name)
            groups.setdefault(key, []).append((parameter, layer.name))
    entries = [
        (
            together([parameter for parameter, _ in group]),
            max(group, key=lambda pair: effect_rank(pair[0]))[1],
            len(group),
        )
        for group in groups.values()
    ]
    return sorted(entries, key=lambda entry: effect_rank(entry[0]), reverse=True)


def _parameter_columns(dense: set[bool]) -> list[Column]:
    """The columns; an effect is that of a whole matrix where a layer is dense."""
    meanings = {
        False: "the p99 element, lr √κ",
        True: "all entries of a dense matrix, signs independent, lr √κ(A)",
    }
    moved = "; on ".join(meaning for kind, meaning in meanings.items() if kind in dense)
    rounding = "bf16, fp16, fp32: the state's error, in %, when the group is stored so."
    eight_bits = "int8: one scale per tensor; e4m3 and e5m2: float8."
    return [
        Column("", align="left"),
        Column("parameter", lambda one: Cell(one[0].name, NAME), align="left", shrinks=True),
        Column(
            WHERE,
            lambda one: one[1] + (f" +{one[2] - 1}" if one[2] > 1 else ""),
            align="left",
            shrinks=True,
            leaves=4,
        ),
        Column("κ p99", lambda one: largest([one[0].relative_sensitivity], "p99"), leaves=6),
        Column(
            "effect",
            lambda one: effect_cell(one[0]),
            meaning=f"Effect: the state's change by one step on {moved}.",
        ),
        Column("a step is", lambda one: one[0].direction, align="left", leaves=2),
        Column("bf16", _rounded("bfloat16"), leaves=3, meaning=rounding),
        Column("fp16", _rounded("float16"), leaves=5),
        Column("fp32", _rounded("float32"), leaves=7),
        Column("int8", _rounded("int8"), leaves=8, meaning=eight_bits),
        Column("e4m3", _rounded("float8_e4m3fn"), leaves=9),
        Column("e5m2", _rounded("float8_e5m2"), leaves=10),
    ]


def _rounded(dtype: str) -> Callable[[Entry], Cell]:
    def value(one: Entry) -> Cell:
        error = getattr(one[0].rounding, dtype)
        if error is None:
            return Cell(ABSENT, LABEL)
        said = percent(error, 2).removesuffix(" %") if error >= LEAST_ERROR else "<0.01"
        return Cell(said, LABEL)

    return value
