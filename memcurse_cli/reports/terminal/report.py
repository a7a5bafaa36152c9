"""The report as a page of text: the face of `memcurse inspect`.

Header, layers, parameter groups, Hessian, findings, what was skipped and assumed, and the verdict
last, where the eye rests when the command is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePath

from rich.text import Text

from memcurse_cli.reports.console import (
    LABEL,
    NAME,
    SEVERITY_STYLES,
    TITLE,
    VERDICT_STYLES,
    Lines,
    Screen,
    capitalised,
    text_of,
)
from memcurse_cli.reports.grid import GUTTER, Cell, Column, cells, draw, facts, paragraph
from memcurse_cli.reports.numbers import (
    ABSENT,
    count,
    decay_words,
    effect,
    largest,
    number_or_absent,
    percent,
    setting,
    size,
)
from memcurse_cli.reports.ranking import Told, together, told_once
from memcurse_cli.reports.terminal.layers import by_family, layer_lines, parameter_lines
from memcurse_cli.reports.terminal.steps import (
    WHAT_IF,
    adam_lines,
    learning_rate_lines,
    what_if_lines,
)
from memcurse_cli.reports.terminal.structure import (
    DENSE,
    HESSIAN,
    HIDDEN,
    MOVING_GATES,
    STATE_AT_WORK,
    STRUCTURE,
    gate_lines,
    mean_field_lines,
)
from memcurse_cli.schema.figures import ORDER, ParameterSummary, effect_rank
from memcurse_cli.schema.report import (
    InputAssumption,
    LayerReport,
    NotRecurrent,
    Report,
    SkippedLayer,
)

COMPONENTS_SHOWN = 4


def to_text(
    report: Report,
    *,
    all_layers: bool = False,
    file: Path | None = None,
    width: int | None = None,
) -> str:
    """The report as text for standard output, or for a file: without colour, 80 cells wide."""
    return text_of(render(report, all_layers=all_layers), file, width=width)


def render(report: Report, *, all_layers: bool = False) -> Lines:
    """The page, for a screen of any width and encoding."""
    return partial(_lines, report, all_layers)


def _lines(report: Report, all_layers: bool, screen: Screen) -> Iterator[Text]:
    layers = report.layers
    yield from _header(screen, report)
    sections: dict[str, Callable[..., Iterator[Text]]] = {
        "Layers": layer_lines,
        "Parameters": parameter_lines,
        **{one.title: one.lines for one in (HESSIAN, DENSE, STRUCTURE, HIDDEN)},
        STATE_AT_WORK.title: mean_field_lines,
        MOVING_GATES.title: gate_lines,
        "Learning rates": partial(learning_rate_lines, assumed=report.input),
        "Adam's effective steps": partial(adam_lines, optimizer=report.optimizer),
        WHAT_IF.title: what_if_lines,
        "Findings": finding_lines,
        "Notes": partial(_note_lines, report),
    }
    for title, tell in sections.items():
        lines = list(tell(screen, layers, all_layers=all_layers))
        if lines:
            yield Text()
            yield Text(title, TITLE)
            yield from lines
    yield Text()
    yield _rule(screen)
    yield from _closing(screen, report)


def _note_lines(
    report: Report, screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    yield from skipped_lines(screen, report.skipped, all_layers=all_layers)
    yield from not_recurrent_lines(screen, report.not_recurrent)
    yield from assumption_lines(screen, layers)
    yield from missing_lines(screen, layers)


def _header(screen: Screen, report: Report) -> Iterator[Text]:
    checkpoint = report.checkpoint
    yield Text(screen.shorten(screen.clean(checkpoint.path), screen.width).rstrip(), TITLE)
    yield _rule(screen)
    rate = report.input.learning_rate
    share = ""
    if checkpoint.bytes:
        share = f" ({percent(checkpoint.bytes_read / checkpoint.bytes, 2)})"
    said = {
        "file": f"{checkpoint.format}, {size(checkpoint.bytes)}, "
        f"{count(checkpoint.tensors, 'tensor')}; read {size(checkpoint.bytes_read)}{share}",
        "layers": _layers(report),
        "input": describe_input(report.input),
        "horizon": describe_horizon(report.input),
        "step": f"one optimizer step moves a parameter by lr = {setting(rate)}",
    }
    if report.device not in ("cpu", "auto"):
        said["device"] = report.device
    yield from facts(screen, said)
    yield from facts(screen, [("note", note) for note in checkpoint.notes])


def _layers(report: Report) -> str:
    families = ", ".join(
        f"{len(members):,} {family}" for family, members in by_family(report.layers).items()
    )
    verdicts = [layer.verdict for layer in report.layers]
    said = [f"{verdicts.count(verdict):,} {verdict}" for verdict in ORDER if verdict in verdicts]
    if report.skipped:
        said.append(f"{len(report.skipped):,} skipped")
    return f"{families or 'none'}: {', '.join(said)}"


def describe_input(assumed: InputAssumption) -> str:
    """R(Δ), the autocorrelation of the drive, in one line."""
    components = assumed.autocorrelation
    if len(components) == 1 and components[0] == (1.0, 0.0):
        return "white noise, R(Δ) = δ(Δ)"
    if len(components) == 1 and components[0] == (1.0, 1.0):
        return "constant, R(Δ) = 1"
    shown = " + ".join(_component(*component) for component in components[:COMPONENTS_SHOWN])
    hidden = len(components) - COMPONENTS_SHOWN
    more = f" + {hidden} more" if hidden > 0 else ""
    return f"R(Δ) = {shown or '0'}{more}"


def _component(weight: float, rho: float, frequency: float = 0.0) -> str:
    decay = decay_words(rho, frequency)
    if decay == "1":
        return setting(weight)
    return decay if weight == 1 else f"{setting(weight)}·{decay}"


def describe_horizon(assumed: InputAssumption) -> str:
    """How many steps, who said so and where they are read, in one line."""
    if assumed.horizon is None:
        return "infinitely many steps"
    source = {"option": ", from --horizon", "checkpoint": ", from the checkpoint's metadata"}
    where = source.get(assumed.horizon_source or "", "")
    read = {"last": "; read at the last step", "every": "; the mean over every step"}
    how = read.get(assumed.readout or "", "")
    return f"{count(assumed.horizon, 'step')} from a zero state{where}{how}"


def _rule(screen: Screen) -> Text:
    return Text(screen.glyphs.rule * screen.width, LABEL)


def _closing(screen: Screen, report: Report) -> Iterator[Text]:
    sentence = capitalised(report.sentence)
    if sentence and not sentence.endswith("."):
        sentence += "."
    yield from paragraph(
        screen,
        screen.sentence(sentence, TITLE),
        gutter=[(report.verdict, VERDICT_STYLES[report.verdict])],
    )


FINDINGS_SHOWN = 12
SKIPPED_SHOWN = 6
PLACE_WIDTH = 48


def finding_lines(
    screen: Screen, layers: Sequence[LayerReport], *, all_layers: bool
) -> Iterator[Text]:
    """Every finding once, with the number of layers that share it; the severest first."""
    told = told_once(layers)
    shown = told if all_layers else told[:FINDINGS_SHOWN]
    for one in shown:
        yield from _finding(screen, one)
    if len(told) > len(shown):
        hidden = count(len(told) - len(shown), "more finding")
        yield from paragraph(screen, Text(f"{hidden}: --all.", LABEL))


def _finding(screen: Screen, told: Told) -> Iterator[Text]:
    finding = told.finding
    said = [_place(screen, "the model" if told.layer is None else told.layer.name, told.layers)]
    said[0].append(": ", LABEL).append_text(screen.sentence(finding.message))
    if finding.advice:
        advice = Text(f"{screen.glyphs.advice} ", LABEL)
        said.append(advice.append_text(screen.sentence(finding.advice)))
    gutter = [
        (finding.severity, SEVERITY_STYLES[finding.severity]),
        (screen.clean(finding.code), LABEL),
    ]
    yield from paragraph(screen, *said, gutter=gutter)


def skipped_lines(
    screen: Screen, skipped: Sequence[SkippedLayer], *, all_layers: bool
) -> Iterator[Text]:
    """Layers that could not be read, those with the same reason together."""
    groups: dict[tuple[str, str], list[SkippedLayer]] = {}
    for layer in skipped:
        groups.setdefault((layer.family, layer.reason), []).append(layer)
    shown = list(groups.items()) if all_layers else list(groups.items())[:SKIPPED_SHOWN]
    for (family, reason), members in shown:
        text = _place(screen, members[0].name, len(members))
        text.append(f" ({screen.shorten(screen.clean(family), PLACE_WIDTH)}): ", LABEL)
        text.append_text(screen.sentence(reason))
        yield from paragraph(screen, text, gutter=[("skipped", SEVERITY_STYLES["warning"])])
    hidden = len(skipped) - sum(len(members) for _, members in shown)
    if hidden:
        yield from paragraph(screen, Text(f"{count(hidden, 'more layer')}: --all.", LABEL))


def assumption_lines(screen: Screen, layers: Sequence[LayerReport]) -> Iterator[Text]:
    """What the checkpoint does not say, each assumption once and where it was made."""
    made: dict[str, list[LayerReport]] = {}
    for layer in layers:
        for assumption in dict.fromkeys(layer.assumptions):
            made.setdefault(assumption, []).append(layer)
    for assumption, members in made.items():
        yield from _note(screen, "assumed", assumption, members, layers)


def not_recurrent_lines(screen: Screen, others: Sequence[NotRecurrent]) -> Iterator[Text]:
    """The layers that have no recurrence: how many, and the names of the first."""
    for other in others:
        named = [_name(screen, name) for name in other.names[:3]]
        if other.count > len(named):
            named.append(screen.glyphs.ellipsis)
        text = screen.sentence(f"{count(other.count, f'{other.kind} layer')}, with no recurrence: ")
        text.append(", ".join(named), LABEL)
        yield from paragraph(screen, text, gutter=[("also", LABEL)])


def missing_lines(screen: Screen, layers: Sequence[LayerReport]) -> Iterator[Text]:
    """Why layers have no Hessian or lack a spectrum of their hidden weights, each reason once."""
    reasons: dict[str, list[LayerReport]] = {}
    for layer in layers:
        if layer.hessian is None and layer.hessian_reason:
            reasons.setdefault(f"Hessian scores: {layer.hessian_reason}", []).append(layer)
        if layer.hidden_spectra_reason:
            words = f"spectra of hidden weights: {layer.hidden_spectra_reason}"
            reasons.setdefault(words, []).append(layer)
    for reason, members in reasons.items():
        yield from _note(screen, "left out", reason, members, layers)


def _note(
    screen: Screen,
    label: str,
    words: str,
    members: Sequence[LayerReport],
    layers: Sequence[LayerReport],
) -> Iterator[Text]:
    text = screen.sentence(words)
    if len(members) == 1 < len(layers):
        text.append(f" ({_name(screen, members[0].name)})", LABEL)
    elif len(members) < len(layers):
        text.append(f" ({count(len(members), 'layer')})", LABEL)
    yield from paragraph(screen, text, gutter=[(label, LABEL)])


def _place(screen: Screen, name: str, layers: int) -> Text:
    """A layer's name, and how many more there are."""
    text = Text().append(_name(screen, name), NAME)
    if layers > 1:
        text.append(f" and {count(layers - 1, 'more layer')}", LABEL)
    return text


def _name(screen: Screen, name: str) -> str:
    # Two cells are left for the punctuation that follows.
    return screen.shorten(screen.clean(name), min(PLACE_WIDTH, screen.width - GUTTER - 2))


def _step_cell(entry: tuple[str, Report]) -> str:
    group = _worst(entry[1])
    if group is None:
        return ABSENT
    return effect(group.step_effect, divergent=group.relative_sensitivity.divergent)


def _worst(report: Report) -> ParameterSummary | None:
    """The worst parameter group of all layers, with those of its name."""
    parameters = [one for layer in report.layers for one in layer.parameters]
    worst = max(parameters, key=effect_rank, default=None)
    return worst and together([one for one in parameters if one.name == worst.name])


SUMMARY_COLUMNS = [
    Column("", lambda one: Cell(one[1].verdict, VERDICT_STYLES[one[1].verdict]), align="left"),
    Column("checkpoint", lambda one: Cell(one[0], NAME), align="left", shrinks=True),
    Column(
        "τ max",
        lambda one: largest([layer.eigenvalues.time_constant for layer in one[1].layers], "max"),
        leaves=2,
    ),
    Column(
        "|λ|≥1",
        lambda one: str(sum(layer.eigenvalues.unstable for layer in one[1].layers)),
        leaves=3,
    ),
    Column(
        "worst step", lambda one: getattr(_worst(one[1]), "name", ABSENT), align="left", leaves=1
    ),
    Column("effect", _step_cell),
    Column("usable rate", lambda one: number_or_absent(one[1].usable_rate.rate, 2), leaves=5),
    Column(
        "a step is",
        lambda one: getattr(_worst(one[1]), "direction", ABSENT),
        align="left",
        leaves=4,
    ),
]


def summary_text(reports: Sequence[Report], *, file: Path | None = None) -> str:
    """Several reports in one table, so that checkpoints compare at a glance."""
    return text_of(partial(_summary_lines, reports), file)


def _summary_lines(reports: Sequence[Report], screen: Screen) -> Iterator[Text]:
    yield Text("Side by side", TITLE)
    # The files' stems where they tell the checkpoints apart, else their whole paths.
    paths = [report.checkpoint.path for report in reports]
    stems = [PurePath(path).stem for path in paths]
    names = stems if len(set(stems)) == len(set(paths)) else paths
    rows = [cells(SUMMARY_COLUMNS, entry) for entry in zip(names, reports, strict=True)]
    drawn = draw(screen, SUMMARY_COLUMNS, rows)
    yield from drawn.lines
    rates = sorted({report.input.learning_rate for report in reports})
    said = ", ".join(setting(rate) for rate in rates)
    legend = f"Effect: what one step at {said} on the worst parameter group does to the state."
    legend = " ".join(filter(None, [legend, *drawn.meanings]))
    if any(layer.hidden_feedback for report in reports for layer in report.layers):
        legend += " Where gates see the state, as in an LSTM, τ max is that of the gates alone."
    yield from paragraph(screen, Text(screen.clean(legend)))
