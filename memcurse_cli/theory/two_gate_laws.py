"""Eigenvalues that two pre-activations move at once: minLSTM's and Mamba-3's.

A law gives log(-log λ), minus the logarithm of the time constant, which is exact at both ends of
λ, and the place of either pre-activation at which it takes a value. The laws follow the Array API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from memcurse_cli.theory.gate_laws import LOGISTIC, GateValues, Motion
from memcurse_cli.theory.namespace import array_namespace

Array = Any

SMALL = -36.0
"""Below it log(1 + e^z) is e^z to the last digit."""
LARGEST_LOG = 700.0


class TwoGateLaw(Protocol):
    """λ of n units as a function of two pre-activations each, monotonic in either.

    Attributes:
        signs: for either pre-activation, 1 where λ falls with it and -1 where it rises.
    """

    @property
    def signs(self) -> tuple[int, int]:
        """For either pre-activation, 1 where λ falls with it and -1 where it rises."""

    def log_rate(self, first: Array, second: Array) -> Array:
        """log(-log λ) at pre-activations (…, n)."""

    def first_at(self, log_rate: Array, second: Array) -> Array:
        """The first pre-activation that makes log(-log λ) this; ±inf where none is far enough."""

    def second_at(self, log_rate: Array, first: Array) -> Array:
        """The second one that does."""


@dataclass(frozen=True)
class Share:
    """λ = f/(f+i) and γ = i/(f+i) with f = σ(z₁) and i = σ(z₂): minLSTM.

    With y = log i - log f = log(1 + e^-z₁) - log(1 + e^-z₂): λ = σ(-y), γ = σ(y) and -log λ is
    log(1 + e^y).

    Attributes:
        forget: the name of the parameter that is added to z₁.
        opened: that of z₂.
    """

    forget: str = "forget"
    opened: str = "input"
    signs = (-1, 1)

    def __call__(self, first: Array, second: Array) -> GateValues:
        """dλ/db_f = λγσ(-z₁) = -dγ/db_f and dλ/db_i = -λγσ(-z₂) = -dγ/db_i."""
        kept = LOGISTIC(_softplus(-second) - _softplus(-first))
        by_first = kept.slope * LOGISTIC(first).complement
        by_second = kept.slope * LOGISTIC(second).complement
        return GateValues(
            kept.value,
            kept.complement,
            kept.complement,
            {
                self.forget: Motion(by_first, -by_first),
                self.opened: Motion(-by_second, by_second),
            },
        )

    def log_rate(self, first: Array, second: Array) -> Array:
        """log log(1 + e^y)."""
        return _log_softplus(_softplus(-first) - _softplus(-second))

    def first_at(self, log_rate: Array, second: Array) -> Array:
        """log(1 + e^-z₁) = y + log(1 + e^-z₂), which no z₁ gives where that is not positive."""
        return -_inverse_softplus(_at_log_softplus(log_rate) + _softplus(-second))

    def second_at(self, log_rate: Array, first: Array) -> Array:
        """log(1 + e^-z₂) = log(1 + e^-z₁) - y."""
        return -_inverse_softplus(_softplus(-first) - _at_log_softplus(log_rate))


class Rate(Protocol):
    """A positive function a(z) that rises with z."""

    def log(self, z: Array) -> Array:
        """log a(z)."""

    def at_log(self, log: Array) -> Array:
        """z at a value of log a."""


@dataclass(frozen=True)
class HeavyTail:
    """a = 1 + z for z ≥ 0 and 1/(1 - z) below, so that log a = ±log(1 + |z|)."""

    def log(self, z: Array) -> Array:
        """±log(1 + |z|)."""
        xp = array_namespace(z)
        return xp.sign(z) * xp.log1p(xp.abs(z))

    def at_log(self, log: Array) -> Array:
        """±(a^±1 - 1)."""
        xp = array_namespace(log)
        return xp.sign(log) * xp.expm1(xp.clip(xp.abs(log), 0.0, LARGEST_LOG))


@dataclass(frozen=True)
class Softplus:
    """a = log(1 + e^z)."""

    def log(self, z: Array) -> Array:
        """log log(1 + e^z)."""
        return _log_softplus(z)

    def at_log(self, log: Array) -> Array:
        """log(e^a - 1)."""
        return _at_log_softplus(log)


@dataclass(frozen=True)
class RatedStep:
    """λ = e^(-aΔ) with Δ = log(1 + e^z₁) and a = max(a(z₂), floor): Mamba-3.

    Attributes:
        rate: a(z₂).
        log_floor: the logarithm of the smallest a.
    """

    rate: Rate
    log_floor: float
    signs = (1, 1)

    def log_rate(self, first: Array, second: Array) -> Array:
        """log Δ + log a."""
        return _log_softplus(first) + self._log_rate(second)

    def first_at(self, log_rate: Array, second: Array) -> Array:
        """log(1 + e^z₁) = -log λ / a."""
        return _at_log_softplus(log_rate - self._log_rate(second))

    def second_at(self, log_rate: Array, first: Array) -> Array:
        """a = -log λ / Δ, which no z₂ gives where that is below the floor."""
        log = log_rate - _log_softplus(first)
        xp = array_namespace(log)
        return xp.where(log < self.log_floor, -xp.inf, self.rate.at_log(log))

    def _log_rate(self, second: Array) -> Array:
        return array_namespace(second).clip(self.rate.log(second), self.log_floor, None)


def _softplus(z: Array) -> Array:
    """log(1 + e^z)."""
    xp = array_namespace(z)
    return xp.where(z > 0, z, 0.0) + xp.log1p(xp.exp(-xp.abs(z)))


def _inverse_softplus(value: Array) -> Array:
    """log(e^value - 1), and -inf where the value is not positive."""
    xp = array_namespace(value)
    positive = xp.where(value > 0, value, 1.0)
    return xp.where(value > 0, positive + xp.log(-xp.expm1(-positive)), -xp.inf)


def _log_softplus(z: Array) -> Array:
    """log log(1 + e^z), which is z far below 0."""
    xp = array_namespace(z)
    return xp.where(z < SMALL, z, xp.log(_softplus(xp.clip(z, SMALL, None))))


def _at_log_softplus(log: Array) -> Array:
    """z at which log log(1 + e^z) has a value."""
    xp = array_namespace(log)
    value = xp.exp(xp.clip(log, SMALL, LARGEST_LOG))
    return xp.where(log < SMALL, log, _inverse_softplus(value))
