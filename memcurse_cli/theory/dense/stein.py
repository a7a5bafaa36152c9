"""Solutions of Stein equations of one real matrix A, for many right-hand sides.

``X = A X Aᵀ + F`` and its adjoint ``Y = AᵀYA + F`` have the solutions ``Σ_k A^k F (A^k)ᵀ`` and
``Σ_k (A^k)ᵀ F A^k``, which exist for every F where all |λ| < 1.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.dense.eigenbasis import Eigenbasis
from memcurse_cli.theory.dense.schur import TOO_UNCERTAIN, UNCERTAIN, schur_form, uncertainty
from memcurse_cli.theory.moments.moments import one_minus_exp

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

SETTLED = 1e-17  # a power whose square adds less has added nothing
DOUBLINGS = 60  # 2^60 steps: a decay of 1e-17, below the rounding of |λ|


class SteinSolver(Protocol):
    """Both equations of one A."""

    def forward(self, source: Floats) -> Floats:
        """X = A X Aᵀ + F."""

    def adjoint(self, source: Floats) -> Floats:
        """Y = AᵀYA + F."""


class ModalStein:
    """By the eigenbasis: an elementwise division by ``1 - λ_k λ_l``, exact near the unit circle."""

    def __init__(self, basis: Eigenbasis) -> None:
        logs = basis.logs
        self._basis = basis
        self._plain = one_minus_exp(logs[:, None] + logs[None, :])
        self._paired = np.flatnonzero(basis.weight == 2)
        if self._paired.size:
            self._conjugated = one_minus_exp(logs[:, None] + logs.conj()[None, :])

    def forward(self, source: Floats) -> Floats:
        """X = A X Aᵀ + F, with F in the basis that P spans."""
        real, inverse = self._basis.real_vectors, self._basis.real_inverse
        return np.asarray(real @ self._divide(inverse @ source @ inverse.T, -1) @ real.T)

    def adjoint(self, source: Floats) -> Floats:
        """Y = AᵀYA + F, with F in the basis that the rows of P⁻¹ span."""
        real, inverse = self._basis.real_vectors, self._basis.real_inverse
        return np.asarray(inverse.T @ self._divide(real.T @ source @ real, 1) @ inverse)

    def _divide(self, array: Floats, sign: int) -> Floats:
        """From real pairs (r, r') to modes ``r ± i r'``, divided there, and back.

        A pair's modes are ``(r - i r')/2`` of coordinates, and ``r + i r'`` of products with p; the
        factor goes out and comes in again.
        """
        size, paired = len(self._plain), self._paired
        if not paired.size:
            return np.asarray((array / self._plain).real)
        turn = sign * 1j
        modes = array[:size].astype(np.complex128)
        modes[paired] += turn * array[size:]
        plain, conjugated = modes[:, :size].copy(), modes[:, :size].copy()
        plain[:, paired] += turn * modes[:, size:]
        conjugated[:, paired] -= turn * modes[:, size:]
        plain /= self._plain
        conjugated /= self._conjugated
        columns = np.hstack([plain, (plain - conjugated)[:, paired] / (2 * turn)])
        columns[:, paired] = 0.5 * (plain + conjugated)[:, paired]
        return np.vstack([columns.real, sign * columns.imag[paired]])


class DoublingStein:
    """By Smith's doubling, ``X_2k = X_k + A^k X_k (A^k)ᵀ``: for any eigenvectors, and for none.

    In Schur form, where repeated squares of a matrix far from normal keep their digits.
    """

    def __init__(self, matrix: Floats) -> None:
        form = schur_form(matrix)
        powers, self._vectors = [form.triangle], form.vectors
        with np.errstate(over="ignore", invalid="ignore"):
            while not float(np.sum(powers[-1] ** 2)) <= SETTLED:
                if len(powers) > DOUBLINGS or not np.all(np.isfinite(powers[-1])):
                    raise ArithmeticError("the powers of the matrix do not vanish")
                powers.append(powers[-1] @ powers[-1])
        if not uncertainty(matrix) < UNCERTAIN:
            raise ArithmeticError(TOO_UNCERTAIN)
        self._powers = powers

    def forward(self, source: Floats) -> Floats:
        """X = A X Aᵀ + F."""
        total = self._vectors.T @ source @ self._vectors
        for power in self._powers:
            total = total + power @ total @ power.T
        return np.asarray(self._vectors @ total @ self._vectors.T)

    def adjoint(self, source: Floats) -> Floats:
        """Y = AᵀYA + F."""
        total = self._vectors.T @ source @ self._vectors
        for power in self._powers:
            total = total + power.T @ total @ power
        return np.asarray(self._vectors @ total @ self._vectors.T)


def stein_solver(matrix: Floats, basis: Eigenbasis | None) -> SteinSolver:
    """Whatever solves the equations of this matrix.

    Args:
        matrix: (n, n) real A, all |λ| < 1.
        basis: its eigenbasis, or None where that is too ill-conditioned.

    Raises:
        ArithmeticError: the powers of A do not vanish, or rounding A changes the solutions.
    """
    return DoublingStein(matrix) if basis is None else ModalStein(basis)
