"""The schema `memcurse.check/1`: reports held to limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from memcurse_cli.schema.figures import ORDER, Verdict
from memcurse_cli.schema.report import Severity

Outcome = Literal["within", "beyond", "found", "not computed"]


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
            return float(ORDER.index(cast(Verdict, self.figure)))
        return self.figure


@dataclass(frozen=True)
class CheckedReport:
    """One checkpoint's report, judged.

    Attributes:
        path: the checkpoint.
        verdict: the report's verdict.
        layers: how many layers were judged.
        judgements: every figure and finding that the policy says something about.
    """

    path: str
    verdict: Verdict
    layers: int
    judgements: tuple[Judgement, ...]

    @property
    def failures(self) -> tuple[Judgement, ...]:
        """What fails, in the order of the layers."""
        return tuple(judgement for judgement in self.judgements if judgement.fails)

    @property
    def known(self) -> tuple[Judgement, ...]:
        """What would fail, were it not in the baseline."""
        return tuple(judgement for judgement in self.judgements if judgement.known)

    @property
    def missing(self) -> tuple[Judgement, ...]:
        """What is not computed and allowed to be."""
        return tuple(
            judgement
            for judgement in self.judgements
            if judgement.outcome == "not computed" and not judgement.fails and not judgement.known
        )


@dataclass(frozen=True)
class Check:
    """The outcome of `memcurse check`.

    Attributes:
        version: of memcurse.
        passed: whether nothing fails.
        default_policy: whether nothing was limited, so that cursed layers and findings of
            severity error fail.
        tolerance: by how much, relatively, a figure may be worse than in the baseline; None
            without a baseline.
        reports: one per checkpoint.
    """

    SCHEMA: ClassVar = "memcurse.check/1"

    version: str
    passed: bool
    default_policy: bool
    tolerance: float | None
    reports: tuple[CheckedReport, ...]
