"""Limits and finding codes against a report: what passes, what fails, and what is not known.

A `Policy` is a sequence of rule sets. Each applies to the layers and families that it names, later
ones over earlier ones: the settings file's own table first, its overrides in their order, then the
command line. A policy that limits nothing is the default one, under which a layer fails that is
cursed or has a finding of severity error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from memcurse_cli.diagnosis.limits import BY_NAME, KINDS, MAX_VERDICT, VERDICTS, Figure, LimitKind
from memcurse_cli.diagnosis.report import (
    Finding,
    LayerReport,
    Report,
    Severity,
    SkippedLayer,
    Verdict,
)
from memcurse_cli.diagnosis.wording import rounded_down

Outcome = Literal["within", "beyond", "found", "not computed"]

FINDINGS = "findings"
READABLE = "readable"


@dataclass(frozen=True)
class Limit:
    """One figure's bound.

    Attributes:
        name: as in `limits.KINDS`.
        bound: the number; of a verdict its place in ok, watch, cursed.
        origin: who set it: an option, or a file and line.
    """

    name: str
    bound: float
    origin: str

    @property
    def kind(self) -> LimitKind:
        """What it bounds."""
        return BY_NAME[self.name]

    @property
    def said(self) -> str:
        """The bound in words."""
        return self.kind.say(self.bound)


@dataclass(frozen=True)
class RuleSet:
    """Limits and finding codes for some layers.

    Attributes:
        limits: at most one of each name.
        select: code prefixes of the findings that fail, in place of an earlier set's; None leaves
            that as it is.
        forbid: prefixes of findings that fail beside those.
        ignore: prefixes of findings that never fail, unless a longer prefix says that they do.
        layers: glob patterns of layer names; empty for all.
        families: glob patterns of families; empty for all.
        origin: where it was written.
    """

    limits: tuple[Limit, ...] = ()
    select: tuple[str, ...] | None = None
    forbid: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    origin: str = ""

    @property
    def scoped(self) -> bool:
        """Whether it names layers or families."""
        return bool(self.layers or self.families)

    def applies(self, name: str, family: str) -> bool:
        """Whether a layer is one that it names."""
        return _matches(name, self.layers) and _matches(family, self.families)


@dataclass(frozen=True)
class Policy:
    """What a report is held to.

    Attributes:
        rule_sets: later ones win.
        allow_missing: whether a figure that a limit needs may be missing from the report.
    """

    rule_sets: tuple[RuleSet, ...] = ()
    allow_missing: bool = False

    @property
    def is_default(self) -> bool:
        """Whether nothing was limited, selected or forbidden."""
        return not any(
            rules.limits or rules.forbid or rules.select is not None for rules in self.rule_sets
        )

    def unmatched(self, reports: Iterable[Report]) -> Iterator[RuleSet]:
        """The rule sets that name layers or families, none of which is in the reports."""
        present = [
            (layer.name, layer.family)
            for report in reports
            for layers in (report.layers, report.skipped)
            for layer in layers
        ]
        for rules in self.rule_sets:
            if rules.scoped and not any(rules.applies(*one) for one in present):
                yield rules


@dataclass(frozen=True)
class Judgement:
    """One figure or finding of one layer, held to the policy.

    Attributes:
        layer: the layer's name.
        family: its family.
        rule: the limit's name; a finding's code; ``findings`` where no finding fails, and
            ``readable`` for a layer that could not be read.
        subject: the parameter group; empty for the layer.
        tensor: that group's tensor.
        outcome: ``within`` or ``beyond`` a limit, ``found`` for a finding, ``not computed`` where
            the report lacks the figure.
        fails: whether it fails the check.
        figure: the figure; None where it diverges or is missing. Of a finding the one that it
            grows with, if any.
        diverges: whether the figure is infinite.
        bound: the limit.
        severity: of the finding; error for a limit, warning where something is not computed.
        message: what is wrong, in words.
        advice: what to do about it; may be empty.
        origin: who set the limit: an option, or a file and line; empty under the default policy.
        known: whether it failed in the baseline already, and is not worse.
        baseline: the figure in the baseline.
    """

    layer: str
    family: str
    rule: str
    outcome: Outcome
    fails: bool
    subject: str = ""
    tensor: str = ""
    figure: float | str | None = None
    diverges: bool = False
    bound: float | str | None = None
    severity: Severity = "error"
    message: str = ""
    advice: str = ""
    origin: str = ""
    known: bool = False
    baseline: float | str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is about, whatever its figure."""
        return self.layer, self.rule, self.subject

    @property
    def value(self) -> float | None:
        """The figure as a number that compares; None where there is none."""
        if self.diverges:
            return math.inf
        if isinstance(self.figure, str):
            return float(VERDICTS.index(cast(Verdict, self.figure)))
        return self.figure


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


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
