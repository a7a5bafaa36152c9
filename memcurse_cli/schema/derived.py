"""The documents that are made of reports, as those of check, compare, track, groups and init."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, cast

from memcurse_cli.schema.figures import ORDER, Record, Verdict
from memcurse_cli.schema.report import Action, InputAssumption, Report, Severity, UsableRate

Outcome = Literal["within", "beyond", "found", "not computed"]


class Judgement(Record, frozen=True):
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


class CheckedReport(Record, frozen=True):
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


class Check(Record, frozen=True):
    """Reports held to limits."""

    SCHEMA: ClassVar = "memcurse.check/2"

    version: Annotated[str, "of memcurse."]
    passed: Annotated[bool, "whether nothing fails."]
    default_policy: Annotated[
        bool, "whether nothing was limited, so cursed layers and findings of severity error fail."
    ]
    tolerance: Annotated[
        float | None,
        "by how much, relatively, a figure may be worse than in the baseline; None without one.",
    ]
    reports: Annotated[tuple[CheckedReport, ...], "one per checkpoint."]


MatchedBy = Literal["name", "prefix", "sizes", "alone"]
Method = Literal["assignment", "modulus"]


class Change(Record, frozen=True):
    """One figure in both reports; null where it is not known or diverges."""

    figure: Annotated[str, "its name among the scalars of a report, as `step_effect/nu_log`."]
    before: Annotated[float | None, "in the first report."]
    after: Annotated[float | None, "in the second."]
    divergent_before: Annotated[bool, "whether it diverges in the first."] = False
    divergent_after: Annotated[bool, "whether it diverges in the second."] = False


class SpectrumMove(Record, frozen=True):
    """How matched eigenvalues moved; a decay is -log|λ|, the inverse of the time constant."""

    DETAIL = ("pairs",)

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
        "the median of after/before of the time constants with |λ| < 1 in both, or null.",
    ]
    time_constant_least: Annotated[float | None, "the smallest such ratio."]
    time_constant_most: Annotated[float | None, "the largest."]
    left_unit_disk: Annotated[int, "how many went from |λ| < 1 to |λ| ≥ 1."]
    entered_unit_disk: Annotated[int, "how many came the other way."]
    largest_angle_change: Annotated[float, "the largest change of |arg λ| in radians."]
    pairs: Annotated[
        tuple[tuple[float, float, float, float], ...] | None,
        "(re, im) before and after of every matched eigenvalue, if asked for.",
    ] = None


class LayerComparison(Record, frozen=True):
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
    changes: Annotated[tuple[Change, ...], "every figure that a side has."]
    spectrum: Annotated[SpectrumMove | None, "how its eigenvalues moved."]
    spectrum_reason: Annotated[str | None, "why that is not known, or null."]


class Compared(Record, frozen=True):
    """One of the two reports as a whole."""

    path: Annotated[str, "the checkpoint."]
    input: Annotated[InputAssumption, "what the report assumed."]
    verdict: Annotated[Verdict, "its verdict."]
    memory: Annotated[float | None, "the longest of its layers'; null where one never forgets."]
    gates_alone: Annotated[bool, "whether hidden weights, not looked at, can hold a longer memory."]
    usable_rate: Annotated[UsableRate, "the smallest of its layers'."]
    alone: Annotated[tuple[str, ...], "the names of layers that only it has."]


class Comparison(Record, frozen=True):
    """Two reports layer by layer."""

    SCHEMA: ClassVar = "memcurse.comparison/2"

    version: Annotated[str, "of memcurse."]
    before: Annotated[Compared, "the first report."]
    after: Annotated[Compared, "the second."]
    layers: Annotated[tuple[LayerComparison, ...], "those that both have, in the first's order."]


StepSource = Literal["pattern", "metadata", "trainer state", "directory", "name"]


class TrackedStep(Record, frozen=True):
    """One checkpoint of the run; it has a report or an error."""

    step: Annotated[int, "the optimizer step at which it was saved."]
    step_source: Annotated[
        StepSource,
        "where that was read: ``pattern`` (--step-pattern on the name), ``metadata`` (inside the "
        "file), ``trainer state`` (trainer_state.json beside it), ``directory`` or ``name`` (the "
        "name of its directory or of itself).",
    ]
    path: Annotated[str, "the checkpoint, as it was found."]
    report: Annotated[
        Report | None,
        "its report, without what names a path, or what to run; null where it could not be read.",
    ]
    error: Annotated[str | None, "why it could not be read, on one line; null where it was."] = None


class Tracking(Record, frozen=True):
    """A training run, checkpoint by checkpoint."""

    SCHEMA: ClassVar = "memcurse.track/2"

    version: Annotated[str, "of memcurse."]
    steps: Annotated[tuple[TrackedStep, ...], "the checkpoints, by step, ascending."]
    sentence: Annotated[str, "what changed from the first to the last of them that could be read."]
    failed: Annotated[int, "how many could not be read."]
    notes: Annotated[tuple[str, ...], "what to know of how steps were told and figures taken."] = ()


class DrawnTensor(Record, frozen=True):
    """One tensor of an initial layer."""

    name: Annotated[str, "in the layer's library."]
    shape: Annotated[tuple[int, ...], "its shape."]
    least: Annotated[float, "its smallest value."]
    most: Annotated[float, "its largest."]


class Initialization(Record, frozen=True):
    """Initial parameters of a recurrent layer for a memory, and the report on them."""

    SCHEMA: ClassVar = "memcurse.initialization/1"

    version: Annotated[str, "of memcurse."]
    family: Annotated[str, "the layer's."]
    method: Annotated[str, "``--method``."]
    rule: Annotated[str, "what it draws."]
    wanted: Annotated[tuple[float, float], "LO and HI of ``--memory`` in steps."]
    seed: Annotated[int, "of NumPy's generator."]
    tensors: Annotated[tuple[DrawnTensor, ...], "what was drawn, in single precision."]
    report: Annotated[Report, "that of `memcurse inspect`, at the horizon asked for."]


class ParameterGroup(Record, frozen=True):
    """Recurrent parameters that an optimizer gives one rate."""

    params: Annotated[tuple[str, ...], "their tensors in the checkpoint."]
    lr: Annotated[float, "the rate."]
    weight_decay: Annotated[float, "0."]


class NotJudged(Record, frozen=True):
    """A layer whose usable rate is not known, so that it keeps its learning rate."""

    layer: Annotated[str, "its name in the checkpoint."]
    reason: Annotated[str, "why."]


class ParameterGroups(Record, frozen=True):
    """A network's parameters as an optimizer takes them."""

    SCHEMA: ClassVar = "memcurse.groups/1"

    groups: Annotated[tuple[ParameterGroup, ...], "the recurrent ones, by their rate."]
    learning_rate: Annotated[float, "the rate of all others, whose weight decay is your own."]
    not_judged: Annotated[tuple[NotJudged, ...], "in the checkpoint's order."]


def parameter_groups(report: Report) -> ParameterGroups:
    """The groups of a report by the names of their tensors; see `Report.groups`."""
    *recurrent, rest = report.groups()
    left = [NotJudged(one.name, one.not_judged) for one in report.layers if one.not_judged]
    left += [NotJudged(one.name, one.reason) for one in report.skipped]
    groups = (ParameterGroup(**{**one, "params": tuple(one["params"])}) for one in recurrent)
    return ParameterGroups(tuple(groups), rest["lr"], tuple(left))
