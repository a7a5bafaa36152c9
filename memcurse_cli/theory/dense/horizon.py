"""The sensitivity of a dense recurrence on T steps from zero, exact for every matrix.

With h_0 = 0 and C(t, t') the covariance of the state at two times,

    E‖dh_T/dA_ij‖² = Σ_{a,b < T} (A^aᵀA^b)_ii C(T-1-a, T-1-b)_jj

The mean over every step t <= T has ``(1/T) Σ_{s>=0} C(T-1-a-s, T-1-b-s)`` in place of C, since a
step s before the last sees what the last one sees, s steps earlier. Of an output y = C h in place
of h, ``A^aᵀ CᵀC A^b`` stands for ``A^aᵀA^b``.

The input starts stationary: a first innovation of variance 1, then innovations of variance
1-ρ², each answered by ``Z_k = Σ_{l<=k} ρ^l A^(k-l) B``, so that C is a sum of products of Z. A
damped cosine is two such inputs, with ρ^l cos(ωl) and ρ^l sin(ωl) in the place of ρ^l.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import Autocorrelation, echoes
from memcurse_cli.theory.dense.bases import Eigenbasis, PairTables
from memcurse_cli.theory.moments.moments import Readout

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

ENTRY_ELEMENTS = 3e7  # elements of the powers of A that are held at once
CHUNK = 2**20  # elements of a table over pairs of times that are held at once


@dataclass(frozen=True)
class _Products:
    """A table of products over two times, ``x[a]·y[b]``, one for each unit.

    Attributes:
        first: (units, T, width) x.
        second: (units, T, width) y.
    """

    first: Floats
    second: Floats

    def rows(self, start: int, stop: int) -> Floats:
        """(units, stop - start, stop) the rows from ``start`` on, up to column ``stop``."""
        return self.first[:, start:stop] @ self.second[:, :stop].transpose(0, 2, 1)

    def reversed(self) -> _Products:
        """Times counted from the end."""
        return _Products(
            np.ascontiguousarray(self.first[:, ::-1]), np.ascontiguousarray(self.second[:, ::-1])
        )


def entries_within_horizon(
    matrix: Floats,
    readin: Floats | None,
    autocorrelation: Autocorrelation,
    horizon: int,
    read_at: Readout,
    readout: Floats | None = None,
) -> tuple[Floats, Floats]:
    """(n,) E h_i² and (n, n) E‖dh/dA_ij‖², from explicit powers of A: no eigenbasis takes part.

    Args:
        matrix: (n, n) real A.
        readin: (n, inputs) B, or None for the identity.
        autocorrelation: R(Δ) of each input.
        horizon: T ≥ 1.
        read_at: at the last step, or the mean over every one.
        readout: (outputs, n) C for E‖dy/dA_ij‖² of y = C h, or None for h itself.
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
    """(units, T, outputs) the rows i of every ``(A^k)ᵀCᵀ``, as many units at once as memory holds.

    The powers themselves are held where C is the identity, else C A^k for every k.
    """
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
    """(n,) E h_i² and Σ_ij E‖dh/dA_ij‖² alone, in the eigenbasis, where powers are those of λ.

    The arguments are those of `entries_within_horizon`.
    """
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

    The innovation at step r is k = t - r and k' = t' - r steps old, so that C sums the products
    P(k, k') along diagonals, the first innovation with weight 1 and the others with 1-ρ²:

        C(t, t') = P(t-1, t'-1) + (1-ρ²) Σ_{k >= 1} P(t-1-k, t'-1-k)

    The mean over every step sums C along its diagonals once more. Both tables are symmetric, so
    t' <= t is enough.
    """
    units = states[0][2].first.shape[0]
    total = np.zeros((observed.first.shape[0], units))
    last = horizon - 1
    observed = _Products(observed.first[:, :last], observed.second[:, :last]).reversed()
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
    """(T,) the variance of the innovation that is k steps old; the first has variance 1.

    Of the mean over every step: T - k of them see an innovation of that age, one of them the first.
    """
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
    """tr Z_a Z_bᵀ with ``Z_a = Σ_k p_k z_ak q_k B`` over all modes, as real products.

    The trace is ``Σ_kl z_ak (p_kᵀp̄_l) (q_k BBᵀ q̄_l) z̄_bl``; k runs over one of each pair.
    """
    conjugated = vectors.conjugated * rows.conjugated
    plain = np.where(basis.weight == 2, vectors.plain * rows.plain, 0)  # a real λ has no partner
    seen = answers.conj() @ conjugated.T + answers @ plain.T
    weighted = answers * basis.weight
    return _Products(
        np.hstack([weighted.real, -weighted.imag])[None], np.hstack([seen.real, seen.imag])[None]
    )
