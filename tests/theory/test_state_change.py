"""The mean square of h' - h against the sum over all pairs of lags."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.moments import Readout, moments
from memcurse_cli.theory.rounding import matrix_state_change, moved_logs, state_change

INPUTS = [
    WHITE,
    Autocorrelation.from_rho(0.8),
    Autocorrelation.from_rho(1.0),
    Autocorrelation((0.3, 0.7), (0.0, 0.95), (0.0, 0.7)),
]


def explicit(
    responses: np.ndarray, autocorrelation: Callable[[np.ndarray], np.ndarray], readout: str
) -> float:
    """E‖Σ_k D_k x(t-k)‖² at the last step or as the mean over every one, of (T, ...) D."""
    flat = responses.reshape(len(responses), -1)
    lags = np.arange(len(flat))
    covariance = autocorrelation(np.abs(np.subtract.outer(lags, lags)).astype(float))
    seen = [len(flat)] if readout == "last" else list(range(1, len(flat) + 1))
    return float(
        np.mean([np.sum((flat[:t].conj().T @ covariance[:t, :t]) * flat[:t].T).real for t in seen])
    )


@pytest.mark.parametrize("autocorrelation", INPUTS)
@pytest.mark.parametrize("readout", ["last", "every"])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_it_is_the_sum_over_all_lags(
    autocorrelation: Autocorrelation, readout: Readout, steps: int
) -> None:
    before = np.array([0.9, 0.99 * np.exp(0.3j), 1.02, 0.5, 0.9])
    after = np.array([1.01, 0.97 * np.exp(0.32j), 1.05, 0.51j, -0.3])
    gain = np.array([1, 1.1, 0.9, 1 + 0.1j, 1])
    lags = np.arange(steps)[:, None]
    found = state_change(
        np.log(before), np.log(after), np.log(gain), autocorrelation, steps, readout
    )
    for place, difference in enumerate((gain * after**lags - before**lags).T):
        wanted = explicit(difference, autocorrelation.at, readout)
        assert found[place] == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("autocorrelation", INPUTS)
@pytest.mark.parametrize("readout", ["last", "every"])
def test_a_small_change_within_a_horizon_keeps_its_digits(
    autocorrelation: Autocorrelation, readout: Readout
) -> None:
    """A step of 1e-9 is E|dh/dλ|² δλ², of which a difference of states would have no digit."""
    logs, step = np.log([0.9 + 0j, 0.99 * np.exp(0.3j), 1.01 + 0j]), 1e-9
    moved = moved_logs(logs, np.ones(3, complex), np.full(3, step), bounded=False)
    found = state_change(logs, moved, np.zeros(3, complex), autocorrelation, 50, readout)
    first_order = moments(logs, autocorrelation, 50, readout).sensitivity
    assert found / step**2 == pytest.approx(first_order, rel=1e-6)


@pytest.mark.parametrize("autocorrelation", INPUTS)
def test_an_infinite_sequence_is_a_long_one(autocorrelation: Autocorrelation) -> None:
    before, after = np.log([0.9 * np.exp(0.2j)]), np.log([0.93 * np.exp(0.25j)])
    gain = np.zeros(1, complex)
    endless = state_change(before, after, gain, autocorrelation, None, "last")
    assert endless == pytest.approx(
        state_change(before, after, gain, autocorrelation, 1000, "last"), rel=1e-9
    )
    assert np.isinf(state_change(before, -before, gain, autocorrelation, None, "last"))


@pytest.mark.parametrize("autocorrelation", INPUTS)
@pytest.mark.parametrize("readout", ["last", "every"])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_it_holds_for_a_matrix(
    autocorrelation: Autocorrelation, readout: Readout, steps: int
) -> None:
    random = np.random.default_rng(1)
    matrix, change, readin = (
        0.4 * random.normal(size=(5, 5)),
        0.1 * random.normal(size=(5, 5)),
        random.normal(size=(5, 2)),
    )
    states, moved = (
        np.array([np.linalg.matrix_power(each, lag) @ readin for lag in range(steps)])
        for each in (matrix, matrix + change)
    )
    found = matrix_state_change(matrix, change, readin, autocorrelation, steps, readout)
    for figure, response in zip(found, (moved - states, states), strict=True):
        wanted = explicit(response, autocorrelation.at, readout)
        assert figure == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_an_endless_sequence_of_a_matrix_is_a_long_one() -> None:
    random = np.random.default_rng(2)
    matrix = 0.9 * np.linalg.qr(random.normal(size=(4, 4)))[0]
    change, readin = 0.01 * random.normal(size=(4, 4)), np.eye(4)
    for autocorrelation in INPUTS:
        endless, long = (
            matrix_state_change(matrix, change, readin, autocorrelation, horizon, "last")
            for horizon in (None, 2000)
        )
        assert endless == pytest.approx(long, rel=1e-9)


@pytest.mark.parametrize("step", [0.3, -0.3, 1e-6])
def test_an_exponential_moves_as_one_and_a_stored_eigenvalue_as_itself(step: float) -> None:
    log = np.array([-0.02 + 0.7j])
    eigenvalue = np.exp(log)
    steps = np.array([step])
    decay = moved_logs(log, -0.02 * eigenvalue, steps, bounded=True)
    assert decay == pytest.approx([-0.02 * np.exp(step) + 0.7j], rel=1e-12)
    both = moved_logs(log, log * eigenvalue, steps, bounded=True)
    assert both == pytest.approx(log * np.exp(step), rel=1e-12)
    angle = moved_logs(log, 1j * eigenvalue, steps, bounded=True)
    assert angle == pytest.approx(log + 1j * step, rel=1e-12)
    stored = moved_logs(log, np.ones(1), steps, bounded=False)
    assert np.exp(stored) == pytest.approx(eigenvalue + step, rel=1e-12)
