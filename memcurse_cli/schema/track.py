"""The schema `memcurse.track/1`: a training run, checkpoint by checkpoint.

Every figure is that of the report which `memcurse inspect` gives of the same checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from memcurse_cli.schema.figures import Direction, HessianSummary, Quantiles, Verdict
from memcurse_cli.schema.report import InputAssumption, SkippedLayer, UsableRate

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
