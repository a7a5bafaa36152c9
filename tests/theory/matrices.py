"""Dense matrices of every kind, and the sums that define their sensitivity."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.dense.bases import Eigenbasis
from memcurse_cli.theory.dense.sensitivity import DenseSystem

Floats = NDArray[np.float64]


def eigenbasis(matrix: Floats) -> Eigenbasis:
    values, vectors = np.linalg.eig(matrix)
    with np.errstate(divide="ignore"):
        logs = np.log(values.astype(complex))
    return Eigenbasis(logs, vectors.astype(complex))


def system(matrix: Floats, *given: Any, **others: Any) -> DenseSystem:
    """A matrix with its eigenbasis: B, C, R, T and what is read, as far as they are given."""
    return DenseSystem(matrix, eigenbasis(matrix), *given, **others)


def random(size: int, radius: float, seed: int = 0) -> Floats:
    """Complex pairs and real eigenvalues, the largest of some modulus."""
    matrix = np.random.default_rng(seed).normal(size=(size, size))
    return matrix * (radius / np.abs(np.linalg.eigvals(matrix)).max())


def with_eigenvalues(values: list[float], seed: int = 0) -> Floats:
    """Real eigenvalues and eigenvectors that are not orthogonal."""
    vectors = np.random.default_rng(seed).normal(size=(len(values), len(values)))
    return vectors @ np.diag(values) @ np.linalg.inv(vectors)


def jordan(size: int, value: float) -> Floats:
    """One eigenvalue and one eigenvector."""
    return value * np.eye(size) + np.diag(np.ones(size - 1), 1)


MATRICES = {
    "one": np.array([[0.8]]),
    "zero": np.zeros((3, 3)),
    "random": random(5, 0.9),
    "contracting": random(4, 0.3, 1),
    "repeated": 0.7 * np.eye(3),
    "negative": with_eigenvalues([-0.9, -0.5, 0.0, 0.6]),
    "singular": with_eigenvalues([0.0, 0.0, 0.8]),
    "rotation": 0.95 * np.array([[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]]),
    "symmetric": random(4, 0.8, 2) @ np.diag([0.3, -0.2, 0.5, 0.1]) @ random(4, 0.8, 2).T,
    "nilpotent": jordan(4, 0.0),
    "defective": jordan(3, 0.6),
}
UNSTABLE = {
    "explosive": random(4, 1.1, 3),
    "integrator": np.eye(2),
    "unstable jordan": jordan(3, 1.0),
}


def sums(
    matrix: Floats,
    readin: Floats,
    autocorrelation: Autocorrelation,
    steps: int,
    readout: Floats | None = None,
) -> tuple[Floats, Floats]:
    """(n,) E h_i² and (n, n) E‖dh/dA_ij‖² after some steps from zero, response by response.

    With a readout C the derivative is that of C h.

    The responses to an innovation, through the input's filter: ``h(k+1) = A h(k) + ρ^(k+1) B`` and
    ``D(k+1) = A D(k) + e_i h_j(k)``. The first innovation has variance 1, the others 1-ρ². A cosine
    is two such filters, with cos(ωk) and with sin(ωk).
    """
    size, inputs = readin.shape
    second_moment, entries = np.zeros(size), np.zeros((size, size))
    every = np.arange(size)
    for (weight, rho, frequency), wave in product(autocorrelation.parts, (np.cos, np.sin)):
        held = rho ** np.arange(steps + 1) * wave(frequency * np.arange(steps + 1))
        h, moved = held[0] * readin, np.zeros((size, size, size, inputs))  # moved[i, j]
        for step in range(steps):
            variance = weight * (1.0 if step == steps - 1 else (1 - rho) * (1 + rho))
            second_moment += variance * np.sum(h**2, axis=1)
            seen = moved if readout is None else readout @ moved
            entries += variance * np.sum(seen**2, axis=(2, 3))
            moved = np.matmul(matrix, moved)
            moved[every, :, every] += h
            h = matrix @ h + held[step + 1] * readin
    return second_moment, entries


def mean_sums(
    matrix: Floats, readin: Floats, autocorrelation: Autocorrelation, steps: int
) -> tuple[Floats, Floats]:
    """The mean of `sums` over every length of the sequence up to ``steps``."""
    each = [sums(matrix, readin, autocorrelation, length) for length in range(1, steps + 1)]
    moments, entries = zip(*each, strict=True)
    return np.mean(moments, axis=0), np.mean(entries, axis=0)
