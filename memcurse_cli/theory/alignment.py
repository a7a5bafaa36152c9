"""How far one optimizer step on every entry of the recurrence at once moves each eigenvalue.

A step changes every scalar ω_e by ±lr, so an eigenvalue moves by ``lr |Σ_e ± dλ/dω_e|``. With
independent signs that is ``lr √Σ|dλ/dω_e|²`` in the root mean square; with signs that all pull the
same way it is at most ``lr Σ|dλ/dω_e|``. For a dense A with right and left eigenvectors p and q,
``dλ/dA_jk = q̄_j p_k / (q* p)`` (Wilkinson 1965, chapter 2), so the two are ``‖q‖₂‖p‖₂/|q* p|``, the
eigenvalue's condition number, and ``‖q‖₁‖p‖₁/|q* p|``: up to n times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.dense.bases import Eigenbasis
from memcurse_cli.theory.hessian.jacobian import ParameterJacobian

Floats = NDArray[np.float64]


class EigenvalueShift(NamedTuple):
    """How far each eigenvalue moves per unit of a step on every scalar.

    Attributes:
        independent: (n,) with independent signs, root mean square.
        concerted: (n,) with signs that all pull the same way, an upper bound.
    """

    independent: Floats
    concerted: Floats

    def aligned(self, alignment: float) -> Floats:
        """(n,) between the two: ``independent^(1-a) concerted^a`` for an alignment a in [0, 1]."""
        return self.independent ** (1 - alignment) * self.concerted**alignment


def diagonal_shift(size: int, groups: Sequence[ParameterJacobian]) -> EigenvalueShift:
    """The shift of ``size`` eigenvalues by a step on every scalar of some groups."""
    squared, summed = np.zeros(size), np.zeros(size)
    for group in groups:
        magnitude = np.abs(group.eigenvalue_derivative)
        np.add.at(squared, group.eigenvalue, magnitude**2)
        np.add.at(summed, group.eigenvalue, magnitude)
    return EigenvalueShift(np.sqrt(squared), summed)


def dense_shift(basis: Eigenbasis) -> EigenvalueShift:
    """The shift of each eigenvalue of `Eigenbasis.half` by a step on every entry of the matrix.

    Infinite where the matrix has no basis of eigenvectors.
    """
    columns, rows = basis.columns, basis.rows  # q* p = 1: rows of P⁻¹ against columns of P
    with np.errstate(invalid="ignore", over="ignore"):
        independent = np.linalg.norm(rows, axis=1) * np.linalg.norm(columns, axis=0)
        concerted = np.abs(rows).sum(axis=1) * np.abs(columns).sum(axis=0)
    lost = ~np.isfinite(independent) | ~np.isfinite(concerted)
    return EigenvalueShift(np.where(lost, np.inf, independent), np.where(lost, np.inf, concerted))
