"""Moments from an autocorrelation lag by lag, against the mixture's own, and autodiff of a sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.moments import empirical_moments, moments

MIXTURES = {
    "white": Autocorrelation((1.3,), (0.0,)),
    "decays": Autocorrelation((0.3, 0.5), (0.5, 0.9)),
    "cosine": Autocorrelation((0.3, 0.7), (0.0, 0.95), (0.0, 0.4)),
}


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("time_constant", [0.5, 5.0, 50.0])
def test_of_a_mixture_s_lags_they_are_those_of_the_mixture(
    mixture: str, time_constant: float
) -> None:
    autocorrelation = MIXTURES[mixture]
    log = -1 / time_constant
    found = empirical_moments(log, autocorrelation.at(np.arange(3000.0)))
    expected = moments(np.array([log]), autocorrelation)
    assert_allclose(found.second_moment, expected.second_moment[0], rtol=1e-10)
    assert_allclose(found.sensitivity, expected.sensitivity[0], rtol=1e-10)


@pytest.mark.parametrize("log", [0.0, -math.inf, 0.1, math.nan])
def test_other_eigenvalues_are_refused(log: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        empirical_moments(log, np.ones(3))
