"""The schema `memcurse.prediction/1`: what the theory says of some eigenvalues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from memcurse_cli.schema.figures import COMPONENTS, Components


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
