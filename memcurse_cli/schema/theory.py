"""The documents of commands that read no checkpoint: prediction, landscape, autocorrelation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from memcurse_cli.schema.figures import COMPONENTS, Components
from memcurse_cli.schema.report import InputAssumption


@dataclass(frozen=True)
class RingPrediction:
    """Averages over λ drawn uniformly by area from a ring; a number that is null is divergent.

    Attributes:
        inner_modulus: the least |λ|.
        outer_modulus: the largest.
        second_moment: E|h|².
        sensitivity: E|dh/dλ|² at a given gain γ.
    """

    inner_modulus: float
    outer_modulus: float
    second_moment: float | None
    sensitivity: float | None


@dataclass(frozen=True)
class ParameterPrediction:
    """One parameter of one eigenvalue; a number that is None is divergent.

    Attributes:
        sensitivity: E|dh/dω|².
        relative_sensitivity: κ(ω) = E|dh/dω|² / E|h|².
    """

    sensitivity: float | None
    relative_sensitivity: float | None


@dataclass(frozen=True)
class PredictionRow:
    """One eigenvalue under one input; a number that is None is divergent.

    Attributes:
        rho: ρ of the input; None where the input is a mixture.
        modulus: |λ|.
        time_constant: -1/log|λ| in steps; None where |λ| ≥ 1.
        angle: arg λ in radians.
        second_moment: E|h|².
        sensitivity: E|dh/dλ|² at a given gain γ.
        parameters: the parameters of λ and γ by name.
    """

    rho: float | None
    modulus: float
    time_constant: float | None
    angle: float
    second_moment: float | None
    sensitivity: float | None
    parameters: Mapping[str, ParameterPrediction]


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
    autocorrelation: Components | None = field(metadata=COMPONENTS)


@dataclass(frozen=True)
class PredictionDocument:
    """What the theory says of some eigenvalues, and what was assumed.

    Attributes:
        settings: what was assumed.
        rows: one per input, angle and eigenvalue.
        ring: the averages over a ring; null where none was asked for.
    """

    SCHEMA: ClassVar = "memcurse.prediction/1"

    settings: PredictionSettings
    rows: tuple[PredictionRow, ...]
    ring: RingPrediction | None = None


@dataclass(frozen=True)
class Prediction:
    """What the theory says of some eigenvalues, and what was assumed.

    Attributes:
        parametrization: how λ depends on its parameters.
        normalization: how the gain γ does.
        step_size: Δ; None where the parametrisation has none.
        horizon: T in steps, or None for an infinite sequence.
        readout: ``last`` or ``every`` step of it; None is the last.
        autocorrelation: (weight, ρ) or (weight, ρ, ω) of each part of the input's where it is not
            a single ρ^|Δ|, else None.
        rows: one per input, angle and eigenvalue.
        ring: the averages over a ring; None where none was asked for.
    """

    parametrization: str
    normalization: str
    step_size: float | None
    horizon: int | None
    readout: Literal["last", "every"] | None
    autocorrelation: Components | None
    rows: tuple[PredictionRow, ...]
    ring: RingPrediction | None = None

    @property
    def document(self) -> PredictionDocument:
        """The prediction as JSON has it, with what was assumed in an object of its own."""
        assumed = {one.name: getattr(self, one.name) for one in fields(PredictionSettings)}
        return PredictionDocument(PredictionSettings(**assumed), self.rows, self.ring)


Gain = Literal["none", "own", "coupled"]


@dataclass(frozen=True)
class LandscapeParameter:
    """The loss along one parameter, the others at their optimum.

    Attributes:
        name: of the parameter.
        value: what it is at the optimum.
        sensitivity: E|dh/dω|², which is the loss's second derivative there, for an input of unit
            variance.
        relative_sensitivity: κ(ω) = E|dh/dω|² / E|h|²; near the optimum the loss is κ δ².
        max_stable_lr: 2 / E|dh/dω|², the largest stable step of gradient descent; null where the
            loss does not depend on the parameter.
        basin: how far it may be off, to the nearer side, before the loss reaches the level; null
            where it never does.
        steps_across: basin / lr: how many steps of Adam lead out of the basin.
        loss: the loss at each of the offsets, the larger of both sides; null where it diverges.
            Below 1e-13 it is rounding.
        start: where it starts; null without a start.
        gradient: dL/dω there, of L = ½ E|h - h*|² in the input's units; null without a start,
            and where it leaves the range of a float.
        adam_steps: |ω* - ω| / lr from the start; null without one.
        sgd_steps: the same distance over max_stable_lr |gradient|, the pace at the start; null
            without a start, and where the gradient is 0 or leads away from an optimum elsewhere.
    """

    name: str
    value: float
    sensitivity: float
    relative_sensitivity: float
    max_stable_lr: float | None
    basin: float | None
    steps_across: float | None
    loss: tuple[float | None, ...]
    start: float | None = None
    gradient: float | None = None
    adam_steps: float | None = None
    sgd_steps: float | None = None


@dataclass(frozen=True)
class LandscapeView:
    """One parametrisation.

    Attributes:
        parametrization: of λ, by its name in `memcurse predict`.
        gain: ``none`` for γ = 1, ``own`` for a γ = √(1-|λ|²) with a parameter of its own,
            ``coupled`` for one that is computed from λ.
        parameters: in the order of the parametrisation.
        start_loss: the loss at the start; null without one, and where it leaves the range of a
            float.
    """

    parametrization: str
    gain: Gain
    parameters: tuple[LandscapeParameter, ...]
    start_loss: float | None = None


@dataclass(frozen=True)
class LandscapeReport:
    """The loss around one eigenvalue, ½ E|h - h*|² over that of a silent student, ½ E|h*|².

    Attributes:
        modulus: |λ*|.
        time_constant: -1/log|λ*| in steps; null where |λ*| ≥ 1.
        angle: arg λ* in radians.
        step_size: Δ of ``s4``; null where that is not among the parametrisations.
        level: the loss at which a basin ends.
        input: what was assumed of the input and of the optimizer.
        offsets: the distances from the optimum at which the losses were taken.
        views: the parametrisations.
        start_modulus: |λ| where training starts; null without a start.
        start_angle: its angle in radians; null without a start.
    """

    SCHEMA: ClassVar = "memcurse.landscape/1"

    modulus: float
    time_constant: float | None
    angle: float
    step_size: float | None
    level: float
    input: InputAssumption
    offsets: tuple[float, ...]
    views: tuple[LandscapeView, ...]
    start_modulus: float | None = None
    start_angle: float | None = None


Estimator = Literal["unbiased", "biased"]


@dataclass(frozen=True)
class StateCheck:
    """What a state makes of the estimate itself, and what it makes of the mixture.

    Attributes:
        time_constant: τ = -1/log λ of a real λ, in steps.
        second_moment: E h² from R̂, lag by lag.
        fitted_second_moment: E h² from the mixture.
        sensitivity: E (dh/dλ)² from R̂.
        fitted_sensitivity: E (dh/dλ)² from the mixture.
    """

    time_constant: float
    second_moment: float
    fitted_second_moment: float
    sensitivity: float
    fitted_sensitivity: float


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

    SCHEMA: ClassVar = "memcurse.autocorrelation/1"

    data: SampleData
    estimator: Literal["unbiased", "biased"]
    centred: bool
    centring_bias: float
    components: Components = field(metadata=COMPONENTS)
    fit: FitQuality
    states: tuple[StateCheck, ...]
    empirical: EmpiricalDocument
