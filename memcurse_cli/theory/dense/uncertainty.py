"""What rounding in float64 leaves of a matrix far from normal.

A computed Schur form is that of ``A + E`` with ‖E‖ of the size of ``ε √n ‖A‖_F`` (Golub & Van Loan
2013, section 7.5.6). On the unit circle ``(z - A - E)⁻¹ = (I - R E)⁻¹ R`` with ``R = (z - A)⁻¹``,
so that with ``δ = ‖E‖ max_|z|=1 ‖R‖`` below 1 every resolvent there, and every integral of products
of resolvents, is known to a few δ relative, and no eigenvalue can have crossed the circle;
1/max ‖R‖ is the distance to instability (Van Loan 1985; Trefethen & Embree 2005, chapter 49).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.dense.bases import DoublingStein, Eigenbasis, ModalStein, SteinSolver

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

ANGLES = 128  # on half a circle; real matrices repeat it
BISECTIONS = 12  # of the distance of a circle from the unit circle: a four-thousandth of it
UNCERTAIN = 0.01  # δ beyond which nothing is reported
CHUNK = 2**21  # elements of resolvents that are held at once
ON_CIRCLE = 1e-4  # log |λ| up to which a defective eigenvalue of 1 is computed above it

TOO_UNCERTAIN = (
    "its eigenvectors are so ill-conditioned that rounding it in float64 changes what it does by "
    "more than 1 %"
)


def henrici_departure(matrix: Floats, eigenvalues: Complexes) -> float:
    """√(‖A‖_F² - Σ|λ|²) / ‖A‖_F: 0 for a normal matrix, 1 for a nilpotent one (Henrici 1962)."""
    largest = float(np.abs(matrix).max(initial=0))
    if largest == 0:
        return 0.0
    # Divided by the largest entry no square leaves the range of a float.
    norm = float(np.sum((matrix / largest) ** 2))
    spectrum = float(np.sum(np.abs(eigenvalues / largest) ** 2))
    return math.sqrt(max(norm - spectrum, 0.0) / norm)


def is_undetermined(matrix: Floats, basis: Eigenbasis) -> bool:
    """Whether rounding A in float64 can change by more than 1 % what it does in infinitely long.

    Args:
        matrix: (n, n) real A.
        basis: its eigenbasis; one with κ(P) < 1e8 determines it.
    """
    # An eigenvalue of 1 is stored as such.
    if basis.is_usable or 0 <= basis.log_radius < ON_CIRCLE:
        return False
    return not uncertainty(matrix) < UNCERTAIN


def stein_solver(matrix: Floats, basis: Eigenbasis | None) -> SteinSolver:
    """Whatever solves the Stein equations of this matrix.

    Args:
        matrix: (n, n) real A, all |λ| < 1.
        basis: its eigenbasis, or None where that is too ill-conditioned.

    Raises:
        ArithmeticError: the powers of A do not vanish, or rounding A changes the solutions.
    """
    if basis is not None:
        return ModalStein(basis)
    solver = DoublingStein(matrix)
    if not uncertainty(matrix) < UNCERTAIN:
        raise ArithmeticError(TOO_UNCERTAIN)
    return solver


def within_rounding(matrix: Floats, basis: Eigenbasis) -> float | None:
    """The largest |λ| of any matrix within rounding of A; None where κ(P) < 1e8 determines it."""
    return None if basis.is_usable else radius_within_rounding(matrix, math.exp(basis.log_radius))


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
