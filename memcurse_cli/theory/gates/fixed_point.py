"""What a gated cell takes into its state: a function of a Gaussian pre-activation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gates.quadrature import Preactivation, mean_of

Floats = NDArray[np.float64]


class CandidateMoments(NamedTuple):
    """Of what every unit takes in.

    Attributes:
        mean: (n,) E u.
        square: (n,) E u².
    """

    mean: Floats
    square: Floats

    @property
    def variance(self) -> Floats:
        """E u² - (E u)², where rounding leaves nothing below 0."""
        return np.maximum(self.square - self.mean**2, 0.0)


class Candidate(Protocol):
    """u = f(n) with n Gaussian."""

    @property
    def bounded(self) -> bool:
        """Whether |u| ≤ 1."""

    def moments(self, preactivation: Preactivation) -> CandidateMoments:
        """E u and E u² of every unit, for n ~ N(b, σ²) in NumPy arrays."""


@dataclass(frozen=True)
class Tanh:
    """u = tanh(n)."""

    bounded = True

    def moments(self, preactivation: Preactivation) -> CandidateMoments:
        """By the trapezoidal rule of `gaussian_gates`."""
        return CandidateMoments(
            np.asarray(mean_of(np.tanh, preactivation)),
            np.asarray(mean_of(lambda n: np.tanh(n) ** 2, preactivation)),
        )


@dataclass(frozen=True)
class Relu:
    """u = max(n, 0)."""

    bounded = False

    def moments(self, preactivation: Preactivation) -> CandidateMoments:
        """``E u = b Φ(b/σ) + σ φ(b/σ)`` and ``E u² = (b² + σ²) Φ(b/σ) + b σ φ(b/σ)``."""
        from scipy.special import ndtr

        mean, spread = preactivation.mean, preactivation.spread
        moving = spread > 0
        place = mean / np.where(moving, spread, 1.0)
        above = np.where(moving, ndtr(place), mean > 0)
        density = spread * np.exp(-(place**2) / 2) / math.sqrt(2 * math.pi)
        first = mean * above + density
        # Far below 0 the two terms cancel, and neither moment is negative.
        return CandidateMoments(
            np.maximum(first, 0.0), np.maximum(spread**2 * above + mean * first, 0.0)
        )


TANH = Tanh()
RELU = Relu()
