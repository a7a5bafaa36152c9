"""The Hessian of a stable dense recurrence on an infinite sequence, as an operator.

A change X of A moves the state by s, ``s[t+1] = A s[t] + X h[t]``. With ``W = AᵀWA + CᵀC``,
Σ = E[h hᵀ] and ``N = (I - ρA)⁻¹B = E[h[t] x[t]ᵀ]`` the gradient of ½ E‖C s‖² by X is

    H[X] = W (A S + X Σ) + Y (A Σ + ρ B Nᵀ) + ρ² (I - ρA)⁻ᵀ AᵀY B Nᵀ
    S = A S Aᵀ + X Σ Aᵀ + ρ (ρ A V + X N) Bᵀ = E[s hᵀ],    V = (I - ρA)⁻¹ X N
    Y = AᵀYA + AᵀW X

two Stein equations. The terms with ρ are linear in R(Δ) and are summed over its parts, those of
a damped cosine being the real parts at ``ρ e^(iω)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.eigenbasis import Eigenbasis
from memcurse_cli.theory.moments import one_minus_exp
from memcurse_cli.theory.stein import stein_solver

Floats = NDArray[np.float64]

NORM_CONDITION = 1e4  # κ(P) up to which ‖H‖_F² in closed form keeps six digits


@dataclass(frozen=True)
class _Coloured:
    """What one part of R(Δ) with ρ > 0 adds.

    Attributes:
        weight: its share of R(0).
        rho: ρ, or ρ e^(iω).
        resolvent: (n, n) (I - ρA)⁻¹.
        answer: (n, inputs) N.
    """

    weight: float
    rho: complex
    resolvent: NDArray[Any]
    answer: NDArray[Any]


class StationaryHessian:
    """H over the entries of A, on an infinite sequence.

    Args:
        matrix: (n, n) real A, all |λ| < 1.
        basis: its eigenbasis, or None where that is too ill-conditioned.
        readin: (n, inputs) B.
        readout: (outputs, n) C.
        autocorrelation: R(Δ) of each input.

    Raises:
        ArithmeticError: the powers of A do not vanish.
    """

    def __init__(
        self,
        matrix: Floats,
        basis: Eigenbasis | None,
        readin: Floats,
        readout: Floats,
        autocorrelation: Autocorrelation,
    ) -> None:
        self._matrix, self._basis, self._readin = matrix, basis, readin
        self._stein = stein_solver(matrix, basis)
        self._coloured: list[_Coloured] = []
        identity = np.eye(len(matrix))
        drive = np.zeros_like(matrix)
        for part in autocorrelation.parts:
            weight, rho = part.weight, part.pole
            drive += weight * (readin @ readin.T)
            if part.rho > 0 and weight > 0:
                resolvent = np.asarray(np.linalg.inv(identity - rho * matrix))
                answer = resolvent @ readin
                self._coloured.append(_Coloured(weight, rho, resolvent, answer))
                crossed = (weight * rho * (matrix @ answer) @ readin.T).real
                drive += crossed + crossed.T
        self._weight = self._stein.adjoint(readout.T @ readout)
        self._covariance = self._stein.forward(drive)
        self._carried = matrix @ self._covariance
        self._source = self._carried.copy()
        for coloured in self._coloured:
            lagged = coloured.weight * coloured.rho * readin @ coloured.answer.T
            self._source += lagged.real
        #: E|y|², the outputs summed.
        self.output_second_moment = float(np.sum((readout @ self._covariance) * readout))

    def apply(self, change: Floats) -> Floats:
        """(n, n) H[X] of an (n, n) X."""
        weighted = self._weight @ change
        back = self._stein.adjoint(self._matrix.T @ weighted)
        source = change @ self._source.T  # X (Σ Aᵀ + ρ N Bᵀ)
        result = np.zeros_like(change)
        for part in self._coloured:
            moved = self._matrix @ (part.resolvent @ (change @ part.answer))
            source += (part.weight * part.rho**2 * moved @ self._readin.T).real
            returned = part.resolvent.T @ (self._matrix.T @ (back @ self._readin))
            result += (part.weight * part.rho**2 * returned @ part.answer.T).real
        joint = self._stein.forward(source)
        result += back @ self._source
        result += self._weight @ (self._matrix @ joint) + weighted @ self._covariance
        return result

    def squared_norm(self) -> float | None:
        """‖H‖_F² for white noise and a well-conditioned eigenbasis, else None.

        With ``K = 1/(1 - λ_a λ_b)`` the operator is ``𝒜 + 𝒜ᵀ - W ⊗ Σ``, and
        ``𝒜[X] = Σ_ab K_ab q_aᵀ (p_aᵀW X p_b) q_bΣ`` is a sum of products, so that the traces of
        𝒜𝒜ᵀ and 𝒜² are ``Σ (KᵀMK) ∘ N`` with the Gram matrices of its factors. Its terms are up to
        κ(P)⁴ times their sum: beyond `NORM_CONDITION` too few of its digits are left.
        """
        if self._basis is None or self._coloured or self._basis.condition > NORM_CONDITION:
            return None
        logs, vectors = self._basis.log_eigenvalues, self._basis.vectors
        kernel = 1 / one_minus_exp(logs[:, None] + logs[None, :])
        inverse = np.linalg.inv(vectors)
        alpha, beta = inverse, vectors.T @ self._weight  # rows
        gamma, delta = vectors.T, inverse @ self._covariance

        def trace(left: NDArray[np.complex128], right: NDArray[np.complex128]) -> float:
            return float(np.sum((kernel.T @ left @ kernel) * right).real)

        crossed, crossed_right = alpha @ beta.T, gamma @ delta.T
        squared = trace((alpha @ alpha.T) * (beta @ beta.T), (gamma @ gamma.T) * (delta @ delta.T))
        product = trace(crossed * crossed.T, crossed_right * crossed_right.T)
        along = np.sum((alpha @ self._weight) * beta, axis=1)
        across = np.sum((gamma @ self._covariance) * delta, axis=1)
        mixed = float((along @ kernel @ across).real)
        both = float(np.sum(self._weight**2) * np.sum(self._covariance**2))
        return 2 * (squared + product) + both - 4 * mixed
