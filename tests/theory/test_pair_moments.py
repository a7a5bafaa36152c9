from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from theory import brute_force

from memcurse_cli.theory import moments as pair_moments
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.moments import PairMoments, finite_pairs, stationary_pairs

MIXTURE = Autocorrelation((0.332, 0.044, 0.2), (0.0, 0.997, 0.3))
INPUTS = [WHITE, *map(Autocorrelation.from_rho, (0.3, 0.9, 0.997, 1.0)), MIXTURE]
STABLE = np.array([0.0, 0.5, -0.8, 0.9 * np.exp(0.3j), 0.9 * np.exp(-0.3j), 0.7j])
EVERY = np.array([*STABLE, 1.0, np.exp(2j), 1.03, 1.05 * np.exp(1j)])


def logs_of(eigenvalues: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(eigenvalues.astype(complex))


def by_sums(
    eigenvalues: np.ndarray, autocorrelation: Autocorrelation, steps: int, *, conjugate: bool
) -> PairMoments:
    responses = [brute_force.impulse_responses(value, steps) for value in eigenvalues]
    h, s = (np.array(part) for part in zip(*responses, strict=True))

    def table(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        if not conjugate:
            second = second.conj()  # what `expectation` conjugates
        return np.array(
            [
                [
                    sum(w * brute_force.expectation(a, b, rho) for w, rho in autocorrelation)
                    for b in second
                ]
                for a in first
            ]
        )

    return PairMoments(table(s, s), table(s, h), table(h, s), table(h, h))


def assert_same(found: PairMoments, wanted: PairMoments, tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("autocorrelation", INPUTS, ids=str)
def test_an_infinite_sequence(autocorrelation: Autocorrelation, conjugate: bool) -> None:
    found = stationary_pairs(logs_of(STABLE), autocorrelation, conjugate=conjugate)
    assert_same(found, by_sums(STABLE, autocorrelation, 600, conjugate=conjugate), 1e-11)


@pytest.mark.parametrize("horizon", [1, 2, 3, 40])
@pytest.mark.parametrize("autocorrelation", INPUTS, ids=str)
def test_the_mean_over_the_steps(autocorrelation: Autocorrelation, horizon: int) -> None:
    found = finite_pairs(logs_of(EVERY), autocorrelation, horizon)
    for conjugate, tables in zip((False, True), found, strict=True):
        each = [
            by_sums(EVERY, autocorrelation, steps, conjugate=conjugate)
            for steps in range(1, horizon + 1)
        ]
        wanted = PairMoments(*(sum(parts) / horizon for parts in zip(*each, strict=True)))
        assert_same(tables, wanted, 1e-12)


def test_batches() -> None:
    logs = logs_of(np.array([[0.5, 0.9j, -0.3], [0.99, 0.1, 0.2 + 0.3j]]))
    for index in range(2):
        for conjugate in (False, True):
            whole = stationary_pairs(logs, MIXTURE, conjugate=conjugate)
            alone = stationary_pairs(logs[index], MIXTURE, conjugate=conjugate)
            assert_same(PairMoments(*(table[index] for table in whole)), alone, 1e-15)
        for whole, alone in zip(
            finite_pairs(logs, MIXTURE, 9), finite_pairs(logs[index], MIXTURE, 9), strict=True
        ):
            assert_same(PairMoments(*(table[index] for table in whole)), alone, 1e-14)


def test_chunks_of_lags_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = logs_of(EVERY)
    whole = finite_pairs(logs, MIXTURE, 300)
    monkeypatch.setattr(pair_moments, "CHUNK", 1)
    for one, other in zip(finite_pairs(logs, MIXTURE, 300), whole, strict=True):
        assert_same(one, other, 1e-13)
