"""Second moments of a scalar linear recurrence and of its derivative, in closed form.

The recurrence is ``h[t+1] = λ h[t] + x[t+1]``, and ``s = dh/dλ`` obeys ``s[t+1] = λ s[t] + h[t]``.
Everything takes log λ: near the unit circle 1 - |λ|² must come from the decay itself, since λ
has already rounded it away. The functions follow the Array API, so they run on NumPy, torch and
JAX arrays alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.moments.horizon import Readout as Readout
from memcurse_cli.theory.moments.horizon import finite_moments
from memcurse_cli.theory.namespace import array_namespace, may_be_traced

if TYPE_CHECKING:
    from jaxtyping import Complex, Float, Inexact

Array = Any


class Moments(NamedTuple):
    """Stationary moments at γ = 1, one per eigenvalue.

    Attributes:
        second_moment: E|h|²; +inf where it diverges.
        cross_moment: E[s h̄]; 0 where E|s|² diverges, as it has no meaning there.
        sensitivity: E|s|² with s = dh/dλ; +inf where it diverges.
    """

    second_moment: Float[Array, " n"]
    cross_moment: Complex[Array, " n"]
    sensitivity: Float[Array, " n"]


class Bilinear(NamedTuple):
    """f(α, β) = Σ_nm α^n β^m R(n-m) and its derivatives.

    Attributes:
        value: f.
        derivative_alpha: ∂f/∂α.
        derivative_beta: ∂f/∂β.
        mixed_derivative: ∂²f/∂α∂β.
    """

    value: Complex[Array, "*shape"]
    derivative_alpha: Complex[Array, "*shape"]
    derivative_beta: Complex[Array, "*shape"]
    mixed_derivative: Complex[Array, "*shape"]


def one_minus_exp(z: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    """1 - e^z without cancellation near z = 0; z may be -inf.

    For z = x + iy it is ``[-expm1(x) cos y + 2 sin²(y/2)] - i e^x sin y``.
    """
    xp = array_namespace(z)
    if not xp.isdtype(z.dtype, "complex floating"):
        return -xp.expm1(z)
    x, y = xp.real(z), xp.imag(z)
    real = -xp.expm1(x) * xp.cos(y) + 2 * xp.sin(y / 2) ** 2
    return real - 1j * (xp.exp(x) * xp.sin(y))


def bilinear(
    log_alpha: Inexact[Array, "*shape"],
    log_beta: Inexact[Array, "*shape"],
    rho: float,
    frequency: float = 0.0,
) -> Bilinear:
    """f(α, β) = Σ_nm α^n β^m ρ^|n-m| cos(ω(n-m)), its derivatives and its mixed derivative.

    With ``s = αβ, u = 1 - s, N = 1 - ρ² s, p = 1 - ρα, q = 1 - ρβ``:

        f       = N / (u p q)
        ∂α f    = f g_α,              g_α = β (1-ρ²) / (u N) + ρ / p
        ∂α∂β f  = f (g_α g_β + V),    V = (1-ρ) (1+ρs) (N+ρu) / (u N)²

    which is Zucchet & Orvieto 2024, eq. 35 and 37, corrected. Numerators are built from u and
    1 - ρ, so nothing cancels near the unit circle. With a frequency it is the mean of the two with
    ``α e^(±iω)`` and ``β e^(∓iω)`` in the places of α and β.

    Args:
        log_alpha: log α, |α| < 1; -inf for α = 0. Broadcasts against ``log_beta``.
        log_beta: log β, |β| < 1.
        rho: autocorrelation of the input at one step, in [0, 1], or how far its cosine decays.
        frequency: ω.

    Returns:
        Four arrays of the broadcast shape, real where both logarithms are real and ω is 0.
    """
    if frequency == 0:
        return _turned_bilinear(log_alpha, log_beta, rho, None)
    forth = _turned_bilinear(log_alpha, log_beta, rho, frequency)
    back = _turned_bilinear(log_alpha, log_beta, rho, -frequency)
    return Bilinear(*(0.5 * (one + other) for one, other in zip(forth, back, strict=True)))


def _turned_bilinear(
    log_alpha: Array, log_beta: Array, rho: float, angle: float | None
) -> Bilinear:
    """Σ_nm α^n β^m ρ^|n-m| e^(iφ(n-m)), of which αβ has no part in φ."""
    u = one_minus_exp(log_alpha + log_beta)
    xp = array_namespace(u)
    numerator, slope, variance = _of_product(u, rho)
    turn_alpha: complex = 1.0
    turn_beta: complex = 1.0
    p = q = 1 - rho
    if angle is not None:
        turn_alpha = complex(math.cos(angle), math.sin(angle))
        turn_beta = turn_alpha.conjugate()
        p = p + rho * one_minus_exp(log_alpha + 1j * angle)
        q = q + rho * one_minus_exp(log_beta - 1j * angle)
    elif rho != 0:
        p = p + rho * one_minus_exp(log_alpha)
        q = q + rho * one_minus_exp(log_beta)
    value = numerator / (u * (p * q))
    rate_alpha = xp.exp(log_beta) * slope + (rho * turn_alpha) / p
    rate_beta = xp.exp(log_alpha) * slope + (rho * turn_beta) / q
    return Bilinear(
        value, value * rate_alpha, value * rate_beta, value * (rate_alpha * rate_beta + variance)
    )


def _of_product(u: Array, rho: float) -> tuple[Array, Array, Array]:
    """N, (1-ρ²)/(uN) and V of `bilinear`, which depend on αβ = 1 - u alone."""
    white = 1 - rho  # exact for rho ≥ 1/2
    coloured = white * (1 + rho)
    numerator = coloured + rho**2 * u
    if rho == 1:
        return numerator, 0.0, 0.0
    inverse = 1 / (u * numerator)
    variance = (white * inverse) * ((1 + rho) - rho * u) * ((numerator + rho * u) * inverse)
    return numerator, coloured * inverse, variance


def moments(
    log_eigenvalues: Inexact[Array, " n"],
    autocorrelation: Autocorrelation = WHITE,
    horizon: int | None = None,
    readout: Readout = "last",
) -> Moments:
    """E|h|², E[s h̄] and E|s|² for a stationary input, at γ = 1.

    Args:
        log_eigenvalues: (n,) complex or real log λ; -inf for λ = 0.
        autocorrelation: R(Δ) of the input.
        horizon: the number of steps T since h = s = 0, which is exact for every λ; None for
            T → ∞, where |λ| ≥ 1 diverges.
        readout: ``last`` for the state at step T, ``every`` for the mean over t = 1..T, which a
            loss summed over the sequence sees. Without a horizon they are the same.

    Returns:
        Moments of the state. With an infinite horizon they are `bilinear` at α = λ, β = λ̄. A
        damped cosine is the mean of two decays on λ turned by ±ω.
    """
    xp = array_namespace(log_eigenvalues)
    log_modulus, angle = _polar(log_eigenvalues)
    rotation = None
    if angle is not None and autocorrelation.is_white:
        # White input sees |λ| alone; only the phase of E[s h̄] = λ̄ (…) is left to restore.
        rotation, angle = xp.exp(-1j * angle), None

    second_moment = cross_moment = sensitivity = 0.0
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for weight, rho, turn in turned_parts(autocorrelation):
            turned = angle
            if turn != 0:
                turned = turn + (xp.zeros_like(log_modulus) if angle is None else angle)
            if horizon is None:
                f, c, s = _stationary_moments(log_modulus, turned, rho)
            else:
                f, c, s = finite_moments(log_modulus, turned, rho, horizon, readout)
            if turn != 0:
                c = c * complex(math.cos(turn), math.sin(turn))
            second_moment = second_moment + weight * f
            cross_moment = cross_moment + weight * c
            sensitivity = sensitivity + weight * s
        # What left the range of a float is as divergent as what has no limit.
        second_moment = xp.where(xp.isfinite(second_moment), second_moment, xp.inf)
        sensitivity = xp.where(xp.isfinite(sensitivity), sensitivity, xp.inf)
        if rotation is not None:
            cross_moment = cross_moment * rotation
        cross_moment = xp.where(xp.isfinite(sensitivity), cross_moment + 0j, 0j)
    return Moments(second_moment, cross_moment, sensitivity)


def turned_parts(autocorrelation: Autocorrelation) -> Iterator[tuple[float, float, float]]:
    """(weight, ρ, φ) of decays without a frequency that act on λ e^(iφ), all of one R.

    The derivative by λ is the one by λ e^(iφ) times e^(iφ).
    """
    for part in autocorrelation.parts:
        if part.weight == 0:
            continue
        if part.frequency == 0 or part.rho == 0:
            yield part.weight, part.rho, 0.0
        else:
            yield part.weight / 2, part.rho, part.frequency
            yield part.weight / 2, part.rho, -part.frequency


def _polar(log_eigenvalues: Array) -> tuple[Array, Array | None]:
    """log|λ| and the angle, which is None where every λ is a positive real or 0."""
    xp = array_namespace(log_eigenvalues)
    if not xp.isdtype(log_eigenvalues.dtype, "complex floating"):
        return log_eigenvalues, None
    log_modulus, angle = xp.real(log_eigenvalues), xp.imag(log_eigenvalues)
    # A traced JAX array has no values to look at, so there the angle always stays.
    if not may_be_traced(angle) and not bool(xp.any(angle != 0)):
        angle = None
    return log_modulus, angle


def _stationary_moments(
    log_modulus: Array, angle: Array | None, rho: float
) -> tuple[Array, Array, Array]:
    """f, ∂α f and ∂α∂β f at α = λ, β = λ̄ for one ρ; inf, 0 and inf where |λ| ≥ 1."""
    xp = array_namespace(log_modulus)
    stable = log_modulus < 0
    log_modulus = xp.where(stable, log_modulus, -1.0)
    modulus = xp.exp(log_modulus)
    u = -xp.expm1(log_modulus) * (1 + modulus)
    numerator, slope, variance = _of_product(u, rho)
    if angle is None:
        conjugate, p = modulus, (1 - rho) + rho * one_minus_exp(log_modulus)
        p_squared = p**2
        rate = rho * (p / p_squared) + conjugate * slope
        rate_squared = rate**2
    else:
        conjugate = modulus * xp.exp(-1j * angle)
        p = (1 - rho) + rho * one_minus_exp(log_modulus + 1j * angle)
        p_squared = xp.real(p) ** 2 + xp.imag(p) ** 2
        rate = rho * (xp.conj(p) / p_squared) + conjugate * slope
        rate_squared = xp.real(rate) ** 2 + xp.imag(rate) ** 2
    # 1/p² where the input is constant: u itself may be subnormal, which has fewer digits.
    f = 1 / p_squared if rho == 1 else (numerator / p_squared) / u
    return (
        xp.where(stable, f, xp.inf),
        xp.where(stable, f * rate, 0.0),
        xp.where(stable, f * (variance + rate_squared), xp.inf),
    )
