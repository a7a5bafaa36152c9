"""The eigenbasis of a real matrix: P, P⁻¹ and one side of its spectrum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

DIRECT_SIZE = 200  # up to here all singular values cost less than two Lanczos runs


@dataclass(frozen=True)
class Eigenbasis:
    """``A = P diag(λ) P⁻¹`` of a real A, whose eigenvalues come in conjugate pairs.

    Attributes:
        log_eigenvalues: (n,) log λ; -inf for λ = 0.
        vectors: (n, n) P, columns of norm 1.
    """

    log_eigenvalues: Complexes
    vectors: Complexes

    @cached_property
    def half(self) -> NDArray[np.intp]:
        """The eigenvalues with Im λ >= 0: one of each conjugate pair, and every real one."""
        return np.flatnonzero(self._imaginary >= 0)

    @cached_property
    def half_weight(self) -> Floats:
        """2 for each pair and 1 for each real eigenvalue of `half`."""
        return np.where(self._imaginary[self.half] > 0, 2.0, 1.0)

    @cached_property
    def inverse(self) -> Complexes:
        """P⁻¹, through a real matrix: a pair p, p̄ spans what Re p and Im p span.

        Not finite where P is singular.
        """
        pairs = np.flatnonzero(self._imaginary > 0)
        partners = np.flatnonzero(self._imaginary < 0)
        real = self.vectors.real.copy()
        real[:, partners] = self.vectors[:, pairs].imag
        try:
            inverse = np.linalg.inv(real)
        except np.linalg.LinAlgError:
            return np.full(self.vectors.shape, np.nan, np.complex128)
        rows = inverse.astype(np.complex128)
        rows[pairs] = 0.5 * (inverse[pairs] - 1j * inverse[partners])
        rows[partners] = rows[pairs].conj()
        return rows

    @cached_property
    def condition(self) -> float:
        """κ(P) = ‖P‖₂ ‖P⁻¹‖₂; inf where P is singular."""
        inverse = self.inverse
        if not np.all(np.isfinite(inverse)):
            return math.inf
        return largest_singular_value(self.vectors) * largest_singular_value(inverse)

    @property
    def _imaginary(self) -> Floats:
        """Positive above the real axis, negative below it, 0 on it: a negative λ has angle π."""
        angle = self.log_eigenvalues.imag
        return np.where(np.abs(angle) == np.pi, 0.0, angle)


def largest_singular_value(matrix: Complexes) -> float:
    """‖M‖₂."""
    if matrix.shape[0] <= DIRECT_SIZE:
        return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0
    from scipy.sparse.linalg import svds

    start = np.ones(matrix.shape[0])  # a fixed start makes the report the same every time
    return float(svds(matrix, k=1, v0=start, return_singular_vectors=False)[0])
