"""E m² of a weighted mean, against its double sum along long draws, and limits."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.gates.draw import averaged_variance
from memcurse_cli.theory.gates.laws import Exponential, Keep, Write
from memcurse_cli.theory.gates.moments import Preactivation

MIXTURE = Autocorrelation((0.3, 0.5, 0.2), (0.0, 0.9, 0.97), (0.0, 0.0, 0.4))


def found(
    means: tuple[float, float], spreads: tuple[float, float], of: Autocorrelation, units: int = 256
) -> np.ndarray:
    forget, opened = (
        Preactivation(np.full(units, mean), np.full(units, spread))
        for mean, spread in zip(means, spreads, strict=True)
    )
    return averaged_variance(Keep(), forget, Write(Exponential()), opened, of)


@pytest.mark.parametrize("of", [WHITE, MIXTURE], ids=["white", "mixture"])
@pytest.mark.parametrize("spreads", [(0.5, 0.5), (1.0, 2.0), (0.3, 4.0)])
def test_it_is_the_double_sum(spreads: tuple[float, float], of: Autocorrelation) -> None:
    """Σ w_s w_t R(s-t) / (Σ w)², w_s = e^{i_s} Π σ(f), over windows of fresh gates."""
    random = np.random.default_rng(3)
    length, runs = 120, 20_000
    log_kept = -np.logaddexp(0.0, -(1.5 + spreads[0] * random.standard_normal((runs, length))))
    log_weights = -0.7 + spreads[1] * random.standard_normal((runs, length))
    # A step's own forget gate does not touch what it writes.
    log_weights[:, :-1] += np.cumsum(log_kept[:, :0:-1], axis=1)[:, ::-1]
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    lags = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    drawn = np.einsum("rs,rs->r", weights @ of.at(lags), weights) / of.variance
    mine = found((1.5, -0.7), spreads, of)
    error = np.hypot(drawn.std() / np.sqrt(runs), mine.std() / np.sqrt(mine.size))
    assert abs(mine.mean() - drawn.mean()) < 4 * error
    assert error < 0.02 * drawn.mean()


def test_gates_that_stand_still_average_exponentially() -> None:
    """m' = λ m + (1-λ) u once n has filled: (1-λ)/(1+λ) under white noise."""
    kept = 1 / (1 + np.exp(-2.0))
    assert_allclose(found((2.0, 0.4), (0.0, 0.0), WHITE), (1 - kept) / (1 + kept), rtol=1e-10)


def test_a_constant_drive_comes_through_whole() -> None:
    assert_allclose(found((2.0, 0.0), (1.0, 2.0), Autocorrelation.from_rho(1.0), 5), 1.0)


def test_the_scale_of_what_both_take_in_does_not_matter() -> None:
    at_zero, shifted = (found((1.0, mean), (1.0, 1.0), MIXTURE, 40) for mean in (0.0, 300.0))
    assert_allclose(at_zero, shifted, rtol=1e-9)
