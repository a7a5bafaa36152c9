"""Quantiles of an eigenvalue that two correlated Gaussian pre-activations move.

Given one of them, λ crosses a level at one place of the other, so that the share of steps on one
side of it is a mean of Gaussian distribution functions, which rises with the level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gates.laws import TwoGateLaw
from memcurse_cli.theory.gates.quadrature import Preactivation

Floats = NDArray[np.float64]

COUNTS = (32, 128, 512, 2048)
"""Steps of the rule over the outer Gaussian, tried in turn until two rules agree."""
REACH = 7.5
"""Where it is cut, in standard deviations: beyond are 6e-14."""
AGREEMENT = 1e-5
"""Of the shares by two rules whose nodes are half a step apart, whose errors have two signs."""
FARTHEST = 9.0
"""No quantile that is asked for lies beyond both pre-activations' values there."""
LARGEST_CORRELATION = 1 - 1e-5
"""Two that are closer, or closer to opposites, are taken as one."""
PLACES = 4096
"""At which the law of one pre-activation is sorted."""
SMALLEST_SPREAD = 1e-12
LARGEST_PROBIT = 8.0
ITERATIONS = 90
TOLERANCE = 1e-6
"""Of the place of a quantile, in standard deviations."""
CHUNK = 1 << 16
"""Nodes times units that are held at once."""


@dataclass(frozen=True)
class TwoPreactivations:
    """Two pre-activations of n units that are Gaussian together.

    Attributes:
        first: the one.
        second: the other.
        correlation: (n,) between them, in [-1, 1].
    """

    first: Preactivation
    second: Preactivation
    correlation: Floats

    @property
    def still(self) -> TwoPreactivations:
        """Both held at their means."""
        first, second = (
            Preactivation(gate.mean, np.zeros_like(gate.mean)) for gate in (self.first, self.second)
        )
        return TwoPreactivations(first, second, self.correlation)

    def take(self, units: NDArray[np.intp]) -> TwoPreactivations:
        """Those of some of the units."""
        return TwoPreactivations(
            self.first.take(units), self.second.take(units), self.correlation[units]
        )


@dataclass(frozen=True)
class _Side:
    """Units whose inner pre-activation, the wider one, is the same of the two."""

    law: TwoGateLaw
    inner: Preactivation
    outer: Preactivation
    correlation: Floats
    swapped: bool

    def crossed(self, log_rate: Floats, outer: Floats) -> Floats:
        """Where the inner pre-activation makes log(-log λ) this."""
        at = self.law.second_at if self.swapped else self.law.first_at
        return np.asarray(at(log_rate, outer), dtype=np.float64)

    def log_rate(self, inner: Floats, outer: Floats) -> Floats:
        pair = (outer, inner) if self.swapped else (inner, outer)
        return np.asarray(self.law.log_rate(*pair), dtype=np.float64)

    @property
    def signs(self) -> tuple[int, int]:
        """Of the inner and the outer pre-activation."""
        first, second = self.law.signs
        return (second, first) if self.swapped else (first, second)


def log_rate_quantiles(
    law: TwoGateLaw, gates: TwoPreactivations, shares: Sequence[float]
) -> Floats:
    """log(-log λ) below which it is at these shares of the steps.

    With z₁ the wider of the two, given z₂ = b₂ + σ₂v it is N(b₁ + ρσ₁v, σ₁²(1-ρ²)), so that

        P(log(-log λ) ≤ ℓ) = E_v Φ( ±(z₁(ℓ, z₂) - b₁ - ρσ₁v) / (σ₁√(1-ρ²)) )

    by the trapezoidal rule, with more nodes for the units that need them until the share is right
    to 1e-5. It is found by false position on the probit of the share, within brackets. Where ρ = ±1
    the two are one variable, of which λ need not be monotonic: its values at equally likely places
    are sorted, for shares right to 2e-4.

    Args:
        law: λ of the n units.
        gates: their pre-activations.
        shares: in (0, 1).

    Returns:
        (shares, n). A unit that does not move has one value.
    """
    found = np.empty((len(shares), gates.correlation.size))
    alone = np.abs(gates.correlation) > LARGEST_CORRELATION
    for some in _split(np.flatnonzero(alone), CHUNK // PLACES):
        found[:, some] = _sorted_quantiles(law, gates.take(some), shares)
    swapped = gates.second.spread > gates.first.spread
    for swap in (False, True):
        for row, share in enumerate(shares):
            units = np.flatnonzero(~alone & (swapped == swap))
            for count in COUNTS:
                left = []
                for some in _split(units, CHUNK // count):
                    side = _side(law, gates.take(some), swap)
                    found[row, some] = _quantile(side, share, count)
                    other = _share_below(side, found[row, some], count, 0.5)
                    left.append(some[np.abs(other - share) > AGREEMENT])
                units = np.concatenate(left) if left else units
    return found


def _split(units: NDArray[np.intp], length: int) -> Iterator[NDArray[np.intp]]:
    """Pieces of at most that many."""
    for start in range(0, units.size, length):
        yield units[start : start + length]


def _sorted_quantiles(law: TwoGateLaw, gates: TwoPreactivations, shares: Sequence[float]) -> Floats:
    """The quantiles where both pre-activations follow one Gaussian."""
    from scipy.special import ndtri

    at = np.asarray(ndtri((np.arange(PLACES) + 0.5) / PLACES))[:, None]
    log_rate = law.log_rate(
        gates.first.mean + gates.first.spread * at,
        gates.second.mean + np.sign(gates.correlation) * gates.second.spread * at,
    )
    return np.asarray(np.quantile(log_rate, shares, axis=0, method="hazen"))


def _side(law: TwoGateLaw, gates: TwoPreactivations, swap: bool) -> _Side:
    inner, outer = (gates.second, gates.first) if swap else (gates.first, gates.second)
    return _Side(law, inner, outer, gates.correlation, swap)


def _quantile(side: _Side, share: float, count: int) -> Floats:
    """The root of probit P(ℓ) - probit(share), by the Illinois rule; every fourth step halves."""
    from scipy.special import ndtri

    wanted = float(ndtri(share))

    def off(log_rate: Floats) -> Floats:
        probit = np.asarray(ndtri(_share_below(side, log_rate, count)))
        return np.asarray(np.clip(probit, -LARGEST_PROBIT, LARGEST_PROBIT) - wanted)

    signs = side.signs

    def corner(places: float) -> Floats:
        inner, outer = (
            gate.mean + sign * places * gate.spread
            for gate, sign in zip((side.inner, side.outer), signs, strict=True)
        )
        return side.log_rate(inner, outer)

    below, above = corner(-FARTHEST), corner(FARTHEST)
    under = np.full(below.shape, -LARGEST_PROBIT - wanted)
    over = np.full(below.shape, LARGEST_PROBIT - wanted)
    middle, before = (below + above) / 2, np.zeros(below.shape)
    for iteration in range(ITERATIONS):
        halves = iteration % 4 == 3
        if iteration and not halves:
            middle = below - under * (above - below) / (over - under)
        elif halves:
            middle = (below + above) / 2
        value = off(middle)
        if np.all((np.abs(value) <= TOLERANCE) | (above - below <= TOLERANCE)):
            break
        came = np.sign(value)
        # An end that stays twice counts half, so that the next step passes the root.
        again = came == before
        over = np.where(value > 0, value, np.where(again, over / 2, over))
        under = np.where(value > 0, np.where(again, under / 2, under), value)
        below, above = np.where(value > 0, below, middle), np.where(value > 0, middle, above)
        before = came
    return middle


def _share_below(side: _Side, log_rate: Floats, count: int, shift: float = 0.0) -> Floats:
    """P(log(-log λ) ≤ ℓ), (n,), with nodes that are shifted by a part of a step."""
    from scipy.special import ndtr

    step = 2 * REACH / count
    nodes = step * (np.arange(count + 1) - count / 2 + shift)
    weights = np.exp(-(nodes**2) / 2)
    at = nodes[:, None]
    inner, outer, correlation = side.inner, side.outer, side.correlation
    width = inner.spread * np.sqrt((1 - correlation) * (1 + correlation))
    place = side.crossed(log_rate, outer.mean + outer.spread * at)
    beyond = side.signs[0] * (place - inner.mean - correlation * inner.spread * at)
    share = weights @ ndtr(beyond / np.maximum(width, SMALLEST_SPREAD)) / math.fsum(weights)
    return np.asarray(np.clip(share, 0.0, 1.0))
