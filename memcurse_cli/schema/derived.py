"""The documents that are made of reports: check, comparison and tracking."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, cast

from memcurse_cli.schema.figures import DETAIL, ORDER, Direction, HessianSummary, Quantiles, Verdict
from memcurse_cli.schema.report import (
    Action,
    InputAssumption,
    Severity,
    SkippedLayer,
    UsableRate,
)

Outcome = Literal["within", "beyond", "found", "not computed"]


@dataclass(frozen=True)
class Judgement:
    """One figure or finding of a layer or of the model, held to the policy."""

    layer: Annotated[str, "the layer's name; empty for the model, and for layers not judged."]
    family: Annotated[str, "its family; empty for the model."]
    rule: Annotated[
        str,
        "the limit's name; a finding's code; ``findings`` where no finding fails, ``not-judged`` "
        "for layers that were not, and ``readable`` for a layer that could not be read.",
    ]
    outcome: Annotated[
        Outcome,
        "``within`` or ``beyond`` a limit, ``found`` for a finding, ``not computed`` where the "
        "report lacks the figure.",
    ]
    fails: Annotated[bool, "whether it fails the check."]
    subject: Annotated[str, "the parameter group; empty for the layer."] = ""
    tensor: Annotated[str, "that group's tensor."] = ""
    figure: Annotated[
        float | str | None,
        "the figure; None where it diverges or is missing. Of a finding the one that it grows "
        "with, if any; of layers that were not judged how many they are.",
    ] = None
    diverges: Annotated[bool, "whether the figure is infinite."] = False
    bound: Annotated[float | str | None, "the limit."] = None
    severity: Annotated[
        Severity, "of the finding; error for a limit, warning where something is not computed."
    ] = "error"
    message: Annotated[str, "what is wrong, in words."] = ""
    advice: Annotated[str, "what to do about it; may be empty."] = ""
    origin: Annotated[
        str, "who set the limit: an option, or a file and line; empty under the default policy."
    ] = ""
    known: Annotated[bool, "whether it failed in the baseline already, and is not worse."] = False
    baseline: Annotated[float | str | None, "the figure in the baseline."] = None

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
    """One checkpoint's report, judged."""

    path: Annotated[str, "the checkpoint."]
    verdict: Annotated[Verdict, "the report's verdict."]
    layers: Annotated[int, "how many layers were read."]
    judgements: Annotated[
        tuple[Judgement, ...], "every figure and finding that the policy says something about."
    ]
    sentence: Annotated[str, "the report's, the verdict in words."]
    memory: Annotated[float | None, "the longest in steps; None where one never ends."]
    usable_rate: Annotated[UsableRate, "the smallest of the layers'."]
    learning_rate: Annotated[float, "the largest rate that parameters are trained at."]
    actions: Annotated[tuple[Action, ...], "what the report says to do, the most urgent first."]

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
    """Reports held to limits."""

    SCHEMA: ClassVar = "memcurse.check/2"

    version: Annotated[str, "of memcurse."]
    passed: Annotated[bool, "whether nothing fails."]
    default_policy: Annotated[
        bool,
        "whether nothing was limited, so that cursed layers and findings of severity error fail.",
    ]
    tolerance: Annotated[
        float | None,
        "by how much, relatively, a figure may be worse than in the baseline; None without a "
        "baseline.",
    ]
    reports: Annotated[tuple[CheckedReport, ...], "one per checkpoint."]


MatchedBy = Literal["name", "prefix", "sizes", "alone"]
Method = Literal["assignment", "modulus"]


@dataclass(frozen=True)
class Change:
    """One figure in both reports; null where it is not known or diverges."""

    before: Annotated[float | None, "in the first report."]
    after: Annotated[float | None, "in the second."]
    divergent_before: Annotated[bool, "whether it diverges in the first."] = False
    divergent_after: Annotated[bool, "whether it diverges in the second."] = False


@dataclass(frozen=True)
class GroupComparison:
    """One recurrent parameter group; a side that lacks it has no figures."""

    name: Annotated[str, "its name in the family."]
    relative_sensitivity: Annotated[Change, "κ p99 = E|dh/dω|²/E|h|² of the group."]
    step_effect: Annotated[Change, "lr √κ of the p99 scalar."]


@dataclass(frozen=True)
class HessianComparison:
    """Scores of the Hessian over the layer's recurrent parameters."""

    diagonality: Annotated[Change, "Σ H_aa² / Σ H_ab²."]
    sharpness: Annotated[Change, "the largest eigenvalue, per unit of input variance."]
    adam_residual: Annotated[Change, "λ_max(D^-½ H D^-½)."]


@dataclass(frozen=True)
class SpectrumMove:
    """How matched eigenvalues moved; a decay is -log|λ|, the inverse of the time constant."""

    method: Annotated[
        Method,
        "``assignment`` of least squared change of log decay and angle, or ``modulus``: in the "
        "order of |λ|.",
    ]
    matched: Annotated[int, "how many eigenvalues have a partner."]
    only_before: Annotated[int, "how many of the first report have none."]
    only_after: Annotated[int, "how many of the second have none."]
    outward: Annotated[
        int, "how many lost more than 5 % of their decay, toward the unit circle or beyond it."
    ]
    inward: Annotated[int, "the reverse: how many would be outward with the reports exchanged."]
    time_constant_median: Annotated[
        float | None,
        "the median of after/before of the time constants with |λ| < 1 in both; null where there "
        "is none.",
    ]
    time_constant_least: Annotated[float | None, "the smallest such ratio."]
    time_constant_most: Annotated[float | None, "the largest."]
    left_unit_disk: Annotated[int, "how many went from |λ| < 1 to |λ| ≥ 1."]
    entered_unit_disk: Annotated[int, "how many came the other way."]
    largest_angle_change: Annotated[float, "the largest change of |arg λ| in radians."]
    pairs: Annotated[
        tuple[tuple[float, float, float, float], ...] | None,
        "(re, im) before and after of every matched eigenvalue, if asked for.",
    ] = field(default=None, metadata=DETAIL)


@dataclass(frozen=True)
class LayerComparison:
    """One layer that both reports have."""

    name: Annotated[str, "its name in the first report."]
    name_after: Annotated[str, "its name in the second."]
    matched_by: Annotated[
        MatchedBy,
        "``name``, ``prefix`` (names equal without one), ``sizes`` (the family, the number of "
        "eigenvalues and the parameter groups) or ``alone`` (no other layer is left).",
    ]
    family: Annotated[str, "its family in the first report."]
    family_after: Annotated[str, "its family in the second."]
    verdict: Annotated[Verdict, "in the first report."]
    verdict_after: Annotated[Verdict, "in the second."]
    unstable: Annotated[Change, "how many eigenvalues have |λ| ≥ 1."]
    time_constant: Annotated[Change, "the longest -1/log|λ| in steps."]
    usable_rate: Annotated[Change, "the largest learning rate that training is expected to bear."]
    parameters: Annotated[tuple[GroupComparison, ...], "the groups of either side."]
    hessian: Annotated[HessianComparison | None, "its scores, where a side has them."]
    spectrum: Annotated[SpectrumMove | None, "how its eigenvalues moved."]
    spectrum_reason: Annotated[str | None, "why that is not known, or null."]


@dataclass(frozen=True)
class Comparison:
    """Two reports layer by layer."""

    SCHEMA: ClassVar = "memcurse.comparison/1"

    version: Annotated[str, "of memcurse."]
    before: Annotated[str, "the path of the first checkpoint."]
    after: Annotated[str, "that of the second."]
    input: Annotated[InputAssumption, "what the first report assumed."]
    input_after: Annotated[InputAssumption, "what the second assumed."]
    verdict: Annotated[Verdict, "of the first report."]
    verdict_after: Annotated[Verdict, "of the second."]
    layers: Annotated[
        tuple[LayerComparison, ...], "those that both have, in the order of the first."
    ]
    only_before: Annotated[tuple[str, ...], "the names of layers that only the first has."]
    only_after: Annotated[tuple[str, ...], "those that only the second has."]


StepSource = Literal["pattern", "metadata", "trainer state", "directory", "name"]


@dataclass(frozen=True)
class Spread:
    """Quantiles over eigenvalues, in the figure's unit; null where one is infinite."""

    min: Annotated[float | None, "the smallest element."]
    p10: Annotated[float | None, "the 10th percentile, between elements by linear interpolation."]
    p50: Annotated[float | None, "the median."]
    p90: Annotated[float | None, "the 90th percentile."]
    p99: Annotated[float | None, "the 99th percentile."]
    max: Annotated[float | None, "the largest element."]
    divergent: Annotated[
        int, "how many elements are infinite; they sort above every finite one."
    ] = 0


@dataclass(frozen=True)
class TrackedGroup:
    """One recurrent parameter group of a layer at one step."""

    name: Annotated[str, "its name in the family."]
    relative_sensitivity: Annotated[Quantiles, "κ(ω) = E|dh/dω|² / E|h|² over its scalars."]
    step_effect: Annotated[
        float | None, "lr √κ of the p99 scalar; null where it diverges or is not computed."
    ]
    direction: Annotated[Direction, "what a step of the optimizer does to the eigenvalues."]


@dataclass(frozen=True)
class TrackedLayer:
    """One recurrent layer at one step."""

    name: Annotated[str, "its name in the checkpoint."]
    family: Annotated[str, "the family that read it."]
    count: Annotated[int, "the number of eigenvalues."]
    unstable: Annotated[int, "how many have |λ| ≥ 1."]
    modulus: Annotated[Spread, "|λ|."]
    time_constant: Annotated[Spread, "-1/log|λ| in steps of the sequence; infinite where |λ| ≥ 1."]
    second_moment: Annotated[Quantiles, "E|h|² of each state, for a drive of unit variance."]
    groups: Annotated[tuple[TrackedGroup, ...], "the recurrent parameter groups."]
    hessian: Annotated[
        HessianSummary | None, "its scores over the recurrent parameters, where B and C are known."
    ]
    usable_rate: Annotated[
        UsableRate | None, "the largest learning rate to expect training to bear, or null."
    ]
    verdict: Annotated[Verdict, "the worst of its groups' and of its learning rate's."]
    findings: Annotated[
        tuple[str, ...], "the codes of what is worth telling; `memcurse rule CODE` explains one."
    ]
    hidden_feedback: Annotated[
        bool,
        "whether gates see the hidden state through dense weights, whose memory is not in these "
        "eigenvalues.",
    ] = False


@dataclass(frozen=True)
class WorstGroup:
    """The parameter group that a checkpoint is most sensitive to."""

    layer: Annotated[str, "its layer's name."]
    name: Annotated[str, "its name in the family."]
    relative_sensitivity: Annotated[float | None, "κ p99 of the group; null where it diverges."]
    step_effect: Annotated[float | None, "lr √κ; null where it diverges."]


@dataclass(frozen=True)
class Summary:
    """One checkpoint in a line, over all its layers."""

    unstable: Annotated[int, "how many eigenvalues have |λ| ≥ 1."]
    modulus: Annotated[float, "the largest |λ|."]
    time_constant_median: Annotated[
        float | None,
        "the median -1/log|λ| of all eigenvalues, in steps of the sequence; null where it is "
        "infinite.",
    ]
    time_constant: Annotated[float | None, "the longest; null where it is infinite."]
    worst: Annotated[
        WorstGroup | None,
        "the group that decides the verdict: of the worst verdict, that of the largest step "
        "effect. Null where no sensitivity is known.",
    ]
    usable_rate: Annotated[float | None, "the smallest of the layers'; null where none is known."]


@dataclass(frozen=True)
class Snapshot:
    """What the report on one checkpoint says."""

    verdict: Annotated[Verdict, "the worst of the layers'."]
    sentence: Annotated[
        str, "the verdict in words, on the worst layer; a rate in it holds for all layers."
    ]
    input: Annotated[InputAssumption, "what was assumed of the input and of the optimizer."]
    summary: Annotated[Summary, "the checkpoint in a line."]
    layers: Annotated[tuple[TrackedLayer, ...], "the recurrent layers, in the checkpoint's order."]
    skipped: Annotated[tuple[SkippedLayer, ...], "those that could not be read."] = ()


@dataclass(frozen=True)
class TrackedStep:
    """One checkpoint of the run; it has a snapshot or an error."""

    step: Annotated[int, "the optimizer step at which it was saved."]
    step_source: Annotated[
        StepSource,
        "where that was read: ``pattern`` (--step-pattern on the name), ``metadata`` (inside the "
        "file), ``trainer state`` (trainer_state.json beside it), ``directory`` or ``name`` (the "
        "name of its directory or of itself).",
    ]
    path: Annotated[str, "the checkpoint, as it was found."]
    snapshot: Annotated[Snapshot | None, "what its report says; null where it could not be read."]
    error: Annotated[str | None, "why it could not be read, on one line; null where it was."] = None


@dataclass(frozen=True)
class Tracking:
    """A training run, checkpoint by checkpoint."""

    SCHEMA: ClassVar = "memcurse.track/2"

    version: Annotated[str, "of memcurse."]
    steps: Annotated[tuple[TrackedStep, ...], "the checkpoints, by step, ascending."]
    sentence: Annotated[
        str, "what changed between the first and the last of them that could be read."
    ]
    failed: Annotated[int, "how many could not be read."]
    notes: Annotated[
        tuple[str, ...], "what should be known of how steps were told and figures taken."
    ] = ()
