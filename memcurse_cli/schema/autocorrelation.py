"""The schema `memcurse.autocorrelation/1`: the statistics of an input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from memcurse_cli.schema.figures import COMPONENTS, Components

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
