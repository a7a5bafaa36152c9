"""The figures of a report that can be held to a limit, and how each is read from a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from memcurse_cli.diagnosis.wording import duration, number, percent
from memcurse_cli.schema.figures import ParameterSummary, Rounding, Verdict
from memcurse_cli.schema.report import LayerReport

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
DTYPES = tuple(Rounding.__dataclass_fields__)
MAX_ROUNDING_ERROR = "max-rounding-error"
MAX_VERDICT = "max-verdict"


@dataclass(frozen=True)
class Figure:
    """One number of one layer that a limit is compared with.

    Attributes:
        value: the number; infinite where it diverges; None where the report does not hold it.
        subject: the parameter group that it belongs to; empty for the whole layer.
        tensor: that group's tensor.
        reason: why there is no value.
    """

    value: float | None
    subject: str = ""
    tensor: str = ""
    reason: str = ""


@dataclass(frozen=True)
class LimitKind:
    """One kind of limit.

    Attributes:
        name: the option and the key in a settings file, ``max-…`` or ``min-…``.
        noun: what the figure is called in a sentence.
        meaning: what it is, with its equation.
        figures: the figures of a layer that it holds for; none where the layer has no such thing.
        say: a figure in words, with its unit.
    """

    name: str
    noun: str
    meaning: str
    figures: Callable[[LayerReport], Iterator[Figure]]
    say: Callable[[float], str] = number

    @property
    def sense(self) -> Literal["max", "min"]:
        """Whether figures must stay below or above the limit."""
        return "min" if self.name.startswith("min-") else "max"

    def exceeded(self, value: float, bound: float) -> bool:
        """Whether a figure is on the wrong side of a bound; on the bound it is not."""
        return value < bound if self.sense == "min" else value > bound


def _unstable(layer: LayerReport) -> Iterator[Figure]:
    yield Figure(float(layer.eigenvalues.unstable))


def _time_constant(layer: LayerReport) -> Iterator[Figure]:
    longest = layer.eigenvalues.time_constant
    if longest.max is None and longest.divergent:
        yield Figure(math.inf)
    elif layer.eigenvalues.count:
        yield Figure(longest.max, reason="the report has no time constants")


def _step_effect(layer: LayerReport) -> Iterator[Figure]:
    for group in layer.parameters:
        diverges = group.relative_sensitivity.divergent > 0
        value = math.inf if group.step_effect is None and diverges else group.step_effect
        yield _of_group(layer, group, value)


def _relative_sensitivity(layer: LayerReport) -> Iterator[Figure]:
    for group in layer.parameters:
        value = group.relative_sensitivity.p99
        if layer.dense is not None:  # every entry of the matrix at once, as for its step effect
            value = layer.dense.relative_sensitivity
        if value is None and group.relative_sensitivity.divergent:
            value = math.inf
        yield _of_group(layer, group, value)


def _of_group(layer: LayerReport, group: ParameterSummary, value: float | None) -> Figure:
    reason = layer.dense.reason if layer.dense is not None else None
    return Figure(value, group.name, group.tensor, reason or "the report has no sensitivity for it")


def _rounding(dtype: str) -> Callable[[LayerReport], Iterator[Figure]]:
    def figures(layer: LayerReport) -> Iterator[Figure]:
        for group in layer.parameters:
            value: float | None = getattr(group.rounding, dtype)
            # A group whose sensitivity is known lacks an error only where rounding overflows.
            sensitivity = group.relative_sensitivity
            known = sensitivity.p99 is not None or sensitivity.divergent > 0
            yield _of_group(layer, group, math.inf if value is None and known else value)

    return figures


def _hessian(name: str) -> Callable[[LayerReport], Iterator[Figure]]:
    def figures(layer: LayerReport) -> Iterator[Figure]:
        if layer.hessian is None:
            yield Figure(None, reason=layer.hessian_reason or "the report has no Hessian")
        else:
            yield Figure(getattr(layer.hessian, name))

    return figures


def _verdict(layer: LayerReport) -> Iterator[Figure]:
    yield Figure(float(VERDICTS.index(layer.verdict)))


def _say_count(value: float) -> str:
    return f"{value:.0f}"


def _say_verdict(value: float) -> str:
    return VERDICTS[int(value)]


KINDS: tuple[LimitKind, ...] = (
    LimitKind(
        MAX_VERDICT,
        "verdict",
        "The worst verdict that a layer may have: ok or watch.",
        _verdict,
        _say_verdict,
    ),
    LimitKind(
        "max-step-effect",
        "step effect",
        "lr √κ of a parameter group's p99 scalar: the relative change of the state in one step "
        "of the optimizer; 0.5 is 50 %.",
        _step_effect,
        percent,
    ),
    LimitKind(
        "max-relative-sensitivity",
        "relative sensitivity",
        "κ(ω) = E|dh/dω|² / E|h|² of a parameter group's p99 scalar; of the whole of a dense "
        "matrix.",
        _relative_sensitivity,
    ),
    LimitKind(
        "max-unstable",
        "number of unstable eigenvalues",
        "How many eigenvalues of a layer may have |λ| ≥ 1.",
        _unstable,
        _say_count,
    ),
    LimitKind(
        "max-time-constant",
        "longest time constant",
        "max -1/log|λ| of a layer, in steps.",
        _time_constant,
        duration,
    ),
    LimitKind(
        "min-diagonality",
        "diagonality of the Hessian",
        "Σ H_aa² / Σ H_ab² of a layer, in [1/N, 1].",
        _hessian("diagonality"),
        percent,
    ),
    LimitKind(
        "max-adam-residual",
        "curvature left by Adam",
        "λ_max(D^-½ H D^-½) of a layer: 1 is diagonal, N the worst.",
        _hessian("adam_residual"),
    ),
    *(
        LimitKind(
            f"{MAX_ROUNDING_ERROR}.{dtype}",
            f"rounding error in {dtype}",
            f"Relative error of the state when a parameter group is stored in {dtype} (p99).",
            _rounding(dtype),
            percent,
        )
        for dtype in DTYPES
    ),
)
"""Every kind of limit, in the order in which they are judged."""

BY_NAME: Mapping[str, LimitKind] = {kind.name: kind for kind in KINDS}
