"""The real Schur form ``A = Q T Qᵀ``, and what rounding leaves of a matrix far from normal.

T is quasi-triangular and Q orthogonal, so that ``A^k = Q T^k Qᵀ`` has the norms of T^k. The zeros
below its diagonal stay zeros in every power: an eigenvalue of T^k is a power of one of T, and no
error of a product comes back to be amplified. Repeated squares of A itself lose all digits once
``ε ‖A^k‖²`` reaches ``‖A^2k‖``, and then explode though every |λ| < 1.

A computed form is that of ``A + E`` with ‖E‖ of the size of ``ε √n ‖A‖_F`` (Golub & Van Loan 2013,
section 7.5.6). On the unit circle ``(z - A - E)⁻¹ = (I - R E)⁻¹ R`` with ``R = (z - A)⁻¹``, so that
with ``δ = ‖E‖ max_|z|=1 ‖R‖`` below 1 every resolvent there, and every integral of products of
resolvents, is known to a few δ relative, and no eigenvalue can have crossed the circle; 1/max ‖R‖
is the distance to instability (Van Loan 1985; Trefethen & Embree 2005, chapter 49).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

ANGLES = 128  # on half a circle; real matrices repeat it
BISECTIONS = 12  # of the distance of a circle from the unit circle: a four-thousandth of it
UNCERTAIN = 0.01  # δ beyond which nothing is reported
CHUNK = 2**21  # elements of resolvents that are held at once

TOO_UNCERTAIN = (
    "its eigenvectors are so ill-conditioned that rounding it in float64 changes what it does by "
    "more than 1 %"
)


class SchurForm(NamedTuple):
    """``A = Q T Qᵀ``.

    Attributes:
        triangle: (n, n) T, upper triangular but for a 2x2 block for each conjugate pair.
        vectors: (n, n) Q.
    """

    triangle: Floats
    vectors: Floats


def schur_form(matrix: Floats) -> SchurForm:
    """The real Schur form.

    Args:
        matrix: (n, n) real A.

    Raises:
        ArithmeticError: an entry is not finite, or the iteration has not converged.
    """
    import scipy.linalg

    if not np.all(np.isfinite(matrix)):
        raise ArithmeticError("the matrix is not finite")
    try:
        triangle, vectors = scipy.linalg.schur(matrix, output="real", check_finite=False)
    except np.linalg.LinAlgError as error:
        raise ArithmeticError("the Schur form of the matrix has not converged") from error
    return SchurForm(triangle, vectors)


def rounding_of(matrix: Floats) -> float:
    """ε √n ‖A‖_F, the size of the change of A that its computed Schur form is exact for."""
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(matrix))
    return float(np.finfo(np.float64).eps) * math.sqrt(len(matrix)) * norm


def resolvents(matrix: Floats, points: Complexes) -> Complexes:
    """(points, n, n) ``(z - A)⁻¹``.

    Raises:
        ArithmeticError: a point is an eigenvalue.
    """
    if not np.all(np.isfinite(matrix)):
        raise ArithmeticError("the matrix is not finite")
    shifted = points[:, None, None] * np.eye(len(matrix)) - matrix
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = np.linalg.inv(shifted)
    except np.linalg.LinAlgError as error:
        raise ArithmeticError(TOO_UNCERTAIN) from error
    if not np.all(np.isfinite(found)):
        raise ArithmeticError(TOO_UNCERTAIN)
    return np.asarray(found)


def largest_norm(matrices: Complexes) -> float:
    """The largest ‖·‖_F of (points, n, n) matrices; inf where its square is."""
    with np.errstate(over="ignore"):
        return float(np.max(np.linalg.norm(matrices, axis=(1, 2))))


def resolvent_on_circle(matrix: Floats, radius: float = 1.0) -> float:
    """The largest ``‖(z - A)⁻¹‖_F`` of 128 points of |z| = r; inf where one is an eigenvalue."""
    points = radius * np.exp(1j * np.linspace(0, np.pi, ANGLES))
    step = max(1, CHUNK // max(matrix.size, 1))
    try:
        return max(
            largest_norm(resolvents(matrix, points[start : start + step]))
            for start in range(0, ANGLES, step)
        )
    except ArithmeticError:
        return math.inf


def uncertainty(matrix: Floats) -> float:
    """δ, the relative change of a resolvent on the unit circle by the rounding of A.

    Args:
        matrix: (n, n) real A.
    """
    return rounding_of(matrix) * resolvent_on_circle(matrix)


def radius_within_rounding(matrix: Floats, radius: float) -> float:
    """The pseudospectral radius: the largest |λ| of any matrix within rounding of A.

    The circle outside which ``‖(z - A)⁻¹‖ < 1/‖E‖``, by bisection on a grid of angles; ‖·‖_F stands
    for the 2-norm, which it is never below.

    Args:
        matrix: (n, n) real A.
        radius: the largest |λ| that was computed.
    """
    allowed = rounding_of(matrix)
    if allowed == 0 or math.isinf(allowed):
        return radius + allowed
    low, high = 0.0, max(allowed, 1e-16 * radius)
    while resolvent_on_circle(matrix, radius + high) * allowed >= 1 and high < math.inf:
        low, high = high, 4 * high
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        inside = resolvent_on_circle(matrix, radius + middle) * allowed >= 1
        low, high = (middle, high) if inside else (low, middle)
    return radius + high


def are_powers_lost(matrix: Floats, steps: int) -> bool:
    """Whether explicit powers up to A^T, one product at a time, are off by more than 1 %.

    Each product is exact for a matrix within rounding of A, so that A^k is off by at most
    ``‖E‖ Σ_j ‖A^j‖ ‖A^(k-1-j)‖``, here against the largest norm of any of them. Powers that leave
    the range of a float are not lost: they diverge.

    Args:
        matrix: (n, n) real A.
        steps: T.
    """
    norms = np.empty(steps)
    power = np.eye(len(matrix))
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(steps):
            norms[step] = np.linalg.norm(power)
            if not math.isfinite(norms[step] ** 2):
                return False
            power = power @ matrix
        error = rounding_of(matrix) * np.convolve(norms, norms)[: steps - 1]
        # Against the largest so far: what explodes later owes nothing to the digits lost before.
        so_far = np.maximum.accumulate(norms)[1:]
    return bool(np.any(error > UNCERTAIN * so_far))
