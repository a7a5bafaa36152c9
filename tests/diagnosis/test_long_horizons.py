"""Horizons that no sum over steps comes to the end of: a reason instead of a wait."""

from __future__ import annotations

import numpy as np
import pytest

import memcurse_cli
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.moments import lags_within

HORIZON = 10**9


def lru(nu: float) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    parts = {name: random.normal(size=(2, 3)) for name in ("B_re", "B_im")}
    parts |= {name: random.normal(size=(2, 2)) for name in ("C_re", "C_im")}
    each = {"nu_log": np.full(2, nu), "theta_log": np.zeros(2), "gamma_log": np.zeros(2)}
    return {**each, **parts, "D": np.ones(3)}


def test_what_outlasts_the_sum_is_said_and_what_does_not_is_summed() -> None:
    matrix = {"A": np.eye(3), "B": np.ones((3, 2)), "C": np.ones((2, 3)), "D": np.zeros((2, 2))}
    for state, summed in ((lru(-20.0), False), (lru(-3.0), True), (matrix, False)):
        (layer,) = memcurse_cli.inspect(state, horizon=HORIZON).layers
        assert (layer.hessian is not None) is summed
        assert layer.state.second_moment.max is not None or state is matrix
        if not summed:
            assert "1,000,000,000 steps are too many to sum" in str(layer.hessian_reason)


@pytest.mark.parametrize(
    ("decay", "rho", "lags"), [(0.1, 0.0, 1000), (0.1, 1.0, HORIZON), (0.0, 0.0, HORIZON)]
)
def test_the_slowest_of_state_and_input_says_how_long(decay: float, rho: float, lags: int) -> None:
    found = lags_within(np.array([complex(-decay, 1)]), Autocorrelation.from_rho(rho), HORIZON)
    assert found == pytest.approx(lags, rel=0.1)
