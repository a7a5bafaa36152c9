"""The table of parameter groups: what one optimizer step, or fewer bits, does to the state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from memcurse_cli.reports.console import LABEL, NAME, VERDICT_STYLES, Screen
from memcurse_cli.reports.grid import Cell, Column, RenderedTable, draw
from memcurse_cli.reports.numbers import ABSENT, count, effect, largest, number_or_absent, percent
from memcurse_cli.reports.ranking import together
from memcurse_cli.reports.terminal.layers import Names, fitting, legend
from memcurse_cli.schema.figures import ParameterSummary, parameter_rank
from memcurse_cli.schema.report import LayerReport

SHOWN = 8
SHARED = "Where layers share a row, each figure is their worst."
WHERE = "worst in"
EIGHT_BITS_FROM = 100
"""The cells from which there is room for the 8-bit types; below, findings name what needs more."""
LEAST_ERROR = 1e-4
MAX_LR = (
    "Max lr: where that is cursed; of angles, judged by the output where it is known, the usable "
    "rate."
)

EIGHT_BITS = (
    Column("int8", leaves=8, meaning="int8: one scale per tensor; e4m3 and e5m2: float8."),
    Column("e4m3", leaves=9),
    Column("e5m2", leaves=10),
)

Entry = tuple[ParameterSummary, LayerReport, int]
"""A parameter group, the layer where it is worst, and how many layers the entry stands for."""


def parameter_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """The worst parameter groups, one row per name and family; every single one for all layers."""
    entries = _entries(layers, every=all_layers)
    shown = entries if all_layers else entries[:SHOWN]
    if not shown:
        return

    def table(names: Names) -> RenderedTable:
        rows = [_row(entry, names) for entry in shown]
        columns = _columns({layer.dense is not None for _, layer, _ in shown})
        if screen.width < EIGHT_BITS_FROM:
            columns = columns[: -len(EIGHT_BITS)]
            rows = [cells[: -len(EIGHT_BITS)] for cells in rows]
        if len(layers) == 1:
            where = [column.heading for column in columns].index(WHERE)
            del columns[where]
            for cells in rows:
                del cells[where]
        return draw(screen, columns, rows)

    drawn, names = fitting(layers, [table])
    yield from drawn.lines
    hidden = len(entries) - len(shown)
    notes = [SHARED] if any(shared > 1 for *_, shared in shown) else []
    notes += [f"{count(hidden, 'more group')} with smaller effects: --all."] if hidden else []
    yield from legend(screen, drawn, names, note=" ".join(notes))


def _entries(layers: Sequence[LayerReport], *, every: bool) -> list[Entry]:
    groups: dict[object, list[tuple[ParameterSummary, LayerReport]]] = {}
    for layer in layers:
        for parameter in layer.parameters:
            key = (id(layer), id(parameter)) if every else (layer.family, parameter.name)
            groups.setdefault(key, []).append((parameter, layer))
    entries = [
        (
            together([parameter for parameter, _ in group]),
            max(group, key=lambda pair: parameter_rank(pair[0]))[1],
            len(group),
        )
        for group in groups.values()
    ]
    return sorted(entries, key=lambda entry: parameter_rank(entry[0]), reverse=True)


def _columns(dense: set[bool]) -> list[Column]:
    """The columns; an effect is that of a whole matrix where a layer is dense."""
    meanings = {
        False: "the p99 element, lr √κ",
        True: "all entries of a dense matrix, signs independent, lr √κ(A)",
    }
    moved = "; on ".join(meaning for kind, meaning in meanings.items() if kind in dense)
    effect_meaning = f"Effect: the state's change by one step on {moved}."
    rounding = "bf16, fp16, fp32: the state's error, in %, when the group is stored so."
    return [
        Column("", align="left"),
        Column("parameter", align="left", shrinks=True),
        Column(WHERE, align="left", shrinks=True, leaves=4),
        Column("κ p99", leaves=6),
        Column("effect", meaning=effect_meaning),
        Column("max lr", leaves=1, meaning=MAX_LR),
        Column("a step is", align="left", leaves=2),
        Column("bf16", leaves=3, meaning=rounding),
        Column("fp16", leaves=5),
        Column("fp32", leaves=7),
        *EIGHT_BITS,
    ]


def _row(entry: Entry, names: Names) -> list[Cell]:
    parameter, layer, layers = entry
    style = VERDICT_STYLES[parameter.verdict]
    relative = parameter.relative_sensitivity
    rounding = parameter.rounding
    return [
        Cell(parameter.verdict, style),
        Cell(parameter.name, NAME),
        Cell(f"{names[layer.name]} +{layers - 1}" if layers > 1 else names[layer.name]),
        Cell(largest([relative], "p99")),
        Cell(effect(parameter.step_effect, divergent=relative.divergent), style),
        Cell(number_or_absent(parameter.max_lr, 2)),
        Cell(parameter.direction),
        *(
            Cell(_in_percent(error), LABEL)
            for error in (
                rounding.bfloat16,
                rounding.float16,
                rounding.float32,
                rounding.int8,
                rounding.float8_e4m3fn,
                rounding.float8_e5m2,
            )
        ),
    ]


def _in_percent(error: float | None) -> str:
    if error is None:
        return ABSENT
    return percent(error, 2).removesuffix(" %") if error >= LEAST_ERROR else "<0.01"
