"""What a report is held to: limits and finding codes, for all layers or for some.

A `Policy` is a sequence of rule sets. Each applies to the layers and families that it names, later
ones over earlier ones: the settings file's own table first, its overrides in their order, then the
command line. A policy that limits nothing is the default one, under which a layer fails that is
cursed or has a finding of severity error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, cast

from memcurse_cli.diagnosis.limits import BY_NAME, VERDICTS, LimitKind
from memcurse_cli.diagnosis.report import Report, Severity
from memcurse_cli.diagnosis.report_figures import Verdict

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


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
