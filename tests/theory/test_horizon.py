from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory import brute_force

from memcurse_cli.theory.autocorrelation.mixture import Autocorrelation
from memcurse_cli.theory.moments.moments import Moments, moments

RHOS = [0.0, 0.3, 0.9, 0.997, 1.0]
EIGENVALUES = [0.0, 0.5, -0.8, 0.9 * np.exp(0.3j), 0.999j, 1.0, np.exp(2j), 1.02, 1.05 * np.exp(1j)]


def at(eigenvalue: complex, rho: float, horizon: int) -> Moments:
    with np.errstate(divide="ignore"):
        log = np.log(np.array([eigenvalue], complex))
    return moments(log, Autocorrelation.from_rho(rho), horizon)


def assert_close(found: Moments, expected: tuple[float, complex, float], tolerance: float) -> None:
    f, c, s = (complex(value[0]) for value in found)
    assert f == pytest.approx(expected[0], rel=tolerance)
    assert s == pytest.approx(expected[2], rel=tolerance)
    assert abs(c - expected[1]) <= tolerance * np.sqrt(expected[0] * expected[2])


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 64, 100, 301])
def test_the_moments_are_the_sums_cut_at_the_horizon(rho: float, steps: int) -> None:
    for eigenvalue in EIGENVALUES:
        expected = brute_force.moments(eigenvalue, rho, steps)
        assert_close(at(eigenvalue, rho, steps), expected, 1e-11)


@pytest.mark.parametrize("rho", [0.3, 0.997])
@pytest.mark.parametrize("decay", [1e-5, 0.0, -1e-6])
def test_a_million_steps(rho: float, decay: float) -> None:
    steps = 10**6
    for angle in (0.0, 0.3):
        z = complex(-decay, angle)
        n = np.arange(steps)
        h = np.exp(n * z)
        s = n * np.exp((n - 1) * z)
        expected = tuple(brute_force.expectation(a, b, rho) for a, b in ((h, h), (s, h), (s, s)))
        found = moments(np.array([z]), Autocorrelation.from_rho(rho), steps)
        assert_close(found, (expected[0].real, expected[1], expected[2].real), 1e-9)


@pytest.mark.parametrize("steps", [10, 1000, 10**6])
def test_on_the_unit_circle_white_input_adds_up_squares(steps: int) -> None:
    found = moments(np.array([1j]), horizon=steps)
    assert found.second_moment[0] == pytest.approx(steps, rel=1e-13)
    squares = (steps - 1) * steps * (2 * steps - 1) / 6
    assert found.sensitivity[0] == pytest.approx(squares, rel=1e-13)


@pytest.mark.parametrize("steps", [10, 999, 10**6])
def test_a_perfect_integrator_of_a_constant_grows_as_a_power(steps: int) -> None:
    found = at(1.0, 1.0, steps)
    assert found.second_moment[0] == pytest.approx(float(steps) ** 2, rel=1e-13)
    pairs = steps * (steps - 1) / 2
    assert found.sensitivity[0] == pytest.approx(pairs**2, rel=1e-13)
    assert found.cross_moment[0] == pytest.approx(pairs * steps, rel=1e-13)


@pytest.mark.parametrize("rho", RHOS)
def test_the_recurrence_of_input_state_and_derivative(rho: float) -> None:
    """z' = M z + N ε of section 4 of the theory, step by step."""
    eigenvalue, steps = 1.01 * np.exp(0.5j), 60
    transition = np.array([[rho, 0, 0], [rho, eigenvalue, 0], [0, 1, eigenvalue]])
    drive = np.sqrt(1 - rho**2) * np.array([[1.0], [1.0], [0.0]])
    covariance = np.diag([1.0, 0, 0]).astype(complex)
    for _ in range(steps):
        covariance = transition @ covariance @ transition.conj().T + drive @ drive.T
    expected = (covariance[1, 1].real, covariance[2, 1], covariance[2, 2].real)
    assert_close(at(eigenvalue, rho, steps), expected, 1e-12)


@pytest.mark.parametrize("rho", RHOS)
def test_an_exploding_state_ends_as_infinite_and_never_nan(rho: float) -> None:
    logs = np.array([0.1 + 1j, 5.0 + 0j, 0.3 + np.pi * 1j, 1e-5 + 0j, -0.1 + 2j])
    found = moments(logs, Autocorrelation.from_rho(rho), 10**5)
    assert np.isposinf(found.second_moment[:3]).all()
    assert np.isposinf(found.sensitivity[:3]).all()
    assert (found.cross_moment[:3] == 0).all()
    for value in found:
        assert np.isfinite(value[3:]).all()
    stationary = moments(logs[-1:], Autocorrelation.from_rho(rho))
    for value, limit in zip(found, stationary, strict=True):
        assert value[-1] == pytest.approx(limit[0], rel=1e-12)


def test_an_empty_layer_has_no_moments() -> None:
    assert all(value.shape == (0,) for value in moments(np.zeros(0, complex), horizon=64))


@given(decay=st.floats(0.01, 5.0), angle=st.floats(-np.pi, np.pi), rho=st.floats(0.0, 1.0))
def test_a_long_horizon_is_an_infinite_one(decay: float, angle: float, rho: float) -> None:
    log, autocorrelation = np.array([complex(-decay, angle)]), Autocorrelation.from_rho(rho)
    found, limit = (moments(log, autocorrelation, horizon) for horizon in (10_000, None))
    scale = float(np.sqrt(limit.second_moment[0] * limit.sensitivity[0]))
    assert found.second_moment[0] == pytest.approx(limit.second_moment[0], rel=1e-10)
    assert found.sensitivity[0] == pytest.approx(limit.sensitivity[0], rel=1e-10)
    assert abs(found.cross_moment[0] - limit.cross_moment[0]) <= 1e-10 * scale


@given(
    log_modulus=st.floats(-5.0, 0.05),
    rho=st.floats(0.0, 1.0),
    steps=st.integers(1, 2000),
)
def test_a_longer_sequence_is_never_less_sensitive(
    log_modulus: float, rho: float, steps: int
) -> None:
    log, autocorrelation = np.array([log_modulus + 0j]), Autocorrelation.from_rho(rho)
    short = moments(log, autocorrelation, steps)
    long = moments(log, autocorrelation, steps + 1)
    assert long.second_moment[0] >= short.second_moment[0] * (1 - 1e-13)
    assert long.sensitivity[0] >= short.sensitivity[0] * (1 - 1e-13)


def test_every_split_of_the_steps_into_bits_is_the_same_recurrence() -> None:
    """T + 1 steps are T steps and one more, at every T up to 130."""
    eigenvalue, rho = 0.95 * np.exp(0.2j), 0.6
    for steps in range(1, 130):
        before, after = at(eigenvalue, rho, steps), at(eigenvalue, rho, steps + 1)
        growth = (
            abs(eigenvalue) ** 2 * before.sensitivity
            + before.second_moment
            + 2 * (eigenvalue * before.cross_moment).real
        )
        assert after.sensitivity[0] == pytest.approx(growth[0], rel=1e-13)
