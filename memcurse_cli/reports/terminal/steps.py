"""The tables of optimizer steps: rates that groups bear, what Adam made of them, and what-ifs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from memcurse_cli.reports.console import LABEL, NAME, Screen
from memcurse_cli.reports.grid import Cell, Column, Row, cells
from memcurse_cli.reports.numbers import (
    ABSENT,
    count,
    largest,
    number,
    number_or_absent,
    percent,
    percent_or_absent,
    setting,
    span,
)
from memcurse_cli.reports.ranking import layer_rank
from memcurse_cli.reports.terminal.tables import (
    GUTTER_COLUMN,
    LayerTable,
    Names,
    effect_cell,
    notes,
    table_lines,
)
from memcurse_cli.schema.figures import ParameterSummary
from memcurse_cli.schema.layer import AdamGroup, GroupRate, LearningRates, OptimizerSummary
from memcurse_cli.schema.report import InputAssumption, LayerReport, WhatIf

SHOWN = 8
NAMED = 4
REST = "everything else"

Rate = tuple[GroupRate, str, int]
"""A recurrent group, the layer where its rate is lowest, and how many layers have such a group."""

Stepped = tuple[Sequence[AdamGroup], str]
"""Groups with effective steps that share a row, and the layer where Adam leaves most."""

SHARED = "Where layers share a row, lr/√v spans them all, the rest is their worst."


def _rate_to_give(rate: GroupRate) -> str:
    if rate.learning_rate is None:
        return ABSENT
    write = setting if rate.relative == 1 else lambda value: number(value, 2)
    return write(rate.learning_rate)


RATE_COLUMNS = (
    GUTTER_COLUMN,
    Column(
        "group",
        lambda one: Cell(
            f"{one[0].name} in {count(one[2], 'layer')}" if one[2] > 1 else one[0].name, NAME
        ),
        align="left",
        shrinks=True,
    ),
    Column("tensor", lambda one: one[0].tensor or one[1], align="left", shrinks=True, leaves=2),
    Column("bears", lambda one: number_or_absent(one[0].effect_rate, 2)),
    Column(
        "rate",
        lambda one: _rate_to_give(one[0]),
        meaning="Rate: the smaller of what it bears and lr.",
    ),
    Column("of lr", lambda one: number_or_absent(one[0].relative, 2), leaves=1),
)


def learning_rate_lines(
    screen: Screen, layers: Sequence[LayerReport], *, assumed: InputAssumption, all_layers: bool
) -> Iterator[Text]:
    """The groups to give to the optimizer, the lowest rate first, and what they rest on."""
    derived = [(layer, layer.learning_rates) for layer in layers if layer.learning_rates]
    rates = _lowest(
        [(layer.name, layer.family, rate) for layer, on in derived for rate in on.groups]
    )
    shown = rates if all_layers else rates[:SHOWN]
    if not derived:
        return

    def rows(names: Names) -> list[Row]:
        rest = [REST, ABSENT, ABSENT, setting(assumed.learning_rate), "1.0"]
        groups = [cells(RATE_COLUMNS, (rate, names[name], shared)) for rate, name, shared in shown]
        return [*groups, [Cell(""), *map(Cell, rest)]]

    hidden = len(rates) - len(shown)
    note = f"{count(hidden, 'more group')} with larger rates: --all." if hidden else ""
    names = yield from table_lines(screen, layers, RATE_COLUMNS, rows, note=note)
    rests_on = (
        f"A group bears the rate at which one step changes the state by "
        f"{percent(derived[0][1].limit, 2)} (--watch-limit), with an optimizer that moves "
        "every parameter by about its rate, as Adam does. Assumes that "
        f"lr = {setting(assumed.learning_rate)} suits the rest of the network."
    )
    yield from notes(screen, [rests_on, *_sharpness(derived, names)])


def _lowest(rates: Sequence[tuple[str, str, GroupRate]]) -> list[Rate]:
    """One entry per name and family, with the layer where the rate is lowest."""
    groups: dict[tuple[str, str], list[Rate]] = {}
    for layer, family, rate in rates:
        groups.setdefault((family, rate.name), []).append((rate, layer, 1))
    lowest = [(*min(same, key=_order)[:2], len(same)) for same in groups.values()]
    return sorted(lowest, key=_order)


def _order(one: Rate) -> float:
    """A rate that does not exist is below every other, unless nothing needs one."""
    if one[0].effect_rate is None:
        return float("inf") if one[0].relative == 1 else -1.0
    return one[0].effect_rate


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


def _steps(one: Stepped, level: str) -> list[float]:
    return [getattr(group.effective_step, level) for group in one[0] if group.effective_step]


def _correlation(correlations: Iterable[float | None]) -> str:
    known = [one for one in correlations if one is not None]
    return number_or_absent(max(known, default=None), 2)


def _left(group: AdamGroup) -> float:
    """The spread that Adam leaves; below every other where it is not known."""
    left = group.hessian_spread_after
    left = group.spread_after if left is None else left
    return -1.0 if left is None else left


def _spread(one: Stepped) -> str:
    group = max(one[0], key=_left)
    for before, after in (
        (group.hessian_spread_before, group.hessian_spread_after),
        (group.spread_before, group.spread_after),
    ):
        if before is not None and after is not None:
            return f"{number(before, 2)} to {number(after, 2)}"
    return ABSENT


def _group_name(one: Stepped) -> Cell:
    group = max(one[0], key=_left)
    return Cell(group.name, NAME if group.recurrent else LABEL)


ADAM_COLUMNS = (
    GUTTER_COLUMN,
    Column("parameter", _group_name, align="left", shrinks=True),
    Column(
        "layer",
        lambda one: one[1] + (f" +{len(one[0]) - 1}" if len(one[0]) > 1 else ""),
        align="left",
        shrinks=True,
        leaves=3,
    ),
    Column("lr/√v p10", lambda one: number(min(_steps(one, "p10")), 2), leaves=6),
    Column(
        "p50",
        lambda one: span(_steps(one, "p50"), 2),
        meaning="lr/√v: what Adam multiplies a gradient with.",
    ),
    Column("p90", lambda one: number(max(_steps(one, "p90")), 2), leaves=5),
    Column(
        "with κ",
        lambda one: _correlation(group.correlation for group in one[0]),
        meaning="With κ, with H: the correlation of its logarithm with that of κ, and of the "
        "Hessian's diagonal; -1 where Adam steps less wherever a step does more.",
    ),
    Column(
        "with H", lambda one: _correlation(group.hessian_correlation for group in one[0]), leaves=2
    ),
    Column(
        "spread",
        _spread,
        align="left",
        leaves=1,
        meaning="Spread: of √H (√κ without H) in decades, before and after Adam's factor.",
    ),
)


def adam_lines(
    screen: Screen,
    layers: Sequence[LayerReport],
    *,
    optimizer: OptimizerSummary | None,
    all_layers: bool,
) -> Iterator[Text]:
    """Adam's effective steps on every group and on the other tensors of its layer."""
    if optimizer is None:
        return
    if optimizer.reason is not None:
        yield from notes(screen, [f"None: {optimizer.reason}."])
        return
    described = _least_compensated(layers, every=all_layers)
    shown = described if all_layers else described[:SHOWN]
    if shown:
        columns = [one for one in ADAM_COLUMNS if one.heading != "layer" or len(layers) > 1]

        def rows(names: Names) -> list[Row]:
            return [cells(columns, (groups, names[name])) for groups, name in shown]

        hidden = len(described) - len(shown)
        said = [SHARED] if any(len(groups) > 1 for groups, _ in shown) else []
        said += [f"{count(hidden, 'more tensor')}: --all."] if hidden else []
        yield from table_lines(screen, layers, columns, rows, note=" ".join(said))
    groups = [group for layer in layers for group in layer.adam]
    yield from notes(screen, adam_notes(groups, optimizer))


def _least_compensated(layers: Sequence[LayerReport], *, every: bool) -> list[Stepped]:
    """One entry per name and family, where Adam leaves most; recurrent groups first."""
    groups: dict[object, list[tuple[AdamGroup, str]]] = {}
    for layer in layers:
        for group in layer.adam:
            if group.effective_step is not None:
                key = id(group) if every else (layer.family, group.name)
                groups.setdefault(key, []).append((group, layer.name))
    least = [
        ([group for group, _ in same], max(same, key=lambda pair: _left(pair[0]))[1])
        for same in groups.values()
    ]
    return sorted(least, key=lambda one: not one[0][0].recurrent)


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


GAINS = {"held": "", "own": ", γ own", "coupled": ", γ coupled"}

Version = tuple[str, ParameterSummary | None, Sequence[str]]
"""How a group is written, the group, and the scores of the Hessian, which is that of all."""


def _title(version: WhatIf) -> str:
    """What a rewriting is called: ``lru, γ own``."""
    return f"{version.parametrization or 'as it is'}{GAINS[version.gain]}"


def _versions(layer: LayerReport) -> list[Version]:
    """Every parameter group of one layer, as it is and as it would be, where that was asked."""
    if not layer.what_if:
        return []
    found: list[Version] = []
    versions: list[tuple[str, LayerReport | WhatIf]] = [("now", layer)]
    versions += [(_title(one), one) for one in layer.what_if]
    for said, one in versions:
        scores = [ABSENT, ABSENT]
        if one.hessian is not None:
            output = percent_or_absent(one.hessian.output_step_effect)
            scores = [number(one.hessian.adam_residual), output]
        first, *rest = one.parameters or (None,)
        found += [(said, first, scores), *(("", group, ("", "")) for group in rest)]
    return found


WHAT_IF = LayerTable(
    "What if",
    (
        Column("written as", lambda row: row[0], align="left"),
        Column(
            "parameter",
            lambda row: Cell(row[1].name, NAME) if row[1] else ABSENT,
            align="left",
            shrinks=True,
        ),
        Column(
            "κ p99",
            lambda row: largest([row[1].relative_sensitivity], "p99") if row[1] else ABSENT,
            leaves=3,
        ),
        Column("effect", lambda row: effect_cell(row[1]) if row[1] else ABSENT),
        Column("Adam left", lambda row: row[2][0], leaves=4),
        Column("output", lambda row: row[2][1], leaves=5),
    ),
    entries=_versions,
    rank=layer_rank,
    shown=3,
    alone=False,
)


def what_if_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """Every parameter group of the worst layers, as it is and as it would be."""
    names = yield from WHAT_IF.lines(screen, layers, all_layers=all_layers)
    asked = [layer for layer in layers if layer.what_if]
    if not all_layers and len(asked) > WHAT_IF.shown:
        asked = sorted(asked, key=layer_rank, reverse=True)[: WHAT_IF.shown]
    yield from notes(screen, what_if_notes(asked, names))


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
            left_out.setdefault(version.left_out, []).append(_title(version))
        for eigenvalues, titles in left_out.items():
            if eigenvalues:
                yield (
                    f"{names[layer.name]} as {' or '.join(titles)}: without "
                    f"{count(eigenvalues, 'eigenvalue')} with |λ| ≥ 1, which it cannot hold."
                )
        for version in layer.what_if:
            if version.reason:
                yield f"{names[layer.name]} as {_title(version)}: {version.reason}."
