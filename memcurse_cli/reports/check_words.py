"""What the renderings of a check share: one failure's name, place and sentence."""

from __future__ import annotations

from memcurse_cli.diagnosis.check import Check, CheckedReport
from memcurse_cli.diagnosis.policy import Judgement
from memcurse_cli.reports.numbers import count, percent


def subject(judgement: Judgement) -> str:
    """``layer`` or ``layer, group``."""
    return ", ".join(part for part in (judgement.layer, judgement.subject) if part)


def sentence(judgement: Judgement) -> str:
    """What is wrong, who set the limit, and what to do about it."""
    said = judgement.message
    if judgement.origin:
        said += f" ({judgement.origin})"
    return f"{said}; {judgement.advice}" if judgement.advice else said


def summary(check: Check) -> str:
    """How many failures in how many layers, in one line."""
    failures = sum(len(report.failures) for report in check.reports)
    layers = sum(report.layers for report in check.reports)
    if not failures:
        said = f"nothing fails in {count(layers, 'layer')}"
    else:
        failing = sum(len(failing_layers(report)) for report in check.reports)
        said = f"{count(failures, 'failure')} in {failing:,} of {count(layers, 'layer')}"
    known = sum(len(report.known) for report in check.reports)
    if check.tolerance is not None:
        said += f"; {known:,} no worse than in the baseline, within {percent(check.tolerance)}"
    if check.default_policy:
        said += "; no limit is set, so cursed layers and findings of severity error fail"
    return said


def failing_layers(report: CheckedReport) -> set[str]:
    """The names of the layers that something fails in."""
    return {judgement.layer for judgement in report.failures}
