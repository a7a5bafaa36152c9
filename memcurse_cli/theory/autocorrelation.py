"""The autocorrelation of the input, R(Δ) = E[x(t+Δ) x̄(t)], as a mixture of damped cosines."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr

from memcurse_cli.errors import UsageError
from memcurse_cli.theory.linalg import Array, Complexes, Floats, array_namespace

_EXAMPLE = "write WEIGHT:RHO pairs such as '0.332:0,0.044:0.997', or WEIGHT:RHO:FREQUENCY"
GRAIN = 2.0**22  # angles in whole 1/GRAIN keep every digit times a number of steps

Component = tuple[float, float] | tuple[float, float, float]
"""(weight, ρ) of what only decays, (weight, ρ, ω) of a cosine."""


def turned(angle: Array, steps: Floats | int) -> Array:
    """e^(i angle k), whose angles are not rounded at large k."""
    xp = array_namespace(angle)
    coarse = xp.round(angle * GRAIN) / GRAIN
    return xp.exp(1j * (steps * coarse)) * xp.exp(1j * (steps * (angle - coarse)))


class Decay(NamedTuple):
    """One part of R(Δ), w ρ^|Δ| cos(ω Δ).

    A state with the eigenvalue λ answers it as the mean of two that are driven by ρ^|Δ|, with the
    eigenvalues λ e^(iω) and λ e^(-iω): the frame can turn with a process of R(Δ) = ρ^|Δ| e^(iωΔ).
    """

    weight: float  # w
    rho: float  # ρ
    frequency: float  # ω in radians per step

    @property
    def pole(self) -> complex:
        """ρ e^(iω), whose powers have the real part ρ^Δ cos(ωΔ); real where ω = 0."""
        if self.frequency == 0:
            return self.rho
        return self.rho * complex(math.cos(self.frequency), math.sin(self.frequency))

    def powers(self, lags: Floats) -> Complexes:
        """The pole to powers Δ ≥ 0."""
        return np.asarray(np.power(self.rho, lags) * turned(np.asarray(self.frequency), lags))

    def quadratures(self, lags: Floats) -> list[Floats]:
        """ρ^k cos(ωk), and ρ^k sin(ωk) where it is not zero: what an innovation has left.

        The input is their sum, each with innovations of its own: products add to cos(ω(k-l)).
        """
        if self.frequency == 0 or self.rho == 0:
            return [np.power(self.rho, lags)]
        powers = self.powers(lags)
        return [powers.real, powers.imag]


class Autocorrelation(Struct, frozen=True):
    """R(Δ) = Σ_k w_k ρ_k^|Δ| cos(ω_k Δ) of a wide-sense stationary input.

    ρ = 0 is white noise and ρ = 1 a constant input, or a sinusoid of random phase where it has a
    frequency. Every moment is linear in R, so it is a sum over the parts.
    Raises UsageError: a weight, ρ or ω outside its domain, or an input without variance.
    """

    weights: tuple[float, ...]  # w_k ≥ 0, the variance that each part carries
    rhos: tuple[float, ...]  # ρ_k in [0, 1]
    frequencies: tuple[float, ...] = ()  # ω_k in [0, π], in radians per step; none is 0 throughout

    def __post_init__(self) -> None:
        if not self.frequencies:
            force_setattr(self, "frequencies", (0.0,) * len(self.rhos))
        if len(self.frequencies) != len(self.rhos):
            _refuse(
                f"{len(self.frequencies)} frequencies for {len(self.rhos)} values of rho",
                "give one frequency for each rho, 0 where it only decays, or none",
            )
        if len(self.weights) != len(self.rhos) or not self.weights:
            _refuse(
                f"{len(self.weights)} weights for {len(self.rhos)} values of rho",
                "give one weight for each rho, and at least one",
            )
        for weight, rho, frequency in self.parts:  # what is not in a domain may be nan
            if not 0 <= frequency <= math.pi:
                remedy = "give radians per step: 2π over the period, and 0 for a plain decay"
                _refuse(f"the frequency {frequency:g} is outside [0, π]", remedy)
            if not 0 <= rho <= 1:
                remedy = "0 is white noise and 1 a constant input"
                _refuse(f"rho = {rho:g} is outside [0, 1]", remedy)
            if not 0 <= weight < math.inf:
                remedy = "a weight is the variance that its part of the input carries"
                _refuse(f"the weight {weight:g} is not a finite number of at least 0", remedy)
        # Below the smallest normal number every product with it loses digits.
        if not sys.float_info.min <= self.variance < math.inf:
            _refuse(
                f"an input of variance {self.variance:g} drives no state that could be measured",
                "give weights with a positive, finite sum",
            )

    @classmethod
    def from_rho(cls, rho: float) -> Autocorrelation:
        """R(Δ) = ρ^|Δ|, of variance 1."""
        return cls((1.0,), (float(rho),))

    @classmethod
    def parse(cls, text: str) -> Autocorrelation:
        """Read ``"0.332:0,0.044:0.997"``: weight and ρ of each part, and its ω where it has one."""
        components: list[tuple[float, ...]] = []
        for part in text.split(","):
            try:
                component = tuple(map(float, part.split(":")))
                if len(component) not in (2, 3):
                    raise ValueError("not two or three numbers")
            except ValueError as error:
                _refuse(f"'{part.strip()}' is not a weight and a rho", _EXAMPLE, error)
            components.append(component)
        return cls.from_components(components)

    @classmethod
    def from_components(cls, components: Iterable[Iterable[float]]) -> Autocorrelation:
        """The mixture of (weight, ρ) and (weight, ρ, ω), as iteration gives them."""
        whole = [(*component, 0.0)[:3] for component in components]
        weights, rhos, frequencies = zip(*whole, strict=True) if whole else ((), (), ())
        return cls(weights, rhos, frequencies)

    def __iter__(self) -> Iterator[Component]:
        """(weight, ρ) of each part that only decays, and (weight, ρ, ω) of each cosine."""
        for weight, rho, frequency in self.parts:
            yield (weight, rho, frequency) if frequency > 0 else (weight, rho)

    @property
    def parts(self) -> Iterator[Decay]:
        """Every part."""
        return map(Decay, self.weights, self.rhos, self.frequencies)

    def at(self, lags: Floats) -> Floats:
        """R(Δ) for lags Δ ≥ 0."""
        total = np.zeros(np.shape(lags))
        for part in self.parts:
            total += part.weight * part.quadratures(lags)[0]
        return total

    @property
    def variance(self) -> float:
        """R(0) = Σ_k w_k."""
        try:
            return math.fsum(self.weights)
        except OverflowError:
            return math.inf

    @property
    def is_white(self) -> bool:
        """Whether R is zero at every lag but 0."""
        return all(part.rho == 0 or part.weight == 0 for part in self.parts)


def echoes(autocorrelation: Autocorrelation, lags: Floats) -> Iterator[tuple[float, float, Floats]]:
    """(weight, ρ, e) of independent inputs whose sum has this R(Δ).

    A first innovation has variance 1, later ones 1-ρ²; e_k of one is left after k steps.
    """
    for part in autocorrelation.parts:
        for echo in part.quadratures(lags):
            yield part.weight, part.rho, echo


def _refuse(problem: str, remedy: str, cause: Exception | None = None) -> NoReturn:
    raise UsageError(problem, where="autocorrelation", remedy=remedy) from cause


WHITE = Autocorrelation((1.0,), (0.0,))
