"""The linear teacher whose long memory the students have to learn, and what all are drawn from.

Every value is drawn by NumPy in double precision, the same for every dtype and JAX version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jaxtyping import Complex128, Float64

# The standard deviation of a standard normal that is cut off at ±2.
TRUNCATED_DEVIATION = 0.87962566103423978


def truncated_normal(
    random: np.random.Generator, shape: tuple[int, ...], fan_in: int
) -> NDArray[np.float64]:
    """Normal values cut off at two deviations, rescaled to variance 1/fan_in (LeCun)."""
    values = random.standard_normal(shape)
    while (outside := np.abs(values) > 2).any():
        values[outside] = random.standard_normal(np.count_nonzero(outside))
    return values / (TRUNCATED_DEVIATION * np.sqrt(fan_in))


def dense_transition(
    random: np.random.Generator, units: int, modulus: float
) -> Float64[np.ndarray, "units units"]:
    """A real random matrix whose eigenvalues are moved towards the unit circle.

    The entries of A are N(0, 1/√n) (deviation). Its eigenvalues are mapped by
    ``|λ| → ν + (1 - ν) tanh|λ|``, angles and eigenvectors kept, which keeps A real: Zucchet &
    Orvieto 2024, eq. 133 with θ₀ = π.

    Args:
        random: the source of randomness.
        units: n.
        modulus: ν in [0, 1), below which no |λ| lies.
    """
    raw = random.standard_normal((units, units)) / np.sqrt(units)
    eigenvalues, eigenvectors = np.linalg.eig(raw)
    moduli = np.abs(eigenvalues)
    moved = eigenvalues / moduli * (modulus + (1 - modulus) * np.tanh(moduli))
    # A = P diag(λ) P⁻¹ solved from the right; what is left of an imaginary part is rounding.
    return np.linalg.solve(eigenvectors.T, (eigenvectors * moved).T).T.real


def ring_eigenvalues(
    random: np.random.Generator, units: int, modulus: float
) -> Complex128[np.ndarray, " units"]:
    """Eigenvalues drawn uniformly by area from the upper half of the ring ν ≤ |λ| < 1.

    Orvieto et al. 2023, lemma 3.2. A real readout sees λ and its conjugate alike, so the upper
    half is the whole ring.
    """
    squared_moduli = random.uniform(modulus**2, 1, units)
    return np.sqrt(squared_moduli) * np.exp(1j * random.uniform(0, np.pi, units))


def single_channel(random: np.random.Generator, units: int) -> dict[str, NDArray[np.float64]]:
    """B (n, 1), C (1, n) and D (1, 1) of a real system with one input and one output."""
    return {
        "B": truncated_normal(random, (units, 1), fan_in=1),
        "C": truncated_normal(random, (1, units), fan_in=units),
        "D": truncated_normal(random, (1, 1), fan_in=1),
    }


@dataclass(frozen=True)
class Teacher:
    """``h[t] = A h[t-1] + B x[t]``, ``y[t] = C h[t] + D x[t]`` with one input and one output.

    Zucchet & Orvieto 2024, section 4.2 and appendix B.4.
    """

    A: Float64[np.ndarray, "n n"]  # (n, n) transition
    B: Float64[np.ndarray, "n 1"]  # (n, 1) readin
    C: Float64[np.ndarray, "1 n"]  # (1, n) readout
    D: Float64[np.ndarray, "1 1"]  # (1, 1) skip connection

    def kernel(self, horizon: int) -> Float64[np.ndarray, " horizon"]:
        """The response to an impulse: ``D + C B, C A B, C A² B, …``, one number per step."""
        response = np.empty(horizon)
        state = self.B[:, 0]
        for step in range(horizon):
            response[step] = self.C[0] @ state
            state = self.A @ state
        response[0] += self.D[0, 0]
        return response


def draw_teacher(units: int, modulus: float, seed: int) -> Teacher:
    """A random teacher with every |λ| between ν and 1."""
    random = np.random.default_rng([seed, 0])
    return Teacher(dense_transition(random, units, modulus), **single_channel(random, units))
