"""The empirical autocorrelation, its errors, and the mixture that follows it."""

from __future__ import annotations

import numpy as np
import pytest
from theory.sequences import PAPER, estimate_covariance, gaussian

from memcurse_cli.theory import estimate as module
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.estimate import (
    MixtureFit,
    empirical_autocorrelation,
    gaussian_standard_error,
    padded_steps,
)


@pytest.mark.parametrize("block", [1, 40, 2**22])
@pytest.mark.parametrize("masking", ["none", "nan", "padding"])
@pytest.mark.parametrize("centred", [False, True])
def test_every_product_counts_once(
    block: int, masking: str, centred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", block)
    random = np.random.default_rng(0)
    data = random.standard_normal((3, 11, 4)) + 2
    seen = np.ones(data.shape, bool)
    padding = None
    if masking == "nan":
        seen = random.random(data.shape) > 0.2
        padding = np.nan
    if masking == "padding":
        seen[0, 8:] = seen[1, :2] = False
        padding = -7.0
    filled = np.where(seen, data, np.nan if padding is None else padding)
    found = empirical_autocorrelation(filled, 7, centred=centred, padding=padding)
    data = np.where(seen, data, 0.0)
    if centred:
        data = data - data.sum(axis=(0, 1)) / seen.sum(axis=(0, 1))
    for lag in range(8):
        pairs = seen[:, : 11 - lag] & seen[:, lag:]
        products = (data[:, : 11 - lag] * data[:, lag:])[pairs]
        assert found.pairs[lag] == pairs.sum()
        assert found.values[lag] == pytest.approx(products.mean(), rel=1e-12, abs=1e-13)
    assert found.observed == seen.sum()


def test_padding_is_at_the_ends_only_and_in_every_feature() -> None:
    block = np.array([[[0, 0], [0, 1], [0, 0], [2, 0], [0, 0], [0, 0]]])
    assert padded_steps(block, 0).tolist() == [[True, False, False, False, True, True]]
    assert padded_steps(np.zeros((1, 3, 2)), 0).all()


def test_lags_that_no_two_samples_are_apart_have_no_value() -> None:
    x = np.array([1.0, 1.0, np.nan, np.nan])[None, :, None]
    found = empirical_autocorrelation(x, 3, padding=np.nan)
    assert found.pairs.tolist() == [2, 1, 0, 0]
    assert found.values[:2] == pytest.approx([1, 1])
    assert np.isnan(found.values[2:]).all()


@pytest.mark.parametrize(
    "mixture", [PAPER, Autocorrelation.from_rho(0.0), Autocorrelation.from_rho(0.9)]
)
def test_the_gaussian_error_is_the_trace_of_quadratic_forms(mixture: Autocorrelation) -> None:
    steps, lags = 60, 20
    exact = np.sqrt(np.diag(estimate_covariance(mixture, steps, lags)))
    found = gaussian_standard_error(mixture, steps, 1, lags)
    assert found == pytest.approx(exact, rel=1e-10)
    assert gaussian_standard_error(mixture, steps, 9, lags) == pytest.approx(exact / 3, rel=1e-10)


def test_both_errors_are_the_spread_of_repeated_estimates() -> None:
    mixture, steps, lags = Autocorrelation((0.5, 0.5), (0.0, 0.8)), 50, 10
    runs = [
        empirical_autocorrelation(gaussian(mixture, (40, steps, 1), seed), lags)
        for seed in range(300)
    ]
    spread = np.std([run.values for run in runs], axis=0, ddof=1)
    # 300 repetitions know a standard deviation to 4 %: five times that is allowed.
    assert gaussian_standard_error(mixture, steps, 40, lags) == pytest.approx(spread, rel=0.2)
    stated = np.sqrt(np.mean([np.square(run.standard_errors) for run in runs], axis=0))
    assert stated == pytest.approx(spread, rel=0.2)


def test_a_fixed_mean_adds_to_the_error_only_with_what_varies() -> None:
    """x = μ + y: Var R̂ has 4μ² Var(mean of y) more, and a constant alone has no error."""
    constant = Autocorrelation((9.0,), (1.0,))
    assert gaussian_standard_error(constant, 30, 1, 5).tolist() == [0.0] * 6
    both = Autocorrelation((1.0, 9.0), (0.0, 1.0))
    random = np.random.default_rng(5)
    x = 3 + random.standard_normal((4000, 30))
    at_lag_2 = np.mean(x[:, 2:] * x[:, :-2], axis=1)
    # The formula at lag 2 treats the products as sharing one mean: m = 28 of them.
    assert gaussian_standard_error(both, 30, 1, 2)[2] == pytest.approx(np.std(at_lag_2), rel=0.1)


@pytest.mark.parametrize(
    "parts",
    [
        *([(1.0, rho)] for rho in (0.0, 0.5, 1.0)),
        [(1.0, 0.0), (2.0, 1.0)],
        [(0.2, 0.0), (0.5, 0.9), (0.3, 0.999)],
    ],
)
def test_a_curve_without_noise_gives_its_own_decays(parts: list[tuple[float, float]]) -> None:
    weights, rhos = zip(*parts, strict=True)
    truth, lags = Autocorrelation(weights, rhos), np.arange(301.0)
    values, pairs = truth.at(lags), 600 - lags
    fit = MixtureFit(values, pairs)
    full = fit.with_decays()
    assert full.at(lags) == pytest.approx(values, abs=1e-7 * values[0])
    found = fit.simplified(full, *2 * [np.full(lags.size, 1e-6 * values[0])])
    assert np.array(list(found)) == pytest.approx(np.array(parts), rel=1e-4, abs=1e-6)


def test_finds_the_numbers_of_the_paper_within_their_sampling_error() -> None:
    """0.332 δ + 0.044·0.997^Δ ([Z] figure 12), to four standard deviations of each number.

    The fit is least squares, so that its error is J⁺ δR̂ with J the derivatives of the curve by
    the two weights and ρ, and the covariance of δR̂ is that of quadratic forms.
    """
    steps, lags, sequences, features = 256, 128, 128, 8
    empirical = empirical_autocorrelation(gaussian(PAPER, (sequences, steps, features), 0), lags)
    fit = MixtureFit(empirical.values, empirical.pairs)
    found = fit.simplified(fit.with_decays(), *2 * [2 * empirical.standard_errors])

    (_, weight), (_, rho) = PAPER.weights, PAPER.rhos
    k = np.arange(lags + 1.0)
    jacobian = np.stack([k == 0, rho**k, weight * k * rho ** (k - 1)], axis=1)
    weighted = empirical.taper[:, None] * jacobian
    inverse = np.linalg.solve(jacobian.T @ weighted, weighted.T)
    covariance = estimate_covariance(PAPER, steps, lags) / (sequences * features)
    errors = np.sqrt(np.diag(inverse @ covariance @ inverse.T))
    assert errors[0] < 0.01 * 0.332
    assert errors[1] < 0.1 * 0.044

    zero, slow = found.rhos
    assert zero == 0
    misses = np.subtract([*found.weights, slow], [0.332, 0.044, 0.997])
    assert (np.abs(misses) < 4 * errors).all()


def test_what_chance_alone_shows_is_left_out() -> None:
    """White noise stays white unless a lag is off by two standard errors: about one in 40."""
    coloured = 0
    for seed in range(30):
        empirical = empirical_autocorrelation(
            gaussian(Autocorrelation.from_rho(0.0), (100, 100, 3), seed), 50
        )
        fit = MixtureFit(empirical.values, empirical.pairs)
        tolerance = 2 * empirical.standard_errors
        found = fit.simplified(fit.with_decays(), tolerance, tolerance)
        coloured += found.rhos != (0.0,)
    assert coloured <= 4
