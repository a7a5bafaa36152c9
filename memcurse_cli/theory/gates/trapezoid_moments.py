"""Second moments of Mamba-3's trapezoidal step, whose gates are drawn anew at every step.

``h_t = λ_t h_{t-1} + μ_t u_{t-1} + ν_t u_t`` with λ = e^(-aΔ - iθΔ), μ = λ (1-w) Δ and ν = w Δ: an
input comes in with the gates of its own step and of the next. s = dh/db is the derivative by the
bias of Δ, which moves all three, and the angle.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation, Decay
from memcurse_cli.theory.gates.laws import RatedStep
from memcurse_cli.theory.gates.moments import GatedMoments, covariance, gathered
from memcurse_cli.theory.gates.trapezoid_gates import (
    TrapezoidExpectations,
    expectations_of,
    turns_of,
)
from memcurse_cli.theory.gates.trapezoid_nodes import TrapezoidGates, pieces, terms_of
from memcurse_cli.theory.moments.moments import moments

Floats = NDArray[np.float64]

BIAS = "dt_bias"
MOST_TERMS = 1 << 29
"""Of heads times nodes that a layer may take: a quarter of a minute."""


def trapezoid_moments(
    law: RatedStep, gates: TrapezoidGates, autocorrelation: Autocorrelation = WHITE
) -> GatedMoments:
    """E|h|², Re E[h s*] and E|s|² over an infinite horizon, of the mean state of every head.

    The drive u of a pair of states that turn together is complex, with parts that are independent
    and both of autocorrelation R; a state that does not turn has a real one. With g = (λ, μ, ν),
    X = (h⁻, u⁻, u) and E over the gates, the response to the mean gates

        h̄ = E[h|u] = Σ E[g_i] X̄_i,     s̄ = Σ E[g_i'] X̄_i + E[λ] s̄⁻

    is that of a constant λ, and the fluctuations about it, with m₂ = E|λ|², K = E X̄ X̄* and
    q = E X̄ s̄⁻, obey

        (1-m₂) E|h̃|² = Σ cov(g_i, g_j) K_ij
        (1-m₂) E h̃s̃ = E[λλ'] E|h̃|² + Σ cov(g_i, g_j') K_ij + Σ cov(g_i, λ) q_i
        (1-m₂) E|s̃|² = E|λ'|² E|h̃|² + 2 E[λλ'] E h̃s̃ + Σ cov(g_i', g_j') K_ij
                       + 2 Σ cov(g_i', λ) q_i + var(λ) E|s̄|²

    of which the real parts are meant. With all spreads 0 what is left is h̄, the theory of a
    constant λ for an input that comes in twice; with w = 1 it is that of `gated_moments`.

    Args:
        law: α as a function of z₁ and z₂, which also gives Δ.
        gates: the pre-activations of n heads.
        autocorrelation: R(Δ) of the drive u, in the frame that turns.

    Returns:
        (n,) moments, those of s by ``dt_bias``.
    """
    turns = turns_of(gates, white=autocorrelation.is_white)

    def of_some(some: TrapezoidGates) -> GatedMoments:
        held, mixed, moved = _moments_of(expectations_of(law, some, turns), autocorrelation)
        shares = turns.shares
        return GatedMoments(shares @ held, {BIAS: shares @ mixed}, {BIAS: shares @ moved})

    return gathered(
        gates.with_step.size, ((heads, of_some(some)) for heads, some in pieces(law, gates))
    )


def terms_of_three(
    law: RatedStep, gates: TrapezoidGates, autocorrelation: Autocorrelation
) -> float:
    """Heads times nodes that `trapezoid_moments` takes."""
    return terms_of(law, gates, white=autocorrelation.is_white)


def _moments_of(
    of: TrapezoidExpectations, autocorrelation: Autocorrelation
) -> tuple[Floats, Floats, Floats]:
    """E|h|², E hs and E|s|², (K, n)."""
    stable = of.squared_complement > 0
    below = np.where(stable, of.squared_complement, 1.0)
    total = [np.zeros(of.complement.shape) for _ in range(3)]
    for part in autocorrelation.parts:
        if part.weight != 0:
            for sum_, value in zip(total, _of_part(of, part, stable, below), strict=True):
                sum_ += part.weight * value
    held, mixed, moved = total
    return (
        np.where(stable, held, math.inf),
        np.where(stable, mixed, 0.0),
        np.where(stable, np.maximum(moved, 0.0), math.inf),
    )


def _of_part(
    of: TrapezoidExpectations, part: Decay, stable: NDArray[np.bool_], below: Floats
) -> tuple[Floats, Floats, Floats]:
    """The same for one damped cosine of variance 1."""
    rho = part.pole
    (eigenvalue, after, now), (turned, after_slope, now_slope) = of.means, of.slopes
    past = np.where(stable, (1 - rho) + rho * of.complement, 1.0)  # 1 - ρ m₁
    a = (now + rho * after) / past  # E h̄ u
    y = (now_slope + rho * (turned * a + after_slope)) / past  # E s̄ u

    # The response g of a constant m₁ to u and e = dg/dm₁, with what is a step apart of them.
    f, c, s = _constant(of.complement, part, stable)
    f_apart = eigenvalue * f + np.real(rho / past)  # E g g⁻
    later = eigenvalue * c + np.real(rho * rho / past**2)  # E g e⁻
    earlier = eigenvalue * c + f  # E g⁻ e
    s_apart = eigenvalue * s + c  # E e e⁻
    both = now * after
    held = (now**2 + after**2) * f + 2 * both * f_apart
    slopes = now_slope * after + after_slope * now
    mixed = (now * now_slope + after * after_slope) * f + slopes * f_apart
    mixed += turned * ((now**2 + after**2) * c + both * (later + earlier))
    moved = (now_slope**2 + after_slope**2) * f + 2 * now_slope * after_slope * f_apart
    moved += 2 * turned * (now_slope * now + after_slope * after) * c
    moved += 2 * turned * (now_slope * after * later + after_slope * now * earlier)
    moved += turned**2 * ((now**2 + after**2) * s + 2 * both * s_apart)

    ones = np.ones_like(f)
    seen, ahead = np.real(a), np.real(rho * a)
    apart = np.real(rho) * ones
    k = np.array([[held, seen, ahead], [seen, ones, apart], [ahead, apart, ones]])
    q = np.array([mixed, np.real(y), np.real(rho * y)])
    products = _covariances(of.products, of.means, of.means)
    variance = 2 * of.complement - of.squared_complement
    products[0, 0] = covariance(variance, of.complement**2, of.complement)
    by_slope = _covariances(of.mixed, of.means, of.slopes)
    squares = _covariances(of.squares, of.slopes, of.slopes)

    def summed(covariances: Floats) -> Floats:
        return np.asarray(np.einsum("ijkn,ijkn->kn", covariances, k))

    off = summed(products) / below
    crossed = of.mixed[0, 0] * off + summed(by_slope)
    crossed = (crossed + np.einsum("ikn,ikn->kn", products[:, 0], q)) / below
    square = of.squares[0, 0] * off + 2 * of.mixed[0, 0] * crossed + summed(squares)
    square = square + 2 * np.einsum("ikn,ikn->kn", by_slope[0], q) + products[0, 0] * moved
    return held + off, mixed + crossed, moved + square / below


def _constant(
    complement: Floats, part: Decay, stable: NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """E g², E ge and E e² of a constant λ, which angles may turn below 0."""
    from_one = np.where(stable, complement, 0.5)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.where(
            from_one < 0.5, np.log1p(-np.minimum(from_one, 0.5)), np.log(np.abs(1 - from_one))
        )
    if np.any(from_one > 1):
        log = log + 1j * math.pi * (from_one > 1)
    found = moments(log.ravel(), Autocorrelation((1.0,), (part.rho,), (part.frequency,)))
    f, c, s = (np.real(each).reshape(complement.shape) for each in found)
    return f, c, s


def _covariances(products: Floats, left: Floats, right: Floats) -> Floats:
    return np.asarray(covariance(products, left[:, None] * right[None]))
