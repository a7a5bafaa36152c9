"""How sensitive the state of a dense linear recurrence is to its matrix: docs/theory/dense.md."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation, echoes
from memcurse_cli.theory.dense.bases import (
    CHUNK,
    TOO_UNCERTAIN,
    UNCERTAIN,
    DoublingStein,
    Eigenbasis,
    PairTables,
    are_powers_lost,
    is_undetermined,
    kept_for_the_last,
    largest_norm,
    resolvents,
    rounding_of,
    schur_form,
    second_mode,
)
from memcurse_cli.theory.devices import fetched, matrix_on_device
from memcurse_cli.theory.linalg import Complexes, Floats
from memcurse_cli.theory.moments import Readout, innovations, one_minus_exp, pair_moments

FORGOTTEN = 45.0  # e^-45 is below the rounding of 1
STATE_ELEMENTS = 4e7  # elements of the state's answers, up to which every entry is computed
ENTRY_FLOPS = 1e10  # what every entry within a horizon may cost: a second
SOLE_FLOPS = 2e11  # the same where there is no other way
TOTAL_FLOPS = 5e10  # what the total within a horizon may cost
CLOSE = 1e-5  # times the distance from the unit circle: λ so close share one derivative
ENTRY_ELEMENTS = 3e7  # elements of the powers of A that are held at once
TABLE = 2**20  # elements of a table over pairs of times that are held at once

FLOPS = 4e11  # what a sum over lags, or the resolvents, may cost: seconds on two cores
SLOWER = 8  # times a matrix-matrix product, what an operation of a matrix-vector product takes
POWER_ELEMENTS = 2e7  # elements of the powers of A that are kept
HALVINGS = 55  # lags are summed until A^d has halved so often, and is below rounding
GROWN = 100.0  # ‖A^d‖_F beyond which squares of A lose more than four digits

FEWEST = 128  # frequencies on the whole circle
PER_DECAY = 8.0  # times the longest time constant, the frequencies of the first try
SETTLED = 1e-9  # a doubling of the frequencies squares the error: that is exact to rounding

TOO_LONG = "its eigenvectors are too ill-conditioned and its memory is too long"


class DenseSystem(Struct, frozen=True):
    """A real ``h[t] = A h[t-1] + B x[t]``, ``y = C h``, and the sequences that it meets."""

    matrix: Floats  # (n, n) A, row = target
    basis: Eigenbasis  # that of A
    readin: Floats | None = None  # (n, inputs) B; None for a drive of unit variance on every state
    readout: Floats | None = None  # (outputs, n) C; None where the state itself is seen
    autocorrelation: Autocorrelation = WHITE  # R(Δ) of each input
    horizon: int | None = None  # T steps from h = 0, exact for every A; None for infinite ones
    read_at: Readout = "last"  # the state at step T, or the mean over all T

    @property
    def inputs(self) -> Floats:
        """B itself."""
        return np.eye(len(self.matrix)) if self.readin is None else self.readin

    @property
    def outputs(self) -> Floats:
        """C itself."""
        return np.eye(len(self.matrix)) if self.readout is None else self.readout

    @property
    def steps(self) -> int:
        """T where it is finite."""
        assert self.horizon is not None
        return self.horizon


def sensitivity_by_eigenbasis(system: DenseSystem) -> tuple[Floats, Floats]:
    """(n,) E h_i² and (n, n) E‖dy/dA_ij‖² in closed form, of an A with all |λ| < 1.

    ``(G A^d)_ii = Σ_k L_ik λ_k^d`` and ``(A^d Σ)_jj = Σ_l C_jl λ_l^d`` give ``Σ_d = L K Cᵀ`` with
    ``K_kl = λ_k λ_l / (1 - λ_k λ_l)``.
    """
    basis, logs, rest = system.basis, system.basis.logs, system.basis.rest
    eigenvalues = np.exp(logs)
    drive = basis.row_products(system.readin)
    factor = np.zeros_like(rest)
    coloured: list[tuple[Complexes, Complexes, Complexes | None]] = []
    for share, rho, frequency in system.autocorrelation.parts:
        if rho == 0:
            factor += share / rest
            continue
        innovation = (1 - rho) * (1 + rho)
        # 1 - ρλ without cancellation, of λ turned by ω and by -ω.
        forth = (1 - rho) + rho * one_minus_exp(logs + 1j * frequency)
        back = (1 - rho) + rho * one_minus_exp(logs - 1j * frequency)
        # The second of a pair turns the other way, so that the product of both stays.
        turned = 1 / (forth[:, None] * second_mode(forth.conj(), back))
        turned += 1 / (back[:, None] * second_mode(back.conj(), forth))
        factor += (0.5 * share) * (innovation / rest + rho**2) * turned
        carried = _carried(basis, drive, forth, back)
        scale = share * rho * eigenvalues
        if frequency == 0:
            coloured.append((scale / forth, carried, None))
            continue
        turned_back = _carried(basis, drive, back, forth)
        turn = 0.5 * complex(math.cos(frequency), math.sin(frequency))
        coloured.append((scale * turn / forth, carried, turned_back))
        coloured.append((scale * turn.conjugate() / back, turned_back, carried))
    right = basis.columns.T * basis.combine_vectors(factor * drive)  # (h, n) Cᵀ
    second_moment = basis.weight @ right.real

    gram = basis.vector_products(system.readout)
    left = basis.rows * basis.combine_rows(gram / rest)  # (h, n) Lᵀ
    observability = basis.weight @ left.real

    weight = basis.weight[:, None]
    kernel = eigenvalues[:, None] * second_mode(eigenvalues.conj(), eigenvalues) / rest
    answered = _apply(kernel, weight * right, None)
    for powers, lagged, mirrored in coloured:
        other = None if mirrored is None else weight * mirrored
        answered += _apply(powers[:, None] / rest, weight * lagged, other)
    entries = np.outer(observability, second_moment)
    left = weight * left
    entries += np.vstack([left.real, left.imag]).T @ answered
    return second_moment, entries


def _carried(
    basis: Eigenbasis, drive: PairTables, turned: Complexes, mirrored: Complexes
) -> Complexes:
    """(h, n) the modes of ``Q (I - ρAᵀ)⁻¹``, from 1 - ρλ and 1 - ρ̄λ at a complex ρ."""
    return basis.columns.T * basis.combine_vectors(drive / second_mode(mirrored.conj(), turned))


def _apply(kernel: PairTables, right: Complexes, mirrored: Complexes | None) -> Floats:
    """(2h, n) X with ``Re Lᵀ (K C + K̃ M̄) = [Re L, Im L]ᵀ X``; M None where ρ is real."""
    conjugated, plain = kernel
    if mirrored is not None:
        answer = plain @ right + conjugated @ mirrored.conj()
        return np.vstack([answer.real, -answer.imag])
    of_real = np.vstack([conjugated.real + plain.real, -conjugated.imag - plain.imag])
    of_imaginary = np.vstack([conjugated.imag - plain.imag, conjugated.real - plain.real])
    return np.asarray(np.hstack([of_real, of_imaginary]) @ np.vstack([right.real, right.imag]))


def sensitivity_without_eigenbasis(system: DenseSystem) -> tuple[Floats, Floats | None]:
    """The same by lags where no power of A is large, else by frequencies; None if `TOO_LONG`.

    Raises ArithmeticError: neither is to be had.
    """
    if remembered_lags(system.matrix).growth > GROWN:
        return sensitivity_by_frequencies(system)
    return sensitivity_by_lags(system)


def cost_without_eigenbasis(matrix: Floats, decay: float) -> float:
    """How many floating-point operations `sensitivity_without_eigenbasis` takes."""
    memory = remembered_lags(matrix)
    if memory.growth > GROWN:
        return cost_of_frequencies(len(matrix), 4 * max(FEWEST, PER_DECAY / decay))
    return cost_of_lags(len(matrix), memory.lags)


def _stride(size: int, lags: int) -> int:
    return max(1, min(math.isqrt(lags), lags, int(POWER_ELEMENTS // size**2)))


class Memory(NamedTuple):
    """How long a matrix remembers."""

    lags: float  # after how many A^d is negligible; inf where summing so many costs too much
    growth: float  # the largest ‖A^d‖_F of those that were squared on the way


@kept_for_the_last
def remembered_lags(matrix: Floats) -> Memory:
    """After how many lags A^d is negligible, by squares of its Schur form."""
    period, growth = 1, 0.0
    for _, norm in schur_form(matrix).squares():
        if norm <= 0.5:
            break
        if not math.isfinite(norm):
            return Memory(math.inf, math.inf)
        growth, period = max(growth, norm), 2 * period
        if cost_of_lags(len(matrix), HALVINGS * period) > FLOPS:
            return Memory(math.inf, growth)
    return Memory(HALVINGS * period, growth)


def cost_of_lags(size: int, lags: float) -> float:
    """How many floating-point operations a sum over so many lags takes."""
    if math.isinf(lags):
        return math.inf
    stride = _stride(size, int(lags))
    return 2 * (stride + 3 * lags / stride) * size**3 + SLOWER * 6 * lags * size**2


class ColouredPart(NamedTuple):
    """A part of the input with ρ > 0, and what A makes of it."""

    weight: float
    pole: complex  # ρ e^(iω)
    resolvent: NDArray[Any]  # (n, n) (I - ρA)⁻¹
    answer: NDArray[Any]  # (n, inputs) N = (I - ρA)⁻¹ B


def driven(system: DenseSystem) -> tuple[Floats, list[ColouredPart]]:
    """(n, n) F of the covariance ``Σ = A Σ Aᵀ + F`` of the state, and the parts with ρ > 0."""
    matrix, readin = system.matrix, system.inputs
    coloured: list[ColouredPart] = []
    source = system.autocorrelation.variance * (readin @ readin.T)
    for part in system.autocorrelation.parts:
        if part.rho > 0 and part.weight > 0:
            resolvent = np.asarray(np.linalg.inv(np.eye(len(matrix)) - part.pole * matrix))
            answer = resolvent @ readin
            coloured.append(ColouredPart(part.weight, part.pole, resolvent, answer))
            crossed = (part.weight * part.pole * (matrix @ answer) @ readin.T).real
            source += crossed + crossed.T
    return source, coloured


def sensitivity_by_lags(system: DenseSystem) -> tuple[Floats, Floats | None]:
    """The same lag by lag, only the state at inf lags; ArithmeticError: A^d do not vanish."""
    matrix, lags = system.matrix, remembered_lags(system.matrix).lags
    with np.errstate(over="ignore", invalid="ignore"):
        source, coloured = driven(system)
        # ρ e^(iω) and Y.
        carried = [(of.pole, of.weight * (of.answer @ system.inputs.T).T) for of in coloured]
        solver = DoublingStein(matrix)
        right = solver.forward(source)
        if math.isinf(lags):
            return np.diag(right), None
        left = solver.adjoint(system.outputs.T @ system.outputs)
        entries = -np.outer(np.diag(left), np.diag(right))
        entries += 2 * _summed_products(matrix, left, right, carried, math.ceil(lags) + 1)
    return np.diag(right), entries


def _summed_products(
    matrix: Floats,
    left: Floats,
    right: Floats,
    carried: list[tuple[complex, NDArray[Any]]],
    lags: int,
) -> Floats:
    """(n, n) ``Σ_{d < lags} (L A^d)_ii Re(A^d R + Σ_{k=1..d} ρ^k A^(d-k) Y)_jj``.

    With s powers of A at hand, every s-th product alone is formed.
    """
    size, stride = len(matrix), _stride(len(matrix), lags)
    held = powers(matrix, np.eye(size), stride)
    leap = held[-1] @ matrix
    rows = np.ascontiguousarray(held.transpose(1, 0, 2))  # (i, step, k) of (A^step)_ik
    columns = np.ascontiguousarray(held.transpose(2, 0, 1))  # (i, step, k) of (A^step)_ki
    answers = [answer for _, answer in carried]
    echoes = [np.zeros(size, answer.dtype) for answer in answers]
    total = np.zeros((size, size))
    for start in range(0, lags, stride):
        count = min(stride, lags - start)
        seen = (columns[:, :count] @ left[:, :, None])[..., 0]
        state = (rows[:, :count] @ right.T[:, :, None])[..., 0]
        for index, (rho, _) in enumerate(carried):
            driven = (rows[:, :count] @ answers[index].T[:, :, None])[..., 0]
            for step in range(count):
                state[:, step] += echoes[index].real
                echoes[index] = rho * (echoes[index] + driven[:, step])
            answers[index] = leap @ answers[index]
        total += seen @ state.T
        left, right = left @ leap, leap @ right
    return total


def sensitivity_by_frequencies(system: DenseSystem) -> tuple[Floats, Floats]:
    """The same as ``1/2π ∫ S(θ) ‖C R e_i‖² (R B Bᵀ R*)_jj dθ``, R the resolvent, to 1 % or better.

    Raises ArithmeticError: it costs too much, or rounding A changes it by more.
    """
    size, decay, points = len(system.matrix), -system.basis.log_radius, FEWEST
    while points < PER_DECAY / decay and cost_of_frequencies(size, points) <= FLOPS:
        points *= 2
    allowed = rounding_of(system.matrix)
    answers = np.empty((2, 0, size))
    previous: tuple[Floats, Floats] | None = None
    while cost_of_frequencies(size, points) <= FLOPS:
        places = np.arange(points // 2 + 1)
        taken = places if previous is None else places[1::2]
        found_at, largest = _responses(system, taken / points)
        change = allowed * largest
        if not change < UNCERTAIN:
            raise ArithmeticError(TOO_UNCERTAIN)
        if previous is None:
            answers = found_at
        else:
            before, answers = answers, np.empty((2, len(places), size))
            answers[:, ::2], answers[:, 1::2] = before, found_at
        seen, driven = answers
        weights = _weights(system.autocorrelation, points)
        with np.errstate(over="ignore", invalid="ignore"):
            found = weights @ driven, (weights[:, None] * seen).T @ driven
        tolerance = max(SETTLED, 4 * change)
        if previous is not None and all(
            np.max(np.abs(one - other), initial=0) <= tolerance * np.max(one, initial=0)
            for one, other in zip(found, previous, strict=True)
        ):
            return found
        previous = found
        points *= 2
    raise ArithmeticError(TOO_LONG)


def cost_of_frequencies(size: int, points: float) -> float:
    """How many floating-point operations the resolvents of so many frequencies take."""
    return 16.0 * points * size**3


def _responses(system: DenseSystem, turns: Floats) -> tuple[Floats, float]:
    """(2, points, n) ``‖C R e_i‖²`` and ``(R B Bᵀ R*)_jj``, and the largest ‖R‖_F."""
    matrix, readin, readout = system.matrix, system.readin, system.readout
    circle = np.exp(2j * np.pi * turns)
    answers, largest = np.empty((2, len(circle), len(matrix))), 0.0
    step, there = max(1, CHUNK // max(matrix.size, 1)), matrix_on_device(matrix)
    for start in range(0, len(circle), step):
        part = slice(start, start + step)
        found: Complexes = fetched(resolvents(there, circle[part]))
        largest = max(largest, largest_norm(found))
        answers[0, part] = _squared(found if readout is None else readout @ found).sum(axis=1)
        answers[1, part] = _squared(found if readin is None else found @ readin).sum(axis=2)
    return answers, largest


def _squared(values: Complexes) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(values.real**2 + values.imag**2)


def _weights(autocorrelation: Autocorrelation, points: int) -> Floats:
    """(points / 2 + 1,) what each frequency of the upper half circle counts for, from R(d)."""
    lags = np.arange(points // 2 + 1, dtype=np.float64)
    covariance = np.zeros(len(lags))
    for part in autocorrelation.parts:
        covariance += part.weight * part.powers(lags).real
    weights = np.fft.hfft(covariance, points)[: len(lags)] / points
    weights[1:-1] *= 2
    return np.asarray(weights)


class DenseSensitivity(Struct, frozen=True):
    """The state and its sensitivity to a dense matrix."""

    second_moment: Floats | None  # (n,) E h_i²; inf where it diverges, None where not computed
    # E‖dh/dA‖²_F = Σ_ij E‖dh/dA_ij‖²; inf where it diverges, None where not computed
    total: float | None
    per_entry: Floats | None  # (n, n) E‖dh/dA_ij‖², or None where only the total is computed
    reason: str | None = None  # why something is None

    @classmethod
    def of(
        cls,
        second_moment: Floats,
        per_entry: Floats | None,
        total: float | None = None,
        reason: str | None = None,
    ) -> DenseSensitivity:
        """What was computed, where anything not finite has diverged; entries add to the total."""
        if per_entry is not None:
            per_entry = np.where(np.isfinite(per_entry), per_entry, np.inf)
            total = float(per_entry.sum())
        if total is not None and not math.isfinite(total):
            total = math.inf
        moment = np.where(np.isfinite(second_moment), second_moment, np.inf)
        return cls(moment, total, per_entry, reason)

    @property
    def relative(self) -> float | None:
        """E‖dh/dA‖²_F / E‖h‖²; inf where it diverges, None where not computed."""
        if self.total is None or self.second_moment is None or math.isinf(self.total):
            return self.total
        state = float(self.second_moment.sum())
        return self.total / state if state > 0 else 0.0


def dense_sensitivity(system: DenseSystem) -> DenseSensitivity:
    """E h_i² and ``E‖dh/dA_ij‖² = Σ_{a,b} (A^aᵀA^b)_ii C(T-1-a, T-1-b)_jj``, C the covariance of h.

    The system has no readout. An infinite sequence diverges where |λ| >= 1.
    """
    matrix, basis, horizon = system.matrix, system.basis, system.horizon
    decay, usable = -basis.log_radius, basis.is_usable
    memory = Memory(math.inf, math.inf)
    if usable and decay > 0:
        # 1: what A = 0 remembers
        memory = Memory(1 + (FORGOTTEN + math.log(basis.condition)) / decay, basis.condition)
    elif decay > 0:
        memory = remembered_lags(matrix)
    within = horizon is not None and horizon <= memory.lags
    lost = not within and is_undetermined(matrix, basis)
    if within and not usable and memory.growth > GROWN:
        lost = are_powers_lost(matrix, system.steps)
    if lost:
        return DenseSensitivity(None, None, None, TOO_UNCERTAIN)
    if within:
        return finite_dense_sensitivity(system)
    if decay <= 0:
        return DenseSensitivity(np.full(matrix.shape[0], np.inf), math.inf, None)
    try:
        moment, entries = (
            sensitivity_by_eigenbasis(system) if usable else sensitivity_without_eigenbasis(system)
        )
    except ArithmeticError as error:
        return DenseSensitivity(None, None, None, str(error))
    limit = DenseSensitivity.of(moment, entries, reason=TOO_LONG if entries is None else None)
    if horizon is None or system.read_at == "last":
        return limit
    # From the lag on at which all is forgotten, every step of the sequence is in that limit.
    steps = math.ceil(memory.lags)
    rise = finite_dense_sensitivity(replace(system, horizon=steps))
    return _mean(rise, limit, steps / horizon)


def _mean(rise: DenseSensitivity, limit: DenseSensitivity, share: float) -> DenseSensitivity:
    def mixed(one: Any, other: Any) -> Any:
        return None if one is None or other is None else share * one + (1 - share) * other

    moment = mixed(rise.second_moment, limit.second_moment)
    if moment is None:  # the rise costs too much
        return rise
    entries, total = mixed(rise.per_entry, limit.per_entry), mixed(rise.total, limit.total)
    return DenseSensitivity.of(moment, entries, total, rise.reason or limit.reason)


def finite_dense_sensitivity(system: DenseSystem) -> DenseSensitivity:
    """The same on T ≥ 1 steps, or only its sum where entries cost too much."""
    size, horizon, usable = len(system.matrix), system.steps, system.basis.is_usable
    inputs = size if system.readin is None else system.readin.shape[1]
    cost = 3 * (size * horizon) ** 2
    small = horizon * size * inputs <= STATE_ELEMENTS
    with np.errstate(over="ignore", invalid="ignore"):
        if small and cost <= (ENTRY_FLOPS if usable else SOLE_FLOPS):
            return DenseSensitivity.of(*entries_within_horizon(system))
        if not usable:
            reason = "its eigenvectors are too ill-conditioned for a matrix of this size"
        elif 4 * size * horizon * (size + horizon) > TOTAL_FLOPS:
            reason = f"{horizon} steps are too many for a matrix of this size"
        else:
            moment, total = total_within_horizon(system)
            reason = "the sensitivity of each entry costs too much at this size and horizon"
            return DenseSensitivity.of(moment, None, total, reason)
    return DenseSensitivity(None, None, None, reason)


class SensitivitySplit(NamedTuple):
    """The parts of E‖dh/dA‖²_F, which is their sum."""

    eigenvalues: float  # Σ_ij E‖dh_λ‖²
    eigenvectors: float  # Σ_ij E‖dh_P‖²
    cross: float  # 2 Σ_ij E<dh_λ, dh_P>, of either sign


def sensitivity_split(system: DenseSystem, total: float) -> SensitivitySplit:
    """The parts of E‖dh/dA‖²_F = ``total``, of a matrix with κ(P) far below 1/ε.

        E‖dh_λ‖² = Σ_kl (p_kᵀp̄_l)² (q_k q̄_lᵀ) (q_k BBᵀ q̄_lᵀ) E[s_k s̄_l]
        E<dh_λ, dh> = Σ_mkl (p̄_mᵀp_k)(q̄_m q_kᵀ) (p̄_mᵀp_l)(q̄_m BBᵀ q_lᵀ) E[s̄_m d_kl]

    with d_kl = (h_k - h_l)/(λ_k - λ_l) (Zucchet & Orvieto 2024, section A.2.3); all |λ| < 1 on an
    infinite sequence.
    """
    logs = system.basis.log_eigenvalues
    _, pairs = pair_moments(logs, system.autocorrelation, system.horizon, system.read_at)
    vectors, inverse = system.basis.vectors, system.basis.inverse
    drive = inverse if system.readin is None else inverse @ system.readin
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


class _Products(Struct, frozen=True):
    """``x[a]·y[b]`` over two times, one table for each unit."""

    first: Floats  # (units, T, width) x
    second: Floats  # (units, T, width) y

    def rows(self, start: int, stop: int) -> Floats:
        """(units, stop - start, stop) the rows from ``start`` on, up to column ``stop``."""
        return self.first[:, start:stop] @ self.second[:, :stop].transpose(0, 2, 1)


def entries_within_horizon(system: DenseSystem) -> tuple[Floats, Floats]:
    """(n,) E h_i² and (n, n) E‖dy/dA_ij‖², from explicit powers of A."""
    matrix, horizon = system.matrix, system.steps
    second_moment = np.zeros(len(matrix))
    states = []
    lags = np.arange(horizon, dtype=np.float64)
    for weight, rho, echo in echoes(system.autocorrelation, lags):
        answers = _answers(matrix, system.inputs, echo)
        share = weight * innovations(lags, rho, horizon, system.read_at)
        second_moment += np.einsum("k,kjm,kjm->j", share, answers, answers)
        rows = np.ascontiguousarray(answers.transpose(1, 0, 2))
        states.append((weight, rho, _Products(rows, rows)))
    entries = np.zeros(matrix.shape)
    for units, rows in _powers_by_unit(matrix, system.outputs.T, horizon):
        entries[units] = _sum_over_times(_Products(rows, rows), states, system.read_at)
    return second_moment, entries


def _powers_by_unit(matrix: Floats, seen: Floats, horizon: int) -> Iterator[tuple[slice, Floats]]:
    """(units, T, outputs) the rows i of every ``(A^k)ᵀCᵀ``, as many at once as memory holds."""
    size, outputs = seen.shape
    if outputs < size:
        answers = powers(matrix.T, seen, horizon)
        yield slice(0, size), np.ascontiguousarray(answers.transpose(1, 0, 2))
        return
    step = max(1, int(ENTRY_ELEMENTS // (horizon * size)))
    for start in range(0, size, step):
        units = slice(start, min(start + step, size))
        # Column i of A^k is A^k e_i: no other column is needed for it.
        unit = np.ascontiguousarray(np.eye(size)[:, units])
        columns = powers(matrix, unit, horizon)
        yield units, np.ascontiguousarray((seen.T @ columns).transpose(2, 0, 1))


def total_within_horizon(system: DenseSystem) -> tuple[Floats, float]:
    """(n,) E h_i² and Σ_ij E‖dh/dA_ij‖² alone, in the eigenbasis, where powers are those of λ."""
    basis, lags = system.basis, np.arange(system.steps, dtype=np.float64)
    vectors, drive = basis.vector_products(), basis.row_products(system.readin)
    eigenvalues = np.exp(basis.logs)[:, None]
    second_moment, ones = np.zeros(len(system.matrix)), np.ones_like(eigenvalues)
    states = []
    for weight, rho, echo in echoes(system.autocorrelation, lags):
        answers = _answers(eigenvalues, ones, echo)[..., 0]
        shared = answers * innovations(lags, rho, system.steps, system.read_at)[:, None]
        covariance = drive * (shared.T @ np.stack([answers.conj(), answers]))
        modal = basis.columns.T * basis.combine_vectors(covariance)
        second_moment += weight * (basis.weight @ modal.real)
        states.append((weight, rho, _traces(basis, answers, vectors, drive)))
    unforced = powers(eigenvalues, ones, system.steps)[..., 0]  # λ^k
    observed = _traces(basis, unforced, vectors, basis.row_products())
    total = _sum_over_times(observed, states, system.read_at)
    return second_moment, float(total[0, 0])


def _sum_over_times(
    observed: _Products, states: list[tuple[float, float, _Products]], read_at: Readout
) -> Floats:
    """(observed units, units) Σ_{t,t'} L_i(T-1-t, T-1-t') C_j(t, t'), for 0 < t, t' < T.

    ``C(t, t') = P(t-1, t'-1) + (1-ρ²) Σ_{k >= 1} P(t-1-k, t'-1-k)``, summed along its diagonals
    once more for the mean over every step. Both are symmetric.
    """
    units, horizon, _ = states[0][2].first.shape
    total = np.zeros((observed.first.shape[0], units))
    last = horizon - 1
    earlier_last = (x[:, :last][:, ::-1] for x in (observed.first, observed.second))
    observed = _Products(*map(np.ascontiguousarray, earlier_last))
    sums = [np.zeros((units, 0)) for _ in states]
    earlier = np.zeros((units, 0))
    chunk = max(1, TABLE // (units * horizon))
    for start in range(0, last, chunk):
        stop = min(start + chunk, last)
        covariance = np.zeros((units, stop - start, stop))
        for index, (weight, rho, state) in enumerate(states):
            products = state.rows(start, stop)
            innovation = (1 - rho) * (1 + rho)
            for row in range(start, stop):
                first = products[:, row - start, : row + 1]
                older = sums[index]
                covariance[:, row - start, : row + 1] += weight * first
                covariance[:, row - start, 1 : row + 1] += (weight * innovation) * older
                sums[index] = first.copy()
                sums[index][:, 1:] += older
        if read_at == "every":
            for row in range(start, stop):
                covariance[:, row - start, 1 : row + 1] += earlier
                earlier = covariance[:, row - start, : row + 1].copy()
        rows = np.arange(start, stop)
        covariance[:, rows - start, rows] *= 0.5  # the others stand for their mirror images too
        seen = observed.rows(start, stop).reshape(len(total), -1)
        total += 2 * seen @ covariance.reshape(units, -1).T
    return total / horizon if read_at == "every" else total


def powers(matrix: NDArray[Any], drive: NDArray[Any], count: int) -> NDArray[Any]:
    """(count, n, inputs) A^k B of (n, n) A, or of its (n, 1) diagonal."""
    return _answers(matrix, drive, np.eye(1, count)[0])


def _answers(matrix: NDArray[Any], drive: NDArray[Any], echo: Floats) -> NDArray[Any]:
    """(T, n, inputs) Z_k, the answer to an innovation k steps ago of which the input holds e_k."""
    answers = np.zeros((echo.size, *drive.shape), drive.dtype)
    multiply = np.matmul if len(matrix) == matrix.shape[1] else np.multiply
    for lag, held in enumerate(echo.tolist()):
        if lag:
            answers[lag] = multiply(matrix, answers[lag - 1])
        if held != 0:
            answers[lag] += held * drive
    return answers


def _traces(
    basis: Eigenbasis, answers: Complexes, vectors: PairTables, rows: PairTables
) -> _Products:
    """tr Z_a Z_bᵀ = Σ_kl z_ak (p_kᵀp̄_l) (q_k BBᵀ q̄_l) z̄_bl; k runs over one of each pair."""
    conjugated, plain = vectors * rows
    plain = np.where(basis.weight == 2, plain, 0)  # a real λ has no partner
    seen = answers.conj() @ conjugated.T + answers @ plain.T
    weighted = answers * basis.weight
    return _Products(
        np.hstack([weighted.real, -weighted.imag])[None], np.hstack([seen.real, seen.imag])[None]
    )
