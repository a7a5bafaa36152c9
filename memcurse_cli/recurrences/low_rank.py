"""The eigenvalues of a diagonal plus low-rank state matrix, and how each parameter moves them.

A state s and its conjugate obey ``s' = w s - P (Qᵀs + Q̄ᵀs̄)``. On ``x = [Re s, Im s]`` that is the
real matrix ``A = W - 2 p qᵀ`` with ``W = [[Re w, -Im w], [Im w, Re w]]``, ``p = [Re P, Im P]`` and
``q = [Re Q, -Im Q]``, whose eigenvalues come in exact conjugate pairs and cost a quarter of the
complex form's. An eigenvalue a with left and right eigenvectors l, r (``l r = 1``) moves by
``l dA r``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.recurrence import Complexes, Floats
from memcurse_cli.spectra.eigendecomposition import eigendecompose

LARGEST_CONDITION = 1e12
"""Of an eigenvalue; past it a derivative has fewer than four digits."""


@dataclass(frozen=True)
class LowRankSpectrum:
    """The eigendecomposition of one matrix per row.

    Attributes:
        values: (rows, 2 modes) eigenvalues, by frequency.
        left_real: (rows, 2 modes, modes) the part of each left eigenvector that meets Re s.
        left_imag: the same for Im s.
        right_real: (rows, 2 modes, modes) likewise of the right eigenvectors, of norm 1.
        right_imag: the same for Im s.
        weight: (rows, 1, 1 or modes) the step sizes that multiply A from the left, or one.
        left_p: (rank, rows, 2 modes) l·p, weighted.
        right_q: (rank, rows, 2 modes) q·r.
        tied: Q is P's conjugate.
    """

    values: Complexes
    left_real: Complexes
    left_imag: Complexes
    right_real: Complexes
    right_imag: Complexes
    weight: Floats
    left_p: Complexes
    right_q: Complexes
    tied: bool

    def along_diagonal(self, slope: Complexes) -> Complexes:
        """(rows, 2 modes, modes) da/dω where ω moves w by ``slope`` (rows, modes) dw/dω."""
        along = self.left_real * self.right_real + self.left_imag * self.right_imag
        across = self.left_imag * self.right_real - self.left_real * self.right_imag
        return self.weight * (slope.real[:, None] * along + slope.imag[:, None] * across)

    def along_p(self) -> Complexes:
        """(rank, rows, 2 modes, modes, 2) da for Re P and Im P; Q follows where it is tied."""
        left = np.stack([self.left_real, self.left_imag], axis=-1) * self.weight[..., None]
        moved = self.right_q[..., None, None] * left
        if self.tied:
            right = np.stack([self.right_real, self.right_imag], axis=-1)
            moved += self.left_p[..., None, None] * right
        return -2 * moved

    def along_q(self) -> Complexes:
        """(rank, rows, 2 modes, modes, 2) da for Re Q and Im Q."""
        right = np.stack([self.right_real, -self.right_imag], axis=-1)
        return -2 * self.left_p[..., None, None] * right

    def along_weight(self) -> Complexes:
        """(rows, 2 modes, modes) da for the step size of each mode.

        ``d(D A)`` for ``D = diag(Δ)`` is ``dD D⁻¹ (D A)``, so that da is ``a/Δ`` times the mode's
        share of ``l r``.
        """
        share = self.left_real * self.right_real + self.left_imag * self.right_imag
        return self.values[..., None] * share / self.weight

    def project(self, readin: Complexes) -> Complexes:
        """(rows, 2 modes) of a vector (rows, modes) on s, and its conjugate, by eigenvectors."""
        weighted = readin[:, None] * self.weight
        # √2: the eigenvectors have norm 1 on [s, s̄], which is √2 times as long as x.
        parts = self.left_real * weighted.real + self.left_imag * weighted.imag
        projected: Complexes = math.sqrt(2) * parts.sum(axis=-1)
        return projected


def decompose(
    diagonal: Complexes, p: Complexes, q: Complexes | None, weight: Floats, device: str, tensor: str
) -> LowRankSpectrum:
    """The eigenvalues and eigenvectors of ``diag(weight) (diag(w) - P Qᵀ)``, conjugates included.

    Args:
        diagonal: (rows, modes) w.
        p: (rank, rows, modes) P.
        q: (rank, rows, modes) Q, or None where it is P's conjugate.
        weight: (rows, 1 or modes).
        device: where to decompose.
        tensor: what to name in an error.

    Raises:
        TensorError: a matrix has no basis of eigenvectors.
    """
    rows, modes = diagonal.shape
    p_real = np.concatenate([p.real, p.imag], axis=-1)
    q_real = p_real if q is None else np.concatenate([q.real, -q.imag], axis=-1)
    matrix = -2 * np.einsum("rsm,rsn->smn", p_real, q_real)
    upper, lower = np.arange(modes), np.arange(modes, 2 * modes)
    matrix[:, upper, upper] += diagonal.real
    matrix[:, lower, lower] += diagonal.real
    matrix[:, upper, lower] -= diagonal.imag
    matrix[:, lower, upper] += diagonal.imag
    doubled = np.broadcast_to(weight, (rows, modes))
    matrix *= np.concatenate([doubled, doubled], axis=-1)[..., None]
    spectrum = eigendecompose(matrix, device)
    # By frequency, so that a small change of a parameter does not reorder them.
    order = np.lexsort((spectrum.values.imag, spectrum.values.real, np.abs(spectrum.values.imag)))
    vectors = np.take_along_axis(spectrum.vectors, order[:, None], axis=-1)
    left = left_eigenvectors(vectors, tensor)
    right = np.swapaxes(vectors, -1, -2)
    weighted = left * np.concatenate([doubled, doubled], axis=-1)[:, None]
    return LowRankSpectrum(
        values=np.take_along_axis(spectrum.values, order, axis=-1),
        left_real=left[..., :modes],
        left_imag=left[..., modes:],
        right_real=right[..., :modes],
        right_imag=right[..., modes:],
        weight=weight[:, None],
        left_p=np.einsum("sim,rsm->rsi", weighted, p_real),
        right_q=np.einsum("sim,rsm->rsi", right, q_real),
        tied=q is None,
    )


def left_eigenvectors(vectors: Complexes, tensor: str) -> Complexes:
    """The left eigenvectors, as rows. The norm of one is its eigenvalue's condition number.

    Args:
        vectors: (..., n, n) the right eigenvectors, as columns of norm 1.
        tensor: what to name in an error.

    Raises:
        TensorError: a matrix has no basis of eigenvectors.
    """
    try:
        left = np.linalg.inv(vectors).astype(np.complex128, copy=False)
    except np.linalg.LinAlgError:
        left = np.full_like(vectors, np.inf)
    if not np.abs(left).max() < LARGEST_CONDITION:
        raise TensorError(
            "the state matrix cannot be diagonalised: its eigenvectors coincide",
            where=tensor,
            remedy="use a checkpoint from another step",
        )
    return left
