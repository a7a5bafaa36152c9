"""MC4xx: which recurrent parameters must be stored with more bits."""

from __future__ import annotations

from collections.abc import Iterator

from memcurse_cli.diagnosis.findings.facts import Facts, Rule
from memcurse_cli.diagnosis.report import Finding, ParameterSummary, Severity
from memcurse_cli.diagnosis.wording import percent

SOURCE = "rounding of recurrent parameters: δh = δω dh/dω"
BFLOAT16 = Rule("MC401", "bfloat16 is too coarse", SOURCE)
FLOAT16 = Rule("MC402", "float16 is too coarse", SOURCE)
FLOAT32 = Rule("MC403", "float32 is too coarse", SOURCE)

STATE_ERROR = 0.1


def find_precision(facts: Facts) -> Iterator[Finding]:
    """Types whose rounding of a parameter changes the state by more than a tenth."""
    for parameter in facts.parameters:
        for rule, dtype, error in (
            (FLOAT32, "float32", parameter.rounding.float32),
            (FLOAT16, "float16", parameter.rounding.float16),
            (BFLOAT16, "bfloat16", parameter.rounding.bfloat16),
        ):
            diverges = error is None and parameter.step_effect is not None
            if diverges or (error is not None and error > STATE_ERROR):
                yield _coarse(facts, rule, dtype, error, parameter)
                break  # fewer bits are coarser still


def _coarse(
    facts: Facts, rule: Rule, dtype: str, error: float | None, parameter: ParameterSummary
) -> Finding:
    stored = parameter.dtype == dtype
    severity: Severity = "warning" if stored else "info"
    change = "overflows" if error is None else f"changes the state by {percent(error)}"
    verb = "storing" if not stored else "having stored"
    extent = "all of its entries" if facts.dense is not None else "p99 of its elements"
    return rule.finding(
        severity,
        f"{verb} {parameter.name} in {dtype} {change} ({extent})",
        f"keep {parameter.name} in "
        + ("float64" if dtype == "float32" else "float32")
        + (", also in mixed precision" if dtype != "float32" else ""),
    )
