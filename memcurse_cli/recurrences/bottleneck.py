"""Gates behind a low-rank layer with tanh between its two matrices, as in RWKV-6 and 7."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gaussian_gates import normal_nodes

Floats = NDArray[np.float64]

HIGHEST_ORDER = 15
"""Of the Hermite functions that two different units share."""


@dataclass(frozen=True)
class Bottleneck:
    """``V tanh(W y)`` of ``y[t] = x[t] + μ (x[t-1] - x[t])``: what a decay sees of its input.

    Attributes:
        outer: (n, rank) V.
        inner: (rank, inputs) W.
        mixing: (inputs,) μ, how much of the previous input each component takes.
        moving: what is added to μ at every step, which depends on the input too (RWKV-6), or None.
    """

    outer: Floats
    inner: Floats
    mixing: Floats
    moving: Bottleneck | None = None

    def variance(self, input_second_moment: float) -> Floats:
        """(n,) E of the square, for independent components of x, white in time.

        y has the variance ``((1-μ)² + μ² + 2 E m²) E x²``, with m what moves μ, an odd function of
        the input whose components are taken as independent of those that it multiplies.
        """
        mixed = (1 - self.mixing) ** 2 + self.mixing**2
        if self.moving is not None:
            mixed = mixed + 2 * self.moving.variance(input_second_moment)
        gram = (self.inner * (mixed * input_second_moment)) @ self.inner.T
        variance: Floats = np.sum((self.outer @ tanh_covariance(gram)) * self.outer, axis=1)
        return np.maximum(variance, 0.0)


def tanh_covariance(covariance: Floats) -> Floats:
    """E tanh(a) tanh(b) of centred Gaussians a, b with a given covariance (rank, rank).

    Mehler: with ``c_k(σ) = E tanh(σ g) He_k(g) / √k!`` of a standard normal g it is
    ``Σ_k c_k(σ_a) c_k(σ_b) ρᵏ`` over odd k. The diagonal, where the sum converges slowly, is
    E tanh² itself.
    """
    spread = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    nodes, weights = normal_nodes(np.zeros_like(spread), spread)
    bent = np.tanh(spread * nodes[:, None])
    alive = np.where(spread > 0, spread, 1.0)
    correlation = np.clip(covariance / alive / alive[:, None], -1.0, 1.0)
    result: Floats = np.zeros_like(correlation)
    before, hermite = np.zeros_like(nodes), np.ones_like(nodes)  # He_k / √k!
    for order in range(1, HIGHEST_ORDER + 1):
        following = (nodes * hermite - math.sqrt(order - 1) * before) / math.sqrt(order)
        before, hermite = hermite, following
        if order % 2:
            coefficient = (weights * hermite) @ bent
            result += coefficient * coefficient[:, None] * correlation**order
    np.fill_diagonal(result, weights @ bent**2)
    return result
