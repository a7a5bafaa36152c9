"""Initial values: drawn by NumPy in double precision, the same for every dtype and JAX version."""

from __future__ import annotations

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
