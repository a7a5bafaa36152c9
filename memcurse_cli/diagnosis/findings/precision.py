"""MC4xx: which recurrent parameters must be stored with more bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memcurse_cli.diagnosis.dense.rounding import LARGE, LARGEST, leaving_disk
from memcurse_cli.diagnosis.findings.facts import Facts, Rule
from memcurse_cli.diagnosis.rounding import DTYPES, is_stored, leaves_disk
from memcurse_cli.diagnosis.wording import count, percent
from memcurse_cli.schema.figures import ParameterSummary, Rounding
from memcurse_cli.schema.report import Finding, Severity
from memcurse_cli.theory.rounding import Dtype

SOURCE = "rounding of recurrent parameters: δh = δω dh/dω to first order"
STATE_ERROR = 0.1
EIGHT: tuple[Dtype, ...] = ("int8", "float8_e4m3fn", "float8_e5m2")

WHY = (
    "A recurrence multiplies by the same stored value at every step, so that its rounding error "
    "adds up over the memory, where one of a feed-forward weight is made once."
)
EQUATION = (
    "√(E|h' - h|² / E|h|²) > 0.1 with h' the state after rounding, which is √κ(ω) |δω| while "
    "small; of the type that ω is stored in, with errors uniform over spacing(ω); or |λ| ≥ 1 after "
    "rounding"
)


def _rule(code: str, dtype: str, instead: str) -> Rule:
    return Rule(
        code,
        f"{dtype} is too coarse",
        SOURCE,
        what=f"Storing a recurrent parameter in {dtype} changes the state by more than a tenth, "
        "takes an eigenvalue to the unit circle or past it, or a value is beyond the type's range.",
        why=WHY,
        equation=EQUATION,
        change=f"Keep the tensor in {instead}, also where the rest of the network is cast: exclude "
        "it from autocast, from the optimizer's half-precision copies and from quantisation.",
    )


BFLOAT16 = _rule("MC401", "bfloat16", "float32")
FLOAT16 = _rule("MC402", "float16", "float32")
FLOAT32 = _rule("MC403", "float32", "float64")
EIGHT_BITS = _rule("MC404", "an 8-bit type", "16 bits or more")


FLOATS: Mapping[Dtype, Rule] = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16}
"""Finer ones first."""


def find_precision(facts: Facts) -> Iterator[Finding]:
    """Types whose rounding of a parameter changes the state by more than a tenth or unbounds it."""
    fine: list[_Rounded] = []
    for group in _rounded_groups(facts):
        parameter = group.parameter
        coarse = leaving = False
        for dtype, rule in FLOATS.items():
            error = getattr(parameter.rounding, dtype)
            crossing = group.crossing[dtype]
            # Fewer bits are coarser still: each thing is told of the finest type that does it.
            if crossing and not leaving:
                yield _leaving(facts, rule, dtype, error, group)
            elif _too_coarse(error, parameter) and not (coarse or leaving):
                yield _coarse(facts, rule, dtype, error, parameter)
            coarse = coarse or crossing > 0 or _too_coarse(error, parameter)
            leaving = leaving or crossing > 0
        if not coarse:
            fine.append(group)
    found = [group for group in fine if any(group.too_coarse(dtype) for dtype in EIGHT)]
    if found:
        yield _in_eight_bits(facts, found)


@dataclass(frozen=True)
class _Rounded:
    """A group, and how many eigenvalues each type takes out of the unit disk."""

    parameter: ParameterSummary
    crossing: Mapping[str, int]

    def too_coarse(self, dtype: Dtype) -> bool:
        """Whether a type changes the state by more than the limit or without one."""
        error = getattr(self.parameter.rounding, dtype)
        return self.crossing[dtype] > 0 or _too_coarse(error, self.parameter)


def _rounded_groups(facts: Facts) -> list[_Rounded]:
    recurrence = facts.recurrence
    if recurrence.dense is not None:
        crossing = leaving_disk(recurrence, recurrence.dense)
        return [_Rounded(parameter, crossing) for parameter in facts.parameters]
    return [
        _Rounded(
            parameter,
            {
                dtype: int(np.count_nonzero(leaves_disk(recurrence, group, dtype)))
                for dtype in DTYPES
            },
        )
        for parameter, group in zip(facts.parameters, recurrence.parameters, strict=True)
    ]


def _too_coarse(error: float | None, parameter: ParameterSummary) -> bool:
    """Whether an error is above the limit; one of None is, unless it was not computed."""
    if error is None:
        return parameter.step_effect is not None and _was_rounded(parameter.rounding)
    return error > STATE_ERROR


def _was_rounded(rounding: Rounding) -> bool:
    """Whether some type's error is known, so that one that is not means an overflow."""
    return any(error is not None for error in vars(rounding).values())


def _coarse(
    facts: Facts, rule: Rule, dtype: Dtype, error: float | None, parameter: ParameterSummary
) -> Finding:
    stored = is_stored(parameter.dtype, dtype)
    severity: Severity = "warning" if stored else "info"
    change = "overflows" if error is None else _change(facts, error)
    verb = "storing" if not stored else "having stored"
    extent = "all of its entries" if facts.dense is not None else "p99 of its elements"
    return rule.finding(
        severity,
        f"{verb} {parameter.name} in {dtype} {change} ({extent})",
        f"keep {_tensor(parameter)} in {_instead(dtype)}",
    )


def _change(facts: Facts, error: float) -> str:
    """How far the state changes; no number where only first order knows of a large change."""
    if facts.dense is not None and facts.recurrence.size > LARGEST and error > LARGE:
        return f"changes the state by more than {percent(LARGE)}"
    return f"changes the state by {percent(error)}"


def _leaving(
    facts: Facts, rule: Rule, dtype: Dtype, error: float | None, group: _Rounded
) -> Finding:
    """Eigenvalues that rounding takes to the unit circle, whatever else it changes."""
    parameter, crossing = group.parameter, group.crossing[dtype]
    horizon = facts.settings.horizon
    if facts.linearised:
        then = ", where its linearisation explodes"
    elif horizon is None:
        then = ": over an infinite sequence the state diverges"
    else:
        change = "" if error is None else f" and {_change(facts, error)}"
        then = f"{change} within {count(horizon, 'step')}"
    return rule.finding(
        "warning",
        f"storing {parameter.name} in {dtype} takes {crossing} of "
        f"{count(facts.recurrence.size, 'eigenvalue')} to |λ| >= 1{then}",
        f"keep {_tensor(parameter)} in {_instead(dtype)}",
    )


def _in_eight_bits(facts: Facts, coarse: list[_Rounded]) -> Finding:
    """One finding for all groups that 16 bits are enough for and 8 are not."""
    parameters = [group.parameter for group in coarse]
    stored = any(parameter.dtype in EIGHT for parameter in parameters)
    rough = [dtype for dtype in EIGHT if any(group.too_coarse(dtype) for group in coarse)]
    fine = [dtype for dtype in EIGHT if dtype not in rough]
    changes, others = [], []
    for dtype in rough:
        errors = [getattr(parameter.rounding, dtype) for parameter in parameters]
        known = [error for error in errors if error is not None]
        crossing = max(group.crossing[dtype] for group in coarse)
        if crossing:
            others.append(
                f"{dtype} takes {crossing} of {count(facts.recurrence.size, 'eigenvalue')} to "
                "|λ| >= 1"
            )
        elif len(known) < len(errors):
            others.append(f"{dtype} overflows")
        else:
            changes.append(f"{percent(max(known))} in {dtype}{_own_scale(dtype, parameters)}")
    names = _listed([parameter.name for parameter in parameters])
    said = "8 bits are too few"
    if fine:
        said = f"{_listed(rough)} {'is' if len(rough) == 1 else 'are'} too coarse"
    moved = [f"the state changes by up to {', '.join(changes)}"] if changes else []
    return EIGHT_BITS.finding(
        "warning" if stored else "info",
        f"{said} for {names}: {'; '.join([*moved, *others])}",
        f"keep {_listed([_tensor(parameter) for parameter in parameters])} in 16 bits or more"
        + (f", or in {' or '.join(fine)}" if fine else ""),
    )


def _own_scale(dtype: Dtype, parameters: list[ParameterSummary]) -> str:
    """The change in int8 where each gate has a scale, not each tensor."""
    errors = [
        parameter.rounding.int8 if parameter.int8_own_scale is None else parameter.int8_own_scale
        for parameter in parameters
    ]
    known = [error for error in errors if error is not None]
    shared = any(parameter.int8_own_scale is not None for parameter in parameters)
    if dtype != "int8" or not shared:
        return ""
    return f" with one scale per tensor ({percent(max(known))} with one per group)"


def _instead(dtype: str) -> str:
    return "float64" if dtype == "float32" else "float32, also in mixed precision"


def _tensor(parameter: ParameterSummary) -> str:
    """A group by its name, with the tensor that it is in where that says more."""
    name, tensor = parameter.name, parameter.tensor
    return name if tensor.endswith(name) else f"{name} ({tensor})"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
