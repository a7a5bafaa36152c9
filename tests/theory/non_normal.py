"""Matrices far from normal, and what they do in exact arithmetic."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BITS = 320  # after the binary point; an entry of the matrices has at most 60
COUNT = 320  # powers; the last are below 1e-5 of the largest, squared below 1e-10
CASES = [(2, 0), (2, 1), (3, 0), (3, 3), (4, 0), (4, 1), (4, 2), (4, 3)]


def far_from_normal(strength: float, seed: int, size: int = 12) -> Floats:
    """Eigenvalues .2 to .9 behind a strictly upper triangle, in an orthogonal basis."""
    generator = np.random.default_rng(seed)
    upper = np.triu(generator.standard_normal((size, size)) * strength, 1)
    matrix = upper + np.diag(np.linspace(0.2, 0.9, size))
    basis = np.linalg.qr(generator.standard_normal((size, size)))[0]
    return np.asarray(basis @ matrix @ basis.T)


@cache
def exact_powers(strength: float, seed: int) -> Floats:
    """(count, n, n) A^k of the matrix as it is stored, in integers, rounded once at the end."""
    matrix = far_from_normal(strength, seed)
    stored = np.array([[int(math.ldexp(x, BITS)) for x in row] for row in matrix], dtype=object)
    power = np.array([[int(i == j) << BITS for j in range(12)] for i in range(12)], dtype=object)
    powers = []
    for _ in range(COUNT):
        powers.append([[math.ldexp(float(x), -BITS) for x in row] for row in power])
        power = power.dot(stored) >> BITS
    return np.array(powers)


def exact_sensitivity(powers: Floats, readin: Floats) -> tuple[Floats, Floats]:
    """(n,) E h_i² and (n, n) E‖dh/dA_ij‖² under white noise, impulse response by impulse response.

    At lag k the derivative by an entry is ``Σ_m A^(k-1-m) e_i (A^m B)_j``.
    """
    count, size, _ = powers.shape
    states = powers @ readin  # (lag, j, input)
    entries = np.zeros((size, size))
    left, right = powers.reshape(count, -1), states.reshape(count, -1)
    for lag in range(count):
        moved = left[: lag + 1].T @ right[lag::-1]
        entries += np.sum(moved.reshape(size, size, size, -1) ** 2, axis=(0, 3))
    return np.sum(states**2, axis=(0, 2)), entries
