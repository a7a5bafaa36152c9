"""The report as a page of text: the face of `memcurse inspect`.

Header, layers, parameter groups, Hessian, findings, what was skipped and assumed, and the verdict
last, where the eye rests when the command is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memcurse_cli.reports.console import (
    LABEL,
    TITLE,
    VERDICT_STYLES,
    Screen,
    capitalised,
    text_of,
)
from memcurse_cli.reports.grid import paragraph
from memcurse_cli.reports.numbers import count, decay_words, percent, setting, size
from memcurse_cli.reports.ranking import VERDICTS
from memcurse_cli.reports.terminal.findings import (
    assumption_lines,
    finding_lines,
    missing_lines,
    not_recurrent_lines,
    skipped_lines,
)
from memcurse_cli.reports.terminal.gates import gate_lines, mean_field_lines
from memcurse_cli.reports.terminal.layers import by_family, layer_lines
from memcurse_cli.reports.terminal.learning_rates import adam_lines, learning_rate_lines
from memcurse_cli.reports.terminal.parameters import parameter_lines
from memcurse_cli.reports.terminal.structure import (
    dense_lines,
    hessian_lines,
    hidden_lines,
    structure_lines,
)
from memcurse_cli.reports.terminal.what_if import what_if_lines
from memcurse_cli.schema.report import InputAssumption, Report

COMPONENTS_SHOWN = 4


def to_text(
    report: Report,
    *,
    all_layers: bool = False,
    file: Path | None = None,
    width: int | None = None,
) -> str:
    """The report as text for standard output, or for a file: without colour, 80 cells wide.

    Args:
        report: what to print.
        all_layers: give every layer and every parameter group a row of its own.
        file: where the text will be written, or None for standard output.
        width: cells per line, instead of the terminal's.
    """
    return text_of(render(report, all_layers=all_layers), file, width=width)


def render(report: Report, *, all_layers: bool = False) -> Page:
    """The report as something that a Rich console prints at its own width and encoding."""
    return Page(report, all_layers)


@dataclass(frozen=True)
class Page:
    """A report that a console can draw."""

    report: Report
    all_layers: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the page line by line."""
        yield from _lines(Screen.of(options), self.report, all_layers=self.all_layers)


def _lines(screen: Screen, report: Report, *, all_layers: bool) -> Iterator[Text]:
    layers = report.layers
    yield from _header(screen, report)
    sections = {
        "Layers": [*layer_lines(screen, layers, all_layers=all_layers)] if layers else [],
        "Parameters": [*parameter_lines(screen, layers, all_layers=all_layers)],
        "Hessian at a perfect fit": [*hessian_lines(screen, layers, all_layers=all_layers)],
        "Dense matrices": [*dense_lines(screen, layers, all_layers=all_layers)],
        "Beyond eigenvalues": [*structure_lines(screen, layers, all_layers=all_layers)],
        "Hidden weights": [*hidden_lines(screen, layers, all_layers=all_layers)],
        "State at work": [*mean_field_lines(screen, layers, all_layers=all_layers)],
        "Moving gates": [*gate_lines(screen, layers, all_layers=all_layers)],
        "Learning rates": [
            *learning_rate_lines(screen, layers, report.input, all_layers=all_layers)
        ],
        "Adam's effective steps": [
            *adam_lines(screen, layers, report.optimizer, all_layers=all_layers)
        ],
        "What if": [*what_if_lines(screen, layers, all_layers=all_layers)],
        "Findings": [*finding_lines(screen, layers, all_layers=all_layers)],
        "Notes": [
            *skipped_lines(screen, report.skipped, all_layers=all_layers),
            *not_recurrent_lines(screen, report.not_recurrent),
            *assumption_lines(screen, layers),
            *missing_lines(screen, layers),
        ],
    }
    for title, lines in sections.items():
        if lines:
            yield Text()
            yield Text(title, TITLE)
            yield from lines
    yield Text()
    yield _rule(screen)
    yield from _closing(screen, report)


def _header(screen: Screen, report: Report) -> Iterator[Text]:
    checkpoint = report.checkpoint
    yield Text(screen.shorten(screen.clean(checkpoint.path), screen.width).rstrip(), TITLE)
    yield _rule(screen)
    rate = report.input.learning_rate
    share = ""
    if checkpoint.bytes:
        share = f" ({percent(checkpoint.bytes_read / checkpoint.bytes, 2)})"
    facts = {
        "file": f"{checkpoint.format}, {size(checkpoint.bytes)}, "
        f"{count(checkpoint.tensors, 'tensor')}; read {size(checkpoint.bytes_read)}{share}",
        "layers": _layers(report),
        "input": describe_input(report.input),
        "horizon": describe_horizon(report.input),
        "step": f"one optimizer step moves a parameter by lr = {setting(rate)}",
    }
    if report.device not in ("cpu", "auto"):
        facts["device"] = report.device
    for label, said in facts.items():
        yield from paragraph(screen, screen.sentence(said), gutter=[(label, LABEL)])
    for note in checkpoint.notes:
        yield from paragraph(screen, screen.sentence(note), gutter=[("note", LABEL)])


def _layers(report: Report) -> str:
    families = ", ".join(
        f"{len(members):,} {family}" for family, members in by_family(report.layers).items()
    )
    verdicts = [layer.verdict for layer in report.layers]
    said = [f"{verdicts.count(verdict):,} {verdict}" for verdict in VERDICTS if verdict in verdicts]
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
