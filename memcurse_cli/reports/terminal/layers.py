"""The tables of layers and of parameter groups, and the spectra drawn in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.text import Text

from memcurse_cli.reports.answer import verdict_words
from memcurse_cli.reports.console import (
    ALARM,
    LABEL,
    NAME,
    SPECTRUM,
    VERDICT_STYLES,
    Glyphs,
)
from memcurse_cli.reports.grid import Cell, Column, cells
from memcurse_cli.reports.numbers import ABSENT, count, largest, number_or_absent, percent
from memcurse_cli.reports.ranking import layer_rank, shared, together, worst_parameter
from memcurse_cli.reports.terminal.tables import (
    GUTTER_COLUMN,
    LayerTable,
    Page,
    effect_cell,
    explained,
    figure,
)
from memcurse_cli.schema.figures import TIME_CONSTANT_EDGES, ParameterSummary, effect_rank
from memcurse_cli.schema.report import LayerReport

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


def _verdict(layer: LayerReport) -> Cell:
    return Cell(verdict_words(layer.verdict).lower(), VERDICT_STYLES[layer.verdict])


def _unstable(layer: LayerReport) -> Cell:
    unstable = layer.eigenvalues.unstable
    return Cell(str(unstable), ALARM if unstable else LABEL)


def _worst(layer: LayerReport) -> str:
    group = worst_parameter(layer)
    return ABSENT if group is None else group.name


def _effect(layer: LayerReport) -> Cell | str:
    group = worst_parameter(layer)
    return ABSENT if group is None else effect_cell(group)


def _usable(layer: LayerReport) -> str:
    usable = layer.usable_rate
    return number_or_absent(None if usable is None else usable.rate, 2)


def _layer_table(glyphs: Glyphs, resolution: Resolution) -> LayerTable:
    def bars(layer: LayerReport) -> Cell:
        spectra = layer.eigenvalues
        histogram, unstable = spectra.time_constant_histogram, spectra.unstable
        return Cell(spectrum(histogram, unstable, glyphs, resolution), SPECTRUM)

    return LayerTable(
        "Layers",
        explained(
            {
                AXES[resolution]: "Bars: eigenvalues by log τ, the first τ < 1, the last |λ| ≥ 1.",
                "τ max": "τ = -1/log|λ|, the memory of an eigenvalue in steps.",
                "E|h|²": "E|h|²: the largest, for a drive of unit variance.",
            },
            figure("n", "eigenvalues.count", 6, str),
            Column(AXES[resolution], bars, align="left", leaves=4, called="bars"),
            Column("τ p50", lambda one: largest([one.eigenvalues.time_constant], "p50"), leaves=7),
            Column("τ max", lambda one: largest([one.eigenvalues.time_constant], "max")),
            Column("|λ|≥1", _unstable, leaves=5),
            Column("E|h|²", lambda one: largest([one.state.second_moment], "max"), leaves=8),
            Column("usable rate", _usable, leaves=3),
            Column("worst step", _worst, align="left", shrinks=True, leaves=1),
            Column("effect", _effect),
        ),
        entries=lambda layer: [layer],
        rank=layer_rank,
        more=" that are better",
        gutter=_verdict,
    )


WIDE = 100
"""The cells from which there is room for half-decades and for the 8-bit types."""


def layer_lines(page: Page) -> Iterator[Text]:
    """The table of layers, and what all those of a family have in common."""
    resolution: Resolution = "half-decade" if page.screen.width >= WIDE else "decade"
    yield from _layer_table(page.screen.glyphs, resolution).lines(page)
    families: dict[str, list[LayerReport]] = {}
    for layer in page.layers:
        families.setdefault(layer.family, []).append(layer)
    said = (_shared_by(family, layers) for family, layers in families.items())
    yield from page.notes(filter(None, said))


def _shared_by(family: str, layers: Sequence[LayerReport]) -> str:
    said = []
    if all(layer.stable_by_construction for layer in layers):
        said.append("|λ| < 1 by construction")
    if all(layer.input_dependent for layer in layers):
        feedback = all(layer.hidden_feedback for layer in layers)
        said.append("gates alone, at zero input" if feedback else "gates at zero input")
    multiplicities = {layer.eigenvalues.multiplicity for layer in layers}
    if multiplicities != {1} and len(multiplicities) == 1:
        said.append(f"{multiplicities.pop():,} states per eigenvalue")
    return f"{family}, {count(len(layers), 'layer')}: {'; '.join(said)}." if said else ""


SHOWN = 8
EIGHT_BITS = ("int8", "e4m3", "e5m2")
LEAST_ERROR = 1e-4

Entry = tuple[ParameterSummary, str, int]
"""A parameter group, the layer where it is worst, and how many layers the entry stands for."""


def parameter_lines(page: Page) -> Iterator[Text]:
    """The worst parameter groups, one row per name and family; every single one for all layers."""
    found = shared(page.layers, lambda layer: layer.parameters, effect_rank, every=page.all_layers)
    shown, more = page.shown(found, SHOWN, "group with smaller effects")
    columns = [
        column
        for column in _PARAMETER_COLUMNS
        if (column.heading != "worst in" or len(page.layers) > 1)
        and (column.heading not in EIGHT_BITS or page.screen.width >= WIDE)
    ]
    rows = [
        cells(columns, (together(groups), page.names[layer], len(groups)))
        for groups, layer in shown
    ]
    if rows:
        yield from page.table("Parameters", columns, rows, more)


def _rounding(heading: str, dtype: str, leaves: int) -> Column:
    """The error in per cent, of which less than a hundredth is not told apart."""

    def value(one: Entry) -> Cell:
        error = getattr(one[0].rounding, dtype)
        if error is None:
            return Cell(ABSENT, LABEL)
        said = percent(error, 2).removesuffix(" %") if error >= LEAST_ERROR else "<0.01"
        return Cell(said, LABEL)

    return Column(heading, value, leaves=leaves)


def _place(one: Entry) -> str:
    return one[1] + (f" +{one[2] - 1}" if one[2] > 1 else "")


_PARAMETER_COLUMNS = explained(
    {
        "worst in": "Where layers share a row, each figure is their worst.",
        "effect": "Effect: the state's change by one step on the p99 element, lr √κ; of a dense "
        "matrix on all entries, signs independent, lr √κ(A).",
        "bf16": "bf16, fp16, fp32: the state's error, in %, when the group is stored so.",
        "int8": "int8: one scale per tensor; e4m3 and e5m2: float8.",
    },
    GUTTER_COLUMN,
    Column("parameter", lambda one: Cell(one[0].name, NAME), align="left", shrinks=True),
    Column("worst in", _place, align="left", shrinks=True, leaves=4),
    Column("κ p99", lambda one: largest([one[0].relative_sensitivity], "p99"), leaves=6),
    Column("effect", lambda one: effect_cell(one[0])),
    Column("a step is", lambda one: one[0].direction, align="left", leaves=2),
    _rounding("bf16", "bfloat16", 3),
    _rounding("fp16", "float16", 5),
    _rounding("fp32", "float32", 7),
    _rounding("int8", "int8", 8),
    _rounding("e4m3", "float8_e4m3fn", 9),
    _rounding("e5m2", "float8_e5m2", 10),
)
