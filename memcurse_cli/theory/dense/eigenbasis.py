"""The eigenbasis of a real matrix, with its products done in real arithmetic.

The eigenvalues of a real matrix come in conjugate pairs, and so do its eigenvectors. One of each
pair is enough, and what its two members span is spanned by Re p and Im p: every n×n product below
is a product of real matrices, at a quarter of the cost of a complex one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.linalg.lanczos import largest_eigenvalue

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

DIRECT_SIZE = 200  # up to here all eigenvalues cost less than a Lanczos iteration


class PairTables(NamedTuple):
    """A bilinear form T of two modes k and l, each one of a conjugate pair, (h, h) each.

    Attributes:
        conjugated: T(k, l̄).
        plain: T(k, l). Equal to ``conjugated`` where λ_l is real.
    """

    conjugated: Complexes
    plain: Complexes


@dataclass(frozen=True)
class Eigenbasis:
    """``A = P diag(λ) P⁻¹`` of a real A: columns p_k of P, rows q_k of P⁻¹.

    Attributes:
        log_eigenvalues: (n,) log λ; -inf for λ = 0.
        vectors: (n, n) P, columns of norm 1, real where λ is.
    """

    log_eigenvalues: Complexes
    vectors: Complexes

    @cached_property
    def half(self) -> NDArray[np.intp]:
        """(h,) the eigenvalues with Im λ >= 0: one of each conjugate pair, and every real one."""
        angle = self.log_eigenvalues.imag
        return np.flatnonzero((angle >= 0) | (angle == -np.pi))

    @cached_property
    def weight(self) -> Floats:
        """(h,) how many eigenvalues each of `half` stands for: 2 for a pair, 1 for a real one."""
        angle = self.log_eigenvalues.imag[self.half]
        return np.where((angle == 0) | (np.abs(angle) == np.pi), 1.0, 2.0)

    @cached_property
    def logs(self) -> Complexes:
        """(h,) log λ of `half`."""
        return self.log_eigenvalues[self.half]

    @cached_property
    def columns(self) -> Complexes:
        """(n, h) the columns of P of `half`."""
        return self.vectors[:, self.half]

    @cached_property
    def rows(self) -> Complexes:
        """(h, n) the rows of P⁻¹ of `half`; not finite where P is singular."""
        return self._rows_to_modes(self.real_inverse)

    @cached_property
    def condition(self) -> float:
        """κ(P) = ‖P‖₂ ‖P⁻¹‖₂; inf where P is singular."""
        if not np.all(np.isfinite(self.real_inverse)):
            return math.inf
        # P is the real basis times a matrix with orthogonal rows, of norm √2 for a pair.
        scale = np.sqrt(np.r_[self.weight, self.weight[self._paired]])
        across = np.outer(scale, scale)
        return math.sqrt(_largest(self._gram * across) * _largest(self._inverse_gram / across))

    def vector_products(self, readout: Floats | None = None) -> PairTables:
        """``p_kᵀ CᵀC p̄_l`` and ``p_kᵀ CᵀC p_l``.

        Args:
            readout: (outputs, n) real C, or None for the identity.
        """
        paired = self._paired
        size = self.half.size
        if readout is None:
            gram = self._gram
        else:
            seen = readout @ self.real_vectors
            gram = seen.T @ seen
        modes = gram[:size].astype(np.complex128)
        modes[paired] += 1j * gram[size:]
        conjugated, plain = modes[:, :size].copy(), modes[:, :size].copy()
        conjugated[:, paired] -= 1j * modes[:, size:]
        plain[:, paired] += 1j * modes[:, size:]
        return PairTables(conjugated, plain)

    def row_products(self, readin: Floats | None = None) -> PairTables:
        """``q_k B Bᵀ q̄_l`` and ``q_k B Bᵀ q_l``.

        Args:
            readin: (n, inputs) real B, or None for the identity.
        """
        if readin is None:
            gram = self._inverse_gram
        else:
            driven = self.real_inverse @ readin
            gram = driven @ driven.T
        modes = self._rows_to_modes(gram)
        plain = self._rows_to_modes(modes.T).T
        both = modes[:, : self.half.size]
        return PairTables(np.where(self.weight == 2, both - plain, both), plain)

    def combine_vectors(self, tables: PairTables) -> Complexes:
        """(h, n) ``Σ_l T_kl p_lᵀ`` over all n modes l; T(k, l̄) goes with p̄_l."""
        paired = self._paired
        conjugated, plain = tables.conjugated, tables.plain
        both = np.where(self.weight == 2, conjugated + plain, conjugated)
        coefficients = np.hstack([both, 1j * (plain - conjugated)[:, paired]])
        return _times_real(coefficients, self.real_vectors.T)

    def combine_rows(self, tables: PairTables) -> Complexes:
        """(h, n) ``Σ_l T_kl q_l`` over all n modes l; T(k, l̄) goes with q̄_l."""
        paired = self._paired
        conjugated, plain = tables.conjugated, tables.plain
        both = np.where(self.weight == 2, 0.5 * (conjugated + plain), conjugated)
        coefficients = np.hstack([both, 0.5j * (conjugated - plain)[:, paired]])
        return _times_real(coefficients, self.real_inverse)

    @cached_property
    def _paired(self) -> NDArray[np.intp]:
        """Which of `half` stand for a pair."""
        return np.flatnonzero(self.weight == 2)

    @cached_property
    def real_vectors(self) -> Floats:
        """(n, n) Re p of `half`, then Im p of the pairs."""
        return np.hstack([self.columns.real, self.columns[:, self._paired].imag])

    @cached_property
    def real_inverse(self) -> Floats:
        """(n, n) the inverse of `real_vectors`; nan where P is singular."""
        try:
            return np.asarray(np.linalg.inv(self.real_vectors))
        except np.linalg.LinAlgError:
            return np.full(self.vectors.shape, np.nan)

    @cached_property
    def _gram(self) -> Floats:
        return self.real_vectors.T @ self.real_vectors

    @cached_property
    def _inverse_gram(self) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            return self.real_inverse @ self.real_inverse.T

    def _rows_to_modes(self, array: NDArray[np.inexact]) -> Complexes:
        """(n, ...) in the real basis → (h, ...) in the rows of P⁻¹, ``q = (r - i r') / 2``."""
        size = self.half.size
        modes = array[:size].astype(np.complex128)
        modes[self._paired] = 0.5 * (modes[self._paired] - 1j * array[size:])
        return modes


def _largest(gram: Floats) -> float:
    """The largest eigenvalue of MᵀM: as accurate as the square of ‖M‖₂ can be."""
    size = len(gram)
    if not np.all(np.isfinite(gram)):
        return math.inf
    if size <= DIRECT_SIZE:
        return float(np.linalg.eigvalsh(gram)[-1]) if size else 1.0
    return largest_eigenvalue(gram.__matmul__, size)


def _times_real(left: Complexes, right: Floats) -> Complexes:
    """A complex times a real matrix, as one real product."""
    product = np.vstack([left.real, left.imag]) @ right
    return product[: len(left)] + 1j * product[len(left) :]
