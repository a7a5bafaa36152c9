"""A gated recurrence under a cosine, from its mean gate and the fluctuations about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from memcurse_cli.theory.autocorrelation import Autocorrelation, Decay
from memcurse_cli.theory.gate_expectations import Expectations, ParameterExpectations
from memcurse_cli.theory.moments import moments
from memcurse_cli.theory.namespace import array_namespace

Array = Any

ROUNDING = 16 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class MeanResponse:
    """E[h|x] and E[s|x], a recurrence with the means m₁, E γ, E d and E e for λ, γ, λ' and γ'.

    A tone off resonance moves a slow state little, and the sums of `gated_moments` would cancel.
    What is left of a second moment is that of the fluctuations about this mean, which obey the same
    equations with covariances in the place of products.

    Attributes:
        of: the expectations.
        f: E h² of the mean at γ = 1.
        c: E hs by λ there.
        s: E s² by λ there.
    """

    of: Expectations
    f: Array
    c: Array
    s: Array

    @property
    def held(self) -> Array:
        """(E γ)² f."""
        return self.of.gain**2 * self.f

    @property
    def _variance(self) -> Array:
        """Var λ, from 1 - λ."""
        complement = self.of.complement
        return covariance(2 * complement - self.of.squared_complement, complement**2, complement)

    @property
    def _gain_covariance(self) -> Array:
        return covariance(self.of.eigenvalue_gain, (1 - self.of.complement) * self.of.gain)

    def fluctuation(self, a: Array) -> Array:
        """(1-m₂) times what the fluctuations add to E h²."""
        squared = covariance(self.of.squared_gain, self.of.gain**2)
        return self._variance * self.held + 2 * self._gain_covariance * a + squared

    def parameter(
        self, p: ParameterExpectations, a: Array, y: Array, fluctuation: Array, below: Array
    ) -> tuple[Array, Array]:
        """E hs and E s² of a parameter."""
        gain, m1 = self.of.gain, 1 - self.of.complement
        cross = gain * (p.d * gain * self.c + p.e * self.f)
        squared = (p.d * gain) ** 2 * self.s + 2 * p.d * gain * p.e * self.c + p.e**2 * self.f
        by_d = covariance(p.eigenvalue_d, m1 * p.d)
        by_e = covariance(p.eigenvalue_e, m1 * p.e)
        off = (
            self._variance * cross
            + p.eigenvalue_d * fluctuation
            + by_d * self.held
            + (by_e + covariance(p.gain_d, gain * p.d)) * a
            + self._gain_covariance * y
            + covariance(p.gain_e, gain * p.e)
        ) / below
        off_squared = (
            self._variance * squared
            + 2 * (p.eigenvalue_d * off + by_d * cross)
            + p.d_d * fluctuation
            + covariance(p.d_d, p.d**2) * self.held
            + 2 * (by_e * y + covariance(p.d_e, p.d * p.e) * a)
            + covariance(p.e_e, p.e**2)
        ) / below
        return cross + off, squared + off_squared


def covariance(product: Array, means: Array, scale: Array | None = None) -> Array:
    """E[ab] - E[a] E[b], and 0 where only rounding is left.

    Args:
        product: E[ab].
        means: E[a] E[b].
        scale: what was rounded, where the product is itself a difference; by default the product.
    """
    xp = array_namespace(product)
    found = product - means
    rounding = ROUNDING * xp.abs(product if scale is None else scale)
    return xp.where(xp.abs(found) <= rounding, 0.0, found)


def mean_response(of: Expectations, part: Decay, stable: Array) -> MeanResponse:
    """The response to one damped cosine, where E λ² < 1."""
    xp = array_namespace(of.gain)
    # That of a gate which is shut at all nodes may round to more than 1.
    complement = xp.clip(of.complement, None, math.nextafter(1.0, 0.0))
    log = xp.log1p(-xp.where(stable, complement, 0.5))
    alone = Autocorrelation((1.0,), (part.rho,), (part.frequency,))
    found = moments(log, alone)
    return MeanResponse(of, found.second_moment, xp.real(found.cross_moment), found.sensitivity)
