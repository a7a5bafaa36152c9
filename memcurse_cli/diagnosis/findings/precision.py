"""MC4xx: which recurrent parameters must be stored with more bits."""

from __future__ import annotations

from collections.abc import Iterator

from memcurse_cli.diagnosis.findings.facts import Facts, Rule
from memcurse_cli.diagnosis.report import Finding, Severity
from memcurse_cli.diagnosis.report_figures import ParameterSummary, Rounding
from memcurse_cli.diagnosis.wording import percent

SOURCE = "rounding of recurrent parameters: δh = δω dh/dω"
STATE_ERROR = 0.1

WHY = (
    "A recurrence multiplies by the same stored value at every step, so that its rounding error "
    "adds up over the memory, where one of a feed-forward weight is made once."
)
EQUATION = (
    "√(κ(ω) spacing(ω)² / 12) > 0.1, with the spacing of the type's numbers at ω: uniform errors, "
    "independent between entries of a dense matrix, to first order"
)


def _rule(code: str, dtype: str, instead: str) -> Rule:
    return Rule(
        code,
        f"{dtype} is too coarse",
        SOURCE,
        what=f"Storing a recurrent parameter in {dtype} changes the state by more than a tenth, or "
        "a value is beyond the type's range.",
        why=WHY,
        equation=EQUATION,
        change=f"Keep the tensor in {instead}, also where the rest of the network is cast: exclude "
        "it from autocast, from the optimizer's half-precision copies and from quantisation.",
    )


BFLOAT16 = _rule("MC401", "bfloat16", "float32")
FLOAT16 = _rule("MC402", "float16", "float32")
FLOAT32 = _rule("MC403", "float32", "float64")
EIGHT_BITS = _rule("MC404", "an 8-bit type", "16 bits or more")


def find_precision(facts: Facts) -> Iterator[Finding]:
    """Types whose rounding of a parameter changes the state by more than a tenth."""
    fine: list[ParameterSummary] = []
    for parameter in facts.parameters:
        for rule, dtype, error in (
            (FLOAT32, "float32", parameter.rounding.float32),
            (FLOAT16, "float16", parameter.rounding.float16),
            (BFLOAT16, "bfloat16", parameter.rounding.bfloat16),
        ):
            if _too_coarse(error, parameter):
                yield _coarse(facts, rule, dtype, error, parameter)
                break  # fewer bits are coarser still
        else:
            fine.append(parameter)
    coarse = [
        (parameter, _eight_bits(parameter.rounding))
        for parameter in fine
        if any(_too_coarse(error, parameter) for error in _eight_bits(parameter.rounding).values())
    ]
    if coarse:
        yield _in_eight_bits(facts, coarse)


def _too_coarse(error: float | None, parameter: ParameterSummary) -> bool:
    """Whether an error is above the limit; one of None is, unless it was not computed."""
    if error is None:
        return parameter.step_effect is not None and _was_rounded(parameter.rounding)
    return error > STATE_ERROR


def _was_rounded(rounding: Rounding) -> bool:
    """Whether some type's error is known, so that one that is not means an overflow."""
    return any(error is not None for error in vars(rounding).values())


def _eight_bits(rounding: Rounding) -> dict[str, float | None]:
    return {
        "int8": rounding.int8,
        "float8_e4m3fn": rounding.float8_e4m3fn,
        "float8_e5m2": rounding.float8_e5m2,
    }


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
        f"keep {_tensor(parameter)} in "
        + ("float64" if dtype == "float32" else "float32")
        + (", also in mixed precision" if dtype != "float32" else ""),
    )


def _in_eight_bits(
    facts: Facts, coarse: list[tuple[ParameterSummary, dict[str, float | None]]]
) -> Finding:
    """One finding for all groups that 16 bits are enough for and 8 are not."""
    parameters = [parameter for parameter, _ in coarse]
    stored = any(parameter.dtype in errors for parameter, errors in coarse)
    changes = []
    for dtype in _eight_bits(parameters[0].rounding):
        errors = [found[dtype] for _, found in coarse]
        known = [error for error in errors if error is not None]
        overflow = len(known) < len(errors)
        changes.append(f"{dtype} overflows" if overflow else f"{percent(max(known))} in {dtype}")
    names = _listed([parameter.name for parameter in parameters])
    return EIGHT_BITS.finding(
        "warning" if stored else "info",
        f"8 bits are too few for {names}: the state changes by up to {', '.join(changes)}",
        f"keep {_listed([_tensor(parameter) for parameter in parameters])} in 16 bits or more",
    )


def _tensor(parameter: ParameterSummary) -> str:
    """A group by its name, with the tensor that it is in where that says more."""
    name, tensor = parameter.name, parameter.tensor
    return name if tensor.endswith(name) else f"{name} ({tensor})"


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
