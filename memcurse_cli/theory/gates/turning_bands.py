"""Quantiles of |a| of a complex Gaussian a, with which |λ| = σ(|a|) of a turning gate rises."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gates.turning_gates import TurningGates

Floats = NDArray[np.float64]

COUNTS = (64, 256, 1024, 4096)
"""Steps of the rule, tried in turn until one of twice as many agrees."""
AGREEMENT = 1e-6
"""Of the shares by the two."""
REACH = 6.5
"""Standard deviations of the outer Gaussian: beyond are 8e-11."""
FARTHEST = 9.0
"""No quantile that is asked for lies farther from the mean, in standard deviations."""
SMALLEST_SPREAD = 1e-8
"""A narrower direction is taken as this wide, relative to the other one and the mean."""
FLAT = 1e-4
"""Of |E a|: where a moves by no more, |a| is taken as linear in it."""
HALVINGS = 28
CHUNK = 1 << 17
"""Nodes times units that are held at once."""


def radius_quantiles(gates: TurningGates, shares: tuple[float, ...]) -> Floats:
    """|a| below which it is at these shares of the steps.

    With a = u + iv in the directions in which the parts are independent, and ``v = r sin β``,

        P(|a| ≤ r) = ∫ N(v) ( Φ((r cos β - E u)/s) - Φ((-r cos β - E u)/s) ) r cos β dβ

    over -π/2 ≤ β ≤ π/2. The integrand is even around both ends, so that the trapezoidal rule
    converges geometrically, over the part where v lies within reach. The share rises with r, and
    its root is found by halving. |a| is right to 1e-7 of it.

    Args:
        gates: a of the n units.
        shares: in (0, 1).

    Returns:
        (shares, n). A unit that does not move has one value.
    """
    found = _linear(gates, shares)
    flat = gates.along <= FLAT * np.abs(gates.mean)
    for row, share in enumerate(shares):
        units = np.flatnonzero(~flat & (gates.along > 0))
        for count in COUNTS:
            left = []
            length = max(CHUNK // count, 1)
            for some in (units[at : at + length] for at in range(0, units.size, length)):
                piece = gates.take(some)
                found[row, some] = _quantile(piece, share, count)
                finer = _share_below(piece, found[row, some], 2 * count)
                left.append(some[np.abs(finer - share) > AGREEMENT])
            units = np.concatenate(left) if left else units
    return found


def _linear(gates: TurningGates, shares: tuple[float, ...]) -> Floats:
    """Those of a Gaussian with the spread of a in the direction of its mean."""
    from scipy.special import ndtri

    centre = np.abs(gates.mean)
    toward = gates.mean / np.where(centre > 0, centre, 1.0)
    spread = np.hypot(toward.real * gates.along, toward.imag * gates.across)
    return np.asarray(centre + np.asarray(ndtri(shares))[:, None] * spread)


def _quantile(gates: TurningGates, share: float, count: int) -> Floats:
    """The root, between the nearest and the farthest place of an a that is not too unlikely."""
    centre = np.abs(gates.mean)
    below = np.maximum(centre - FARTHEST * gates.along, 0.0)
    above = centre + FARTHEST * gates.along
    for _ in range(HALVINGS):
        middle = (below + above) / 2
        over = _share_below(gates, middle, count) > share
        below, above = np.where(over, below, middle), np.where(over, middle, above)
    return (below + above) / 2


def _share_below(gates: TurningGates, radius: Floats, count: int) -> Floats:
    """P(|a| ≤ r), (n,)."""
    from scipy.special import ndtr

    mean, least = gates.mean, SMALLEST_SPREAD * (np.abs(gates.mean) + gates.along)
    along, across = np.maximum(gates.along, least), np.maximum(gates.across, least)
    size = np.maximum(radius, np.finfo(np.float64).tiny)
    heights = (mean.imag - REACH * across, mean.imag + REACH * across)
    ends = [np.arcsin(np.clip(height / size, -1.0, 1.0)) for height in heights]
    part = np.linspace(0.0, 1.0, count + 1)[:, None]
    angle = ends[0] * (1 - part) + ends[1] * part
    half = size * np.cos(angle)
    place = (size * np.sin(angle) - mean.imag) / across
    inside = ndtr((half - mean.real) / along) - ndtr((-half - mean.real) / along)
    density = np.exp(-(place**2) / 2) / np.sqrt(2 * np.pi) * half / across
    weights = np.ones_like(part)
    weights[[0, -1]] = 0.5  # only counts at an end where v = ±r
    return np.asarray((weights * density * inside).sum(axis=0) * (ends[1] - ends[0]) / count)
