"""Dense matrices of every kind, and the sums that define their sensitivity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from theory.brute_force import covariance

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


def with_eigenvalues(values: list[float]) -> Floats:
    """Real eigenvalues and eigenvectors that are not orthogonal."""
    vectors = np.random.default_rng(0).normal(size=(len(values), len(values)))
    return vectors @ np.diag(values) @ np.linalg.inv(vectors)


def gram(order: int, rank: int, seed: int) -> Floats:
    """Of responses whose sizes are several orders of magnitude apart."""
    generator = np.random.default_rng(seed)
    responses = generator.normal(size=(order, rank))
    responses *= generator.lognormal(sigma=2, size=(order, 1))
    return responses @ responses.T


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


def responses(
    matrix: Floats,
    readin: Floats,
    steps: int,
    readout: Floats | None = None,
    changes: Floats | None = None,
) -> Floats:
    """(1 + count, outputs, inputs, steps) C h and its derivative by every change of A.

    Without C it is h, and without changes A's entries move, each alone.
    """
    size = len(matrix)
    readout = np.eye(size) if readout is None else readout
    changes = np.eye(size**2).reshape(-1, size, size) if changes is None else changes
    h, moved, seen = readin, np.zeros((len(changes), *readin.shape)), []
    for _ in range(steps):
        seen.append(readout @ np.concatenate([h[None], moved]))
        moved, h = matrix @ moved + changes @ h, matrix @ h
    return np.stack(seen, axis=-1)


def sums(
    matrix: Floats,
    readin: Floats,
    autocorrelation: Autocorrelation,
    steps: int,
    readout: Floats | None = None,
    *,
    every: bool = False,
) -> tuple[Floats, Floats]:
    """(n,) E h_i² and (n, n) E‖dh/dA_ij‖², or ‖C dh/dA_ij‖², response by response.

    They are those after some steps from zero, or their mean over every step up to there.
    """
    seen = covariance(autocorrelation, steps, every=every)
    h, *moved = responses(matrix, readin, steps)
    entries = np.array(moved)
    if readout is not None:
        entries = np.einsum("on,anuk->aouk", readout, entries)
    second_moment, squares = (np.sum((of @ seen) * of, axis=(-2, -1)) for of in (h, entries))
    return second_moment, squares.sum(axis=-1).reshape(matrix.shape)
