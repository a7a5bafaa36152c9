"""Findings: what is worth telling of a layer, each under a code that never changes its meaning."""

from __future__ import annotations

from memcurse_cli.diagnosis.findings.assumptions import find_assumptions
from memcurse_cli.diagnosis.findings.dynamics import find_dynamics
from memcurse_cli.diagnosis.findings.facts import Facts
from memcurse_cli.diagnosis.findings.precision import find_precision
from memcurse_cli.diagnosis.findings.sensitivity import find_sensitivity
from memcurse_cli.diagnosis.findings.structure import find_structure
from memcurse_cli.diagnosis.findings.transients import find_transients
from memcurse_cli.schema.report import Finding

__all__ = ["Facts", "find"]

SOURCES = (
    find_dynamics,
    find_transients,
    find_sensitivity,
    find_structure,
    find_precision,
    find_assumptions,
)


def find(facts: Facts) -> tuple[Finding, ...]:
    """Every finding of a layer, in the order of their codes."""
    return tuple(finding for source in SOURCES for finding in source(facts))
