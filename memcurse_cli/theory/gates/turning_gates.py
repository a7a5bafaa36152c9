"""A gate that turns as it decays: ``λ = σ(|a|) e^(i arg a)`` of a complex Gaussian a.

The quantiles of |λ|, and E|h|² of ``h[t+1] = λ h[t] + x[t+1]`` with a drawn anew at every step,
independent of the state and of the drive.

E|dh/db|² has no value: dλ/da turns λ by 1/|a|, and over a density that is not 0 at a = 0 the mean
of its square is ∫ (1/r²) r dr, which diverges with -log r.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.gates.laws import LOGISTIC
from memcurse_cli.theory.moments.moments import moments

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

STEP = 0.25
"""Of the rules below, whose integrands are analytic for |Im t| < 1 or more: 1e-10."""
REACH = 7.5
"""Standard deviations that are summed: beyond are 6e-14."""
FARTHEST_SHIFT = 40.0
"""1 - λ falls as e^(-|a|), which moves its weight by σ towards 0; past this it is below a float."""
INNERMOST = -3.2
"""Where `_halves` starts, at 1e-12 standard deviations from the axis."""
NARROWEST = 1e-12
"""The distance to 0, in standard deviations, that the nodes close in on."""
CHUNK = 1 << 17
"""Nodes times units that are held at once."""


@dataclass(frozen=True)
class TurningGates:
    """a of n units, Gaussian in the plane, in the directions in which its parts are independent.

    Attributes:
        mean: (n,) E a, turned by e^(-iϑ) so that the wide direction is the real one.
        along: (n,) the standard deviation in that direction.
        across: (n,) the one at right angles, no larger.
        angle: (n,) ϑ.
    """

    mean: Complexes
    along: Floats
    across: Floats
    angle: Floats

    @classmethod
    def from_covariance(
        cls, mean: Complexes, real: Floats, imaginary: Floats, shared: Floats
    ) -> TurningGates:
        """From E a, Var Re a, Var Im a and their covariance, all (n,)."""
        half = np.hypot((real - imaginary) / 2, shared)
        wide = (real + imaginary) / 2 + half
        determinant = np.maximum(real * imaginary - shared**2, 0.0)
        narrow = determinant / np.where(wide > 0, wide, 1.0)
        angle = np.arctan2(2 * shared, real - imaginary) / 2
        return cls(
            mean * np.exp(-1j * angle), np.sqrt(wide), np.sqrt(np.minimum(narrow, wide)), angle
        )

    @property
    def still(self) -> TurningGates:
        """a held at its mean."""
        nothing = np.zeros_like(self.along)
        return TurningGates(self.mean, nothing, nothing, self.angle)

    def take(self, units: NDArray[np.intp]) -> TurningGates:
        """Those of some of the units."""
        return TurningGates(
            self.mean[units], self.along[units], self.across[units], self.angle[units]
        )


class TurningExpectations(NamedTuple):
    """What E|h|² takes of λ, each (n,).

    Attributes:
        mean: E λ.
        variance: E|λ - E λ|².
        squared_complement: E[1 - |λ|²].
    """

    mean: Complexes
    variance: Floats
    squared_complement: Floats


def turning_second_moment(gates: TurningGates, autocorrelation: Autocorrelation = WHITE) -> Floats:
    """E|h|² of every unit at γ = 1; inf where it diverges.

    With m₁ = E λ, m₂ = E|λ|² and a drive of autocorrelation ρ, ``a = E[h_t x_{t+1}]``:

        a           = ρ / (1 - ρ m₁)
        E|h|²(1-m₂) = 1 + 2 Re(m₁ a) = (1 - ρ²|m₁|²) / |1 - ρ m₁|²

    so that it is E|h|² of a state with the constant eigenvalue m₁ times (1 - |m₁|²) / (1 - m₂),
    where 1 - |m₁|² = 1 - m₂ + Var λ, a sum of positive terms. The factor is that of every drive.
    """
    found = turning_expectations(gates)
    lost = found.squared_complement + found.variance
    modulus = np.abs(found.mean)
    with np.errstate(divide="ignore", over="ignore"):
        log = np.where(lost < 0.5, np.log1p(-np.minimum(lost, 0.5)) / 2, np.log(modulus))
        held = moments(log + 1j * np.angle(found.mean), autocorrelation).second_moment
        kept = found.squared_complement > 0
        more = lost / np.where(kept, found.squared_complement, 1.0)
    return np.asarray(np.where(kept, held, math.inf) * np.where(kept, more, 1.0))


def turning_expectations(gates: TurningGates) -> TurningExpectations:
    """E λ, Var λ and E[1 - |λ|²], right to 1e-9 of each.

    λ is not analytic at a = 0, so that nodes close in on it. With a = u + iv in the directions of
    `TurningGates`, the outer integral over v is one over each side of v = 0, and for each v
    ``u/s = asinh(α sinh t)`` with α = min(|v|/s, 1): the nodes lie about |v| apart near u = 0,
    exponentially farther off, and never farther than a part of s. In t the trapezoidal rule
    converges geometrically, since u = ±iv stays away from the real axis.
    """
    size = gates.along.size
    mean = np.zeros(size, dtype=np.complex128)
    variance, complement = np.zeros(size), np.zeros(size)
    for units, near in _pieces(gates):
        piece = gates.take(units)
        nodes, weights = (_halves if near else _whole)(piece.mean.imag, piece.across)
        mean[units], variance[units], complement[units] = _summed(piece, nodes, weights)
    return TurningExpectations(mean * np.exp(1j * gates.angle), variance, complement)


def _pieces(gates: TurningGates) -> Iterator[tuple[NDArray[np.intp], bool]]:
    """Units and whether their a comes to both sides of the real axis."""
    near = np.abs(gates.mean.imag) < _reach(gates.mean.imag, gates.across) * gates.across
    away = gates.mean.imag / np.where(near, gates.across, 1.0)
    length = max(CHUNK // 1024, 1)
    for side in (True, False):
        # Units whose axis lies at about the same place of their Gaussian share most nodes.
        units = np.flatnonzero(near == side)
        units = units[np.argsort(away[units], kind="stable")]
        for start in range(0, units.size, length):
            yield units[start : start + length], side


def _reach(mean: Floats, spread: Floats) -> Floats:
    """How many standard deviations of a direction count, (n,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        away = np.where(spread > 0, np.abs(mean) / spread, 0.0)
    return REACH + np.minimum(np.minimum(spread, away), FARTHEST_SHIFT)


def _whole(mean: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """(nodes, n) v and weights by the trapezoidal rule around its mean."""
    if not np.any(spread):
        return mean[None], np.ones((1, mean.size))
    reach = _reach(mean, spread)
    count = math.ceil(2 * reach.max() / STEP)
    offset = reach * np.linspace(-1.0, 1.0, count + 1)[:, None]
    return mean + spread * offset, _normal(offset, np.ones_like(offset))


def _halves(mean: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """(nodes, n) v and weights on either side of v = 0, doubly exponentially near it.

    ``|v|/s = asinh(β e^(t - e^(-t)))`` with β = min(1/s, 1): between |v| = 1, where σ(|v|) bends,
    and s the nodes are an exponential apart, and beyond evenly.
    """
    reach, away = _reach(mean, spread), mean / spread
    bend = 1 / np.maximum(spread, 1.0)
    last = float(np.max(reach + np.abs(away) - np.log(bend)))
    t = np.linspace(INNERMOST, last, math.ceil((last - INNERMOST) / STEP) + 1)[:, None]
    steep = bend * np.exp(t - np.exp(-t))
    place = np.arcsinh(steep)
    slope = steep / np.sqrt(1 + steep**2) * (1 + np.exp(-t))
    places, slopes = np.concatenate([-place, place]), np.concatenate([slope, slope])
    offset = places - away
    counts = np.any(np.abs(offset) <= reach, axis=1)
    return spread * places[counts], _normal(offset[counts], slopes[counts])


def _normal(offset: Floats, slope: Floats) -> Floats:
    weights = np.exp(-(offset**2) / 2) * slope
    return np.asarray(weights / weights.sum(axis=0))


def _summed(
    gates: TurningGates, nodes: Floats, weights: Floats
) -> tuple[Complexes, Floats, Floats]:
    """E λ, Var λ and E[1 - |λ|²] over (nodes, n) of v, in the frame of ``gates``."""
    still = _eigenvalue(gates.mean.real, gates.mean.imag)
    # Differences from λ at the mean of a, or a variance would be one of rounded numbers.
    real, imaginary, squared, complement = np.zeros((4, gates.along.size))
    for v, outer in zip(nodes, weights, strict=True):
        u, inner = _along(gates, v)
        at = _eigenvalue(u, v)
        off_real, off_imaginary = at.real - still.real, at.imaginary - still.imaginary
        weight = outer * inner
        real += np.einsum("ij,ij->j", weight, off_real)
        imaginary += np.einsum("ij,ij->j", weight, off_imaginary)
        squared += np.einsum("ij,ij->j", weight, off_real**2 + off_imaginary**2)
        complement += np.einsum("ij,ij->j", weight, at.squared_complement)
    mean = still.real + real + 1j * (still.imaginary + imaginary)
    return mean, np.maximum(squared - real**2 - imaginary**2, 0.0), complement


class _Eigenvalue(NamedTuple):
    real: Floats
    imaginary: Floats
    squared_complement: Floats


def _eigenvalue(u: Floats, v: Floats) -> _Eigenvalue:
    """λ at a = u + iv; at 0 the mean over all directions stands for its phase."""
    radius = np.sqrt(u**2 + v**2)
    modulus, complement, _ = LOGISTIC(radius)
    scale = modulus / np.where(radius > 0, radius, 1.0)
    return _Eigenvalue(scale * u, scale * v, complement * (1 + modulus))


def _along(gates: TurningGates, v: Floats) -> tuple[Floats, Floats]:
    """(nodes, n) u and weights at one v of every unit."""
    mean, spread = gates.mean.real, gates.along
    if not np.any(spread):
        return mean[None], np.ones((1, mean.size))
    moving = np.where(spread > 0, spread, 1.0)
    reach, away = _reach(mean, spread), mean / moving
    near = (spread > 0) & (np.abs(away) < reach)
    narrow = np.where(near, np.clip(np.abs(v) / moving, NARROWEST, 1.0), 1.0)
    away = np.where(near, away, 0.0)
    first, last = (_parameter(away + sign * reach, narrow) for sign in (-1, 1))
    count = math.ceil(float(np.max(last - first)) / STEP)
    t = first + (last - first) * np.linspace(0.0, 1.0, count + 1)[:, None]
    rise = np.sinh(t)
    steep = narrow * rise
    place = np.arcsinh(steep)
    slope = narrow * np.sqrt((1 + rise**2) / (1 + steep**2))
    offset = place - away
    # Where mean and spread lie far apart, their sum keeps the digits of neither ratio.
    return mean + spread * offset, _normal(offset, slope * (last - first))


def _parameter(place: Floats, narrow: Floats) -> Floats:
    """t with ``asinh(α sinh t)`` at a place."""
    return np.asarray(np.arcsinh(np.sinh(place) / narrow))
