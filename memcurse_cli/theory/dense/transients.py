"""What a stable matrix does before it decays, and how long it remembers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from memcurse_cli.theory.dense.bases import (
    TOO_UNCERTAIN,
    UNCERTAIN,
    Eigenbasis,
    rounding_of,
    schur_form,
)
from memcurse_cli.theory.linalg import Complexes, Floats, largest_eigenvalue

DIRECT_SIZE = 100  # up to here a singular value decomposition costs less than an iteration
OCTAVES = 40  # A^(2^40) of a stable matrix has decayed, or its |λ| are 1 to rounding
REFINED = 8  # powers between the two around the largest
RADII, ANGLES = 8, 16  # the first grid outside the unit circle
ZOOMS = 3  # grids around the best point, each a quarter as wide
REMEMBERED = math.exp(-1)  # of a state: what a time constant leaves of it
SAMPLES = 4  # powers between the bounds of the memory, and
PROBED = 4  # after it, for norms that rise again
PAIRS = 16  # of powers behind the error of a later one
ITERATIONS = 5  # of the power iteration on the resolvent: every one of them gives a lower bound
LEFT_RANGE = "the powers of the matrix leave the range of a float"


class TransientGrowth(NamedTuple):
    """The largest ‖A^k‖₂ found, at least 1 (k = 0), and its k."""

    growth: float
    step: int


@np.errstate(over="ignore", invalid="ignore")
def transient_growth(matrix: Floats) -> TransientGrowth:
    """The largest 2-norm of a power of A, over two k per octave and eight around the best.

    Raises ArithmeticError: a power leaves the range of a float.
    """
    best = TransientGrowth(1.0, 0)
    tried: dict[int, Floats] = {}

    def look(step: int, power: Floats) -> None:
        nonlocal best
        # The Frobenius norm is never below the other.
        bound = float(np.linalg.norm(power))
        if not np.isfinite(bound):
            raise ArithmeticError(LEFT_RANGE)
        if bound > best.growth:
            norm = _norm(power)
            if norm > best.growth:
                best = TransientGrowth(norm, step)

    power, step = matrix, 1
    for _ in range(OCTAVES):
        tried[step] = power
        look(step, power)
        if not float(np.linalg.norm(power)) > 1:  # later powers are these times a contraction
            break
        if step > 1:
            tried[step + step // 2] = power @ tried[step // 2]
            look(step + step // 2, tried[step + step // 2])
        power, step = power @ power, 2 * step
    steps = sorted(tried)
    if best.step in tried:
        place = steps.index(best.step)
        low, high = steps[max(place - 1, 0)], steps[min(place + 1, len(steps) - 1)]
        stride = max(1, (high - low) // REFINED)
        forward, moved = np.linalg.matrix_power(matrix, stride), tried[low]
        for step in range(low + stride, high, stride):
            moved = moved @ forward
            look(step, moved)
    return best


def _norm(matrix: Floats) -> float:
    """‖M‖₂."""
    if len(matrix) <= DIRECT_SIZE:
        return float(np.linalg.norm(matrix, 2))
    scale = float(np.abs(matrix).max())
    scaled = matrix / scale

    def apply(vector: Floats) -> Floats:
        return np.asarray(scaled.T @ (scaled @ vector))

    return scale * float(np.sqrt(largest_eigenvalue(apply, len(matrix))))


def memory(matrix: Floats, basis: Eigenbasis | None, time_constant: float) -> float:
    """The larger of the longest time constant and the last k found with ‖A^k‖₂ ≥ 1/e, in steps.

    ``|λ|^k <= ‖A^k‖ <= κ(P) |λ|^k`` puts the last k between τ and τ (1 + log κ(P)), which samples
    and bisection narrow down; one after a fall and rise between samples can be missed. All |λ| < 1;
    the basis is None where κ(P) is too large.
    Raises ArithmeticError: a power leaves the range of a float, or rounding A changes it.
    """
    if basis is not None:
        low, high = int(time_constant), int(time_constant * (1 + math.log(basis.condition)))
        return max(time_constant, float(_last_remembered(_powers_remember(basis), low, high)))
    powers = _SchurPowers(matrix)
    last = _last_remembered(lambda step: powers.norm(step) >= REMEMBERED, 0, powers.forgotten)
    if not powers.error(last) < UNCERTAIN * REMEMBERED:
        raise ArithmeticError(TOO_UNCERTAIN)
    return max(time_constant, float(last))


def _last_remembered(remembers: Callable[[int], bool], low: int, high: int) -> int:
    """The last k found between two bounds with ‖A^k‖ ≥ 1/e, which the lower one is taken to be."""
    remembers = cache(remembers)
    while True:
        above = high + 1
        for step in range(high, low, -max(1, (high - low) // SAMPLES)):
            if remembers(step):
                low = step
                break
            above = step
        while above - low > 1:
            middle = (low + above) // 2
            low, above = (middle, above) if remembers(middle) else (low, middle)
        probed = range(above + 1, min(above + PROBED, high + 1))
        later = next(filter(remembers, probed), None)
        if later is None:
            return low
        low = later


def _powers_remember(basis: Eigenbasis) -> Callable[[int], bool]:
    """k → whether ‖A^k‖₂ ≥ 1/e, by products of ``A^k = P diag(λ^k) P⁻¹`` with vectors."""
    real, inverse = basis.real_vectors, basis.real_inverse

    def times(factor: Complexes, vector: Floats) -> Floats:
        """The real coordinates (a, b) of a pair, a - ib = 2c, once c is multiplied."""
        modes = factor * basis.modes(vector, -1j)
        return np.concatenate([modes.real, -modes.imag[basis.paired]])

    def remembers(step: int) -> bool:
        factor = np.exp(float(step) * basis.logs)

        def apply(vector: Floats) -> Floats:
            image = real @ times(factor, inverse @ vector)
            return np.asarray(inverse.T @ times(factor.conj(), real.T @ image))

        return largest_eigenvalue(apply, len(real), level=REMEMBERED**2) >= REMEMBERED**2

    return remembers


class _SchurPowers:
    """Powers of the T of a Schur form, by its squares up to one after which all is forgotten."""

    def __init__(self, matrix: Floats) -> None:
        self._squares: list[Floats] = []
        largest = 1.0
        for square in schur_form(matrix).squares():
            self._squares.append(square)
            with np.errstate(over="ignore", invalid="ignore"):
                bound = float(np.linalg.norm(square))
            if bound * largest < REMEMBERED:
                break
            if len(self._squares) > OCTAVES or not math.isfinite(bound):
                raise ArithmeticError(LEFT_RANGE)
            largest = max(largest, bound)
        self.forgotten = 2 ** (len(self._squares) - 1)
        self._rounding = rounding_of(matrix)

    def error(self, step: int) -> float:
        """``‖E‖ Σ_j ‖A^j‖ ‖A^(k-1-j)‖``, by which rounding A changes A^k, from some of the j."""
        some = np.linspace(0, max(step - 1, 0), min(step, PAIRS) + 1).astype(np.int64)
        norms = np.array([self.norm(each) for each in some.tolist()])
        return self._rounding * step * float(np.mean(norms * norms[::-1]))

    def norm(self, step: int) -> float:
        """‖A^k‖₂."""
        power = np.eye(len(self._squares[0]))
        for place, square in enumerate(self._squares):
            if step >> place & 1:
                power = power @ square
        return _norm(power) if np.any(power) else 0.0


def kreiss_bound(matrix: Floats, basis: Eigenbasis | None) -> float:
    """A lower bound on ``K(A) = sup_{|z|>1} (|z| - 1) ‖(z - A)⁻¹‖ <= sup_k ‖A^k‖ <= e n K(A)``.

    The Kreiss constant (Kreiss 1962; Trefethen & Embree 2005, theorem 18.1), at the best point of a
    grid that is refined twice. The arguments are those of `memory`.
    """
    if np.array_equal(matrix, matrix.T):
        return 1.0  # as of every normal matrix
    norms = _resolvents_by_schur(matrix) if basis is None else _resolvents_by_eigenbasis(basis)
    best = 1.0  # of |z| → ∞
    # A is real: the lower half plane repeats the upper one.
    log_radius, angle = np.log(0.1), np.pi / 2
    width = (np.log(10.0) * 3, np.pi / 2)
    for zoom in range(ZOOMS + 1):
        excess = np.exp(np.linspace(log_radius - width[0], log_radius + width[0], RADII))
        angles = np.linspace(angle - width[1], angle + width[1], ANGLES >> (zoom > 0))
        grid = ((1 + excess)[:, None] * np.exp(1j * angles)).ravel()
        found = (np.abs(grid) - 1) * norms(grid)
        place = int(np.argmax(found))
        best = max(best, float(found[place]))
        log_radius, angle = np.log(np.abs(grid[place]) - 1), float(np.angle(grid[place]))
        width = (width[0] / 4, width[1] / 4)
    return best


def _resolvents_by_eigenbasis(basis: Eigenbasis) -> Callable[[Complexes], Floats]:
    """(points,) z → lower bounds on ‖(z - A)⁻¹‖₂, by a power iteration for all points at once."""
    right, left, eigenvalues = basis.vectors, basis.inverse, np.exp(basis.log_eigenvalues)

    def norms(points: Complexes) -> Floats:
        gap = points[None, :] - eigenvalues[:, None]
        generator = np.random.default_rng(0)  # the same report every time
        start = generator.normal(size=(len(gap), 1)) * np.ones(points.size)
        vector = start.astype(np.complex128)
        norm = np.zeros(points.size)
        for _ in range(ITERATIONS):
            vector /= np.linalg.norm(vector, axis=0)
            image = right @ ((left @ vector) / gap)
            norm = np.maximum(norm, np.linalg.norm(image, axis=0))
            vector = left.conj().T @ ((right.conj().T @ image) / gap.conj())
        return norm

    return norms


def _resolvents_by_schur(matrix: Floats) -> Callable[[Complexes], Floats]:
    """The same as ‖(z - T)⁻¹‖₂ of the complex Schur form, point by point."""
    from scipy.linalg import rsf2csf, solve_triangular

    # The 2x2 blocks of the real form by rotations of their own.
    triangle = rsf2csf(*schur_form(matrix), check_finite=False)[0]

    def norms(points: Complexes) -> Floats:
        size, found = len(triangle), np.empty(points.size)
        for place, point in enumerate(points.tolist()):
            shifted = point * np.eye(size) - triangle
            vector = np.random.default_rng(0).normal(size=size).astype(np.complex128)
            norm = 0.0
            for _ in range(ITERATIONS):
                vector /= np.linalg.norm(vector)
                image = solve_triangular(shifted, vector, check_finite=False)
                norm = max(norm, float(np.linalg.norm(image)))
                vector = solve_triangular(shifted, image, trans="C", check_finite=False)
            found[place] = norm
        return found

    return norms
