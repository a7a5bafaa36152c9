"""Reports held to a policy, and to an earlier state that only what got worse fails against."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, get_args

from msgspec.structs import replace

from memcurse_cli.diagnosis.findings import finding_of
from memcurse_cli.diagnosis.model import unseen_memory
from memcurse_cli.diagnosis.policy import (
    KINDS,
    MAX_STEP_EFFECT,
    MAX_VERDICT,
    MIN_MEMORY,
    NOT_JUDGED,
    READABLE,
    Figure,
    Limit,
    Part,
    Policy,
    kind_of,
)
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.derived import Check, CheckedReport, Judgement
from memcurse_cli.schema.report import (
    Finding,
    Group,
    InputAssumption,
    LayerReport,
    Report,
    Severity,
)
from memcurse_cli.version import VERSION
from memcurse_cli.wording import about, number, rounded_down

SEVERITIES: tuple[Severity, ...] = get_args(Severity)


def check(
    reports: Sequence[Report], policy: Policy, *, baseline: Sequence[Report] | None = None
) -> Check:
    """Hold reports, one per checkpoint, to a policy.

    What failed in the ``baseline``, reports on the same checkpoints in the same order, and is no
    worse now does not fail. Raises `UsageError` for one of another number or other assumptions.
    """
    earlier = [None] * len(reports) if baseline is None else list(baseline)
    if len(earlier) != len(reports):
        what = f"{len(earlier)} reports for {len(reports)} to be checked"
        remedy = "write it for the same checkpoints in the same order"
        raise UsageError(what, where="--baseline", remedy=remedy)
    checked = []
    for report, before in zip(reports, earlier, strict=True):
        judgements = judge(report, policy)
        if before is not None:
            _require_alike(report.input, before.input)
            judgements = against(judgements, judge(before, policy), policy.tolerance)
        checked.append(
            CheckedReport(
                path=report.checkpoint.path,
                verdict=report.verdict,
                layers=len(report.layers),
                judgements=judgements,
                sentence=report.sentence,
                memory=report.memory,
                usable_rate=report.usable_rate,
                learning_rate=report.input.learning_rate,
                actions=report.actions,
            )
        )
    return Check(
        version=VERSION,
        passed=not any(one.failures for one in checked),
        default_policy=policy.is_default,
        tolerance=None if baseline is None else policy.tolerance,
        reports=tuple(checked),
    )


def against(
    judgements: Sequence[Judgement], baseline: Sequence[Judgement], tolerance: float
) -> tuple[Judgement, ...]:
    """The judgements, where what the baseline failed on and is no worse now does not fail."""
    earlier: dict[tuple[str, str, str], list[Judgement]] = defaultdict(list)
    for judgement in baseline:
        earlier[judgement.key].append(judgement)
    compared = []
    for judgement in judgements:
        before = earlier[judgement.key].pop(0) if earlier[judgement.key] else None
        if before is not None:
            known = judgement.fails and before.fails and not _worse(judgement, before, tolerance)
            judgement = replace(
                judgement, baseline=before.figure, known=known, fails=judgement.fails and not known
            )
        compared.append(judgement)
    return tuple(compared)


def _worse(now: Judgement, before: Judgement, tolerance: float) -> bool:
    severer = SEVERITIES.index(now.severity) > SEVERITIES.index(before.severity)
    if severer or now.outcome != before.outcome:
        return True
    if now.value is None or before.value is None:
        return False
    slack = tolerance * abs(before.value) if math.isfinite(before.value) else 0.0
    kind = kind_of(now.rule)
    grown = now.value - before.value
    return (-grown if kind is not None and kind.least else grown) > slack


def _require_alike(now: InputAssumption, before: InputAssumption) -> None:
    for name in ("learning_rate", "horizon", "autocorrelation", "readout"):
        given = [getattr(one, name) for one in (before, now)]
        if given[0] != given[1]:
            old, new = ("infinite" if one is None else one for one in given)
            what = f"the baseline's {name.replace('_', ' ')} is {old}, here it is {new}"
            raise UsageError(what, where="--baseline", remedy="take both under the same options")


def judge(report: Report, policy: Policy) -> tuple[Judgement, ...]:
    """Every figure and finding of a report that the policy says something about."""
    parts: list[Part] = [report, *report.layers]
    judgements = [judgement for part in parts for judgement in _judge(part, policy)]
    judgements += _not_judged(report, policy)
    for skipped in report.skipped:
        missing = _missing(policy, f"the layer could not be read: {skipped.reason}")
        judgements.append(Judgement(skipped.name, skipped.family, READABLE, **missing))
    return tuple(judgements)


def _missing(policy: Policy, message: str) -> dict[str, Any]:
    fails = not policy.allow_missing
    severity: Severity = "error" if fails else "warning"
    return {"outcome": "not computed", "fails": fails, "severity": severity, "message": message}


def _place(part: Part, group: Group | None = None) -> dict[str, Any]:
    place = {"layer": "", "family": ""}
    if isinstance(part, LayerReport):
        place = {"layer": part.name, "family": part.family}
    return place if group is None else {**place, "subject": group.name, "tensor": group.tensor}


def _judge(part: Part, policy: Policy) -> Iterator[Judgement]:
    limits = policy.limits(part)
    for kind in KINDS:
        if kind.name in limits:
            for figure in kind.of(part):
                yield _judge_figure(part, limits[kind.name], figure, policy)
    failing = list(_failing(part, policy))
    for finding, origin in failing:
        yield _judge_finding(part, finding, origin)
    if not failing and isinstance(part, LayerReport):
        yield Judgement(**_place(part), rule="findings", outcome="within", fails=False)


def _findings(part: Part) -> tuple[Finding, ...]:
    """Those of a part; a report of 0.1 may lack the error MC207 of a layer that is cursed."""
    known = ("MC207", "error") in {(one.code, one.severity) for one in part.findings}
    if known or part.verdict != "cursed" or isinstance(part, Report):
        return part.findings
    said = "its rate is above the range of the usable one"
    return (*part.findings, finding_of("MC207", "error", said, _bears(part)))


def _bears(layer: LayerReport) -> str:
    """The rate that training bears and the layer's own; empty where that is not known."""
    if layer.usable_rate is None or layer.usable_rate.rate is None:
        return ""
    usable, yours = about(layer.usable_rate.rate), number(layer.learning_rate)
    return f"training bears a rate of about {usable}, yours is {yours}"


def _not_judged(report: Report, policy: Policy) -> Iterator[Judgement]:
    """The layers that were not judged, together where that has one reason and one limit."""
    alike: dict[tuple[str, Limit | None], list[LayerReport]] = defaultdict(list)
    for layer in report.layers:
        if layer.verdict == "not_judged":
            limit = policy.limits(layer).get(MAX_VERDICT)
            if limit is not None or policy.is_default or policy.fail_on:
                alike[layer.not_judged or "its usable rate is not known", limit].append(layer)
    for (reason, limit), layers in alike.items():
        several = f"{len(layers)} layers, as {layers[0].name}, were"
        which = several if len(layers) > 1 else f"{layers[0].name} was"
        fails = bool(policy.fail_on) or (limit is not None and not policy.allow_missing)
        looked = " with --spectra" if any(map(unseen_memory, layers)) else ""
        yield Judgement(
            "",
            layers[0].family,
            NOT_JUDGED if limit is None else MAX_VERDICT,
            "not computed",
            fails=fails,
            severity="error" if fails else "warning",
            figure=float(len(layers)),
            bound=None if limit is None else limit.said,
            origin="" if limit is None else limit.origin,
            message=f"{which} not judged: {reason}",
            advice=f"limits on other figures judge it, as --{MIN_MEMORY} STEPS{looked}",
        )


def _judge_figure(part: Part, limit: Limit, figure: Figure, policy: Policy) -> Judgement:
    kind, value, group = limit.kind, figure.value, figure.group
    verdict = kind.name == MAX_VERDICT
    what = f"the {kind.noun}" + (f" of {group.name}" if group is not None else "")
    judged = partial(
        Judgement,
        **_place(part, group),
        rule=kind.name,
        bound=limit.said if verdict else limit.bound,
        origin=limit.origin,
    )
    if value is None:
        return judged(**_missing(policy, f"{what} is not computed: {figure.note}"))
    beyond = value < limit.bound if kind.least else value > limit.bound
    advice = figure.advice
    if kind.name == MAX_STEP_EFFECT and group is not None and isinstance(part, LayerReport):
        advice = _bears(part)
        if not advice and 0 < value < math.inf and limit.bound > 0:
            # A step effect grows with the learning rate in proportion.
            rate = rounded_down(group.learning_rate * limit.bound / value)
            advice = f"stay at or below a learning rate of {rate}"
    said = kind.infinite if math.isinf(value) else f"is {kind.say(value)}"
    side = "below" if kind.least else "above"
    where = f"{side} the limit of {limit.said}{figure.note}" if beyond else f"within {limit.said}"
    return judged(
        outcome="beyond" if beyond else "within",
        fails=beyond,
        figure=kind.say(value) if verdict else value if math.isfinite(value) else None,
        diverges=math.isinf(value),
        message=f"{what} {said}, {where}",
        advice=advice if beyond else "",
    )


def _judge_finding(part: Part, finding: Finding, origin: str) -> Judgement:
    groups = part.parameters if isinstance(part, LayerReport) else ()
    word = r"(?<!\w){}(?!\w)"
    named = [one for one in groups if re.search(word.format(re.escape(one.name)), finding.message)]
    group, kind = named[0] if len(named) == 1 else None, kind_of(finding.code)
    figures = [] if kind is None else list(kind.of(part))
    if group is not None:
        figures = [one for one in figures if one.group in (None, group)]
    value = max((one.value for one in figures if one.value is not None), default=None)
    diverges = value is not None and math.isinf(value)
    return Judgement(
        **_place(part, group),
        rule=finding.code,
        outcome="found",
        fails=True,
        figure=None if diverges else value,
        diverges=diverges,
        severity=finding.severity,
        message=finding.message,
        advice=finding.advice,
        origin=origin,
    )


def _failing(part: Part, policy: Policy) -> Iterator[tuple[Finding, str]]:
    """The findings that fail and who says so; the longest prefix decides, ignoring wins a tie."""
    select: dict[str, str] = {}
    forbid: dict[str, str] = {}
    ignore: list[str] = []
    for rules in policy.applying(part):
        if rules.select is not None:
            select = dict.fromkeys(rules.select, rules.origin)
        forbid |= dict.fromkeys(rules.forbid, rules.origin)
        ignore += rules.ignore
    fail = select | forbid
    for finding in _findings(part):
        # A code is never empty: "" stands for no prefix at all, which only errors outweigh.
        chosen, ignored = _longest(finding.code, fail), _longest(finding.code, ignore)
        by_default = policy.is_default and finding.severity == "error"
        if len(chosen) > len(ignored) or (by_default and not ignored):
            yield finding, fail.get(chosen, "")


def _longest(code: str, prefixes: Iterable[str]) -> str:
    """The longest of some prefixes that a code has; empty where it has none."""
    return max((one for one in prefixes if code.startswith(one)), key=len, default="")
