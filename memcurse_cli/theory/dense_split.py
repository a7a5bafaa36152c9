"""How much of the sensitivity to a dense matrix goes through its eigenvalues.

A change dA of ``A = P diag(λ) P⁻¹`` has two parts that add up to it, ``E = P⁻¹ dA P``:

    dA_λ = P diag(E) P⁻¹            moves the eigenvalues and leaves the eigenvectors as they are
    dA_P = P (E - diag(E)) P⁻¹      turns the eigenvectors and leaves the eigenvalues as they are

to first order: ``dλ_k = E_kk`` and ``dP = P M`` with ``M_kl = E_kl / (λ_l - λ_k)``, whatever norms
the eigenvectors are given. The state moves by ``dh = dh_λ + dh_P``, and summed over all entries

    E‖dh‖² = E‖dh_λ‖² + E‖dh_P‖² + 2 E<dh_λ, dh_P>

The last term vanishes for a normal matrix. Otherwise both parts are oblique: they can each be
larger than their sum, and undo each other in the last term. With rows q_k of P⁻¹ and columns p_k
of P,

    E‖dh_λ‖² = Σ_kl (p_kᵀp̄_l)² (q_k q̄_lᵀ) (q_k BBᵀ q̄_lᵀ) E[s_k s̄_l]
    E<dh_λ, dh> = Σ_mkl (p̄_mᵀp_k)(q̄_m q_kᵀ) (p̄_mᵀp_l)(q̄_m BBᵀ q_lᵀ) E[s̄_m (h_k - h_l)]/(λ_k - λ_l)

of states h_k with the eigenvalue λ_k and their derivatives s_k, all under the same input. The
claim that the eigenvalues dominate is that of Zucchet & Orvieto 2024, section A.2.3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.eigenbasis import Eigenbasis
from memcurse_cli.theory.moments import Readout
from memcurse_cli.theory.pair_moments import finite_pairs, stationary_pairs

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

CLOSE = 1e-5  # times the distance from the unit circle: λ so close share one derivative


class SensitivitySplit(NamedTuple):
    """The parts of E‖dh/dA‖²_F, which is their sum.

    Attributes:
        eigenvalues: Σ_ij E‖dh_λ‖².
        eigenvectors: Σ_ij E‖dh_P‖².
        cross: 2 Σ_ij E<dh_λ, dh_P>, of either sign.
    """

    eigenvalues: float
    eigenvectors: float
    cross: float


def sensitivity_split(
    basis: Eigenbasis,
    total: float,
    readin: Floats | None = None,
    autocorrelation: Autocorrelation = WHITE,
    horizon: int | None = None,
    read_at: Readout = "last",
) -> SensitivitySplit:
    """The share of the eigenvalues, that of the eigenvectors and what they have in common.

    Args:
        basis: the eigenbasis of a real A, with κ(P) far below 1/ε.
        total: E‖dh/dA‖²_F under the same input.
        readin: (n, inputs) real B, or None for the identity.
        autocorrelation: R(Δ) of each input.
        horizon: T for T steps from h = 0; None for an infinite sequence, which needs |λ| < 1.
        read_at: at the last step, or the mean over every one.
    """
    logs = basis.log_eigenvalues
    if horizon is None:
        pairs = stationary_pairs(logs, autocorrelation, conjugate=True)
    else:
        _, pairs = finite_pairs(logs, autocorrelation, horizon, read_at)
    vectors = basis.vectors
    inverse = np.linalg.inv(vectors)
    drive = inverse if readin is None else inverse @ readin
    columns = vectors.conj().T @ vectors  # p̄_mᵀ p_k
    rows = (inverse @ inverse.conj().T).conj()  # q̄_m q_kᵀ
    driven = (drive @ drive.conj().T).conj()
    moved, answered = pairs.ss.conj(), pairs.sh.conj()  # E[s̄_m s_k], E[s̄_m h_k]
    eigenvalue_part = float(np.sum(columns**2 * rows * driven * moved).real)

    left, right = columns * rows, columns * driven
    eigenvalues = np.exp(logs)
    apart = eigenvalues[:, None] - eigenvalues[None, :]
    to_circle = np.maximum(-np.expm1(logs.real), np.finfo(float).eps)
    close = np.abs(apart) < CLOSE * np.minimum(to_circle[:, None], to_circle[None, :])
    quotient = np.divide(1, apart, out=np.zeros_like(apart), where=~close)
    shared = np.sum(((left * answered) @ quotient) * right)
    shared -= np.sum((left @ quotient) * (right * answered))
    # Where λ_k = λ_l the quotient is a derivative; between close ones it is their mean.
    near = 0.5 * close
    shared += np.sum(((left * moved) @ near) * right) + np.sum((left @ near) * (right * moved))
    with_all = float(shared.real)
    cross = 2 * (with_all - eigenvalue_part)
    return SensitivitySplit(eigenvalue_part, total - eigenvalue_part - cross, cross)
