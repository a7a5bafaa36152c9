"""The full page of `memcurse inspect --full`, section by section, and the sections alone.

The answer comes first, as on the short page; what the columns of all tables mean, last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.text import Text

from memcurse_cli.diagnosis.settings import require_known
from memcurse_cli.reports.answer import describe_horizon, describe_input, file_words
from memcurse_cli.reports.console import LABEL, NAME, SEVERITY_STYLES, TITLE, Lines, Screen
from memcurse_cli.reports.grid import facts, paragraph, parted
from memcurse_cli.reports.numbers import count, percent, setting, size
from memcurse_cli.reports.ranking import grouped, told_once
from memcurse_cli.reports.terminal import layers, state, steps, structure
from memcurse_cli.reports.terminal.page import actions, headline
from memcurse_cli.reports.terminal.tables import Page
from memcurse_cli.schema.report import LayerReport, Report


def render(
    report: Report,
    *,
    sections: Sequence[str] = (),
    titled: bool = False,
    all_layers: bool = False,
    explain: bool = False,
) -> Lines:
    """The page, for a screen of any width and encoding.

    ``sections`` are the only ones to show, without the answer but, if ``titled``, below the
    checkpoint's name. All layers have rows if ``all_layers``; ``explain`` adds what columns mean.
    """

    def lines(screen: Screen) -> Iterator[Text]:
        page = Page(screen, report, all_layers)
        head: list[Iterable[Text]] = [headline(page), actions(page), _about(screen, report)]
        if sections:
            path = screen.shorten(screen.clean(report.checkpoint.path), screen.width)
            head = [[Text(path, TITLE)]] if titled else []
        parts = (_section(page, name, sections) for name in sections or SECTIONS)
        return parted(*head, *parts, page.legend() if explain else ())

    return lines


def _section(page: Page, name: str, asked: Sequence[str]) -> Iterator[Text]:
    """A section under its title; nothing where it has nothing to say and was not asked for."""
    title, tell = SECTIONS[name]
    lines = [*tell(page)]
    if name in asked and not lines:
        if name in ("hessian", "state"):
            lines = [*_said_of(page, "left out", page.layers, _missing)]
        why = f"Nothing to show of this checkpoint{ASKED_BY.get(name, '')}."
        lines = lines or [*page.notes([why])]
    if lines:
        yield from (Text(title, TITLE), *lines)


ASKED_BY = {
    "what-if": ": --as lru, or another parametrisation, rewrites its eigenvalues",
    "adam": ": --optimizer FILE reads the state of its optimizer from there",
}
"""The options that fill a section, where its name alone does not."""


def check_sections(names: Sequence[str]) -> None:
    """Raise a `UsageError` for a name that no section has."""
    for name in names:
        require_known(name, SECTIONS, "--section", f"give {', '.join(SECTIONS)}")


def _about(screen: Screen, report: Report) -> Iterator[Text]:
    checkpoint, assumed = report.checkpoint, report.input
    read = size(checkpoint.bytes_read)
    if checkpoint.bytes:
        read += f" ({percent(checkpoint.bytes_read / checkpoint.bytes, 2)})"
    source = {None: "", "assumed": ", assumed: set --lr", "option": ", from --lr"}.get(
        assumed.learning_rate_source, f", from the {assumed.learning_rate_source}"
    )
    lr = f"{setting(assumed.learning_rate)}{source}"
    said = [
        ("file", f"{file_words(checkpoint)}; read {read}"),
        ("input", describe_input(assumed.autocorrelation)),
        ("horizon", describe_horizon(assumed.horizon, assumed.readout, assumed.horizon_source)),
        ("step", f"one step of Adam moves a parameter by lr = {lr}"),
        ("device", "" if report.device in ("cpu", "auto") else report.device),
        *(("note", note) for note in checkpoint.notes),
    ]
    return facts(screen, said)


FINDINGS_SHOWN = 12
NAMED = 3


def _finding_lines(page: Page) -> Iterator[Text]:
    """Every finding once, with the number of layers that share it; the severest first."""
    screen = page.screen
    shown, hidden = page.shown(told_once(page.report), FINDINGS_SHOWN, "finding")
    for one in shown:
        finding, said = one.finding, Text()
        if one.layer is not None and len(page.layers) > 1:
            more = f" and {count(one.layers - 1, 'more layer')}" if one.layers > 1 else ""
            said = screen.sentence(page.names[one.layer.name], NAME).append(f"{more}: ", LABEL)
        texts = [said.append_text(screen.sentence(finding.message))]
        if finding.advice:
            advice = Text(screen.clean("→ "), LABEL)
            texts.append(advice.append_text(screen.sentence(finding.advice)))
        severity = finding.severity, SEVERITY_STYLES[finding.severity]
        gutter = [severity, (screen.clean(finding.code), LABEL)]
        yield from paragraph(screen, *texts, gutter=gutter)
    yield from page.notes(hidden)


def _note_lines(page: Page) -> Iterator[Text]:
    skipped = page.report.skipped
    yield from _said_of(page, "skipped", skipped, lambda one: [f"{one.reason} ({one.family})"])
    for other in page.report.not_recurrent:
        more = ["…"] if other.count > NAMED else []
        names = ", ".join([*other.names[:NAMED], *more])
        said = f"{count(other.count, f'{other.kind} layer')}, with no recurrence: {names}"
        yield from facts(page.screen, {"also": said})
    yield from _said_of(page, "assumed", page.layers, lambda layer: layer.assumptions)
    yield from _said_of(page, "left out", page.layers, _missing)


def _missing(layer: LayerReport) -> Iterator[str]:
    """What a layer lacks, and why: a verdict, a Hessian, spectra, errors of its state."""
    if layer.not_judged:
        yield f"a verdict: {layer.not_judged}"
    if layer.hessian is None and layer.hessian_reason:
        yield f"Hessian scores: {layer.hessian_reason}"
    if layer.hidden_spectra_reason:
        yield f"spectra of hidden weights: {layer.hidden_spectra_reason}"
    if layer.storage_reason:
        yield f"the state in fewer bits: {layer.storage_reason}"


def _said_of(
    page: Page, label: str, parts: Iterable[Any], say: Callable[[Any], Iterable[str]]
) -> Iterator[Text]:
    """Each thing once, with the layers that it was said of where these are not all."""
    said = ((words, one.name) for one in parts for words in dict.fromkeys(say(one)))
    for words, names in grouped(said).items():
        whose = "" if len(names) == len(page.layers) else f": {page.whose(names)}"
        yield from facts(page.screen, {label: words + whose})


SECTIONS: dict[str, tuple[str, Callable[[Page], Iterator[Text]]]] = {
    "layers": ("Layers", layers.layer_lines),
    "parameters": (layers.PARAMETERS.title, layers.PARAMETERS.lines),
    "hessian": (structure.HESSIAN.title, structure.HESSIAN.lines),
    "dense": (structure.DENSE.title, structure.DENSE.lines),
    "structure": (structure.STRUCTURE.title, structure.STRUCTURE.lines),
    "hidden": (structure.HIDDEN.title, structure.HIDDEN.lines),
    "state": (state.STATE.title, state.state_lines),
    "operating-point": (structure.STATE_AT_WORK.title, structure.STATE_AT_WORK.lines),
    "gates": (structure.MOVING_GATES.title, structure.MOVING_GATES.lines),
    "simulated": (layers.SIMULATED.title, layers.simulated_lines),
    "learning-rates": (steps.RATES.title, steps.learning_rate_lines),
    "adam": (steps.ADAM.title, steps.ADAM.lines),
    "what-if": (steps.WHAT_IF.title, steps.WHAT_IF.lines),
    "findings": ("Findings", _finding_lines),
    "notes": ("Notes", _note_lines),
}
"""The sections by what --section calls them: the title, and the lines below it."""
