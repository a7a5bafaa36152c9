"""What eigenvalues of a ring cost on average, as an LRU draws them at initialisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from memcurse_cli.diagnosis.finite import finite
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.errors import UsageError
from memcurse_cli.theory.parametrization import normalizing_log_gain
from memcurse_cli.theory.ring import ring_moments

Ring = tuple[float, float]
"""The least and the largest |λ|."""

ROUND_GAINS = ("none", "lru", "coupled")
"""Normalisations whose γ does not depend on the angle of λ."""


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


def read_ring(given: Ring | str | None) -> Ring | None:
    """Both radii, from ``"0.9:0.999"`` too.

    Raises:
        UsageError: a text that is not two numbers.
    """
    if not isinstance(given, str):
        return given
    try:
        inner, outer = map(float, given.split(":"))
    except ValueError:
        raise UsageError(
            f"'{given}' is not MIN:MAX", where="--ring", remedy="give two radii, such as 0.9:0.999"
        ) from None
    return inner, outer


def predict_ring(
    radii: Ring, variance: float, settings: Settings, normalization: str
) -> RingPrediction:
    """E|h|² and E|dh/dλ|² averaged over a ring.

    Args:
        radii: the least and the largest |λ|.
        variance: R(0) of the input, which is all of it that the average depends on.
        settings: the horizon, and where it is read.
        normalization: none, lru or coupled.

    Raises:
        UsageError: radii that make no ring or have no average, or a gain that depends on angles.
    """
    inner, outer = radii
    if not 0 <= inner <= outer < math.inf:
        raise UsageError(
            f"no ring goes from {inner:g} to {outer:g}",
            where="--ring",
            remedy="give the smaller radius first, for example 0.9:0.999",
        )
    if outer >= 1 and (settings.horizon is None or normalization != "none"):
        raise UsageError(
            f"a ring up to {outer:g} averages to no number without end, and has no γ = √(1-|λ|²)",
            where="--ring",
            remedy="stay below 1, or give --horizon T and no normalization",
        )
    if normalization not in ROUND_GAINS:
        raise UsageError(
            f"under the normalization {normalization} the average depends on the angles too",
            where="--ring",
            remedy=f"choose --normalization {', '.join(ROUND_GAINS)}",
        )
    log_inner, log_outer = (math.log(radius) if radius else -math.inf for radius in radii)
    found = ring_moments(
        log_inner,
        log_outer,
        variance,
        settings.horizon,
        settings.state_readout,
        np.zeros_like if normalization == "none" else normalizing_log_gain,
    )
    return RingPrediction(
        inner,
        outer,
        *map(finite, found),
    )
