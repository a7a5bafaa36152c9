"""The sections in words: findings with advice, skipped layers, assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from memcurse_cli.reports.console import LABEL, NAME, SEVERITY_STYLES, Screen
from memcurse_cli.reports.grid import GUTTER, paragraph
from memcurse_cli.reports.numbers import count
from memcurse_cli.reports.ranking import Told, told_once
from memcurse_cli.schema.report import LayerReport, NotRecurrent, SkippedLayer

FINDINGS_SHOWN = 12
SKIPPED_SHOWN = 6
NAME_WIDTH = 48


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
    said = [_place(screen, told.layer.name, told.layers)]
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
        text.append(f" ({screen.shorten(screen.clean(family), NAME_WIDTH)}): ", LABEL)
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
        named = [_name(screen, name) for name in other.examples]
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
    return screen.shorten(screen.clean(name), min(NAME_WIDTH, screen.width - GUTTER - 2))
