from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter
from theory import brute_force

from memcurse_cli.theory.autocorrelation.mixture import Autocorrelation
from memcurse_cli.theory.moments.moments import Moments, moments
from memcurse_cli.theory.moments.pairs import finite_pairs

RHOS = [0.0, 0.3, 0.9, 0.997, 1.0]
EIGENVALUES = [0.0, 0.5, -0.8, 0.9 * np.exp(0.3j), 0.999j, 1.0, np.exp(2j), 1.02, 1.05 * np.exp(1j)]


def at(eigenvalue: complex, rho: float, horizon: int) -> Moments:
    with np.errstate(divide="ignore"):
        log = np.log(np.array([eigenvalue], complex))
    return moments(log, Autocorrelation.from_rho(rho), horizon, "every")


def assert_close(found: Moments, expected: tuple[float, complex, float], tolerance: float) -> None:
    f, c, s = (complex(value[0]) for value in found)
    assert f == pytest.approx(expected[0], rel=tolerance)
    assert s == pytest.approx(expected[2], rel=tolerance)
    assert abs(c - expected[1]) <= tolerance * np.sqrt(expected[0] * expected[2])


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 64, 101])
def test_the_mean_is_that_of_the_sums_cut_at_every_step(rho: float, steps: int) -> None:
    for eigenvalue in EIGENVALUES:
        every = [brute_force.moments(eigenvalue, rho, step) for step in range(1, steps + 1)]
        f, c, s = (sum(parts) / steps for parts in zip(*every, strict=True))
        assert_close(at(eigenvalue, rho, steps), (f, c, s), 1e-11)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("decay", [1e-2, 1e-5, 0.0, -1e-6])
def test_a_million_steps(rho: float, decay: float) -> None:
    """Σ_k [ (1-ρ²)(T-1-k) + 1 ] z(k) z(k)† / T, with z(k) the answers to an innovation."""
    steps = 10**6
    k = np.arange(steps)
    share = ((1 - rho**2) * (steps - 1 - k) + 1) / steps
    for angle in (0.0, 0.3):
        log = complex(-decay, angle)
        h = lfilter([1.0], [1.0, -rho], np.exp(k * log))
        s = lfilter([1.0], [1.0, -rho], k * np.exp((k - 1) * log))
        expected = (
            float(share @ np.abs(h) ** 2),
            complex(share @ (s * h.conj())),
            float(share @ np.abs(s) ** 2),
        )
        found = moments(np.array([log]), Autocorrelation.from_rho(rho), steps, "every")
        assert_close(found, expected, 1e-9)


@pytest.mark.parametrize(("modulus", "share"), [(0.9, 0.95), (0.99, 0.52), (0.999, 0.0063)])
def test_how_much_of_the_infinite_sensitivity_300_steps_see(modulus: float, share: float) -> None:
    """The three numbers of section 4 of the theory, to the digits given, and their sum."""
    log = np.log(np.array([modulus + 0j]))
    found = moments(log, horizon=300, readout="every").sensitivity[0]
    k = np.arange(300)
    explicit = np.sum((300 - k) / 300 * k**2 * modulus ** (2.0 * (k - 1)))
    assert found == pytest.approx(explicit, rel=1e-12)
    assert found / moments(log).sensitivity[0] == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize("rho", RHOS)
def test_it_is_the_diagonal_of_what_the_hessian_is_made_of(rho: float) -> None:
    logs = np.log(np.array([0.5, 0.95 * np.exp(0.4j), 1.01 * np.exp(-2j)], complex))
    mixture = Autocorrelation((0.7, 0.3), (rho, 0.5))
    _, pairs = finite_pairs(logs, mixture, 77)
    found = moments(logs, mixture, 77, "every")
    assert found.second_moment == pytest.approx(np.diag(pairs.hh).real, rel=1e-11)
    assert found.sensitivity == pytest.approx(np.diag(pairs.ss).real, rel=1e-11)
    assert found.cross_moment == pytest.approx(np.diag(pairs.sh), rel=1e-11)


@pytest.mark.parametrize("rho", RHOS)
def test_an_exploding_state_ends_as_infinite_and_never_nan(rho: float) -> None:
    logs = np.array([0.1 + 1j, 5.0 + 0j, 0.3 + np.pi * 1j, 1e-5 + 0j, -0.1 + 2j])
    found = moments(logs, Autocorrelation.from_rho(rho), 10**5, "every")
    assert np.isposinf(found.second_moment[:3]).all()
    assert np.isposinf(found.sensitivity[:3]).all()
    assert (found.cross_moment[:3] == 0).all()
    for value in found:
        assert np.isfinite(value[3:]).all()


@given(
    log_modulus=st.floats(-5.0, 0.05),
    angle=st.floats(-np.pi, np.pi),
    rho=st.floats(0.0, 1.0),
    steps=st.integers(1, 2000),
)
def test_the_mean_lies_between_the_first_step_and_the_last(
    log_modulus: float, angle: float, rho: float, steps: int
) -> None:
    log, autocorrelation = np.array([complex(log_modulus, 0)]), Autocorrelation.from_rho(rho)
    every, last = (moments(log, autocorrelation, steps, how) for how in ("every", "last"))
    assert 1 - 1e-13 <= every.second_moment[0] <= last.second_moment[0] * (1 + 1e-12)
    assert 0 <= every.sensitivity[0] <= last.sensitivity[0] * (1 + 1e-12)
    turned = np.array([complex(log_modulus, angle)])
    one, two = (moments(turned, autocorrelation, step, "every") for step in (steps, steps + 1))
    final = moments(turned, autocorrelation, steps + 1)
    for mean, next_mean, value in zip(one, two, final, strict=True):  # T+1 means are T and one more
        expected = (steps * mean[0] + value[0]) / (steps + 1)
        scale = np.sqrt(final.second_moment[0] * final.sensitivity[0]) + abs(expected)
        assert abs(next_mean[0] - expected) <= 1e-11 * scale


@given(decay=st.floats(0.05, 5.0), angle=st.floats(-np.pi, np.pi), rho=st.floats(0.0, 1.0))
def test_a_long_horizon_tends_to_an_infinite_one(decay: float, angle: float, rho: float) -> None:
    """What is missing is the start, whose share falls as 1/T."""
    log, autocorrelation = np.array([complex(-decay, angle)]), Autocorrelation.from_rho(rho)
    limit = moments(log, autocorrelation).sensitivity[0]
    short, long = (
        abs(moments(log, autocorrelation, steps, "every").sensitivity[0] - limit)
        for steps in (10**5, 10**6)
    )
    assert long <= 0.01 * limit
    assert 10 * long == pytest.approx(short, rel=1e-3, abs=1e-9 * limit)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_the_same_lines_run_on_torch_and_jax(rho: float) -> None:
    import jax
    import torch

    logs = np.array([-0.01 + 0.3j, -0.5 - 2j, 1e-3 + 1j])
    mixture = Autocorrelation((0.5, 0.5), (rho, 0.3))
    expected = moments(logs, mixture, 300, "every")
    with jax.enable_x64(True):
        traced = jax.jit(lambda z: tuple(moments(z, mixture, 300, "every")))(jax.numpy.array(logs))
        for found, value in zip(traced, expected, strict=True):
            assert np.asarray(found) == pytest.approx(value, rel=1e-12)
    for found, value in zip(
        moments(torch.tensor(logs), mixture, 300, "every"), expected, strict=True
    ):
        assert found.numpy() == pytest.approx(value, rel=1e-12)


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
