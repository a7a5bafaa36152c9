"""The documents of commands that read no checkpoint: prediction, landscape, autocorrelation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from memcurse_cli.schema.figures import Components, Record
from memcurse_cli.schema.report import InputAssumption


class RingPrediction(Record, frozen=True):
    """Averages over λ drawn uniformly by area from a ring; a number that is null is divergent."""

    inner_modulus: Annotated[float, "the least |λ|."]
    outer_modulus: Annotated[float, "the largest."]
    second_moment: Annotated[float | None, "E|h|²."]
    sensitivity: Annotated[float | None, "E|dh/dλ|² at a given gain γ."]


class ParameterPrediction(Record, frozen=True):
    """One parameter of one eigenvalue; a number that is None is divergent."""

    sensitivity: Annotated[float | None, "E|dh/dω|²."]
    relative_sensitivity: Annotated[float | None, "κ(ω) = E|dh/dω|² / E|h|²."]


class PredictionRow(Record, frozen=True):
    """One eigenvalue under one input; a number that is None is divergent."""

    rho: Annotated[float | None, "ρ of the input; None where the input is a mixture."]
    modulus: Annotated[float, "|λ|."]
    time_constant: Annotated[float | None, "-1/log|λ| in steps; None where |λ| ≥ 1."]
    angle: Annotated[float, "arg λ in radians."]
    second_moment: Annotated[float | None, "E|h|²."]
    sensitivity: Annotated[float | None, "E|dh/dλ|² at a given gain γ."]
    parameters: Annotated[Mapping[str, ParameterPrediction], "the parameters of λ and γ by name."]


class PredictionSettings(Record, frozen=True):
    """What was assumed of the eigenvalues."""

    parametrization: Annotated[str, "how λ depends on its parameters."]
    normalization: Annotated[str, "how the gain γ does."]
    step_size: Annotated[float | None, "Δ; null where the parametrisation has none."]
    horizon: Annotated[int | None, "T in steps, or null for an infinite sequence."]
    readout: Annotated[Literal["last", "every"] | None, "``last`` or ``every`` step; null is last."]
    autocorrelation: Annotated[Components | None, "the input where it is a mixture, else null."]


class Prediction(Record, frozen=True):
    """What the theory says of some eigenvalues."""

    SCHEMA: ClassVar = "memcurse.prediction/1"

    settings: Annotated[PredictionSettings, "what was assumed."]
    rows: Annotated[tuple[PredictionRow, ...], "one per input, angle and eigenvalue."]
    ring: Annotated[RingPrediction | None, "averages over a ring; null where not asked for."] = None


Gain = Literal["none", "own", "coupled"]


class LandscapeParameter(Record, frozen=True):
    """The loss along one parameter, the others at their optimum."""

    name: Annotated[str, "of the parameter."]
    value: Annotated[float, "what it is at the optimum."]
    sensitivity: Annotated[
        float, "E|dh/dω|², the loss's second derivative there, for an input of unit variance."
    ]
    relative_sensitivity: Annotated[
        float, "κ(ω) = E|dh/dω|² / E|h|²; near the optimum the loss is κ δ²."
    ]
    max_stable_lr: Annotated[
        float | None,
        "2 / E|dh/dω|², the largest stable step of gradient descent; null where the loss does not "
        "depend on the parameter.",
    ]
    basin: Annotated[
        float | None,
        "how far it may be off, to the nearer side, before the loss reaches the level; null where "
        "it never does.",
    ]
    steps_across: Annotated[float | None, "basin / lr: how many steps of Adam lead out of it."]
    loss: Annotated[
        tuple[float | None, ...],
        "the loss at each of the offsets, the larger of both sides; null where it diverges. Below "
        "1e-13 it is rounding.",
    ]
    start: Annotated[float | None, "where it starts; null without a start."] = None
    gradient: Annotated[
        float | None,
        "dL/dω there, of L = ½ E|h - h*|² in the input's units; null without a start, and where "
        "it leaves the range of a float.",
    ] = None
    adam_steps: Annotated[float | None, "|ω* - ω| / lr from the start; null without one."] = None
    sgd_steps: Annotated[
        float | None,
        "the same distance over max_stable_lr |gradient|, the pace at the start; null without a "
        "start, and where the gradient is 0 or leads away from an optimum elsewhere.",
    ] = None


class LandscapeView(Record, frozen=True):
    """One parametrisation."""

    parametrization: Annotated[str, "of λ, by its name in `memcurse predict`."]
    gain: Annotated[
        Gain,
        "``none`` for γ = 1, ``own`` for a γ = √(1-|λ|²) with a parameter of its own, ``coupled`` "
        "for one that is computed from λ.",
    ]
    parameters: Annotated[tuple[LandscapeParameter, ...], "in the order of the parametrisation."]
    start_loss: Annotated[
        float | None, "the loss at the start; null without one, or where it leaves a float's range."
    ] = None


class LandscapeReport(Record, frozen=True):
    """The loss around one eigenvalue under several parametrisations.

    It is ½ E|h - h*|² over that of a silent student, ½ E|h*|².
    """

    SCHEMA: ClassVar = "memcurse.landscape/1"

    modulus: Annotated[float, "|λ*|."]
    time_constant: Annotated[float | None, "-1/log|λ*| in steps; null where |λ*| ≥ 1."]
    angle: Annotated[float, "arg λ* in radians."]
    step_size: Annotated[float | None, "Δ of ``s4``; null where that is not among the views."]
    level: Annotated[float, "the loss at which a basin ends."]
    input: Annotated[InputAssumption, "what was assumed of the input and of the optimizer."]
    offsets: Annotated[tuple[float, ...], "distances from the optimum, at which losses were taken."]
    views: Annotated[tuple[LandscapeView, ...], "the parametrisations."]
    start_modulus: Annotated[float | None, "|λ| where training starts; null without one."] = None
    start_angle: Annotated[float | None, "its angle in radians; null without a start."] = None


Estimator = Literal["unbiased", "biased"]


class StateCheck(Record, frozen=True):
    """What a state makes of the estimate itself, and what it makes of the mixture."""

    time_constant: Annotated[float, "τ = -1/log λ of a real λ, in steps."]
    second_moment: Annotated[float, "E h² from R̂, lag by lag."]
    fitted_second_moment: Annotated[float, "E h² from the mixture."]
    sensitivity: Annotated[float, "E (dh/dλ)² from R̂."]
    fitted_sensitivity: Annotated[float, "E (dh/dλ)² from the mixture."]


class SampleData(Record, frozen=True):
    """The samples that an autocorrelation was estimated from."""

    source: Annotated[str, "the file, or what the data were called."]
    sequences: Annotated[int, "the number N of sequences."]
    steps: Annotated[int, "the number T of steps of each."]
    features: Annotated[int, "the number F of features."]
    masked: Annotated[int, "samples that were left out."]


class FitQuality(Record, frozen=True):
    """How well the mixture follows the estimate."""

    relative_rms: Annotated[float, "the root mean square of values - fitted at all lags, by R̂(0)."]
    relative_max: Annotated[float, "the largest |values - fitted|, by R̂(0)."]
    worst_lag: Annotated[int, "the lag of that, in steps."]


class EmpiricalDocument(Record, frozen=True):
    """The estimate at every lag."""

    lags: Annotated[tuple[int, ...], "Δ in steps."]
    values: Annotated[tuple[float, ...], "R̂(Δ) by the estimator."]
    fitted: Annotated[tuple[float, ...], "what the estimator gives for the mixture, in the mean."]
    standard_errors: Annotated[tuple[float, ...], "of each R̂(Δ)."]
    standard_error_method: Annotated[
        Literal["sequences", "gaussian"],
        "``sequences`` from the spread between sequences, ``gaussian`` from the mixture for one.",
    ]


class AutocorrelationDocument(Record, frozen=True):
    """The statistics of an input, which --autocorrelation reads."""

    SCHEMA: ClassVar = "memcurse.autocorrelation/1"

    data: Annotated[SampleData, "where it comes from."]
    estimator: Annotated[
        Estimator, "``unbiased`` divides by the number of products, ``biased`` by that of samples."
    ]
    centred: Annotated[bool, "whether each feature's mean was taken away."]
    centring_bias: Annotated[float, "what that takes from every lag in the mean, or 0."]
    components: Annotated[Components, "the mixture R(Δ) = Σ weight ρ^|Δ| cos(ωΔ)."]
    fit: Annotated[FitQuality, "how well it follows the estimate."]
    states: Annotated[tuple[StateCheck, ...], "what states that forget within lags make of both."]
    empirical: Annotated[EmpiricalDocument, "the estimate."]
