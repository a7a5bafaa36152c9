"""What a finding is drawn from: one layer's figures and the settings they were taken under."""

from __future__ import annotations

from dataclasses import dataclass

from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.schema.figures import (
    EigenvalueSummary,
    HessianSummary,
    ParameterSummary,
    StateSummary,
)
from memcurse_cli.schema.layer import DenseSummary, GateSummary, HiddenSpectrum
from memcurse_cli.schema.report import Finding, RuleDocument, Severity, UsableRate


@dataclass(frozen=True)
class Facts:
    """One layer, summarised."""

    recurrence: Recurrence
    settings: Settings
    eigenvalues: EigenvalueSummary
    state: StateSummary
    parameters: tuple[ParameterSummary, ...]
    hessian: HessianSummary | None
    dense: DenseSummary | None
    jacobian: HiddenSpectrum | None
    usable_rate: UsableRate | None = None
    gates: GateSummary | None = None
    withheld: str | None = None

    @property
    def linearised(self) -> bool:
        """Whether the numbers are those of a non-linear layer with its slope taken as 1."""
        return self.dense is not None and self.dense.activation != "linear"


@dataclass(frozen=True)
class Rule(RuleDocument):
    """A stable code and where its theory stands."""

    def finding(self, severity: Severity, message: str, advice: str = "") -> Finding:
        """A finding of this rule."""
        return Finding(self.code, severity, message, advice, self.source)
