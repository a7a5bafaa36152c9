"""The autocorrelation of the input, R(Δ) = E[x(t+Δ) x̄(t)], as a mixture of exponentials."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.errors import UsageError

_EXAMPLE = "write WEIGHT:RHO pairs such as '0.332:0,0.044:0.997'"


@dataclass(frozen=True)
class Autocorrelation:
    """R(Δ) = Σ_k w_k ρ_k^|Δ| of a wide-sense stationary input.

    ρ = 0 is white noise and ρ = 1 a constant input. Every moment is linear in R, so it is
    evaluated for each ρ_k and summed with the weights.

    Attributes:
        weights: w_k ≥ 0, the variance that each part carries.
        rhos: ρ_k in [0, 1].

    Raises:
        UsageError: a weight or ρ outside its domain, or an input without variance.
    """

    weights: tuple[float, ...]
    rhos: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.rhos) or not self.weights:
            raise UsageError(
                f"{len(self.weights)} weights for {len(self.rhos)} values of rho",
                where="autocorrelation",
                remedy="give one weight for each rho, and at least one",
            )
        for rho in self.rhos:
            if not 0 <= rho <= 1:  # also refuses nan
                raise UsageError(
                    f"rho = {rho:g} is outside [0, 1]",
                    where="autocorrelation",
                    remedy="0 is white noise and 1 a constant input",
                )
        for weight in self.weights:
            if not 0 <= weight < math.inf:
                raise UsageError(
                    f"the weight {weight:g} is not a finite number of at least 0",
                    where="autocorrelation",
                    remedy="a weight is the variance that its part of the input carries",
                )
        # Below the smallest normal number every product with it loses digits.
        if not sys.float_info.min <= self.variance < math.inf:
            raise UsageError(
                f"an input of variance {self.variance:g} drives no state that could be measured",
                where="autocorrelation",
                remedy="give weights with a positive, finite sum",
            )

    @classmethod
    def from_rho(cls, rho: float) -> Autocorrelation:
        """R(Δ) = ρ^|Δ|, of variance 1.

        Raises:
            UsageError: ρ outside [0, 1].
        """
        return cls((1.0,), (float(rho),))

    @classmethod
    def parse(cls, text: str) -> Autocorrelation:
        """Read ``"0.332:0,0.044:0.997"``: pairs of weight and ρ.

        Raises:
            UsageError: the text is not a list of such pairs, or a value is outside its domain.
        """
        weights, rhos = [], []
        for pair in text.split(","):
            weight, separator, rho = pair.partition(":")
            try:
                if not separator:
                    raise ValueError("no colon")
                weights.append(float(weight))
                rhos.append(float(rho))
            except ValueError as error:
                raise UsageError(
                    f"'{pair.strip()}' is not a weight and a rho",
                    where="autocorrelation",
                    remedy=_EXAMPLE,
                ) from error
        return cls(tuple(weights), tuple(rhos))

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """The pairs (weight, ρ)."""
        return iter(zip(self.weights, self.rhos, strict=True))

    def at(self, lags: NDArray[np.float64]) -> NDArray[np.float64]:
        """R(Δ) for lags Δ ≥ 0."""
        decays = np.power(np.array(self.rhos)[:, None], lags)
        return np.asarray(np.array(self.weights) @ decays)

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
        return all(rho == 0 or weight == 0 for weight, rho in self)


WHITE = Autocorrelation((1.0,), (0.0,))
