"""Moments of T steps against sums, at the last step and as the mean over every one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter
from theory import brute_force

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.moments import Moments, Readout, finite_pairs, moments

RHOS = [0.0, 0.3, 0.9, 0.997, 1.0]
EIGENVALUES = [0.0, 0.5, -0.8, 0.9 * np.exp(0.3j), 0.999j, 1.0, np.exp(2j), 1.02, 1.05 * np.exp(1j)]


def at(eigenvalue: complex, rho: float, horizon: int, readout: Readout = "last") -> Moments:
    with np.errstate(divide="ignore"):
        log = np.log(np.array([eigenvalue], complex))
    return moments(log, Autocorrelation.from_rho(rho), horizon, readout)


def assert_close(found: Moments, expected: tuple[float, complex, float], tolerance: float) -> None:
    f, c, s = (complex(value[0]) for value in found)
    assert f == pytest.approx(expected[0], rel=tolerance)
    assert s == pytest.approx(expected[2], rel=tolerance)
    assert abs(c - expected[1]) <= tolerance * np.sqrt(expected[0] * expected[2])


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 64, 101])
def test_the_moments_are_the_sums_cut_at_the_step_that_is_read(rho: float, steps: int) -> None:
    for eigenvalue in EIGENVALUES:
        cut = [brute_force.moments(eigenvalue, rho, step) for step in range(1, steps + 1)]
        assert_close(at(eigenvalue, rho, steps), cut[-1], 1e-11)
        f, c, s = (sum(parts) / steps for parts in zip(*cut, strict=True))
        assert_close(at(eigenvalue, rho, steps, "every"), (f, c, s), 1e-11)


@pytest.mark.parametrize("rho", [0.3, 0.997, 1.0])
@pytest.mark.parametrize("decay", [1e-2, 1e-5, 0.0, -1e-6])
def test_a_million_steps(rho: float, decay: float) -> None:
    """Σ_k w_k z(k) z(k)†, with z(k) the answers to an innovation and w_k the steps that see it."""
    steps = 10**6
    k = np.arange(steps)
    shares: dict[Readout, np.ndarray] = {
        "last": np.where(k == steps - 1, 1.0, 1 - rho**2),
        "every": ((1 - rho**2) * (steps - 1 - k) + 1) / steps,
    }
    for angle in (0.0, 0.3):
        log = complex(-decay, angle)
        h = lfilter([1.0], [1.0, -rho], np.exp(k * log))
        s = lfilter([1.0], [1.0, -rho], k * np.exp((k - 1) * log))
        for readout, share in shares.items():
            if rho == 1 and readout == "last":  # where the filter itself has lost its digits
                continue
            expected = (
                float(share @ np.abs(h) ** 2),
                complex(share @ (s * h.conj())),
                float(share @ np.abs(s) ** 2),
            )
            found = moments(np.array([log]), Autocorrelation.from_rho(rho), steps, readout)
            assert_close(found, expected, 1e-9)


@pytest.mark.parametrize("steps", [10, 999, 10**6])
def test_on_the_unit_circle_moments_grow_as_powers(steps: int) -> None:
    white, constant = at(1j, 0.0, steps), at(1.0, 1.0, steps)
    assert white.second_moment[0] == pytest.approx(steps, rel=1e-13)
    squares = (steps - 1) * steps * (2 * steps - 1) / 6
    assert white.sensitivity[0] == pytest.approx(squares, rel=1e-13)
    assert constant.second_moment[0] == pytest.approx(float(steps) ** 2, rel=1e-13)
    pairs = steps * (steps - 1) / 2
    assert constant.sensitivity[0] == pytest.approx(pairs**2, rel=1e-13)
    assert constant.cross_moment[0] == pytest.approx(pairs * steps, rel=1e-13)


@pytest.mark.parametrize(("modulus", "share"), [(0.9, 0.95), (0.99, 0.52), (0.999, 0.0063)])
def test_how_much_of_the_infinite_sensitivity_300_steps_see(modulus: float, share: float) -> None:
    """The three numbers of section 4 of the theory, to the digits given."""
    log = np.log(np.array([modulus + 0j]))
    found = moments(log, horizon=300, readout="every").sensitivity[0]
    assert found / moments(log).sensitivity[0] == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("readout", ["last", "every"])
def test_an_exploding_state_ends_as_infinite_and_never_nan(rho: float, readout: Readout) -> None:
    logs = np.array([0.1 + 1j, 5.0 + 0j, 0.3 + np.pi * 1j, 1e-5 + 0j, -0.1 + 2j])
    found = moments(logs, Autocorrelation.from_rho(rho), 10**5, readout)
    assert np.isposinf(found.second_moment[:3]).all()
    assert np.isposinf(found.sensitivity[:3]).all()
    assert (found.cross_moment[:3] == 0).all()
    for value in found:
        assert np.isfinite(value[3:]).all()


def test_an_empty_layer_has_no_moments() -> None:
    assert all(value.shape == (0,) for value in moments(np.zeros(0, complex), horizon=64))


@given(
    log_modulus=st.floats(-5.0, 0.05),
    angle=st.floats(-np.pi, np.pi),
    rho=st.floats(0.0, 1.0),
    steps=st.integers(1, 2000),
)
def test_a_step_more_is_never_less_and_joins_the_mean(
    log_modulus: float, angle: float, rho: float, steps: int
) -> None:
    """T+1 means are T and one more, however the steps fall into bits."""
    source = Autocorrelation.from_rho(rho)
    real = np.array([complex(log_modulus, 0)])
    every, last, longer = (
        moments(real, source, count, readout)
        for count, readout in ((steps, "every"), (steps, "last"), (steps + 1, "last"))
    )
    assert 1 - 1e-13 <= every.second_moment[0] <= last.second_moment[0] * (1 + 1e-12)
    assert last.second_moment[0] <= longer.second_moment[0] * (1 + 1e-13)
    assert 0 <= every.sensitivity[0] <= last.sensitivity[0] * (1 + 1e-12)
    assert last.sensitivity[0] <= longer.sensitivity[0] * (1 + 1e-13)
    turned = np.array([complex(log_modulus, angle)])
    one, two = (moments(turned, source, step, "every") for step in (steps, steps + 1))
    final = moments(turned, source, steps + 1)
    for mean, next_mean, value in zip(one, two, final, strict=True):
        expected = (steps * mean[0] + value[0]) / (steps + 1)
        scale = np.sqrt(final.second_moment[0] * final.sensitivity[0]) + abs(expected)
        assert abs(next_mean[0] - expected) <= 1e-11 * scale


@pytest.mark.parametrize("rho", RHOS)
def test_pairs_at_the_last_step_are_the_sums_cut_there(rho: float) -> None:
    eigenvalues, steps = [0.5, 0.95 * np.exp(0.4j), 1.01 * np.exp(-2j)], 50
    logs = np.log(np.array(eigenvalues, complex))
    plain, conjugated = finite_pairs(logs, Autocorrelation.from_rho(rho), steps, "last")
    responses = [brute_force.impulse_responses(eigenvalue, steps) for eigenvalue in eigenvalues]
    for i, (h_i, s_i) in enumerate(responses):
        for j, (_, s_j) in enumerate(responses):
            expected = brute_force.expectation(s_i, s_j, rho)
            assert conjugated.ss[i, j] == pytest.approx(expected, rel=1e-10)
            expected = brute_force.expectation(h_i, s_j.conj(), rho)
            assert plain.hs[i, j] == pytest.approx(expected, rel=1e-10)
