"""Reports held to a policy, and to an earlier state that only what got worse fails against."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from memcurse_cli.diagnosis.check.judging import judge
from memcurse_cli.diagnosis.check.limits import BY_NAME
from memcurse_cli.diagnosis.check.policy import Policy
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.derived import Check, CheckedReport, Judgement
from memcurse_cli.schema.report import InputAssumption, Report, Severity
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
    """Hold reports to a policy.

    Args:
        reports: one per checkpoint.
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
                judgement,
                baseline=before.figure,
                known=known,
                fails=judgement.fails and not known,
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
