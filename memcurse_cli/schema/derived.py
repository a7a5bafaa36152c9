"""The documents that are made of reports: check, comparison and tracking."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

from memcurse_cli.schema.figures import DETAIL, ORDER, Direction, HessianSummary, Quantiles, Verdict
from memcurse_cli.schema.report import InputAssumption, Severity, SkippedLayer, UsableRate

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


StepSource = Literal["pattern", "metadata", "trainer state", "directory", "name"]


@dataclass(frozen=True)
class Spread:
    """Quantiles over eigenvalues, in the figure's unit; null where one is infinite.

    Attributes:
        min: the smallest element.
        p10: the 10th percentile, between elements by linear interpolation.
        p50: the median.
        p90: the 90th percentile.
        p99: the 99th percentile.
        max: the largest element.
        divergent: how many elements are infinite; they sort above every finite one.
    """

    min: float | None
    p10: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    divergent: int = 0


@dataclass(frozen=True)
class TrackedGroup:
    """One recurrent parameter group of a layer at one step.

    Attributes:
        name: its name in the family.
        relative_sensitivity: κ(ω) = E|dh/dω|² / E|h|² over its scalars.
        step_effect: lr √κ of the p99 scalar; null where it diverges or is not computed.
        direction: what a step of the optimizer does to the eigenvalues.
        verdict: this group alone.
    """

    name: str
    relative_sensitivity: Quantiles
    step_effect: float | None
    direction: Direction
    verdict: Verdict


@dataclass(frozen=True)
class TrackedLayer:
    """One recurrent layer at one step.

    Attributes:
        name: its name in the checkpoint.
        family: the family that read it.
        count: the number of eigenvalues.
        unstable: how many have |λ| ≥ 1.
        modulus: |λ|.
        time_constant: -1/log|λ| in steps of the sequence; infinite where |λ| ≥ 1.
        second_moment: E|h|² of each state, for a drive of unit variance.
        groups: the recurrent parameter groups.
        hessian: its scores over the recurrent parameters, where B and C are known.
        usable_rate: the largest learning rate to expect training to bear, or null.
        verdict: the worst of its groups' and of its learning rate's.
        findings: the codes of what is worth telling; `memcurse rule CODE` explains one.
        hidden_feedback: whether gates see the hidden state through dense weights, whose memory is
            not in these eigenvalues.
    """

    name: str
    family: str
    count: int
    unstable: int
    modulus: Spread
    time_constant: Spread
    second_moment: Quantiles
    groups: tuple[TrackedGroup, ...]
    hessian: HessianSummary | None
    usable_rate: UsableRate | None
    verdict: Verdict
    findings: tuple[str, ...]
    hidden_feedback: bool = False


@dataclass(frozen=True)
class WorstGroup:
    """The parameter group that a checkpoint is most sensitive to.

    Attributes:
        layer: its layer's name.
        name: its name in the family.
        relative_sensitivity: κ p99 of the group; null where it diverges.
        step_effect: lr √κ; null where it diverges.
    """

    layer: str
    name: str
    relative_sensitivity: float | None
    step_effect: float | None


@dataclass(frozen=True)
class Summary:
    """One checkpoint in a line, over all its layers.

    Attributes:
        unstable: how many eigenvalues have |λ| ≥ 1.
        modulus: the largest |λ|.
        time_constant_median: the median -1/log|λ| of all eigenvalues, in steps of the sequence;
            null where it is infinite.
        time_constant: the longest; null where it is infinite.
        worst: the group that decides the verdict: of the worst verdict, that of the largest step
            effect. Null where no sensitivity is known.
        usable_rate: the smallest of the layers'; null where none is known.
    """

    unstable: int
    modulus: float
    time_constant_median: float | None
    time_constant: float | None
    worst: WorstGroup | None
    usable_rate: float | None


@dataclass(frozen=True)
class Snapshot:
    """What the report on one checkpoint says.

    Attributes:
        verdict: the worst of the layers'.
        sentence: the verdict in words, on the worst layer; a rate in it holds for all layers.
        input: what was assumed of the input and of the optimizer.
        summary: the checkpoint in a line.
        layers: the recurrent layers, in the checkpoint's order.
        skipped: those that could not be read.
    """

    verdict: Verdict
    sentence: str
    input: InputAssumption
    summary: Summary
    layers: tuple[TrackedLayer, ...]
    skipped: tuple[SkippedLayer, ...] = ()


@dataclass(frozen=True)
class TrackedStep:
    """One checkpoint of the run; it has a snapshot or an error.

    Attributes:
        step: the optimizer step at which it was saved.
        step_source: where that was read: ``pattern`` (--step-pattern on the name), ``metadata``
            (inside the file), ``trainer state`` (trainer_state.json beside it), ``directory`` or
            ``name`` (the name of its directory or of itself).
        path: the checkpoint, as it was found.
        snapshot: what its report says; null where it could not be read.
        error: why it could not be read, on one line; null where it was.
    """

    step: int
    step_source: StepSource
    path: str
    snapshot: Snapshot | None
    error: str | None = None


@dataclass(frozen=True)
class Tracking:
    """A training run, checkpoint by checkpoint.

    Attributes:
        version: of memcurse.
        steps: the checkpoints, by step, ascending.
        sentence: what changed between the first and the last of them that could be read.
        failed: how many could not be read.
        notes: what should be known of how steps were told and figures taken.
    """

    SCHEMA: ClassVar = "memcurse.track/1"

    version: str
    steps: tuple[TrackedStep, ...]
    sentence: str
    failed: int
    notes: tuple[str, ...] = ()
