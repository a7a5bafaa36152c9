"""The schema `memcurse.comparison/1`: what changed between two reports, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from memcurse_cli.schema.figures import DETAIL, Verdict
from memcurse_cli.schema.report import InputAssumption

MatchedBy = Literal["name", "prefix", "sizes", "alone"]
Method = Literal["assignment", "modulus"]


@dataclass(frozen=True)
class Change:
    """One figure in both reports; null where it is not known or diverges.

    Attributes:
        before: in the first report.
        after: in the second.
        divergent_before: whether it diverges in the first.
        divergent_after: whether it diverges in the second.
    """

    before: float | None
    after: float | None
    divergent_before: bool = False
    divergent_after: bool = False


@dataclass(frozen=True)
class GroupComparison:
    """One recurrent parameter group; a side that lacks it has no figures.

    Attributes:
        name: its name in the family.
        relative_sensitivity: κ p99 = E|dh/dω|²/E|h|² of the group.
        step_effect: lr √κ of the p99 scalar.
    """

    name: str
    relative_sensitivity: Change
    step_effect: Change


@dataclass(frozen=True)
class HessianComparison:
    """Scores of the Hessian over the layer's recurrent parameters.

    Attributes:
        diagonality: Σ H_aa² / Σ H_ab².
        sharpness: the largest eigenvalue, per unit of input variance.
        adam_residual: λ_max(D^-½ H D^-½).
    """

    diagonality: Change
    sharpness: Change
    adam_residual: Change


@dataclass(frozen=True)
class SpectrumMove:
    """How matched eigenvalues moved; a decay is -log|λ|, the inverse of the time constant.

    Attributes:
        method: ``assignment`` of least squared change of log decay and angle, or ``modulus``: in
            the order of |λ|.
        matched: how many eigenvalues have a partner.
        only_before: how many of the first report have none.
        only_after: how many of the second have none.
        outward: how many lost more than 5 % of their decay, toward the unit circle or beyond it.
        inward: the reverse: how many would be outward with the reports exchanged.
        time_constant_median: the median of after/before of the time constants with |λ| < 1 in
            both; null where there is none.
        time_constant_least: the smallest such ratio.
        time_constant_most: the largest.
        left_unit_disk: how many went from |λ| < 1 to |λ| ≥ 1.
        entered_unit_disk: how many came the other way.
        largest_angle_change: the largest change of |arg λ| in radians.
        pairs: (re, im) before and after of every matched eigenvalue, if asked for.
    """

    method: Method
    matched: int
    only_before: int
    only_after: int
    outward: int
    inward: int
    time_constant_median: float | None
    time_constant_least: float | None
    time_constant_most: float | None
    left_unit_disk: int
    entered_unit_disk: int
    largest_angle_change: float
    pairs: tuple[tuple[float, float, float, float], ...] | None = field(
        default=None, metadata=DETAIL
    )


@dataclass(frozen=True)
class LayerComparison:
    """One layer that both reports have.

    Attributes:
        name: its name in the first report.
        name_after: its name in the second.
        matched_by: ``name``, ``prefix`` (names equal without one), ``sizes`` (the family, the
            number of eigenvalues and the parameter groups) or ``alone`` (no other layer is left).
        family: its family in the first report.
        family_after: its family in the second.
        verdict: in the first report.
        verdict_after: in the second.
        unstable: how many eigenvalues have |λ| ≥ 1.
        time_constant: the longest -1/log|λ| in steps.
        usable_rate: the largest learning rate that training is expected to bear.
        parameters: the groups of either side.
        hessian: its scores, where a side has them.
        spectrum: how its eigenvalues moved.
        spectrum_reason: why that is not known, or null.
    """

    name: str
    name_after: str
    matched_by: MatchedBy
    family: str
    family_after: str
    verdict: Verdict
    verdict_after: Verdict
    unstable: Change
    time_constant: Change
    usable_rate: Change
    parameters: tuple[GroupComparison, ...]
    hessian: HessianComparison | None
    spectrum: SpectrumMove | None
    spectrum_reason: str | None


@dataclass(frozen=True)
class Comparison:
    """Two reports beside each other.

    Attributes:
        version: of memcurse.
        before: the path of the first checkpoint.
        after: that of the second.
        input: what the first report assumed.
        input_after: what the second assumed.
        verdict: of the first report.
        verdict_after: of the second.
        layers: those that both have, in the order of the first.
        only_before: the names of layers that only the first has.
        only_after: those that only the second has.
    """

    SCHEMA: ClassVar = "memcurse.comparison/1"

    version: str
    before: str
    after: str
    input: InputAssumption
    input_after: InputAssumption
    verdict: Verdict
    verdict_after: Verdict
    layers: tuple[LayerComparison, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
