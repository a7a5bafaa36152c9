"""Moments of T steps against sums, at the last step and as the mean over every one."""

from __future__ import annotations

import numpy as np
import pytest
from theory import brute_force

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.moments import Moments, Readout, moments

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
