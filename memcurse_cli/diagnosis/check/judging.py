"""A report held to a policy: one judgement for each figure and finding that it speaks of."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcurse_cli.diagnosis.check.limits import (
    BY_NAME,
    KINDS,
    MAX_VERDICT,
    VERDICTS,
    Figure,
    LimitKind,
)
from memcurse_cli.diagnosis.check.policy import (
    FINDINGS,
    READABLE,
    Limit,
    Policy,
    RuleSet,
)
from memcurse_cli.diagnosis.wording import rounded_down
from memcurse_cli.schema.derived import Judgement
from memcurse_cli.schema.report import Finding, LayerReport, Report, SkippedLayer


def judge(report: Report, policy: Policy) -> tuple[Judgement, ...]:
    """Every figure and finding of a report that the policy says something about."""
    judgements = [
        judgement for layer in report.layers for judgement in _judge_layer(layer, report, policy)
    ]
    judgements += [_judge_skipped(skipped, policy) for skipped in report.skipped]
    return tuple(judgements)


def _judge_skipped(skipped: SkippedLayer, policy: Policy) -> Judgement:
    return Judgement(
        skipped.name,
        skipped.family,
        READABLE,
        "not computed",
        fails=not policy.allow_missing,
        severity="warning" if policy.allow_missing else "error",
        message=f"the layer could not be read: {skipped.reason}",
    )


def _judge_layer(layer: LayerReport, report: Report, policy: Policy) -> Iterator[Judgement]:
    applying = [rules for rules in policy.rule_sets if rules.applies(layer.name, layer.family)]
    limits: dict[str, Limit] = {limit.name: limit for rules in applying for limit in rules.limits}
    codes = _Codes.of(applying, default=policy.is_default)
    findings = [finding for finding in layer.findings if codes.fails(finding)]
    # A cursed layer whose errors were all ignored stays ignored; one without an error still fails.
    if policy.is_default and not any(finding.severity == "error" for finding in layer.findings):
        limits = {MAX_VERDICT: Limit(MAX_VERDICT, float(VERDICTS.index("watch")), "")}
    for kind in KINDS:
        if kind.name in limits:
            for figure in kind.figures(layer):
                yield _judge_figure(layer, report, limits[kind.name], figure, policy)
    for finding in findings:
        yield _judge_finding(layer, finding, codes.origin(finding))
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
        return Judgement(
            **common,
            outcome="not computed",
            fails=not policy.allow_missing,
            severity="warning" if policy.allow_missing else "error",
            message=f"{what} is not computed: {figure.reason}",
        )
    beyond = kind.exceeded(value, limit.bound)
    side = "below" if kind.sense == "min" else "above"
    said = "diverges" if math.isinf(value) else f"is {kind.say(value)}"
    return Judgement(
        **common,
        outcome="beyond" if beyond else "within",
        fails=beyond,
        figure=kind.say(value) if verdict else value if math.isfinite(value) else None,
        diverges=math.isinf(value),
        message=f"{what} {said}, "
        + (f"{side} the limit of {limit.said}" if beyond else f"within {limit.said}"),
        advice=_advice(kind, value, limit, report) if beyond else "",
    )


def _advice(kind: LimitKind, value: float, limit: Limit, report: Report) -> str:
    """The learning rate that meets a step effect; a step grows with its rate in proportion."""
    if kind.name != "max-step-effect" or math.isinf(value) or limit.bound <= 0:
        return ""
    rate = rounded_down(report.input.learning_rate * limit.bound / value)
    return f"stay at or below a learning rate of {rate}"


GROWTH = {"MC101": "max-unstable", "MC20": "max-step-effect", "MC301": "max-adam-residual"}
"""The limit whose figure says how bad a finding is, by the code that it starts with."""


def _judge_finding(layer: LayerReport, finding: Finding, origin: str) -> Judgement:
    named = [
        group
        for group in layer.parameters
        if re.search(rf"(?<!\w){re.escape(group.name)}(?!\w)", finding.message)
    ]
    subject = named[0] if len(named) == 1 else None
    values = [
        figure.value
        for prefix, name in GROWTH.items()
        if finding.code.startswith(prefix)
        for figure in BY_NAME[name].figures(layer)
        if figure.value is not None and (subject is None or figure.subject == subject.name)
    ]
    value = max(values, default=None)
    diverges = value is not None and math.isinf(value)
    return Judgement(
        layer.name,
        layer.family,
        finding.code,
        "found",
        fails=True,
        subject=subject.name if subject is not None else "",
        tensor=subject.tensor if subject is not None else "",
        figure=None if diverges else value,
        diverges=diverges,
        severity=finding.severity,
        message=finding.message,
        advice=finding.advice,
        origin=origin,
    )


@dataclass(frozen=True)
class _Codes:
    """Which findings of one layer fail; the longest prefix decides, ignoring wins a tie."""

    fail: Mapping[str, str]
    ignore: Sequence[str]
    errors: bool

    @classmethod
    def of(cls, applying: Sequence[RuleSet], *, default: bool) -> _Codes:
        select: dict[str, str] = {}
        forbid: dict[str, str] = {}
        for rules in applying:
            if rules.select is not None:
                select = dict.fromkeys(rules.select, rules.origin)
            forbid |= dict.fromkeys(rules.forbid, rules.origin)
        ignored = [prefix for rules in applying for prefix in rules.ignore]
        return cls(select | forbid, ignored, errors=default)

    def fails(self, finding: Finding) -> bool:
        fail = _longest(finding.code, self.fail)
        if self.errors and finding.severity == "error":
            fail = max(fail, 0)
        return fail > _longest(finding.code, self.ignore)

    def origin(self, finding: Finding) -> str:
        prefixes = [prefix for prefix in self.fail if finding.code.startswith(prefix)]
        return self.fail[max(prefixes, key=len)] if prefixes else ""


def _longest(code: str, prefixes: Iterable[str]) -> int:
    """The length of the longest prefix that a code starts with; -1 without one."""
    return max((len(prefix) for prefix in prefixes if code.startswith(prefix)), default=-1)
