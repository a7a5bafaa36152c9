"""Reports held to a policy, and to an earlier state that only what got worse fails against."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from memcurse_cli.diagnosis.policy import (
    BY_NAME,
    FINDINGS,
    KINDS,
    MAX_VERDICT,
    READABLE,
    VERDICTS,
    Figure,
    Limit,
    Policy,
    RuleSet,
)
from memcurse_cli.diagnosis.wording import rounded_down
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.derived import Check, CheckedReport, Judgement
from memcurse_cli.schema.report import Finding, InputAssumption, LayerReport, Report, Severity
from memcurse_cli.version import VERSION

TOLERANCE = 0.05
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")


def check(
    reports: Sequence[Report],
    policy: Policy,
    *,
    baseline: Sequence[Report] | None = None,
    tolerance: float = TOLERANCE,
) -> Check:
    """Hold reports, one per checkpoint, to a policy.

    Args:
        reports: what to judge.
        policy: the limits and the finding codes.
        baseline: earlier reports on the same checkpoints, in the same order. What failed then and
            is no worse now does not fail. Layers are matched by name.
        tolerance: by how much, relatively, a figure may be worse than it was.

    Raises:
        UsageError: a baseline of another number of reports, or taken under other assumptions.
    """
    if not 0 <= tolerance < math.inf:
        raise UsageError(
            f"{tolerance:g} is not a tolerance", where="--tolerance", remedy="give 0 or more"
        )
    earlier = [None] * len(reports) if baseline is None else list(baseline)
    if len(earlier) != len(reports):
        raise UsageError(
            f"{len(earlier)} reports for {len(reports)} to be checked",
            where="--baseline",
            remedy="write it for the same checkpoints in the same order",
        )
    checked = []
    for report, before in zip(reports, earlier, strict=True):
        judgements = judge(report, policy)
        if before is not None:
            _require_alike(report.input, before.input)
            judgements = against(judgements, judge(before, policy), tolerance)
        checked.append(
            CheckedReport(report.checkpoint.path, report.verdict, len(report.layers), judgements)
        )
    return Check(
        version=VERSION,
        passed=not any(one.failures for one in checked),
        default_policy=policy.is_default,
        tolerance=None if baseline is None else tolerance,
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
    """Whether a failure is another, a severer or a larger one than before."""
    if now.outcome != before.outcome:
        return True
    if SEVERITIES.index(now.severity) > SEVERITIES.index(before.severity):
        return True
    if now.value is None or before.value is None:
        return False
    slack = tolerance * abs(before.value) if math.isfinite(before.value) else 0.0
    if now.rule in BY_NAME and BY_NAME[now.rule].sense == "min":
        return now.value < before.value - slack
    return now.value > before.value + slack


def _require_alike(now: InputAssumption, before: InputAssumption) -> None:
    """Figures under other assumptions do not compare."""
    for name in ("learning_rate", "horizon", "autocorrelation", "readout"):
        if getattr(now, name) != getattr(before, name):
            raise UsageError(
                f"the baseline's {name.replace('_', ' ')} is {_said(getattr(before, name))}, "
                f"here it is {_said(getattr(now, name))}",
                where="--baseline",
                remedy="take both under the same options",
            )


def _said(value: object) -> str:
    return "infinite" if value is None else f"{value}"


def judge(report: Report, policy: Policy) -> tuple[Judgement, ...]:
    """Every figure and finding of a report that the policy says something about."""
    judgements = [
        judgement for layer in report.layers for judgement in _judge_layer(layer, report, policy)
    ]
    for skipped in report.skipped:
        message = f"the layer could not be read: {skipped.reason}"
        judgements.append(
            Judgement(skipped.name, skipped.family, READABLE, **_missing(policy, message))
        )
    return tuple(judgements)


def _missing(policy: Policy, message: str) -> dict[str, Any]:
    fails = not policy.allow_missing
    severity: Severity = "error" if fails else "warning"
    return {"outcome": "not computed", "fails": fails, "severity": severity, "message": message}


def _judge_layer(layer: LayerReport, report: Report, policy: Policy) -> Iterator[Judgement]:
    applying = [rules for rules in policy.rule_sets if rules.applies(layer.name, layer.family)]
    limits: dict[str, Limit] = {limit.name: limit for rules in applying for limit in rules.limits}
    findings = list(_failing(layer, applying, default=policy.is_default))
    # A cursed layer whose errors were all ignored stays ignored; one without an error still fails.
    if policy.is_default and not any(finding.severity == "error" for finding in layer.findings):
        limits = {MAX_VERDICT: Limit(MAX_VERDICT, float(VERDICTS.index("watch")), "")}
    for kind in KINDS:
        if kind.name in limits:
            for figure in kind.figures(layer):
                yield _judge_figure(layer, report, limits[kind.name], figure, policy)
    for finding, origin in findings:
        yield _judge_finding(layer, finding, origin)
    if not findings:
        yield Judgement(layer.name, layer.family, FINDINGS, "within", fails=False)


def _judge_figure(
    layer: LayerReport, report: Report, limit: Limit, figure: Figure, policy: Policy
) -> Judgement:
    kind, value = limit.kind, figure.value
    verdict = kind.name == MAX_VERDICT
    common: dict[str, Any] = {
        "layer": layer.name,
        "family": layer.family,
        "rule": kind.name,
        "subject": figure.subject,
        "tensor": figure.tensor,
        "bound": limit.said if verdict else limit.bound,
        "origin": limit.origin,
    }
    what = f"the {kind.noun}" + (f" of {figure.subject}" if figure.subject else "")
    if value is None:
        return Judgement(**common, **_missing(policy, f"{what} is not computed: {figure.reason}"))
    least = kind.sense == "min"
    beyond = value < limit.bound if least else value > limit.bound
    side = "below" if least else "above"
    advice = ""
    if beyond and kind.name == "max-step-effect" and math.isfinite(value) and limit.bound > 0:
        # A step effect grows with the learning rate in proportion.
        rate = rounded_down(report.input.learning_rate * limit.bound / value)
        advice = f"stay at or below a learning rate of {rate}"
    said = "diverges" if math.isinf(value) else f"is {kind.say(value)}"
    return Judgement(
        **common,
        outcome="beyond" if beyond else "within",
        fails=beyond,
        figure=kind.say(value) if verdict else value if math.isfinite(value) else None,
        diverges=math.isinf(value),
        message=f"{what} {said}, "
        + (f"{side} the limit of {limit.said}" if beyond else f"within {limit.said}"),
        advice=advice,
    )


GROWTH = {"MC101": "max-unstable", "MC20": "max-step-effect", "MC301": "max-adam-residual"}
"""The limit whose figure says how bad a finding is, by the code that it starts with."""


def _judge_finding(layer: LayerReport, finding: Finding, origin: str) -> Judgement:
    named = [
        group
        for group in layer.parameters
        if re.search(rf"(?<!\w){re.escape(group.name)}(?!\w)", finding.message)
    ]
    subject, tensor = (named[0].name, named[0].tensor) if len(named) == 1 else ("", "")
    values = [
        figure.value
        for prefix, name in GROWTH.items()
        if finding.code.startswith(prefix)
        for figure in BY_NAME[name].figures(layer)
        if figure.value is not None and subject in ("", figure.subject)
    ]
    value = max(values, default=None)
    diverges = value is not None and math.isinf(value)
    return Judgement(
        layer.name,
        layer.family,
        finding.code,
        "found",
        fails=True,
        subject=subject,
        tensor=tensor,
        figure=None if diverges else value,
        diverges=diverges,
        severity=finding.severity,
        message=finding.message,
        advice=finding.advice,
        origin=origin,
    )


def _failing(
    layer: LayerReport, applying: Sequence[RuleSet], *, default: bool
) -> Iterator[tuple[Finding, str]]:
    """The findings that fail and who says so; the longest prefix decides, ignoring wins a tie."""
    select: dict[str, str] = {}
    forbid: dict[str, str] = {}
    for rules in applying:
        if rules.select is not None:
            select = dict.fromkeys(rules.select, rules.origin)
        forbid |= dict.fromkeys(rules.forbid, rules.origin)
    fail = select | forbid
    ignore = [prefix for rules in applying for prefix in rules.ignore]
    for finding in layer.findings:
        prefix = _longest(finding.code, fail)
        strength = -1 if prefix is None else len(prefix)
        if default and finding.severity == "error":
            strength = max(strength, 0)
        ignored = _longest(finding.code, ignore)
        if strength > (-1 if ignored is None else len(ignored)):
            yield finding, "" if prefix is None else fail[prefix]


def _longest(code: str, prefixes: Iterable[str]) -> str | None:
    return max((one for one in prefixes if code.startswith(one)), key=len, default=None)
