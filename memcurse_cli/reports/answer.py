"""What a report answers first, in words that the terminal, the HTML box and a summary share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from memcurse_cli.reports.numbers import count, decay_words, number, percent, setting
from memcurse_cli.reports.ranking import Told, together, told_once
from memcurse_cli.schema.figures import ParameterSummary, diverges, effect_rank
from memcurse_cli.schema.report import InputAssumption, LayerReport, Report

COPES = 10.0
"""The curvature that an ideal Adam leaves, up to which a diagonal optimizer copes."""

COARSE = 0.01
"""The error of the state above which a group is to be kept in single precision."""

NEVER = "never"
DIGITS = re.compile(r"\d+")


def verdict_words(verdict: str) -> str:
    """`CURSED`, `NOT JUDGED`."""
    return verdict.replace("_", " ").upper()


def subject(report: Report) -> str:
    """What the checkpoint holds: `1 dense layer, 64 units`, `48 layers: 36 recurrent, …`."""
    layers, attention = report.layers, sum(other.count for other in report.not_recurrent)
    families = list(dict.fromkeys(layer.family for layer in layers))
    said = f"{len(layers):,} {families[0] if len(families) == 1 else 'recurrent'} "
    said += "layer" if len(layers) == 1 else "layers"
    sizes = {layer.eigenvalues.count * layer.eigenvalues.multiplicity for layer in layers}
    if len(sizes) == 1:
        said += f", {count(sizes.pop(), 'unit')}"
    others = [f"{attention:,} attention"] if attention else []
    others += [f"{len(report.skipped):,} not read"] if report.skipped else []
    return ", ".join([said, *others])


def reasons(report: Report) -> tuple[list[Told], int]:
    """The findings that matter, each once, the model's first; and how many notes there are.

    The rate, MC207, and a memory that is too short are told by the sentence above them.
    """
    told = told_once(report.layers, report.findings)
    notes = sum(one.finding.severity == "info" for one in told)
    return [
        one
        for one in told
        if one.finding.severity != "info" and one.finding.code not in ("MC107", "MC207")
    ], notes


def steps(memory: float | None) -> str:
    """A memory: `38 steps`, or that it never ends."""
    return NEVER if memory is None else number(memory, 2)


def memory_words(report: Report) -> str:
    """The median and the longest memory, against the horizon."""
    spectra = [layer.eigenvalues for layer in report.layers]
    horizon = "" if report.input.horizon is None else f" of {report.input.horizon}"
    said = f"longest {steps(report.memory)}{horizon}"
    if report.memory is None:
        never = sum(one.unstable for one in spectra)
        said = f"{never} never fade{'s' * (never == 1)}" if never else said
    if len(spectra) == 1:
        median = steps(spectra[0].time_constant.p50)
        said = f"median {median}{horizon * (report.memory is None)}, {said}"
    gates = {layer.hidden_feedback or layer.input_dependent for layer in report.layers}
    return said + (", at zero input" if gates == {True} else "")


def worst_group(layers: Sequence[LayerReport]) -> tuple[LayerReport, ParameterSummary] | None:
    """The group whose step changes the state most, as the worst of all layers that have it."""
    pairs = [(layer, group) for layer in layers for group in layer.parameters]
    if not pairs:
        return None
    layer, worst = max(pairs, key=lambda pair: effect_rank(pair[1]))
    return layer, together([group for _, group in pairs if group.name == worst.name])


def sensitivity_words(report: Report) -> str:
    """What one step does to the state, of the most sensitive group."""
    found = worst_group(report.layers)
    if found is None:
        return "nothing of the recurrence is trained"
    layer, group = found
    where = f" of {layer.name}" if len(report.layers) > 1 else ""
    if diverges(group):
        return f"{group.name}{where}: diverges, no step on it is small enough"
    if group.step_effect is None:
        return f"{group.name}{where}: not computed"
    signs = "" if layer.dense is None else " (independent signs)"
    step = "Adam step" if report.input.adaptive is False else "step"
    return f"{group.name}{where}: {percent(group.step_effect)} of the state per {step}{signs}"


def hessian_words(report: Report) -> str:
    """Whether a diagonal optimizer copes with the curvature."""
    known = [layer for layer in report.layers if layer.hessian is not None]
    if not known:
        reason = next((one.hessian_reason for one in report.layers if one.hessian_reason), None)
        return f"not known: {reason}" if reason else "not known"
    layer = max(known, key=lambda one: one.hessian.adam_residual if one.hessian else 0.0)
    assert layer.hessian is not None
    where = f" in {layer.name}" if len(report.layers) > 1 else ""
    left = f"it leaves {number(layer.hessian.adam_residual)}{where} (1 is best)"
    copes = layer.hessian.adam_residual <= COPES
    said = f"Adam copes: {left}" if copes else f"Adam cannot help: {left}"
    # A diagonal that carries most of ‖H‖² can still leave much, and then says nothing.
    if not copes and layer.hessian.diagonality > 0.5:
        return said
    return f"{percent(layer.hessian.diagonality)} diagonal; {said}"


def storing_words(report: Report) -> str:
    """Which recurrent groups bfloat16 is fine for, and which are to be kept in single precision."""
    named: dict[str, list[ParameterSummary]] = {}
    for layer in report.layers:
        for group in layer.parameters:
            known = any(one is not None for one in vars(group.rounding).values())
            if known:
                named.setdefault(group.name, []).append(group)
    groups = [together(same) for same in named.values()]
    coarse = [one for one in groups if _error(one) > COARSE]
    if not groups:
        return ""
    if not coarse:
        worst = max(map(_error, groups))
        return f"bf16 is fine for all: {percent(worst, 2)} of the state at most"
    said = []
    for one in sorted(coarse, key=_error, reverse=True):
        error = _error(one)
        off = "diverges" if math.isinf(error) else f"is {percent(error, 2)} off"
        said.append(f"{one.name} (bf16 {off})")
    return f"keep in fp32: {', '.join(said)}"


def _error(group: ParameterSummary) -> float:
    """That of the state when a group is stored in bfloat16; one that diverges is infinite."""
    error = group.rounding.bfloat16
    return math.inf if error is None else error


def assumed_words(assumed: InputAssumption) -> str:
    """Under what the figures were taken, and who said so."""
    parts = [input_words(assumed)]
    if assumed.horizon is None:
        parts.append("a sequence without end")
    else:
        said = {"checkpoint": " (stored)", "assumed": " (assumed; set --horizon)"}
        parts.append(count(assumed.horizon, "step") + said.get(assumed.horizon_source or "", ""))
    rate, source = setting(assumed.learning_rate), assumed.learning_rate_source
    where = {"option": "", "assumed": " (assumed; set --lr)", None: ""}
    parts.append(f"rate {rate}{where.get(source, f' ({source})')}")
    if assumed.current_learning_rate is not None:
        parts[-1] += f", now {setting(assumed.current_learning_rate)}"
    return ", ".join(parts)


def input_words(assumed: InputAssumption, shown: int = 4) -> str:
    """R(Δ), the autocorrelation of the drive, in a few words."""
    components = assumed.autocorrelation
    if len(components) == 1 and components[0] in ((1.0, 0.0), (1.0, 1.0)):
        return "white noise input" if components[0][1] == 0 else "constant input"
    said = []
    for weight, *rest in components[:shown]:
        decay = decay_words(*rest)
        said.append(decay if weight == 1 else f"{setting(weight)}·{decay}".removesuffix("·1"))
    more = f" + {len(components) - shown} more" if len(components) > shown else ""
    return f"input R(Δ) = {' + '.join(said) or '0'}{more}"


@dataclass(frozen=True)
class Depth:
    """One layer of a stack, recurrent or not, at its place in depth."""

    index: int
    layer: LayerReport | None  # None of an attention layer


def by_depth(report: Report) -> list[Depth]:
    """The layers of a stack in the order of the number that tells them apart; else nothing.

    That is the one number in which the names of the recurrent layers differ, and which attention
    layers have at the same place.
    """
    names = [layer.name for layer in report.layers]
    numbers = [DIGITS.findall(name) for name in names]
    if len(names) < 2 or len({DIGITS.sub("#", name) for name in names}) > 1:
        return []
    places = [place for place, seen in enumerate(zip(*numbers, strict=True)) if len(set(seen)) > 1]
    if len(places) != 1:
        return []
    front = DIGITS.split(names[0])[: places[0] + 1]
    found = [
        Depth(int(number[places[0]]), layer)
        for number, layer in zip(numbers, report.layers, strict=True)
    ]
    for other in report.not_recurrent:
        for name in other.names:
            own = DIGITS.findall(name)
            if DIGITS.split(name)[: places[0] + 1] == front and len(own) > places[0]:
                found.append(Depth(int(own[places[0]]), None))
    return sorted(found, key=lambda one: one.index)


def rate_words(rate: float | None) -> str:
    """A usable rate, with the two digits that it is good to."""
    return "-" if rate is None else number(rate, 2)
