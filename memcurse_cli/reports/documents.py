"""Every JSON document that memcurse writes, by name, and the dataclass that has its fields.

Most documents are a dataclass of `diagnosis`; those whose layout differs from it are described in
`document_shapes`, field by field as they are written.

Documents that are not a dataclass of `diagnosis`, field by field as they are written.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.diagnosis.autocorrelation import StateCheck
from memcurse_cli.diagnosis.prediction import PredictionRow, RingPrediction
from memcurse_cli.errors import UsageError


@dataclass(frozen=True)
class Component:
    """One part of R(Δ) = Σ weight ρ^|Δ| cos(ωΔ).

    Attributes:
        weight: w ≥ 0, in units of the input's variance.
        rho: ρ in [0, 1] per step; 0 is white noise, 1 a constant or an undamped cosine.
        frequency: ω in radians per step, up to π; absent where it is 0.
    """

    weight: float
    rho: float
    frequency: float = 0.0


@dataclass(frozen=True)
class PredictionSettings:
    """What was assumed of the eigenvalues.

    Attributes:
        parametrization: how λ depends on its parameters.
        normalization: how the gain γ does.
        step_size: Δ; null where the parametrisation has none.
        horizon: T in steps, or null for an infinite sequence.
        readout: ``last`` or ``every`` step of it; null is the last.
        autocorrelation: the input where it is a mixture, else null.
    """

    parametrization: str
    normalization: str
    step_size: float | None
    horizon: int | None
    readout: Literal["last", "every"] | None
    autocorrelation: tuple[Component, ...] | None


@dataclass(frozen=True)
class PredictionDocument:
    """What the theory says of some eigenvalues, and what was assumed.

    Attributes:
        settings: what was assumed.
        rows: one per input, angle and eigenvalue.
        ring: the averages over a ring; null where none was asked for.
    """

    settings: PredictionSettings
    rows: tuple[PredictionRow, ...]
    ring: RingPrediction | None = None


@dataclass(frozen=True)
class SampleData:
    """The samples that an autocorrelation was estimated from.

    Attributes:
        source: the file, or what the data were called.
        sequences: the number N of sequences.
        steps: the number T of steps of each.
        features: the number F of features.
        masked: samples that were left out.
    """

    source: str
    sequences: int
    steps: int
    features: int
    masked: int


@dataclass(frozen=True)
class FitQuality:
    """How well the mixture follows the estimate.

    Attributes:
        relative_rms: the root mean square of values - fitted over all lags, by R̂(0).
        relative_max: the largest |values - fitted|, by R̂(0).
        worst_lag: the lag of that, in steps.
    """

    relative_rms: float
    relative_max: float
    worst_lag: int


@dataclass(frozen=True)
class EmpiricalDocument:
    """The estimate at every lag.

    Attributes:
        lags: Δ in steps.
        values: R̂(Δ) by the estimator.
        fitted: what the estimator would give for the mixture, in the mean.
        standard_errors: of each R̂(Δ).
        standard_error_method: ``sequences`` from the spread between sequences, ``gaussian`` from
            the mixture for a single one.
    """

    lags: tuple[int, ...]
    values: tuple[float, ...]
    fitted: tuple[float, ...]
    standard_errors: tuple[float, ...]
    standard_error_method: Literal["sequences", "gaussian"]


@dataclass(frozen=True)
class AutocorrelationDocument:
    """R̂(Δ) of some sequences and the mixture of decays and damped cosines that follows it.

    Attributes:
        data: where it comes from.
        estimator: ``unbiased`` divides by the number of products, ``biased`` by that of samples.
        centred: whether each feature's mean was taken away.
        centring_bias: what that takes from every lag in the mean; 0 where nothing was.
        components: the mixture R(Δ) = Σ weight ρ^|Δ| cos(ωΔ).
        fit: how well it follows the estimate.
        states: what states that forget within the lags make of both.
        empirical: the estimate.
    """

    data: SampleData
    estimator: Literal["unbiased", "biased"]
    centred: bool
    centring_bias: float
    components: tuple[Component, ...]
    fit: FitQuality
    states: tuple[StateCheck, ...]
    empirical: EmpiricalDocument


@dataclass(frozen=True)
class AssumptionDocument:
    """Something that a checkpoint does not store and ``--assume`` says.

    Attributes:
        key: its name.
        default: what is assumed without it.
        choices: its values; empty for any number.
        meaning: what it decides.
    """

    key: str
    default: str
    choices: tuple[str, ...]
    meaning: str


@dataclass(frozen=True)
class FamilyDocument:
    """One recurrent family.

    Attributes:
        name: its name in ``--family``.
        title: its name in words.
        recognised_by: the tensors that it is recognised by.
        equation: the map from its tensors to λ and γ.
        source: who published it.
        assumptions: what its checkpoints do not store.
    """

    name: str
    title: str
    recognised_by: str
    equation: str
    source: str
    assumptions: tuple[AssumptionDocument, ...]


@dataclass(frozen=True)
class FamiliesDocument:
    """The recurrent families that are recognised.

    Attributes:
        families: in the order in which they are looked for.
    """

    families: tuple[FamilyDocument, ...]


@dataclass(frozen=True)
class FormatDocument:
    """One checkpoint format.

    Attributes:
        name: its name.
        extensions: those that its files usually have; content decides, not they.
        recognised_by: what in the content decides.
    """

    name: str
    extensions: tuple[str, ...]
    recognised_by: str


@dataclass(frozen=True)
class FormatsDocument:
    """The checkpoint formats that are read.

    Attributes:
        formats: in the order in which they are tried.
    """

    formats: tuple[FormatDocument, ...]


@dataclass(frozen=True)
class RuleDocument:
    """What one finding means.

    Attributes:
        code: as in a report; never reused for something else.
        title: a few words.
        source: the equations that it rests on.
        what: what was found.
        why: why it matters to training.
        equation: the figure that decides, as a formula.
        change: what to do about it.
    """

    code: str
    title: str
    source: str
    what: str
    why: str
    equation: str
    change: str


@dataclass(frozen=True)
class RulesDocument:
    """What the findings mean.

    Attributes:
        rules: in the order of their codes.
    """

    rules: tuple[RuleDocument, ...]


Value = float | str | bool | tuple[str, ...] | tuple[float, ...] | dict[str, float] | None
"""What a settings file can set an option to."""


@dataclass(frozen=True)
class SettingDocument:
    """One default.

    Attributes:
        name: the option without its dashes; of a limit its path in the settings file.
        value: what it is; null where there is none.
        origin: the variable or ``FILE:LINE`` that sets it, or ``default``.
        variable: the environment variable that would set it; empty where none does.
        commands: those it holds for.
    """

    name: str
    value: Value
    origin: str
    variable: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class SettingsDocument:
    """The defaults that are in force.

    Attributes:
        file: the settings file; null where there is none.
        settings: the options by name, then the limits.
    """

    file: str | None
    settings: tuple[SettingDocument, ...]


@dataclass(frozen=True)
class Document:
    """One kind of document.

    Attributes:
        name: what `memcurse schema` calls it.
        identifier: what the field ``schema`` says.
        home: the module and class of its fields, imported only when it is asked for.
        command: what writes it.
        summary: what it is, in a line.
    """

    name: str
    identifier: str
    home: str
    command: str
    summary: str

    def load(self) -> Any:
        """The class of its fields."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(module), name)


DOCUMENTS = (
    Document(
        "report",
        "memcurse.report/1",
        "memcurse_cli.schema.report:Report",
        "memcurse inspect PATH --json",
        "A report on one checkpoint; several checkpoints are an array of these.",
    ),
    Document(
        "check",
        "memcurse.check/1",
        "memcurse_cli.diagnosis.check.check:Check",
        "memcurse check PATH --json",
        "Reports held to limits.",
    ),
    Document(
        "comparison",
        "memcurse.comparison/1",
        "memcurse_cli.diagnosis.comparison:Comparison",
        "memcurse compare BEFORE AFTER --json",
        "Two reports layer by layer.",
    ),
    Document(
        "tracking",
        "memcurse.track/1",
        "memcurse_cli.schema.track:Tracking",
        "memcurse track PATH --json",
        "A training run, checkpoint by checkpoint.",
    ),
    Document(
        "prediction",
        "memcurse.prediction/1",
        "memcurse_cli.reports.documents:PredictionDocument",
        "memcurse predict --json",
        "What the theory says of some eigenvalues.",
    ),
    Document(
        "landscape",
        "memcurse.landscape/1",
        "memcurse_cli.schema.landscape:LandscapeReport",
        "memcurse landscape --json",
        "The loss around one eigenvalue under several parametrisations.",
    ),
    Document(
        "hessian",
        "memcurse.hessian/1",
        "memcurse_cli.schema.hessian:HessianReport",
        "memcurse hessian PATH --json",
        "The curvature of the loss over every parameter of a recurrent layer.",
    ),
    Document(
        "autocorrelation",
        "memcurse.autocorrelation/1",
        "memcurse_cli.reports.documents:AutocorrelationDocument",
        "memcurse autocorrelation DATA --json",
        "The statistics of an input, which --autocorrelation reads.",
    ),
    Document(
        "families",
        "memcurse.families/1",
        "memcurse_cli.reports.documents:FamiliesDocument",
        "memcurse families --json",
        "The recurrent families that are recognised.",
    ),
    Document(
        "formats",
        "memcurse.formats/1",
        "memcurse_cli.reports.documents:FormatsDocument",
        "memcurse formats --json",
        "The checkpoint formats that are read.",
    ),
    Document(
        "rules",
        "memcurse.rules/1",
        "memcurse_cli.reports.documents:RulesDocument",
        "memcurse rule --json",
        "What the findings mean.",
    ),
    Document(
        "settings",
        "memcurse.settings/1",
        "memcurse_cli.reports.documents:SettingsDocument",
        "memcurse settings --json",
        "The defaults that are in force, and where they come from.",
    ),
)


def find_document(name: str) -> Document:
    """The document of a name.

    Raises:
        UsageError: there is none.
    """
    for document in DOCUMENTS:
        if document.name == name:
            return document
    raise UsageError(
        f"{shown_place(name)!r} is not a document",
        where="schema",
        remedy=f"known are {', '.join(document.name for document in DOCUMENTS)}",
    )
