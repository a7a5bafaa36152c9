"""How sensitive the state of a dense linear recurrence is to the entries of its matrix.

The equations are in docs/theory/dense.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation, echoes
from memcurse_cli.theory.dense.bases import (
    TOO_UNCERTAIN,
    Eigenbasis,
    PairTables,
    are_powers_lost,
    is_undetermined,
)
from memcurse_cli.theory.dense.stationary import (
    GROWN,
    TOO_LONG,
    Memory,
    remembered_lags,
    sensitivity_by_eigenbasis,
    sensitivity_without_eigenbasis,
)
from memcurse_cli.theory.linalg import Complexes, Floats
from memcurse_cli.theory.moments import Readout, pair_moments

FORGOTTEN = 45.0  # e^-45 is below the rounding of 1
STATE_ELEMENTS = 4e7  # elements of the state's answers, up to which every entry is computed
ENTRY_FLOPS = 1e10  # what every entry within a horizon may cost: a second
SOLE_FLOPS = 2e11  # the same where there is no other way
TOTAL_FLOPS = 5e10  # what the total within a horizon may cost
CLOSE = 1e-5  # times the distance from the unit circle: λ so close share one derivative
ENTRY_ELEMENTS = 3e7  # elements of the powers of A that are held at once
CHUNK = 2**20  # elements of a table over pairs of times that are held at once


@dataclass(frozen=True)
class DenseSensitivity:
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


def dense_sensitivity(
    matrix: Floats,
    basis: Eigenbasis,
    readin: Floats | None = None,
    autocorrelation: Autocorrelation = WHITE,
    horizon: int | None = None,
    read_at: Readout = "last",
) -> DenseSensitivity:
    """E h_i² and ``E‖dh/dA_ij‖² = Σ_{a,b} (A^aᵀA^b)_ii C(T-1-a, T-1-b)_jj``, C the covariance of h.

    A is real, row = target, and B (n, inputs), or None for a drive of unit variance on every state.
    T steps from h = 0 are exact for every A; an infinite sequence diverges where |λ| >= 1.
    ``last`` is the state at step T, ``every`` the mean over all T.
    """
    decay, usable = -basis.log_radius, basis.is_usable
    memory = Memory(math.inf, math.inf)
    if usable and decay > 0:
        # 1: what A = 0 remembers
        memory = Memory(1 + (FORGOTTEN + math.log(basis.condition)) / decay, basis.condition)
    elif decay > 0:
        memory = remembered_lags(matrix)
    remembered = memory.lags
    if not usable and (horizon is None or horizon > remembered) and is_undetermined(matrix, basis):
        return DenseSensitivity(None, None, None, TOO_UNCERTAIN)
    eigenbasis = basis if usable else None
    if horizon is not None and horizon <= remembered:
        if not usable and memory.growth > GROWN and are_powers_lost(matrix, horizon):
            return DenseSensitivity(None, None, None, TOO_UNCERTAIN)
        return finite_dense_sensitivity(
            matrix, eigenbasis, readin, autocorrelation, horizon, read_at
        )
    if decay <= 0:
        return DenseSensitivity(np.full(matrix.shape[0], np.inf), math.inf, None)
    try:
        moment, entries = (
            sensitivity_by_eigenbasis(basis, readin, autocorrelation)
            if usable
            else sensitivity_without_eigenbasis(matrix, readin, autocorrelation, memory, decay)
        )
    except ArithmeticError as error:
        return DenseSensitivity(None, None, None, str(error))
    limit = DenseSensitivity.of(moment, entries, reason=TOO_LONG if entries is None else None)
    if horizon is None or read_at == "last":
        return limit
    # From the lag on at which all is forgotten, every step of the sequence is in that limit.
    steps = math.ceil(remembered)
    rise = finite_dense_sensitivity(matrix, eigenbasis, readin, autocorrelation, steps, "every")
    return _mean(rise, limit, steps / horizon)


def _mean(rise: DenseSensitivity, limit: DenseSensitivity, share: float) -> DenseSensitivity:
    if rise.second_moment is None or limit.second_moment is None:
        return rise if rise.second_moment is None else limit
    moment = share * rise.second_moment + (1 - share) * limit.second_moment
    entries, total = None, None
    if rise.per_entry is not None and limit.per_entry is not None:
        entries = share * rise.per_entry + (1 - share) * limit.per_entry
    elif rise.total is not None and limit.total is not None:
        total = share * rise.total + (1 - share) * limit.total
    return DenseSensitivity.of(moment, entries, total, rise.reason or limit.reason)


def finite_dense_sensitivity(
    matrix: Floats,
    basis: Eigenbasis | None,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    horizon: int,
    read_at: Readout = "last",
) -> DenseSensitivity:
    """The same on T ≥ 1 steps, or only its sum where entries cost too much; None: no eigenbasis."""
    size = matrix.shape[0]
    inputs = size if readin is None else readin.shape[1]
    cost = 3 * (size * horizon) ** 2
    small = horizon * size * inputs <= STATE_ELEMENTS
    with np.errstate(over="ignore", invalid="ignore"):
        if small and cost <= (SOLE_FLOPS if basis is None else ENTRY_FLOPS):
            return DenseSensitivity.of(
                *entries_within_horizon(matrix, readin, autocorrelation, horizon, read_at)
            )
        if basis is None:
            reason = "its eigenvectors are too ill-conditioned for a matrix of this size"
        elif 4 * size * horizon * (size + horizon) > TOTAL_FLOPS:
            reason = f"{horizon} steps are too many for a matrix of this size"
        else:
            moment, total = total_within_horizon(basis, readin, autocorrelation, horizon, read_at)
            reason = "the sensitivity of each entry costs too much at this size and horizon"
            return DenseSensitivity.of(moment, None, total, reason)
    return DenseSensitivity(None, None, None, reason)


class SensitivitySplit(NamedTuple):
    """The parts of E‖dh/dA‖²_F, which is their sum."""

    eigenvalues: float  # Σ_ij E‖dh_λ‖²
    eigenvectors: float  # Σ_ij E‖dh_P‖²
    cross: float  # 2 Σ_ij E<dh_λ, dh_P>, of either sign


def sensitivity_split(
    basis: Eigenbasis,
    total: float,
    readin: Floats | None = None,
    autocorrelation: Autocorrelation = WHITE,
    horizon: int | None = None,
    read_at: Readout = "last",
) -> SensitivitySplit:
    """The parts of E‖dh/dA‖²_F = ``total``, of a matrix with κ(P) far below 1/ε.

        E‖dh_λ‖² = Σ_kl (p_kᵀp̄_l)² (q_k q̄_lᵀ) (q_k BBᵀ q̄_lᵀ) E[s_k s̄_l]
        E<dh_λ, dh> = Σ_mkl (p̄_mᵀp_k)(q̄_m q_kᵀ) (p̄_mᵀp_l)(q̄_m BBᵀ q_lᵀ) E[s̄_m d_kl]

    with d_kl = (h_k - h_l)/(λ_k - λ_l) (Zucchet & Orvieto 2024, section A.2.3); all |λ| < 1 on an
    infinite sequence.
    """
    logs = basis.log_eigenvalues
    _, pairs = pair_moments(logs, autocorrelation, horizon, read_at)
    vectors, inverse = basis.vectors, basis.inverse
    drive = inverse if readin is None else inverse @ readin
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


@dataclass(frozen=True)
class _Products:
    """``x[a]·y[b]`` over two times, one table for each unit."""

    first: Floats  # (units, T, width) x
    second: Floats  # (units, T, width) y

    def rows(self, start: int, stop: int) -> Floats:
        """(units, stop - start, stop) the rows from ``start`` on, up to column ``stop``."""
        return self.first[:, start:stop] @ self.second[:, :stop].transpose(0, 2, 1)


def entries_within_horizon(
    matrix: Floats,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    horizon: int,
    read_at: Readout,
    readout: Floats | None = None,
) -> tuple[Floats, Floats]:
    """(n,) E h_i² and (n, n) E‖dh/dA_ij‖², from explicit powers of A.

    With a readout (outputs, n) C it is E‖dy/dA_ij‖² of y = C h instead.
    """
    identity = np.eye(matrix.shape[0])
    second_moment = np.zeros(matrix.shape[0])
    states = []
    lags = np.arange(horizon, dtype=np.float64)
    for weight, rho, echo in echoes(autocorrelation, lags):
        answers = _answers(matrix, identity if readin is None else readin, echo)
        second_moment += weight * np.einsum(
            "k,kjm,kjm->j", _innovations(horizon, rho, read_at), answers, answers
        )
        rows = np.ascontiguousarray(answers.transpose(1, 0, 2))
        states.append((weight, rho, _Products(rows, rows)))
    seen = identity if readout is None else readout.T
    entries = np.zeros(matrix.shape)
    for units, rows in _powers_by_unit(matrix, seen, horizon):
        entries[units] = _sum_over_times(_Products(rows, rows), states, horizon, read_at)
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


def total_within_horizon(
    basis: Eigenbasis,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    horizon: int,
    read_at: Readout,
) -> tuple[Floats, float]:
    """(n,) E h_i² and Σ_ij E‖dh/dA_ij‖² alone, in the eigenbasis, where powers are those of λ."""
    vectors, drive = basis.vector_products(), basis.row_products(readin)
    second_moment = np.zeros(basis.vectors.shape[0])
    states = []
    for weight, rho, echo in echoes(autocorrelation, np.arange(horizon, dtype=np.float64)):
        answers = _modal_answers(basis.logs, echo)
        shared = answers * _innovations(horizon, rho, read_at)[:, None]
        covariance = PairTables(
            (shared.T @ answers.conj()) * drive.conjugated, (shared.T @ answers) * drive.plain
        )
        modal = basis.columns.T * basis.combine_vectors(covariance)
        second_moment += weight * (basis.weight @ modal.real)
        states.append((weight, rho, _traces(basis, answers, vectors, drive)))
    unforced = _modal_answers(basis.logs, _once(horizon))  # λ^k
    observed = _traces(basis, unforced, vectors, basis.row_products())
    total = _sum_over_times(observed, states, horizon, read_at)
    return second_moment, float(total[0, 0])


def _sum_over_times(
    observed: _Products,
    states: list[tuple[float, float, _Products]],
    horizon: int,
    read_at: Readout,
) -> Floats:
    """(observed units, units) Σ_{t,t'} L_i(T-1-t, T-1-t') C_j(t, t'), for 0 < t, t' < T.

    ``C(t, t') = P(t-1, t'-1) + (1-ρ²) Σ_{k >= 1} P(t-1-k, t'-1-k)``, summed along its diagonals
    once more for the mean over every step. Both are symmetric.
    """
    units = states[0][2].first.shape[0]
    total = np.zeros((observed.first.shape[0], units))
    last = horizon - 1
    earlier_last = (x[:, :last][:, ::-1] for x in (observed.first, observed.second))
    observed = _Products(*map(np.ascontiguousarray, earlier_last))
    sums = [np.zeros((units, 0)) for _ in states]
    earlier = np.zeros((units, 0))
    chunk = max(1, CHUNK // (units * horizon))
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


def powers(matrix: Floats, drive: Floats, count: int) -> Floats:
    """(count, n, inputs) A^k B."""
    return _answers(matrix, drive, _once(count))


def _once(horizon: int) -> Floats:
    """(T,) what an innovation leaves in white noise: itself."""
    return np.asarray(np.arange(horizon) == 0, np.float64)


def _answers(matrix: Floats, drive: Floats, echo: Floats) -> Floats:
    """(T, n, inputs) Z_k, the answer to an innovation k steps ago of which the input holds e_k."""
    answers = np.empty((echo.size, *drive.shape))
    for lag, held in enumerate(echo.tolist()):
        answers[lag] = matrix @ answers[lag - 1] if lag else 0.0
        if held != 0:
            answers[lag] += held * drive
    return answers


def _innovations(horizon: int, rho: float, read_at: Readout) -> Floats:
    """(T,) the variance of the innovation that is k steps old, or its mean over every step."""
    later = (1 - rho) * (1 + rho)
    if read_at == "every":
        return (later * np.arange(horizon - 1, -1, -1) + 1) / horizon
    variance = np.full(horizon, later)
    variance[-1] = 1.0
    return variance


def _modal_answers(logs: Complexes, echo: Floats) -> Complexes:
    """(T, h) Σ_{l<=k} e_l λ^(k-l)."""
    eigenvalues = np.exp(logs)
    answers = np.full((echo.size, logs.size), echo[0], np.complex128)
    for lag in range(1, echo.size):
        answers[lag] = eigenvalues * answers[lag - 1] + echo[lag]
    return answers


def _traces(
    basis: Eigenbasis, answers: Complexes, vectors: PairTables, rows: PairTables
) -> _Products:
    """tr Z_a Z_bᵀ = Σ_kl z_ak (p_kᵀp̄_l) (q_k BBᵀ q̄_l) z̄_bl; k runs over one of each pair."""
    conjugated = vectors.conjugated * rows.conjugated
    plain = np.where(basis.weight == 2, vectors.plain * rows.plain, 0)  # a real λ has no partner
    seen = answers.conj() @ conjugated.T + answers @ plain.T
    weighted = answers * basis.weight
    return _Products(
        np.hstack([weighted.real, -weighted.imag])[None], np.hstack([seen.real, seen.imag])[None]
    )
