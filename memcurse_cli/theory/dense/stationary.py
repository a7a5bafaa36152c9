"""The sensitivity of a stable dense recurrence on an infinite sequence, in three ways.

By its eigenbasis, by a sum over lags or by an integral over frequencies: docs/theory/dense.md.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.dense.bases import (
    CHUNK,
    TOO_UNCERTAIN,
    UNCERTAIN,
    DoublingStein,
    Eigenbasis,
    PairTables,
    kept_for_the_last,
    largest_norm,
    resolvents,
    rounding_of,
    schur_form,
)
from memcurse_cli.theory.linalg import Complexes, Floats
from memcurse_cli.theory.moments import one_minus_exp

FLOPS = 4e11  # what a sum over lags, or the resolvents, may cost: seconds on two cores
SLOWER = 8  # times a matrix-matrix product, what an operation of a matrix-vector product takes
POWER_ELEMENTS = 2e7  # elements of the powers of A that are kept
HALVINGS = 55  # lags are summed until A^d has halved so often, and is below rounding
GROWN = 100.0  # ‖A^d‖_F beyond which squares of A lose more than four digits

FEWEST = 128  # frequencies on the whole circle
PER_DECAY = 8.0  # times the longest time constant, the frequencies of the first try
SETTLED = 1e-9  # a doubling of the frequencies squares the error: that is exact to rounding

TOO_LONG = "its eigenvectors are too ill-conditioned and its memory is too long"


def sensitivity_by_eigenbasis(
    basis: Eigenbasis,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    readout: Floats | None = None,
) -> tuple[Floats, Floats]:
    """(n,) E h_i² and (n, n) E‖dy/dA_ij‖² in closed form, of an A with all |λ| < 1.

    ``(G A^d)_ii = Σ_k L_ik λ_k^d`` and ``(A^d Σ)_jj = Σ_l C_jl λ_l^d`` give ``Σ_d = L K Cᵀ`` with
    ``K_kl = λ_k λ_l / (1 - λ_k λ_l)``. B (n, inputs) and C (outputs, n) are real, or None for I.
    """
    logs = basis.logs
    eigenvalues = np.exp(logs)
    rest = PairTables(
        one_minus_exp(logs[:, None] + logs.conj()[None, :]),
        one_minus_exp(logs[:, None] + logs[None, :]),
    )
    drive = basis.row_products(readin)
    factor = PairTables(np.zeros_like(rest.conjugated), np.zeros_like(rest.plain))
    coloured: list[tuple[Complexes, Complexes, Complexes | None]] = []
    for share, rho, frequency in autocorrelation.parts:
        if rho == 0:
            for table, u in zip(factor, rest, strict=True):
                table += share / u
            continue
        innovation = (1 - rho) * (1 + rho)
        # 1 - ρλ without cancellation, of λ turned by ω and by -ω.
        forth = (1 - rho) + rho * one_minus_exp(logs + 1j * frequency)
        back = (1 - rho) + rho * one_minus_exp(logs - 1j * frequency)
        for table, u, p, q in zip(
            factor, rest, (forth.conj(), back), (back.conj(), forth), strict=True
        ):
            # The second of a pair turns the other way, so that the product of both stays.
            turned = 1 / np.outer(forth, p) + 1 / np.outer(back, q)
            table += (0.5 * share) * (innovation / u + rho**2) * turned
        carried = _carried(basis, drive, forth, back)
        scale = share * rho * eigenvalues
        if frequency == 0:
            coloured.append((scale / forth, carried, None))
            continue
        turned_back = _carried(basis, drive, back, forth)
        turn = 0.5 * complex(math.cos(frequency), math.sin(frequency))
        coloured.append((scale * turn / forth, carried, turned_back))
        coloured.append((scale * turn.conjugate() / back, turned_back, carried))
    covariance = PairTables(factor.conjugated * drive.conjugated, factor.plain * drive.plain)
    right = basis.columns.T * basis.combine_vectors(covariance)  # (h, n) Cᵀ
    second_moment = basis.weight @ right.real

    gram = basis.vector_products(readout)
    observed = PairTables(gram.conjugated / rest.conjugated, gram.plain / rest.plain)
    left = basis.rows * basis.combine_rows(observed)  # (h, n) Lᵀ
    observability = basis.weight @ left.real

    weight = basis.weight[:, None]
    kernel = PairTables(
        np.outer(eigenvalues, eigenvalues.conj()) / rest.conjugated,
        np.outer(eigenvalues, eigenvalues) / rest.plain,
    )
    answered = _apply(kernel, weight * right, None)
    for powers, lagged, mirrored in coloured:
        kernel = PairTables(powers[:, None] / rest.conjugated, powers[:, None] / rest.plain)
        other = None if mirrored is None else weight * mirrored
        answered += _apply(kernel, weight * lagged, other)
    entries = np.outer(observability, second_moment)
    entries += _stacked(weight * left).T @ answered
    return second_moment, entries


def _carried(
    basis: Eigenbasis, drive: PairTables, turned: Complexes, mirrored: Complexes
) -> Complexes:
    """(h, n) the modes of ``Q (I - ρAᵀ)⁻¹``, from 1 - ρλ and 1 - ρ̄λ at a complex ρ."""
    tables = PairTables(drive.conjugated / mirrored.conj(), drive.plain / turned)
    return basis.columns.T * basis.combine_vectors(tables)


def _apply(kernel: PairTables, right: Complexes, mirrored: Complexes | None) -> Floats:
    """(2h, n) X with ``Re Lᵀ (K C + K̃ M̄) = [Re L, Im L]ᵀ X``; M None where ρ is real."""
    conjugated, plain = kernel
    if mirrored is not None:
        answer = plain @ right + conjugated @ mirrored.conj()
        return np.vstack([answer.real, -answer.imag])
    of_real = np.vstack([conjugated.real + plain.real, -conjugated.imag - plain.imag])
    of_imaginary = np.vstack([conjugated.imag - plain.imag, conjugated.real - plain.real])
    return np.asarray(np.hstack([of_real, of_imaginary]) @ _stacked(right))


def _stacked(array: Complexes) -> Floats:
    return np.vstack([array.real, array.imag])


def sensitivity_without_eigenbasis(
    matrix: Floats,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    memory: Memory,
    decay: float,
    readout: Floats | None = None,
) -> tuple[Floats, Floats | None]:
    """The same by lags where no power of A is large, else by frequencies; None if `TOO_LONG`.

    Raises:
        ArithmeticError: neither is to be had; it says why.
    """
    if memory.growth > GROWN:
        return sensitivity_by_frequencies(matrix, readin, autocorrelation, decay, readout)
    return sensitivity_by_lags(matrix, readin, autocorrelation, memory.lags, readout)


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
    for power in schur_form(matrix).squares():
        with np.errstate(over="ignore", invalid="ignore"):
            norm = float(np.linalg.norm(power))
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


def sensitivity_by_lags(
    matrix: Floats,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    lags: float,
    readout: Floats | None = None,
) -> tuple[Floats, Floats | None]:
    """The same lag by lag until A^d is negligible; at inf lags only the state is known.

    Raises:
        ArithmeticError: the powers of A do not vanish.
    """
    size = matrix.shape[0]
    identity = np.eye(size)
    drive = identity if readin is None else readin @ readin.T
    source = np.zeros((size, size))
    carried: list[tuple[complex, NDArray[Any]]] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for part in autocorrelation.parts:
            share, rho = part.weight, part.pole
            answer = np.asarray(np.linalg.solve(identity - rho * matrix, drive))  # Yᵀ
            lagged = (rho * (matrix @ answer)).real
            source += share * (drive + lagged + lagged.T)
            if part.rho > 0:
                carried.append((rho, share * answer.T))
        solver = DoublingStein(matrix)
        right = solver.forward(source)
        if math.isinf(lags):
            return np.diag(right), None
        left = solver.adjoint(identity if readout is None else readout.T @ readout)
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
    powers = np.empty((stride, size, size))
    powers[0] = np.eye(size)
    for step in range(1, stride):
        powers[step] = powers[step - 1] @ matrix
    leap = powers[-1] @ matrix
    rows = np.ascontiguousarray(powers.transpose(1, 0, 2))  # (i, step, k) of (A^step)_ik
    columns = np.ascontiguousarray(powers.transpose(2, 0, 1))  # (i, step, k) of (A^step)_ki
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


def sensitivity_by_frequencies(
    matrix: Floats,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    decay: float,
    readout: Floats | None = None,
) -> tuple[Floats, Floats]:
    """The same as ``1/2π ∫ S(θ) ‖C R e_i‖² (R B Bᵀ R*)_jj dθ``, R the resolvent, to 1 % or better.

    Raises:
        ArithmeticError: it costs too much, or rounding A changes it by more.
    """
    points = FEWEST
    while points < PER_DECAY / decay and cost_of_frequencies(len(matrix), points) <= FLOPS:
        points *= 2
    allowed = rounding_of(matrix)
    answers = np.empty((2, 0, len(matrix)))
    previous: tuple[Floats, Floats] | None = None
    while cost_of_frequencies(len(matrix), points) <= FLOPS:
        places = np.arange(points // 2 + 1)
        taken = places if previous is None else places[1::2]
        found_at, largest = _responses(matrix, readin, readout, taken / points)
        change = allowed * largest
        if not change < UNCERTAIN:
            raise ArithmeticError(TOO_UNCERTAIN)
        if previous is None:
            answers = found_at
        else:
            before, answers = answers, np.empty((2, len(places), len(matrix)))
            answers[:, ::2], answers[:, 1::2] = before, found_at
        seen, driven = answers
        weights = _weights(autocorrelation, points)
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


def _responses(
    matrix: Floats, readin: Floats | None, readout: Floats | None, turns: Floats
) -> tuple[Floats, float]:
    """(2, points, n) ``‖C R e_i‖²`` and ``(R B Bᵀ R*)_jj``, and the largest ‖R‖_F."""
    circle = np.exp(2j * np.pi * turns)
    answers, largest = np.empty((2, len(circle), len(matrix))), 0.0
    step = max(1, CHUNK // max(matrix.size, 1))
    for start in range(0, len(circle), step):
        part = slice(start, start + step)
        found = resolvents(matrix, circle[part])
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
