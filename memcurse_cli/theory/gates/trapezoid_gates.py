"""Expectations of the gates of a trapezoidal step, whose state turns by random angles.

Mamba-3's step is ``h = λ (h⁻ + (1-w) Δ u⁻) + w Δ u`` in a frame that turns with its keys, with

    λ = e^(-aΔ - iθΔ),  Δ = log(1 + e^z₁),  a = a(z₂),  w = σ(z₃),  θ = π tanh(z₄)

and u⁻ the input of the step before: λ, μ = λ (1-w) Δ and ν = w Δ are its gates.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gates.laws import LOGISTIC, RatedStep
from memcurse_cli.theory.gates.trapezoid_nodes import (
    TrapezoidGates,
    angle_count,
    rate_rule,
    step_rule,
    weight_rule,
)

Floats = NDArray[np.float64]

ANGLE_NODES = 2001
"""Of the rule over z₄."""


class TrapezoidExpectations(NamedTuple):
    """Means of (λ, μ, ν), of their derivatives by b₁, and of the real parts of their products.

    Attributes:
        complement: (K, n) E[1 - λ].
        squared_complement: (n,) E[1 - |λ|²].
        means: (3, K, n) E g.
        slopes: (3, K, n) E g'.
        products: (3, 3, K, n) E g_i g_j*.
        mixed: (3, 3, K, n) E g_i g_j'*.
        squares: (3, 3, K, n) E g_i' g_j'*.
    """

    complement: Floats
    squared_complement: Floats
    means: Floats
    slopes: Floats
    products: Floats
    mixed: Floats
    squares: Floats


class Turns(NamedTuple):
    """The angles of K kinds of states, as a rule for even functions of θ.

    Attributes:
        nodes: (J,) θ.
        weights: (K, J) with ``E f(θ) = Σ_j w_kj f(θ_j)``.
        second_moment: (K,) E θ².
        shares: (K,) of the states.
    """

    nodes: Floats
    weights: Floats
    second_moment: Floats
    shares: Floats


def turns_of(gates: TrapezoidGates, *, white: bool) -> Turns:
    """The rule of the angles.

    To a white drive only E θ² counts, and in proportion, so that all states are of one kind.
    Otherwise a state turns by ``e^(-iθΔ)``, which is interpolated in θ by even Chebyshev
    polynomials, with an error that falls as a Bessel function of πΔ beyond the order.
    """
    if gates.angles.size == 0:
        return Turns(np.zeros(1), np.ones((1, 1)), np.zeros(1), np.ones(1))
    spreads = np.append(gates.angles, 0.0)
    shares = np.append(np.full(gates.angles.size, gates.turning / gates.angles.size), 0.0)
    shares[-1] = 1 - gates.turning
    at = np.linspace(-9.0, 9.0, ANGLE_NODES)
    normal = np.exp(-(at**2) / 2)
    normal /= math.fsum(normal)
    turned = np.tanh(spreads[:, None] * at)
    second_moment = math.pi**2 * (turned**2 @ normal)
    if white:
        mean = np.array([second_moment @ shares])
        return Turns(np.zeros(1), np.ones((1, 1)), mean, np.ones(1))
    count = angle_count(gates)
    places = (2 * np.arange(count) + 1) * math.pi / (4 * count)
    angle = np.arccos(turned)
    means = np.stack([np.cos(2 * k * angle) @ normal for k in range(count)], axis=1)
    means[:, 1:] *= 2
    weights = means @ np.cos(2 * np.arange(count)[:, None] * places) / count
    return Turns(math.pi * np.cos(places), weights, second_moment, shares)


def expectations_of(law: RatedStep, gates: TrapezoidGates, turns: Turns) -> TrapezoidExpectations:
    """E of all that the moments take.

    Over z₂, a Gauss-Legendre rule on panels between the corners of a(z₂); over the part of z₁ that
    is independent of it the trapezoidal rule; given both, z₃ is Gaussian and only the mean and the
    variance of w enter. Since θ is as likely as -θ, all expectations are real.
    """
    rated = gates.rated
    by_rate, apart, _ = gates.weight_parts
    v, of_v = rate_rule(law, gates)
    step, count = step_rule(gates)
    w = step * np.arange(-count, count + 1.0)[:, None, None]
    of_w = np.exp(-(w**2) / 2)
    rho = rated.correlation
    first = rated.first.mean + rated.first.spread * (rho * v + np.sqrt((1 - rho) * (1 + rho)) * w)
    rate = np.exp(
        np.maximum(law.rate.log(rated.second.mean + rated.second.spread * v), law.log_floor)
    )
    shape = (-1, rho.size)
    weights = (of_v * of_w / math.fsum(of_w.ravel())).reshape(shape)
    centre = (gates.weight.mean + by_rate * v + apart * w).reshape(shape)
    rate, first = np.broadcast_to(rate, first.shape).reshape(shape), first.reshape(shape)
    p, variance = _opened(gates, centre)
    size = np.logaddexp(0, first)  # Δ
    grown = LOGISTIC(first).value  # Δ'
    kept = np.exp(-rate * size)  # |λ| and its slope
    fading = -rate * grown * kept
    written, writing = kept * size, fading * size + kept * grown  # |λ|Δ and its slope
    once, twice = 1 - p, (1 - p) ** 2 + variance  # of 1-w
    both, square = p * once - variance, p**2 + variance  # of w(1-w) and w²

    def mean(values: Floats) -> Floats:
        return np.asarray(np.einsum("ij,ij->j", weights, values))

    def two(each: Floats, other: Floats, more: Floats) -> list[list[Floats]]:
        """E of λλ, λμ and μμ or their like, of what is (kept², kept·written, written²)."""
        return [[mean(each), mean(other * once)], [mean(other * once), mean(more * twice)]]

    kinds = (turns.weights.shape[0], rho.size)
    products, mixed, squares = (np.zeros((3, 3, *kinds)) for _ in range(3))
    means, slopes = np.zeros((3, *kinds)), np.zeros((3, *kinds))
    products[:2, :2] = np.array(two(kept**2, kept * written, written**2))[:, :, None]
    mixed[:2, :2] = np.array(
        [
            [mean(kept * fading), mean(kept * writing * once)],
            [mean(written * fading * once), mean(written * writing * twice)],
        ]
    )[:, :, None]
    turned = two((grown * kept) ** 2, grown**2 * kept * written, (grown * written) ** 2)
    squares[:2, :2] = np.array(two(fading**2, fading * writing, writing**2))[:, :, None]
    squares[:2, :2] += turns.second_moment[:, None] * np.array(turned)[:, :, None]
    means[2], slopes[2] = mean(size * p), mean(grown * p)
    products[2, 2], mixed[2, 2] = mean(size**2 * square), mean(size * grown * square)
    squares[2, 2] = mean(grown**2 * square)
    # λ and μ, of which the cosine is left; with ν they have E w and E w(1-w).
    straight = np.stack(
        [written * once, fading, writing * once]
        + [by * each for by in (size, grown) for each in (kept * p, written * both)]
        + [by * each for by in (size, grown) for each in (fading * p, writing * both)]
    )
    sideways = np.stack(
        [kept, written * once]
        + [by * each for by in (size, grown) for each in (kept * p, written * both)]
    )
    straight, sideways = straight * weights, sideways * (grown * weights)
    lost = np.zeros((turns.nodes.size, rho.size))
    found = np.zeros((turns.nodes.size, 11, rho.size))
    for row, theta in enumerate(turns.nodes):
        lost[row] = 2 * mean(kept * np.sin(theta * size / 2) ** 2)
        found[row] = np.einsum("fij,ij->fj", straight, np.cos(theta * size))
        if theta != 0:
            bent = theta * np.einsum("fij,ij->fj", sideways, np.sin(theta * size))
            found[row, [1, 2, 7, 8, 9, 10]] -= bent
    complement = mean(-np.expm1(-rate * size)) + turns.weights @ lost
    averaged: Floats = np.einsum("kj,jfn->fkn", turns.weights, found)
    means[0], (means[1], slopes[0], slopes[1]) = 1 - complement, averaged[:3]
    products[0, 2], products[1, 2], mixed[0, 2], mixed[1, 2] = averaged[3:7]
    mixed[2, 0], mixed[2, 1], squares[0, 2], squares[1, 2] = averaged[7:]
    products[2, :2], squares[2, :2] = products[:2, 2], squares[:2, 2]
    squared_complement = mean(-np.expm1(-2 * rate * size))
    return TrapezoidExpectations(
        complement, squared_complement, means, slopes, products, mixed, squares
    )


def _opened(gates: TrapezoidGates, centre: Floats) -> tuple[Floats, Floats]:
    """The mean and the variance of σ(z₃) about every place of it."""
    step, size = weight_rule(gates)
    nodes = step * (np.arange(size) - (size - 1) / 2)
    weights = np.exp(-(nodes**2) / 2)
    weights /= math.fsum(weights)
    alone = gates.weight_parts[2]
    mean, variance = np.zeros(centre.shape), np.zeros(centre.shape)
    middle = LOGISTIC(centre).value
    for node, weight in zip(nodes, weights, strict=True):
        off = LOGISTIC(centre + alone * node).value - middle
        mean += weight * off
        variance += weight * off**2
    return middle + mean, np.maximum(variance - mean**2, 0.0)
