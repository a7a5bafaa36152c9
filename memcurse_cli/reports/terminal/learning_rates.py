"""The tables of learning rates: those that groups bear, and what Adam has made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from memcurse_cli.reports.console import LABEL, NAME, Screen
from memcurse_cli.reports.grid import Cell, Column, RenderedTable, draw, paragraph
from memcurse_cli.reports.numbers import (
    ABSENT,
    count,
    number,
    number_or_absent,
    percent,
    setting,
    span,
)
from memcurse_cli.reports.terminal.layers import Names, fitting, legend
from memcurse_cli.schema.layer import AdamGroup, GroupRate, LearningRates, OptimizerSummary
from memcurse_cli.schema.report import InputAssumption, LayerReport

SHOWN = 8
NAMED = 4
REST = "everything else"

Rate = tuple[GroupRate, LayerReport, int]
"""A recurrent group, the layer where its rate is lowest, and how many layers have such a group."""

Stepped = tuple[Sequence[AdamGroup], LayerReport]
"""Groups with effective steps that share a row, and the layer where Adam leaves most."""

SHARED = "Where layers share a row, lr/√v spans them all, the rest is their worst."


def learning_rate_lines(
    screen: Screen, layers: Sequence[LayerReport], assumed: InputAssumption, *, all_layers: bool
) -> Iterator[Text]:
    """The groups to give to the optimizer, the lowest rate first, and what they rest on."""
    derived = [(layer, layer.learning_rates) for layer in layers if layer.learning_rates]
    rates = _lowest([(layer, rate) for layer, found in derived for rate in found.groups])
    shown = rates if all_layers else rates[:SHOWN]
    if not derived:
        return

    def table(names: Names) -> RenderedTable:
        rows = [rate_row(one, names) for one in shown]
        rest = [REST, ABSENT, ABSENT, setting(assumed.learning_rate), "1.0"]
        return draw(screen, RATE_COLUMNS, [*rows, [Cell(""), *map(Cell, rest)]])

    drawn, names = fitting(layers, [table])
    yield from drawn.lines
    hidden = len(rates) - len(shown)
    note = f"{count(hidden, 'more group')} with larger rates: --all." if hidden else ""
    yield from legend(screen, drawn, names, note=note)
    yield from paragraph(
        screen,
        screen.sentence(
            f"A group bears the rate at which one step changes the state by "
            f"{percent(derived[0][1].limit, 2)} (--watch-limit), with an optimizer that moves "
            "every parameter by about its rate, as Adam does. Assumes that "
            f"lr = {setting(assumed.learning_rate)} suits the rest of the network.",
            LABEL,
        ),
    )
    for words in dict.fromkeys(_sharpness(derived, names)):
        yield from paragraph(screen, screen.sentence(words, LABEL))


def adam_lines(
    screen: Screen,
    layers: Sequence[LayerReport],
    optimizer: OptimizerSummary | None,
    *,
    all_layers: bool,
) -> Iterator[Text]:
    """Adam's effective steps on every group and on the other tensors of its layer."""
    if optimizer is None:
        return
    if optimizer.reason is not None:
        yield from paragraph(screen, screen.sentence(f"None: {optimizer.reason}.", LABEL))
        return
    groups = [(group, layer) for layer in layers for group in layer.adam]
    described = _least_compensated(layers, every=all_layers)
    shown = described if all_layers else described[:SHOWN]
    if shown:

        def table(names: Names) -> RenderedTable:
            rows = [adam_row(one, names) for one in shown]
            columns = list(ADAM_COLUMNS)
            if len(layers) == 1:
                del columns[2]
                for cells in rows:
                    del cells[2]
            return draw(screen, columns, rows)

        drawn, names = fitting(layers, [table])
        yield from drawn.lines
        hidden = len(described) - len(shown)
        notes = [SHARED] if any(len(groups) > 1 for groups, _ in shown) else []
        notes += [f"{count(hidden, 'more tensor')}: --all."] if hidden else []
        yield from legend(screen, drawn, names, note=" ".join(notes))
    for words in dict.fromkeys(adam_notes([group for group, _ in groups], optimizer)):
        yield from paragraph(screen, screen.sentence(words, LABEL))


RATE_COLUMNS = [
    Column("", align="left"),
    Column("group", align="left", shrinks=True),
    Column("tensor", align="left", shrinks=True, leaves=2),
    Column("bears"),
    Column("rate", meaning="Rate: the smaller of what it bears and lr."),
    Column("of lr", leaves=1),
]

ADAM_COLUMNS = [
    Column("", align="left"),
    Column("parameter", align="left", shrinks=True),
    Column("layer", align="left", shrinks=True, leaves=3),
    Column("lr/√v p10", leaves=6),
    Column("p50", meaning="lr/√v: what Adam multiplies a gradient with."),
    Column("p90", leaves=5),
    Column(
        "with κ",
        meaning="With κ, with H: the correlation of its logarithm with that of κ, and of the "
        "Hessian's diagonal; -1 where Adam steps less wherever a step does more.",
    ),
    Column("with H", leaves=2),
    Column(
        "spread",
        align="left",
        leaves=1,
        meaning="Spread: of √H (√κ without H) in decades, before and after Adam's factor.",
    ),
]


def _lowest(rates: Sequence[tuple[LayerReport, GroupRate]]) -> list[Rate]:
    """One entry per name and family, with the layer where the rate is lowest."""
    groups: dict[tuple[str, str], list[tuple[LayerReport, GroupRate]]] = {}
    for layer, rate in rates:
        groups.setdefault((layer.family, rate.name), []).append((layer, rate))
    lowest = []
    for same in groups.values():
        layer, rate = min(same, key=lambda pair: _order(pair[1]))
        lowest.append((rate, layer, len(same)))
    return sorted(lowest, key=lambda one: _order(one[0]))


def _order(rate: GroupRate) -> float:
    """A rate that does not exist is below every other, unless nothing needs one."""
    if rate.stable_lr is None:
        return float("inf") if rate.relative == 1 else -1.0
    return rate.stable_lr


def rate_row(one: Rate, names: Names) -> list[Cell]:
    """What one group bears, and the rate to give it."""
    rate, layer, layers = one
    stable, lowered, relative = rate.stable_lr, rate.learning_rate, rate.relative
    return [
        Cell(""),
        Cell(f"{rate.name} in {count(layers, 'layer')}" if layers > 1 else rate.name, NAME),
        Cell(rate.tensor or names[layer.name]),
        Cell(number_or_absent(stable, 2)),
        Cell(
            ABSENT if lowered is None else setting(lowered) if relative == 1 else number(lowered, 2)
        ),
        Cell(number_or_absent(relative, 2)),
    ]


def _sharpness(derived: Sequence[tuple[LayerReport, LearningRates]], names: Names) -> Iterator[str]:
    """The recurrent parameters against B, C and D, where these are known."""
    for layer, rates in derived:
        sharpness = rates.sharpness
        if sharpness is not None:
            yield (
                f"{names[layer.name]}: at a perfect fit a step of Adam on the recurrent groups "
                f"changes the output as much as one on B, C and D at "
                f"{number(sharpness.adam_ratio, 2)} of their rate; gradient descent is stable up "
                f"to {number(sharpness.sgd_ratio, 2)} of theirs."
            )
        elif rates.sharpness_reason:
            yield f"Not compared with B, C and D: {rates.sharpness_reason}."


def _least_compensated(layers: Sequence[LayerReport], *, every: bool) -> list[Stepped]:
    """One entry per name and family, where Adam leaves most; recurrent groups first."""
    groups: dict[object, list[tuple[AdamGroup, LayerReport]]] = {}
    for layer in layers:
        for group in layer.adam:
            if group.effective_step is not None:
                key = id(group) if every else (layer.family, group.name)
                groups.setdefault(key, []).append((group, layer))
    least = [
        ([group for group, _ in same], max(same, key=lambda pair: _left(pair[0]))[1])
        for same in groups.values()
    ]
    return sorted(least, key=lambda one: not one[0][0].recurrent)


def _left(group: AdamGroup) -> float:
    """The spread that Adam leaves; below every other where it is not known."""
    left = group.hessian_spread_after
    left = group.spread_after if left is None else left
    return -1.0 if left is None else left


def adam_row(one: Stepped, names: Names) -> list[Cell]:
    """Adam's effective steps on one tensor, and what of κ and of H they make up for."""
    groups, layer = one
    group, layers = max(groups, key=_left), len(groups)
    steps = [one.effective_step for one in groups if one.effective_step is not None]
    before, after = group.hessian_spread_before, group.hessian_spread_after
    if before is None or after is None:
        before, after = group.spread_before, group.spread_after
    spread = (
        ABSENT if before is None or after is None else f"{number(before, 2)} to {number(after, 2)}"
    )
    return [
        Cell(""),
        Cell(group.name, NAME if group.recurrent else LABEL),
        Cell(f"{names[layer.name]} +{layers - 1}" if layers > 1 else names[layer.name]),
        Cell(number(min(step.p10 for step in steps), 2)),
        Cell(span([step.p50 for step in steps], 2)),
        Cell(number(max(step.p90 for step in steps), 2)),
        Cell(number_or_absent(_highest(one.correlation for one in groups), 2)),
        Cell(number_or_absent(_highest(one.hessian_correlation for one in groups), 2)),
        Cell(spread),
    ]


def _highest(correlations: Iterable[float | None]) -> float | None:
    return max((one for one in correlations if one is not None), default=None)


def adam_notes(groups: Sequence[AdamGroup], optimizer: OptimizerSummary) -> Iterator[str]:
    """Where the numbers are from, and which are not there."""
    taken = [group for group in groups if group.effective_step is not None]
    steps = {group.step for group in taken}
    rates = sorted(
        # A rate that was stored in single precision is shown as it was meant.
        {float(f"{one.learning_rate:.6g}") for one in taken if one.learning_rate is not None}
    )
    said = f"State of {optimizer.library} for {count(optimizer.weights, 'weight')}"
    if len(steps) == 1 and (step := next(iter(steps))) is not None:
        said += f" after {count(round(step), 'step')}, by which v is corrected"
    if rates:
        said += f"; lr = {', '.join(map(setting, rates))}"
    yield f"{said}."
    silent = sum(group.without_gradient for group in taken)
    if silent:
        yield f"{count(silent, 'element')} without a gradient left out."
    left_out: dict[str, list[str]] = {}
    for group in groups:
        if group.effective_step is None and group.reason:
            left_out.setdefault(group.reason, []).append(group.name)
    for reason, all_names in left_out.items():
        names = list(dict.fromkeys(all_names))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield f"{', '.join(names[:NAMED])}{more} left out: {reason}."
