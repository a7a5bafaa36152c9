"""What is said of a model as a whole: its verdict, its memory, the sentence, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from memcurse_cli.diagnosis.findings import finding_of
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.wording import about, count, number, percent
from memcurse_cli.schema.figures import ORDER, Verdict, effect_rank
from memcurse_cli.schema.layer import jacobian_of
from memcurse_cli.schema.report import (
    FACTOR,
    Action,
    Finding,
    LayerReport,
    Severity,
    longest_memory,
)

SHORT, FAR_TOO_SHORT = 10, 100
"""The horizon over the memory from which the model is to be watched, and is at fault."""

MILDER: dict[Severity, Severity] = {"error": "warning", "warning": "info"}
"""Where attention layers can carry what the recurrence forgets."""

HELPS = 3.0
"""How many times larger a rate another parametrisation must bear to be worth naming."""

KNOWN_HORIZONS = ("option", "checkpoint")


def unseen_memory(layer: LayerReport) -> bool:
    """Whether hidden weights, which were not looked at, can hold a longer memory than is known."""
    return layer.hidden_feedback and jacobian_of(layer.hidden_spectra) is None


def model_findings(
    layers: Sequence[LayerReport], settings: Settings, *, attention: bool
) -> tuple[Finding, ...]:
    """A memory that is too short for a known horizon, MC107."""
    memory, horizon = longest_memory(layer.memory for layer in layers), settings.horizon
    known = horizon is not None and settings.horizon_source in KNOWN_HORIZONS
    if not known or horizon is None or memory is None or any(map(unseen_memory, layers)):
        return ()
    if memory * SHORT >= horizon:
        return ()
    severity: Severity = "error" if memory * FAR_TOO_SHORT < horizon else "warning"
    longest = "the longest memory" if len(layers) > 1 else "its memory"
    said = f"{longest} is {about(memory)} of {count(horizon, 'step')}"
    if attention:
        severity = MILDER[severity]
        said += ": attention has to carry the rest"
    advice = "initialise |λ| closer to 1, so that the memory spans the sequence"
    return (finding_of("MC107", severity, said, advice),)


def model_verdict(
    layers: Sequence[LayerReport], findings: Sequence[Finding], *, skipped: bool
) -> Verdict:
    """That of the worst layer; to be watched at least where the memory is too short.

    Ok only if every recurrent layer was judged, so not where one was ``skipped``.
    """
    verdicts: list[Verdict] = [layer.verdict for layer in layers]
    verdicts += ["watch" for one in findings if one.severity != "info"]
    verdicts += ["not_judged"] * skipped
    return max(verdicts, key=ORDER.index, default="ok")


def sentence(layers: Sequence[LayerReport], settings: Settings) -> str:
    """The verdict in words: what a step does, the rate that training bears, what is not judged."""
    said = [*_rate_words(layers, settings), *_memory_words(layers, settings), *_open_words(layers)]
    return " ".join(said) or "Nothing of the recurrence is trained: no step is too large for it."


def _by_rate(layers: Sequence[LayerReport]) -> list[tuple[float, LayerReport, float]]:
    """The rate of judged layers over the usable one, and that, the worst first."""
    ratios = [
        (layer.learning_rate / layer.usable_rate.rate, layer, layer.usable_rate.rate)
        for layer in layers
        if layer.usable_rate is not None and layer.usable_rate.rate is not None
    ]
    return sorted(ratios, key=lambda judged: judged[0], reverse=True)


def _rate_words(layers: Sequence[LayerReport], settings: Settings) -> Iterator[str]:
    judged = _by_rate(layers)
    if not judged:
        return
    ratio, layer, usable = judged[0]
    rate = layer.learning_rate
    group = max(layer.parameters, key=effect_rank, default=None)
    if layer.verdict != "ok" and group is not None and group.step_effect is not None:
        where = "the state" if len(layers) == 1 else f"the state of {layer.name}"
        step = f"One {settings.optimizer if settings.adaptive else 'Adam'} step"
        yield (
            f"{step} at {number(group.learning_rate)} on {group.name} changes {where} by "
            f"{percent(group.step_effect)}."
        )
    recorded = settings.learning_rate_source not in (None, "option", "assumed")
    source = settings.learning_rate_source if rate == settings.learning_rate else "of its group"
    yours = f"yours, {number(rate)}{f' ({source})' if recorded else ''}, is "
    yours += {
        "cursed": f"{about(ratio)} times that",
        "watch": "within that range",
    }.get(layer.verdict, f"{about(1 / ratio)} times smaller")
    ends = f"{about(usable / FACTOR)} to {about(usable * FACTOR)}"
    yield f"Training bears a rate of about {about(usable)} ({ends}); {yours}."


def _memory_words(layers: Sequence[LayerReport], settings: Settings) -> Iterator[str]:
    """How much of a known horizon is remembered, where that is little."""
    memory, horizon = longest_memory(layer.memory for layer in layers), settings.horizon
    if horizon is None or settings.horizon_source not in KNOWN_HORIZONS or memory is None:
        return
    if memory * SHORT < horizon:
        alone = any(map(unseen_memory, layers))
        held = "Its gates alone keep" if alone else "It remembers"
        yield f"{held} {about(memory)} of {count(horizon, 'step')}."


def _open_words(layers: Sequence[LayerReport]) -> Iterator[str]:
    unjudged = [layer for layer in layers if layer.verdict == "not_judged"]
    if not unjudged:
        return
    reasons = list(dict.fromkeys(filter(None, (layer.not_judged for layer in unjudged))))
    which = f"{len(unjudged)} of {count(len(layers), 'layer')}"
    if len(unjudged) == len(layers):
        which = "The layer" if len(layers) == 1 else "No layer"
    negated = "was" if which == "No layer" else "was not" if len(unjudged) == 1 else "were not"
    yield f"{which} {negated} judged: {reasons[0] if reasons else 'its usable rate is not known'}."


def actions(
    layers: Sequence[LayerReport], findings: Sequence[Finding], path: str | None
) -> tuple[Action, ...]:
    """What to do, the most urgent first: what was measured to help, beside its figure.

    Args:
        layers: the layers.
        findings: those of the model.
        path: what commands name as the checkpoint; None where there is no file.
    """
    return tuple(
        Action(text, f"memcurse inspect {shlex.quote(path)} {options}" if path and options else "")
        for text, options in _advice(layers, findings)
    )


def _advice(
    layers: Sequence[LayerReport], findings: Sequence[Finding]
) -> Iterator[tuple[str, str]]:
    """What to do, and the options of the command that shows it."""
    too_fast = [one for one in _by_rate(layers) if one[1].verdict in ("watch", "cursed")]
    if too_fast:
        ratio, layer, usable = too_fast[0]
        cured, instead = layer.lru_rate, ""
        if cured is not None and cured.rate is not None and cured.rate > HELPS * usable:
            how = "make the recurrence diagonal" if layer.dense is not None else "write λ as"
            form = f"{how}: an LRU" if layer.dense is not None else f"{how} exp(-exp(ν) + iθ): that"
            yield f"{form} bears {about(cured.rate)}", "--as lru --normalize own"
            instead = "or "
        if ratio > 1:
            names = ", ".join(dict.fromkeys(group.name for group in layer.parameters))
            where = "" if len(layers) == 1 else f" of {layer.name}"
            rate = f"at {about(usable)} or less"
            yield f"{instead}train {names}{where} {rate}", "--learning-rates"
    for finding in findings:
        if finding.severity != "info":
            yield finding.advice, ""
    stored = [
        finding
        for layer in layers
        for finding in layer.findings
        if finding.code.startswith("MC4") and finding.severity == "warning"
    ]
    if stored:
        yield stored[0].advice, ""
    if any(layer.verdict == "not_judged" and unseen_memory(layer) for layer in layers):
        yield "look at the memory of the hidden weights", "--spectra"
    if any(
        layer.verdict == "not_judged" and layer.input_dependent and layer.gates is None
        for layer in layers
    ):
        yield "look at how far inputs move the gates", "--gates"
