"""The sensitivity to a dense matrix, and its two parts, against sums over responses."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from theory.brute_force import COSINES, MIXTURE
from theory.impulse_hessian import expected
from theory.matrices import MATRICES, UNSTABLE, eigenbasis, jordan, random, responses, sums, system

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.dense import sensitivity as sensitivity_module
from memcurse_cli.theory.dense.bases import Eigenbasis
from memcurse_cli.theory.dense.sensitivity import (
    DenseSensitivity,
    DenseSystem,
    SensitivitySplit,
    dense_sensitivity,
    entries_within_horizon,
    finite_dense_sensitivity,
    sensitivity_by_eigenbasis,
    sensitivity_by_lags,
    sensitivity_split,
)
from memcurse_cli.theory.moments import Readout

DECAYS = map(Autocorrelation.from_rho, (0.9, 0.997, 1.0))
INPUTS = [WHITE, COSINES, *DECAYS, MIXTURE]
LONG = 900  # steps after which every stable matrix here has forgotten its input
EVERY = {**MATRICES, **UNSTABLE}
SPLIT = ["one", "random", "contracting", "negative", "rotation", "symmetric", "explosive"]
DIAGONALISABLE = [name for name in MATRICES if name not in ("nilpotent", "defective")]


def readin_of(matrix: np.ndarray) -> np.ndarray:
    return np.random.default_rng(9).normal(size=(len(matrix), 2))


def assert_is(
    found: DenseSensitivity, second_moment: np.ndarray, entries: np.ndarray, tolerance: float
) -> None:
    assert_allclose(found.second_moment, second_moment, rtol=tolerance)
    scale = entries.max()
    assert_allclose(found.per_entry, entries, rtol=tolerance, atol=tolerance * scale)
    assert found.total == pytest.approx(entries.sum(), rel=tolerance)
    assert found.relative == pytest.approx(entries.sum() / second_moment.sum(), rel=tolerance)
    assert found.reason is None


@pytest.mark.parametrize("autocorrelation", INPUTS, ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_an_infinite_sequence_is_the_sum_over_responses(
    name: str, autocorrelation: Autocorrelation
) -> None:
    matrix = MATRICES[name]
    readin = readin_of(matrix)
    wanted = sums(matrix, readin, autocorrelation, LONG)
    given = system(matrix, readin, None, autocorrelation)
    assert_is(dense_sensitivity(given), *wanted, 1e-10)
    assert_is(DenseSensitivity.of(*sensitivity_by_lags(given)), *wanted, 1e-10)
    if name in DIAGONALISABLE:
        assert_is(DenseSensitivity.of(*sensitivity_by_eigenbasis(given)), *wanted, 1e-10)


@pytest.mark.parametrize("read_at", ["last", "every"])
@pytest.mark.parametrize("steps", [1, 2, 3, 25])
@pytest.mark.parametrize("name", EVERY)
def test_a_finite_sequence_is_the_sum_over_responses(
    name: str, steps: int, read_at: Readout, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, readin = EVERY[name], readin_of(EVERY[name])
    for autocorrelation in (WHITE, COSINES, INPUTS[-2], MIXTURE):
        every = read_at == "every"
        second_moment, entries = sums(matrix, readin, autocorrelation, steps, every=every)
        given = system(matrix, readin, None, autocorrelation, steps, read_at)
        assert_is(dense_sensitivity(given), second_moment, entries, 1e-10)
        if name in ("nilpotent", "defective", "unstable jordan"):
            continue
        with monkeypatch.context() as limited:
            limited.setattr(sensitivity_module, "ENTRY_FLOPS", 0)
            total = finite_dense_sensitivity(given)
        assert total.per_entry is None
        assert "each entry" in str(total.reason)
        assert_allclose(total.second_moment, second_moment, rtol=1e-11)
        assert total.total == pytest.approx(entries.sum(), rel=1e-11)


def test_without_a_readin_every_state_is_driven_alone() -> None:
    matrix = MATRICES["random"]
    for horizon in (None, 7):
        found, same = (
            dense_sensitivity(system(matrix, readin, None, MIXTURE, horizon))
            for readin in (None, np.eye(5))
        )
        assert_allclose(found.per_entry, same.per_entry, rtol=1e-12)
    silent = dense_sensitivity(system(matrix, np.zeros((5, 1))))
    assert silent.total == silent.relative == 0


@pytest.mark.parametrize("name", DIAGONALISABLE)
def test_a_long_horizon_is_an_infinite_one(name: str) -> None:
    matrix = MATRICES[name]
    readin = readin_of(matrix)
    limit = dense_sensitivity(system(matrix, readin, None, MIXTURE))
    for horizon in (700, 10**9):
        found = dense_sensitivity(system(matrix, readin, None, MIXTURE, horizon))
        assert_is(found, limit.second_moment, limit.per_entry, 1e-9)


@pytest.mark.parametrize(
    ("matrix", "horizon"),
    [*((matrix, None) for matrix in UNSTABLE.values()), (random(3, 3.0), 1000)],
)
def test_what_diverges_is_infinite_and_never_nan(matrix: np.ndarray, horizon: int | None) -> None:
    found = dense_sensitivity(system(matrix, horizon=horizon))
    assert found.total == found.relative == math.inf
    assert np.isposinf(found.second_moment).all()
    assert found.per_entry is None or np.isposinf(found.per_entry).all()


@pytest.mark.parametrize(
    ("matrix", "horizon", "reason"),
    [
        (random(40, 1.01, 3), 10**6, "1000000 steps"),
        (jordan(40, 1.0), 10**5, "ill-conditioned"),
        (jordan(2, 1 - 1e-12), None, "ill-conditioned"),
    ],
)
def test_what_costs_too_much_says_so(matrix: np.ndarray, horizon: int | None, reason: str) -> None:
    found = dense_sensitivity(system(matrix, horizon=horizon))
    assert (found.total, found.relative, found.per_entry) == (None, None, None)
    assert reason in str(found.reason)


def test_near_the_unit_circle() -> None:
    """1 - λ² from the decay: a rotation that forgets in 1e9 steps, against its two modes."""
    decay, angle = 1e-9, 0.3
    logs = np.array([-decay + 1j * angle, -decay - 1j * angle])
    vectors = np.array([[1, 1], [-1j, 1j]]) / math.sqrt(2)
    matrix = (vectors @ np.diag(np.exp(logs)) @ np.linalg.inv(vectors)).real
    found = dense_sensitivity(DenseSystem(matrix, Eigenbasis(logs, vectors)))
    variance = -1 / math.expm1(-2 * decay)
    assert_allclose(found.second_moment, variance, rtol=1e-12)
    # For a rotation A^aᵀA^b has the diagonal |λ|^(a+b) cos((b-a)θ), and so has the covariance.
    # Σ_d over every lag of e^(-2 decay |d|) cos²(θd)
    steady = 1 / math.expm1(2 * decay)
    turning = 1 / (np.exp(2 * decay - 2j * angle) - 1)
    assert_allclose(found.per_entry, variance**2 * (1 + steady + turning.real), rtol=1e-9)


def test_memory_does_not_grow_with_the_square_of_the_horizon() -> None:
    """A table over all pairs of times would be 8 × 1500² elements, 144 MB."""
    matrix = random(8, 0.999, 2)
    finite_dense_sensitivity(system(matrix, horizon=2))
    tracemalloc.start()
    finite_dense_sensitivity(system(matrix, horizon=1500))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * 2**20


@pytest.mark.parametrize("elements", [1, 60, 300])
def test_a_few_at_a_time_give_the_same(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity_module, "ENTRY_ELEMENTS", elements)
    monkeypatch.setattr(sensitivity_module, "TABLE", elements)
    monkeypatch.setattr(sensitivity_module, "POWER_ELEMENTS", elements)
    matrix, readin = MATRICES["random"], np.random.default_rng(2).normal(size=(5, 2))
    summed = DenseSensitivity.of(*sensitivity_by_lags(system(matrix, readin, None, MIXTURE)))
    assert_is(summed, *sums(matrix, readin, MIXTURE, LONG), 1e-10)
    mean = finite_dense_sensitivity(system(matrix, readin, None, MIXTURE, 23, "every"))
    assert_allclose(mean.per_entry, sums(matrix, readin, MIXTURE, 23, every=True)[1], rtol=1e-12)
    for readout in (None, np.random.default_rng(3).normal(size=(7, 5)), np.ones((2, 5))):
        wanted = sums(matrix, readin, INPUTS[-1], 17, readout)
        found = entries_within_horizon(system(matrix, readin, readout, INPUTS[-1], 17))
        assert_allclose(found[0], wanted[0], rtol=1e-12)
        assert_allclose(found[1], wanted[1], rtol=1e-12)


def test_a_matrix_without_eigenvectors_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the eigenbasis cannot be used, every entry is the only way to the sum."""
    matrix = jordan(20, 0.5)
    readin = np.ones((20, 1))
    monkeypatch.setattr(sensitivity_module, "ENTRY_FLOPS", 0)
    assert eigenbasis(matrix).condition > 1e8
    found = dense_sensitivity(system(matrix, readin, horizon=300))
    assert found.reason is None
    limit = dense_sensitivity(system(matrix, readin))
    assert found.total == pytest.approx(limit.total, rel=1e-9)


def parts(
    matrix: np.ndarray,
    readin: np.ndarray,
    part: Autocorrelation,
    steps: int,
    *,
    every: bool = False,
) -> list[float]:
    """The squares of what every unit matrix does through eigenvalues and around them, and 2×."""
    basis = eigenbasis(matrix)
    vectors, inverse = basis.vectors, np.linalg.inv(basis.vectors)
    through = np.einsum("ak,ki,jk,kb->ijab", vectors, inverse, vectors, inverse, optimize=True)
    assert np.abs(through.imag).max() < 1e-10
    through = through.real.reshape(-1, *matrix.shape)
    around = np.eye(matrix.size).reshape(through.shape) - through
    moved = responses(matrix, readin, steps, changes=np.concatenate([through, around]))[1:]
    products = expected(moved, part, every=every)
    squares = np.diag(products)
    both = np.trace(products[: matrix.size, matrix.size :])
    return [squares[: matrix.size].sum(), squares[matrix.size :].sum(), 2 * both]


def split(matrix: np.ndarray, readin: np.ndarray, *given: Any) -> SensitivitySplit:
    of = system(matrix, readin, None, *given)
    return sensitivity_split(of, dense_sensitivity(of).total)


@pytest.mark.parametrize("autocorrelation", [WHITE, COSINES, INPUTS[-2], MIXTURE], ids=str)
@pytest.mark.parametrize("name", SPLIT)
def test_the_parts_are_sums_over_responses(name: str, autocorrelation: Autocorrelation) -> None:
    matrix = EVERY[name]
    readin = readin_of(matrix)
    for steps, horizon in ((20, 20), (600, None))[: 1 if name == "explosive" else 2]:
        wanted = parts(matrix, readin, autocorrelation, steps)
        found = split(matrix, readin, autocorrelation, horizon)
        assert_allclose(found, wanted, rtol=1e-9, atol=1e-9 * sum(wanted))
    wanted = parts(matrix, readin, autocorrelation, 9, every=True)
    found = split(matrix, readin, autocorrelation, 9, "every")
    assert_allclose(found, wanted, rtol=1e-9, atol=1e-9 * sum(wanted))


@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-8, 1e-6, 1e-4])
def test_repeated_and_almost_repeated_eigenvalues(gap: float) -> None:
    """Between close eigenvalues a quotient of differences has no digits left."""
    matrix = np.diag([0.8, 0.8 + gap, 0.3])
    readin = readin_of(matrix)
    wanted = parts(matrix, readin, WHITE, 300)
    assert_allclose(split(matrix, readin, WHITE, None), wanted, rtol=1e-8, atol=1e-8)
