"""The two bases of a dense matrix, its eigenvectors and its Schur form, and its transients.

Why a Schur form, and what rounding leaves of either, is in docs/theory/dense.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cache, cached_property, lru_cache, wraps
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.theory.devices import beside, fetched, inverse, matrix_on_device
from memcurse_cli.theory.linalg import (
    Array,
    Complexes,
    Floats,
    Integers,
    array_namespace,
    bisected,
    largest_eigenvalue,
)
from memcurse_cli.theory.moments import one_minus_exp

Kept = TypeVar("Kept")

EIGENBASIS_CONDITION = 1e8  # κ(P) from which the eigenbasis has lost half of float64's digits
DIRECT_NORM = 100  # up to here a singular value decomposition costs less than an iteration
FORGOTTEN = 1e-17  # ‖A^k‖_F² from which a doubling adds nothing
DOUBLINGS = 60  # 2^60 steps: a decay of 1e-17, below the rounding of |λ|

ANGLES = 128  # on half a circle; real matrices repeat it
BISECTIONS = 12  # of the distance of a circle from the unit circle: a four-thousandth of it
UNCERTAIN = 0.01  # δ beyond which nothing is reported
CHUNK = 2**21  # elements of resolvents that are held at once
ON_CIRCLE = 1e-4  # log |λ| up to which a defective eigenvalue of 1 is computed above it

TOO_UNCERTAIN = (
    "its eigenvectors are so ill-conditioned that rounding it in float64 changes what it does by "
    "more than 1 %"
)


PairTables = NDArray[np.complex128]
"""(2, h, h) T(k, l̄) and T(k, l) of two modes of a bilinear form; equal where λ_l is real."""


def second_mode(conjugated: Complexes, plain: Complexes) -> PairTables:
    """The (2, 1, h) factors of `PairTables` that the second mode has, as l̄ and as l."""
    return np.stack([conjugated, plain])[:, None]


class Eigenbasis(Struct, frozen=True, dict=True):
    """``A = P diag(λ) P⁻¹`` of a real A: columns p_k of P, rows q_k of P⁻¹.

    One p of each conjugate pair is enough: r = Re p and r' = Im p span what its members do.
    """

    log_eigenvalues: Complexes  # (n,) log λ; -inf for λ = 0
    vectors: Complexes  # (n, n) P, columns of norm 1, real where λ is

    @cached_property
    def half(self) -> Integers:
        """(h,) the eigenvalues with Im λ >= 0: one of each conjugate pair, and every real one."""
        angle = self.log_eigenvalues.imag
        return np.flatnonzero((angle >= 0) | (angle == -np.pi))

    @cached_property
    def weight(self) -> Floats:
        """(h,) how many eigenvalues each of `half` stands for: 2 for a pair, 1 for a real one."""
        angle = self.log_eigenvalues.imag[self.half]
        return np.where((angle == 0) | (np.abs(angle) == np.pi), 1.0, 2.0)

    @cached_property
    def paired(self) -> Integers:
        """Which of `half` stand for a pair."""
        return np.flatnonzero(self.weight == 2)

    @cached_property
    def logs(self) -> Complexes:
        """(h,) log λ of `half`."""
        return self.log_eigenvalues[self.half]

    @cached_property
    def log_radius(self) -> float:
        """The largest log |λ|; -inf where every λ is 0."""
        return float(np.max(self.log_eigenvalues.real, initial=-np.inf))

    @cached_property
    def columns(self) -> Complexes:
        """(n, h) the columns of P of `half`."""
        return self.vectors[:, self.half]

    @cached_property
    def rows(self) -> Complexes:
        """(h, n) the rows of P⁻¹ of `half`, q = (r - i r')/2; not finite where P is singular."""
        return self.modes(self.real_inverse, -1j) / self.weight[:, None]

    @cached_property
    def inverse(self) -> Complexes:
        """(n, n) P⁻¹; LinAlgError where P is singular."""
        return np.asarray(np.linalg.inv(self.vectors))

    @cached_property
    def real_vectors(self) -> Floats:
        """(n, n) Re p of `half`, then Im p of the pairs."""
        return np.hstack([self.columns.real, self.columns[:, self.paired].imag])

    @cached_property
    def real_inverse(self) -> Floats:
        """(n, n) the inverse of `real_vectors`; nan where P is singular."""
        try:
            return np.asarray(np.linalg.inv(self.real_vectors))
        except np.linalg.LinAlgError:
            return np.full(self.vectors.shape, np.nan)

    @cached_property
    def condition(self) -> float:
        """κ(P) = ‖P‖₂ ‖P⁻¹‖₂; inf where P is singular."""
        if not np.all(np.isfinite(self.real_inverse)):
            return math.inf
        # P is the real basis times a matrix with orthogonal rows, of norm √2 for a pair.
        scale = np.sqrt(np.r_[self.weight, self.weight[self.paired]])
        return _norm(self.real_vectors * scale) * _norm(self.real_inverse / scale[:, None])

    @property
    def is_usable(self) -> bool:
        """Whether κ(P) leaves half of float64's digits."""
        return self.condition < EIGENBASIS_CONDITION

    @cached_property
    def rest(self) -> PairTables:
        """1 - λ_k λ̄_l and 1 - λ_k λ_l."""
        both = self.logs[:, None] + second_mode(self.logs.conj(), self.logs)
        return np.asarray(one_minus_exp(both))

    def vector_products(self, readout: Floats | None = None) -> PairTables:
        """``p_kᵀ CᵀC p̄_l`` and ``p_kᵀ CᵀC p_l`` of a real C, or None for the identity."""
        seen = self.real_vectors if readout is None else readout @ self.real_vectors
        return self.tables(seen.T @ seen, 1j)

    def row_products(self, readin: Floats | None = None) -> PairTables:
        """``q_k B Bᵀ q̄_l`` and ``q_k B Bᵀ q_l`` of a real B, or None for the identity."""
        driven = self.real_inverse if readin is None else self.real_inverse @ readin
        with np.errstate(over="ignore", invalid="ignore"):
            gram = driven @ driven.T
        return self.tables(gram, -1j) / np.outer(self.weight, self.weight)

    def combine_vectors(self, tables: PairTables) -> Complexes:
        """(h, n) ``Σ_l T_kl p_lᵀ`` over all n modes l; T(k, l̄) goes with p̄_l."""
        return self._combine(tables, 1j, self.real_vectors.T)

    def combine_rows(self, tables: PairTables) -> Complexes:
        """(h, n) ``Σ_l T_kl q_l`` over all n modes l; T(k, l̄) goes with q̄_l."""
        return self._combine(tables / self.weight, -1j, self.real_inverse)

    def modes(self, array: NDArray[np.inexact], turn: complex) -> Complexes:
        """(n, ...) rows r of `half`, then r' of the pairs → (h, ...) r + turn r'."""
        size = self.half.size
        modes = array[:size].astype(np.complex128)
        if np.iscomplexobj(array):
            modes[self.paired] += turn * array[size:]
        else:
            modes.imag[self.paired] = turn.imag * array[size:]
        return modes

    def tables(self, array: Floats, turn: complex) -> PairTables:
        """The same along both axes of an (n, n) array, and with the second one conjugated."""
        first = self.modes(array, turn).T
        return np.stack([self.modes(first, -turn).T, self.modes(first, turn).T])

    def _combine(self, tables: PairTables, turn: complex, real: Floats) -> Complexes:
        """Σ_l T_kl v_l with v = r + turn r' of real rows, as one real product."""
        conjugated, plain = tables
        both = np.where(self.weight == 2, conjugated + plain, conjugated)
        apart = turn * (plain - conjugated)[:, self.paired]
        size = len(both)
        left = np.empty((2, size, len(real)))
        left[0, :, :size], left[0, :, size:] = both.real, apart.real
        left[1, :, :size], left[1, :, size:] = both.imag, apart.imag
        product = np.empty((size, real.shape[1]), np.complex128)
        product.real, product.imag = (left.reshape(2 * size, -1) @ real).reshape(2, size, -1)
        return product


def _norm(matrix: Floats) -> float:
    if len(matrix) <= DIRECT_NORM:
        return float(np.linalg.norm(matrix, 2))
    scale = float(np.abs(matrix).max())
    scaled = matrix / scale

    def apply(vector: Floats) -> Floats:
        return np.asarray(scaled.T @ (scaled @ vector))

    return scale * float(np.sqrt(largest_eigenvalue(apply, len(matrix))))


class SchurForm(NamedTuple):
    """``A = Q T Qᵀ``."""

    triangle: Array  # (n, n) T, upper triangular but for a 2x2 block for each conjugate pair
    vectors: Array  # (n, n) Q

    def squares(self) -> Iterator[tuple[Array, float]]:
        """T, T², T⁴, …, without end, each with its ‖·‖_F."""
        power = self.triangle
        while True:
            with np.errstate(over="ignore", invalid="ignore"):
                entries = power.reshape(-1)
                norm = math.sqrt(float(entries @ entries))
            yield power, norm
            with np.errstate(over="ignore", invalid="ignore"):
                power = power @ power


def kept_for_the_last(function: Callable[[Floats], Kept]) -> Callable[[Floats], Kept]:
    """Keep the answer for the last matrix: several figures of one report ask for it."""

    @lru_cache(maxsize=1)
    def of(stored: bytes, order: int) -> Kept:
        return function(np.frombuffer(stored, np.float64).reshape(order, order))

    @wraps(function)
    def found(matrix: Floats) -> Kept:
        return of(np.asarray(matrix, np.float64).tobytes(), len(matrix))

    return found


@kept_for_the_last
def schur_form(matrix: Floats) -> SchurForm:
    """The real Schur form of a real A; ArithmeticError: not finite, or no convergence."""
    import scipy.linalg

    if not np.all(np.isfinite(matrix)):
        raise ArithmeticError("the matrix is not finite")
    try:
        triangle, vectors = scipy.linalg.schur(matrix, output="real", check_finite=False)
    except np.linalg.LinAlgError as error:
        raise ArithmeticError("the Schur form of the matrix has not converged") from error
    return SchurForm(triangle, vectors)


class ModalStein:
    """By the eigenbasis: an elementwise division by ``1 - λ_k λ_l``, exact near the unit circle."""

    def __init__(self, basis: Eigenbasis) -> None:
        self._basis = basis

    def forward(self, source: Floats) -> Floats:
        """X = A X Aᵀ + F, with F in the basis that P spans."""
        real, inverse = self._basis.real_vectors, self._basis.real_inverse
        return np.asarray(real @ self._divide(inverse @ source @ inverse.T, -1) @ real.T)

    def adjoint(self, source: Floats) -> Floats:
        """Y = AᵀYA + F, with F in the basis that the rows of P⁻¹ span."""
        real, inverse = self._basis.real_vectors, self._basis.real_inverse
        return np.asarray(inverse.T @ self._divide(real.T @ source @ real, 1) @ inverse)

    def _divide(self, array: Floats, sign: int) -> Floats:
        """From real pairs (r, r') to modes ``r ± i r'``, divided there, and back."""
        paired, turn = self._basis.paired, sign * 1j
        conjugated, plain = self._basis.tables(array, turn) / self._basis.rest
        columns = np.hstack([plain, (plain - conjugated)[:, paired] / (2 * turn)])
        columns[:, paired] = 0.5 * (plain + conjugated)[:, paired]
        return np.vstack([columns.real, sign * columns.imag[paired]])


class DoublingStein:
    """By Smith's doubling of the Schur form, ``X_2k = X_k + A^k X_k (A^k)ᵀ``, for any eigenvectors.

    Raises ArithmeticError: the powers of A do not vanish.
    """

    def __init__(self, matrix: Floats) -> None:
        form = SchurForm(*map(matrix_on_device, schur_form(matrix)))
        self._vectors = form.vectors
        self._powers: list[Array] = []
        for power, norm in form.squares():
            self._powers.append(power)
            if norm**2 <= FORGOTTEN:
                break
            if len(self._powers) > DOUBLINGS or not math.isfinite(norm):
                raise ArithmeticError("the powers of the matrix do not vanish")

    def forward(self, source: Floats) -> Floats:
        """X = A X Aᵀ + F."""
        return self._doubled(source, self._powers)

    def adjoint(self, source: Floats) -> Floats:
        """Y = AᵀYA + F."""
        return self._doubled(source, [power.T for power in self._powers])

    def _doubled(self, source: Floats, powers: list[Array]) -> Floats:
        total = self._vectors.T @ beside(source, self._vectors) @ self._vectors
        for power in powers:
            total = total + power @ total @ power.T
        return fetched(self._vectors @ total @ self._vectors.T)


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
    """Whether rounding A in float64 can change by more than 1 % what it does in infinitely long."""
    # An eigenvalue of 1 is stored as such.
    if basis.is_usable or 0 <= basis.log_radius < ON_CIRCLE:
        return False
    return not uncertainty(matrix) < UNCERTAIN


def stein_solver(matrix: Floats, basis: Eigenbasis | None) -> ModalStein | DoublingStein:
    """The Stein equations of an A with all |λ| < 1, by its eigenbasis where that is usable.

    Raises ArithmeticError: the powers of A do not vanish, or rounding A changes the solutions.
    """
    if basis is not None:
        return ModalStein(basis)
    solver = DoublingStein(matrix)
    if not uncertainty(matrix) < UNCERTAIN:
        raise ArithmeticError(TOO_UNCERTAIN)
    return solver


def rounding_of(matrix: Floats) -> float:
    """ε √n ‖A‖_F, the size of the change of A that its computed Schur form is exact for."""
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(matrix))
    return float(np.finfo(np.float64).eps) * math.sqrt(len(matrix)) * norm


def resolvents(matrix: Array, points: Complexes) -> Array:
    """(points, n, n) ``(z - A)⁻¹``, where A is; ArithmeticError: a point is an eigenvalue."""
    xp = array_namespace(matrix)
    if not xp.all(xp.isfinite(matrix)):
        raise ArithmeticError("the matrix is not finite")
    identity = xp.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    shifted = beside(points, matrix)[:, None, None] * identity - matrix
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = inverse(shifted)
    except np.linalg.LinAlgError as error:
        raise ArithmeticError(TOO_UNCERTAIN) from error
    if not xp.all(xp.isfinite(found)):
        raise ArithmeticError(TOO_UNCERTAIN)
    return found


def largest_norm(matrices: Array) -> float:
    """The largest ‖·‖_F of (points, n, n) matrices; inf where its square is."""
    xp = array_namespace(matrices)
    with np.errstate(over="ignore"):
        return float(xp.max(xp.linalg.matrix_norm(matrices)))


def resolvent_on_circle(matrix: Floats, radius: float = 1.0) -> float:
    """The largest ``‖(z - A)⁻¹‖_F`` of 128 points of |z| = r; inf where one is an eigenvalue."""
    points = radius * np.exp(1j * np.linspace(0, np.pi, ANGLES))
    step, there = max(1, CHUNK // max(matrix.size, 1)), matrix_on_device(matrix)
    try:
        return max(
            largest_norm(resolvents(there, points[start : start + step]))
            for start in range(0, ANGLES, step)
        )
    except ArithmeticError:
        return math.inf


@kept_for_the_last
def uncertainty(matrix: Floats) -> float:
    """δ, the relative change of a resolvent on the unit circle by the rounding of A."""
    return rounding_of(matrix) * resolvent_on_circle(matrix)


def within_rounding(matrix: Floats, basis: Eigenbasis) -> float | None:
    """The pseudospectral radius: the largest |λ| of any matrix within rounding of A.

    The circle outside which ``‖(z - A)⁻¹‖_F < 1/‖E‖``, by bisection. None where κ(P) < 1e8.
    """
    if basis.is_usable:
        return None
    radius = math.exp(basis.log_radius)
    allowed = rounding_of(matrix)
    if allowed == 0 or math.isinf(allowed):
        return radius + allowed

    def is_outside(distance: float) -> bool:
        return resolvent_on_circle(matrix, radius + distance) * allowed < 1

    # At the last of them |z| is beyond 2‖A‖_F, where no resolvent is as large as that.
    distances = max(allowed, 1e-16 * radius) * 4.0 ** np.arange(28)
    place = bisect_left(distances.tolist(), True, key=is_outside)
    low, high = (distances[place - 1] if place else 0.0), distances[min(place, 27)]
    return float(radius + bisected(is_outside, low, high, BISECTIONS))


def are_powers_lost(matrix: Floats, steps: int) -> bool:
    """Whether explicit powers up to A^T, one product at a time, are off by more than 1 %.

    A^k is off by at most ``‖E‖ Σ_j ‖A^j‖ ‖A^(k-1-j)‖``. Powers beyond all floats diverge instead.
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


OCTAVES = 40  # A^(2^40) of a stable matrix has decayed, or its |λ| are 1 to rounding
REFINED = 8  # powers between the two around the largest
GRID_RADII, GRID_ANGLES = 8, 16  # the first grid outside the unit circle
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
    """The largest ‖A^k‖₂, two k per octave and eight around the best; ArithmeticError: overflow."""
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


def memory(matrix: Floats, basis: Eigenbasis | None, time_constant: float) -> float:
    """The larger of the longest time constant and the last k found with ‖A^k‖₂ ≥ 1/e, in steps.

    ``|λ|^k <= ‖A^k‖ <= κ(P) |λ|^k`` puts the last k between τ and τ (1 + log κ(P)); one after a
    rise between samples can be missed. All |λ| < 1; the basis is None where κ(P) is too large.
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
        for square, bound in schur_form(matrix).squares():
            self._squares.append(square)
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
    resolvent = _resolvent_by_schur(matrix) if basis is None else _resolvent_by_eigenbasis(basis)
    best = 1.0  # of |z| → ∞
    # A is real: the lower half plane repeats the upper one.
    log_radius, angle = np.log(0.1), np.pi / 2
    width = (np.log(10.0) * 3, np.pi / 2)
    for zoom in range(ZOOMS + 1):
        excess = np.exp(np.linspace(log_radius - width[0], log_radius + width[0], GRID_RADII))
        angles = np.linspace(angle - width[1], angle + width[1], GRID_ANGLES >> (zoom > 0))
        grid = ((1 + excess)[:, None] * np.exp(1j * angles)).ravel()
        found = (np.abs(grid) - 1) * _norms_of(resolvent, grid, len(matrix))
        place = int(np.argmax(found))
        best = max(best, float(found[place]))
        log_radius, angle = np.log(np.abs(grid[place]) - 1), float(np.angle(grid[place]))
        width = (width[0] / 4, width[1] / 4)
    return best


Resolvent = Callable[[Complexes, Complexes, bool], Complexes]
"""(points,) z and (n, points) v → ``(z - A)⁻¹ v``, or its adjoint's product, of every point."""


def _norms_of(resolvent: Resolvent, points: Complexes, size: int) -> Floats:
    """(points,) lower bounds on ‖(z - A)⁻¹‖₂, by power iterations."""
    start = np.random.default_rng(0).normal(size=(size, 1))  # the same report every time
    vector = np.tile(start.astype(np.complex128), points.size)
    norm = np.zeros(points.size)
    for _ in range(ITERATIONS):
        vector /= np.linalg.norm(vector, axis=0)
        image = resolvent(points, vector, False)
        norm = np.maximum(norm, np.linalg.norm(image, axis=0))
        vector = resolvent(points, image, True)
    return norm


def _resolvent_by_eigenbasis(basis: Eigenbasis) -> Resolvent:
    right, left, eigenvalues = basis.vectors, basis.inverse, np.exp(basis.log_eigenvalues)

    def resolvent(points: Complexes, vector: Complexes, adjoint: bool) -> Complexes:
        gap = points[None, :] - eigenvalues[:, None]
        if adjoint:
            return left.conj().T @ ((right.conj().T @ vector) / gap.conj())
        return right @ ((left @ vector) / gap)

    return resolvent


def _resolvent_by_schur(matrix: Floats) -> Resolvent:
    """That of T, of the same norms."""
    from scipy.linalg import rsf2csf, solve_triangular

    # The 2x2 blocks of the real form by rotations of their own.
    triangle = rsf2csf(*schur_form(matrix), check_finite=False)[0]

    def resolvent(points: Complexes, vector: Complexes, adjoint: bool) -> Complexes:
        image = np.empty_like(vector)
        for place, point in enumerate(points.tolist()):
            shifted, trans = point * np.eye(len(triangle)) - triangle, "C" if adjoint else "N"
            image[:, place] = solve_triangular(
                shifted, vector[:, place], trans=trans, check_finite=False
            )
        return image

    return resolvent
