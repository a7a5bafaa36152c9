"""The tables of optimizer steps: rates that groups bear, what Adam made of them, and what-ifs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace
from rich.text import Text

from memcurse_cli.reports.answer import rate_words
from memcurse_cli.reports.console import CODE, LABEL, NAME
from memcurse_cli.reports.grid import Cell, Column, name_column
from memcurse_cli.reports.numbers import (
    ABSENT,
    count,
    listed,
    number,
    percent,
    quantile,
    setting,
    span,
)
from memcurse_cli.reports.ranking import Shared, endless, grouped, layer_rank
from memcurse_cli.reports.terminal.tables import (
    GUTTER_COLUMN,
    LayerTable,
    Page,
    SharedTable,
    effect_cell,
    explained,
    figure,
    part_of,
)
from memcurse_cli.schema.figures import ParameterSummary
from memcurse_cli.schema.layer import AdamGroup, GroupRate
from memcurse_cli.schema.report import LayerReport, WhatIf
from memcurse_cli.schema.theory import LandscapeView

NAMED = 4
REST = "everything else"


def _rate_to_give(rate: GroupRate) -> str:
    if rate.relative == 1 and rate.learning_rate is not None:
        return setting(rate.learning_rate)
    return number(rate.learning_rate, 2)


def _rate_name(one: Shared) -> Cell:
    shared_by = f" in {count(len(one.parts), 'layer')}" if len(one.parts) > 1 else ""
    return Cell(one.first.name + shared_by, NAME)


def rate_columns(limit: float) -> tuple[Column, ...]:
    """The columns of groups; ``limit`` is the step effect that one of them is about."""
    step = f"{percent(limit, 2)} step at"
    return explained(
        {
            step: f"{step}: the rate at which one step of Adam changes the state by that much; a "
            "figure, not a rate to use.",
            "give": "Give: the usable rate of its layer, or lr where that is smaller.",
        },
        GUTTER_COLUMN,
        name_column("group", _rate_name),
        name_column("tensor", lambda one: one.first.tensor or one.layer, leaves=2),
        figure(step, "first.effect_rate", 1, rate_words),
        figure("give", "first", write=_rate_to_give),
    )


def _rate_notes(page: Page) -> Iterator[str]:
    if any(layer.learning_rates for layer in page.layers):
        for why in (layer.not_judged for layer in page.layers if layer.not_judged):
            yield f"No rate is given to what was not judged: {why}."


RATES = SharedTable(
    "Learning rates",
    rate_columns(0.1),
    parts=lambda layer: layer.learning_rates.groups if layer.learning_rates else (),
    # Where no rate is given, that of the limit.
    rank=lambda one: -endless(one.effect_rate if one.learning_rate is None else one.learning_rate),
    more="group with larger rates",
    key=lambda rate: (rate.name, _rate_to_give(rate)),
    notes=_rate_notes,
)


def learning_rate_lines(page: Page) -> Iterator[Text]:
    """The groups to give to the optimizer, the lowest rate first, and what they rest on."""
    derived = [layer.learning_rates for layer in page.layers if layer.learning_rates]
    if derived:
        rest = REST, ABSENT, ABSENT, setting(page.report.input.learning_rate)
        table = replace(RATES, columns=rate_columns(derived[0].limit))
        yield from table.lines(page, [Cell(""), *map(Cell, rest)])
    if any(rate.learning_rate is not None for one in derived for rate in one.groups):
        yield from _to_paste(page)


def _to_paste(page: Page) -> Iterator[Text]:
    """The groups as an optimizer of PyTorch takes them."""
    report, given, screen = page.report, page.report.input, page.screen
    mixture = ",".join(":".join(map(setting, part)) for part in given.autocorrelation)
    asked = {
        "learning_rate": given.learning_rate_source == "option" and setting(given.learning_rate),
        "horizon": given.horizon_source == "option" and given.horizon,
        "readout": given.readout and repr(given.readout),
        "autocorrelation": mixture != "1:0" and repr(mixture),
    }
    options = "".join(f", {name}={said}" for name, said in asked.items() if said)
    code = [
        screen.clean(f"report = memcurse_cli.inspect({path!r}{options})")
        for path in (report.checkpoint.path, "FILE")
    ]
    lines = [code[len(code[0]) + 2 > screen.width]]
    lines.append("optimizer = torch.optim.AdamW(report.groups(model.named_parameters()))")
    for line in lines:
        yield Text(f"  {screen.shorten(line, screen.width - 2)}", CODE, no_wrap=True)


def _steps(one: Shared, level: str) -> list[float]:
    return [getattr(group.effective_step, level) for group in one.parts]


def _correlation(one: Shared, name: str) -> str:
    known = [getattr(group, name) for group in one.parts]
    return rate_words(max((value for value in known if value is not None), default=None))


def _spreads(group: AdamGroup) -> tuple[float | None, float | None]:
    """The spread before and after Adam's factor."""
    if group.hessian_spread_after is None:
        return group.spread_before, group.spread_after
    return group.hessian_spread_before, group.hessian_spread_after


def _adam_rank(group: AdamGroup) -> tuple[bool, float]:
    """The largest spread that Adam leaves; below every other where it is not known."""
    left = _spreads(group)[1]
    return group.recurrent, -1.0 if left is None else left


def _spread(group: AdamGroup) -> str:
    before, after = _spreads(group)
    return ABSENT if after is None else f"{number(before, 2)} to {number(after, 2)}"


def _adam_notes(page: Page) -> Iterator[str]:
    optimizer = page.report.optimizer
    if optimizer is None:
        return
    if optimizer.reason is not None:
        yield f"None: {optimizer.reason}."
        return
    groups = [group for layer in page.layers for group in layer.adam]
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
    left_out = grouped(
        (group.reason, group.name) for group in groups if group.effective_step is None
    )
    for reason, all_names in left_out.items():
        if reason:
            yield f"{listed([*dict.fromkeys(all_names)], NAMED)} left out: {reason}."


ADAM = SharedTable(
    "Adam's effective steps",
    explained(
        {
            "p50": "lr/√v: what Adam multiplies a gradient with. Where layers share a row, it "
            "spans them all, and the rest is their worst.",
            "with κ": "With κ, with H: the correlation of its logarithm with that of κ, and of the "
            "Hessian's diagonal; -1 where Adam steps less wherever a step does more.",
            "spread": "Spread: of √H (√κ without H) in decades, before and after Adam's factor.",
        },
        GUTTER_COLUMN,
        name_column(
            "parameter", lambda one: Cell(one.first.name, NAME if one.first.recurrent else LABEL)
        ),
        name_column("layer", lambda one: one.layer, leaves=3, optional=True),
        Column("lr/√v p10", lambda one: number(min(_steps(one, "p10")), 2), leaves=6),
        Column("p50", lambda one: span(_steps(one, "p50"), 2)),
        Column("p90", lambda one: number(max(_steps(one, "p90")), 2), leaves=5),
        Column("with κ", lambda one: _correlation(one, "correlation")),
        Column("with H", lambda one: _correlation(one, "hessian_correlation"), leaves=2),
        Column("spread", lambda one: _spread(one.first), align="left", leaves=1),
    ),
    parts=lambda layer: [group for group in layer.adam if group.effective_step is not None],
    rank=_adam_rank,
    more="tensor",
    notes=_adam_notes,
)


GAINS = {"held": "", "none": "", "own": ", γ own", "coupled": ", γ coupled"}
GAIN_NOTES = {
    "held": "γ stands as it is, and no parameter moves it: --normalize own or coupled.",
    "own": "γ own: γ = √(1-|λ|²) now, learnt as gamma_log on its own.",
    "coupled": "γ coupled: γ = √(1-|λ|²), computed from λ, so that a step on λ moves it too.",
}


class Version(NamedTuple):
    """A parameter group as it is written somewhere."""

    written: str
    whole: Any  # what has the figures of all groups together, beside the first of them
    group: ParameterSummary | None


def title(version: WhatIf | LandscapeView) -> str:
    """What a parametrisation is called: ``lru, γ own``."""
    return f"{version.parametrization or 'as it is'}{GAINS[version.gain]}"


def _versions(layer: LayerReport) -> list[Version]:
    """Every parameter group of one layer, as it is and as it would be, where that was asked."""
    versions: Sequence[LayerReport | WhatIf] = (layer, *layer.what_if) if layer.what_if else ()
    found: list[Version] = []
    for one in versions:
        first, *rest = one.parameters or (None,)
        written = title(one) if isinstance(one, WhatIf) else "now"
        found += [Version(written, one, first), *(Version("", None, group) for group in rest)]
    return found


def _whole(
    heading: str, name: str, leaves: int, write: Callable[[float | None], str], **options: Any
) -> Column:
    """The column of a figure of all groups of a version, beside the first of them."""

    def value(row: Version) -> str:
        return "" if row.whole is None else write(part_of(row.whole, name))

    return Column(heading, value, leaves=leaves, **options)


def _what_if_notes(page: Page) -> Iterator[str]:
    layers = WHAT_IF.taken(page)[0]
    versions = [version for layer in layers for version in layer.what_if]
    gains = {version.gain for version in versions}
    yield from (said for gain, said in GAIN_NOTES.items() if gain in gains)
    for step_size in {one.step_size for one in versions if one.step_size is not None}:
        yield f"s4 has a step size Δ = {setting(step_size)} for all eigenvalues."
    if any(layer.dense is not None for layer in layers):
        yield "A dense matrix is written as its eigenvalues, one of each conjugate pair."
    for layer in layers:
        left_out = grouped((version.left_out, title(version)) for version in layer.what_if)
        for eigenvalues, titles in left_out.items():
            if eigenvalues:
                yield (
                    f"{page.names[layer.name]} as {' or '.join(titles)}: without "
                    f"{count(eigenvalues, 'eigenvalue')} with |λ| ≥ 1, which it cannot hold."
                )
        for version in layer.what_if:
            if version.reason:
                yield f"{page.names[layer.name]} as {title(version)}: {version.reason}."


WHAT_IF = LayerTable(
    "What if",
    (
        Column("written as", lambda row: row.written, align="left"),
        name_column(
            "parameter", lambda row: ABSENT if row.group is None else Cell(row.group.name, NAME)
        ),
        figure("κ p99", "group.relative_sensitivity", 3, quantile("p99")),
        figure("effect", "group", write=effect_cell),
        _whole("usable rate", "usable_rate.rate", 0, rate_words, optional=True),
        _whole("Adam left", "hessian.adam_residual", 4, number),
        _whole("output", "hessian.output_step_effect", 5, percent),
    ),
    entries=_versions,
    rank=layer_rank,
    shown=3,
    notes=_what_if_notes,
)
