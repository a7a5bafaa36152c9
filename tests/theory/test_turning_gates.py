"""A gate that turns as it decays: quantiles and E|h|², by draws, SciPy, JAX and limits."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.integrate import dblquad
from scipy.stats import multivariate_normal, ncx2, norm, rice

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.gates import turning_gates
from memcurse_cli.theory.gates.laws import Keep
from memcurse_cli.theory.gates.moments import gated_moments
from memcurse_cli.theory.gates.quadrature import Preactivation
from memcurse_cli.theory.gates.turning_bands import radius_quantiles
from memcurse_cli.theory.gates.turning_gates import (
    TurningGates,
    turning_expectations,
    turning_second_moment,
)
from memcurse_cli.theory.moments.moments import moments

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
SHARES = (0.05, 0.1587, 0.8413, 0.95)
MIXTURE = Autocorrelation((0.4, 0.3, 0.2, 0.1), (0.0, 0.9, 0.7, 1.0), (0.0, 0.0, 1.1, 0.4))
MEANS = np.array([0.3 - 0.2j, 2.0 + 1.0j, -1.0 + 3.0j, 0.0 + 0.5j, -4.0 + 0.0j, 0.0 + 0.0j])


def gates_of(first: float, second: float, correlation: float) -> TurningGates:
    """Of the standard deviations of both parts and their correlation, at every mean."""
    one = np.ones(MEANS.size)
    shared = correlation * first * second
    return TurningGates.from_covariance(MEANS, first**2 * one, second**2 * one, shared * one)


def draws(first: float, second: float, correlation: float, count: int) -> Complexes:
    """(count, n) of a."""
    u, v = np.random.default_rng(3).standard_normal((2, count, 1))
    moved = correlation * u + np.sqrt(1 - correlation**2) * v
    return MEANS + first * u + 1j * second * moved


def eigenvalue(a: Complexes) -> Complexes:
    """torch.polar(|a|.sigmoid(), a.angle())."""
    return 1 / (1 + np.exp(-np.abs(a))) * np.exp(1j * np.angle(a))


SPREADS = [(0.5, 0.5, 0.0), (1.0, 2.0, 0.6), (3.0, 0.2, -0.9), (1.0, 1.0, 1.0), (2.0, 0.0, 0.0)]


@pytest.mark.parametrize("spreads", SPREADS)
def test_the_quantiles_are_those_of_draws(spreads: tuple[float, float, float]) -> None:
    radii = np.abs(draws(*spreads, 200_000))
    for share, at in zip(SHARES, radius_quantiles(gates_of(*spreads), SHARES), strict=True):
        error = np.sqrt(share * (1 - share) / len(radii))
        assert_allclose((radii <= at).mean(axis=0), share, atol=4 * error)


def test_the_radius_of_a_round_gaussian_has_rices_law() -> None:
    for spread in (1e-3, 0.03, 1.0, 40.0):
        expected = rice(np.abs(MEANS) / spread, scale=spread).ppf(np.array(SHARES)[:, None])
        found = radius_quantiles(gates_of(spread, spread, 0.0), SHARES)
        assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * spread)


@pytest.mark.parametrize("spread", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("angle", [0.0, 1.0])
def test_a_line_has_the_quantiles_of_a_noncentral_square(spread: float, angle: float) -> None:
    """a = b + s u e^(iϑ) with |a|² = (c + s u)² + d², where c and d are b along and across."""
    direction = np.exp(1j * angle)
    parts = MEANS * direction.conjugate()
    square = ncx2(1, (parts.real / spread) ** 2).ppf(np.array(SHARES)[:, None])
    one = np.ones(MEANS.size)
    gates = TurningGates.from_covariance(
        MEANS,
        (spread * direction.real) ** 2 * one,
        (spread * direction.imag) ** 2 * one,
        spread**2 * direction.real * direction.imag * one,
    )
    expected = np.hypot(spread * np.sqrt(square), parts.imag)
    assert_allclose(radius_quantiles(gates, SHARES), expected, rtol=1e-5, atol=1e-5 * spread)


def test_gates_that_stand_still_have_one_value() -> None:
    still = gates_of(1.0, 2.0, 0.5).still
    assert_allclose(radius_quantiles(still, SHARES), np.tile(np.abs(MEANS), (4, 1)), rtol=1e-15)
    moved = radius_quantiles(gates_of(1e-9, 1e-9, 0.0), SHARES)[:, :-1]
    places = norm.ppf(SHARES)[:, None]
    assert_allclose(moved, np.abs(MEANS[:-1]) + 1e-9 * places, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize(
    ("mean", "first", "second", "correlation"),
    [(0.3 - 0.2j, 1.0, 2.0, 0.6), (1.0 + 0.5j, 0.7, 0.5, -0.3)],
)
def test_the_expectations_are_those_of_dblquad(
    mean: complex, first: float, second: float, correlation: float
) -> None:
    """In polar coordinates, in which λ is smooth at a = 0."""
    shared = correlation * first * second
    inverse = np.linalg.inv([[first**2, shared], [shared, second**2]])
    (xx, xy), (_, yy) = inverse.tolist()
    scale = math.sqrt(np.linalg.det(inverse)) / (2 * math.pi)
    farthest = abs(mean) + 8 * max(first, second)

    def of(function: Callable[[float, float], float]) -> float:
        def weighed(radius: float, angle: float) -> float:
            x, y = radius * math.cos(angle) - mean.real, radius * math.sin(angle) - mean.imag
            density = scale * math.exp(-(xx * x * x + 2 * xy * x * y + yy * y * y) / 2)
            return function(radius, angle) * density * radius

        return dblquad(weighed, 0, 2 * math.pi, 0, farthest, epsabs=1e-10, epsrel=1e-10)[0]

    real = of(lambda r, angle: math.cos(angle) / (1 + math.exp(-r)))
    imaginary = of(lambda r, angle: math.sin(angle) / (1 + math.exp(-r)))
    squared = of(lambda r, angle: (1 + math.exp(-r)) ** -2)
    one = np.ones(1)
    gates = TurningGates.from_covariance(
        np.array([mean]), first**2 * one, second**2 * one, shared * one
    )
    found = turning_expectations(gates)
    assert_allclose(found.mean, [complex(real, imaginary)], rtol=1e-8)
    assert_allclose(found.variance, [squared - real**2 - imaginary**2], rtol=1e-8)
    assert_allclose(found.squared_complement, [1 - squared], rtol=1e-8)
    expected = _double_sum(np.array([complex(real, imaginary)]), np.array([squared]), MIXTURE)
    assert_allclose(turning_second_moment(gates, MIXTURE), expected, rtol=1e-8)


def _double_sum(mean: Complexes, squared: Floats, of: Autocorrelation, steps: int = 400) -> Floats:
    """Σ_kl E[λ_1…λ_k λ̄_1…λ̄_l] R(k-l): the shorter product squares, the rest is a mean."""
    lag = np.arange(steps)[:, None]
    ahead = (mean**lag * of.at(lag.astype(float))).sum(axis=0)
    both = 2 * ahead.real - of.variance
    return both / (1 - squared)


def test_the_second_moment_is_that_of_draws() -> None:
    spreads = (1.0, 2.0, 0.6)
    drawn = eigenvalue(draws(*spreads, 400_000))
    expected = _double_sum(drawn.mean(axis=0), (np.abs(drawn) ** 2).mean(axis=0), MIXTURE)
    assert_allclose(turning_second_moment(gates_of(*spreads), MIXTURE), expected, rtol=0.02)


def test_held_gates_are_the_theory_of_a_constant_eigenvalue() -> None:
    means = MEANS[MEANS != 0]
    zero = np.zeros(means.size)
    still = TurningGates.from_covariance(means, zero, zero, zero)
    log = np.log(eigenvalue(means))
    for of in (WHITE, MIXTURE, Autocorrelation.from_rho(1.0)):
        held = turning_second_moment(still, of)
        assert_allclose(held, moments(log, of).second_moment, rtol=1e-12)
        nearly = TurningGates.from_covariance(means, zero + 1e-12, zero + 1e-12, zero)
        assert_allclose(turning_second_moment(nearly, of), held, rtol=1e-10)


@pytest.mark.parametrize(("mean", "spread"), [(6.0, 0.5), (15.0, 1.5), (30.0, 2.0)])
def test_an_angle_that_stays_is_a_real_gate(mean: float, spread: float) -> None:
    """1 - λ is 1e-13 at a mean of 30, where no difference from 1 has a digit of it."""
    one = np.ones(1)
    gates = TurningGates.from_covariance(mean * one + 0j, spread**2 * one, 0 * one, 0 * one)
    for of in (WHITE, MIXTURE):
        expected = gated_moments(Keep(), Preactivation(mean * one, spread * one), of)
        assert_allclose(turning_second_moment(gates, of), expected.second_moment, rtol=1e-9)


def test_a_cosine_is_two_decays_on_gates_that_are_turned() -> None:
    """λ e^(iω) is the eigenvalue of a e^(iω)."""
    drawn, omega = np.array([[1.0, 0.3], [0.3, 0.5]]), 0.7

    def turned(angle: float) -> TurningGates:
        cosine, sine = math.cos(angle), math.sin(angle)
        rotation = np.array([[cosine, -sine], [sine, cosine]])
        (real, shared), (_, imaginary) = rotation @ drawn @ rotation.T
        one = np.ones(MEANS.size)
        mean = MEANS * np.exp(1j * angle)
        return TurningGates.from_covariance(mean, real * one, imaginary * one, shared * one)

    alone = Autocorrelation.from_rho(0.9)
    expected = sum(turning_second_moment(turned(angle), alone) for angle in (omega, -omega)) / 2
    cosine = Autocorrelation((1.0,), (0.9,), (omega,))
    assert_allclose(turning_second_moment(turned(0.0), cosine), expected, rtol=1e-8)
    white = turning_second_moment(turned(0.0))
    assert_allclose(turning_second_moment(turned(2.0)), white, rtol=1e-8)


@pytest.mark.parametrize("spread", [1e-6, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("ratio", [1.0, 0.1, 1e-4, 1e-9, 0.0])
def test_a_finer_rule_gives_the_same(
    spread: float, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to a line through 0 or past it."""
    gates = gates_of(spread, spread * ratio, 0.0)
    coarse = turning_expectations(gates)
    monkeypatch.setattr(turning_gates, "STEP", 0.17)
    fine = turning_expectations(gates)
    assert_allclose(coarse.mean, fine.mean, rtol=1e-9, atol=1e-14)
    assert_allclose(coarse.variance, fine.variance, rtol=1e-9)
    assert_allclose(coarse.squared_complement, fine.squared_complement, rtol=1e-9)


def test_a_gate_that_never_forgets_diverges() -> None:
    one = np.ones(2)
    mean = np.array([800.0 + 0j, 2.0])
    for spread in (0.0, 0.5):
        gates = TurningGates.from_covariance(mean, spread * one, spread * one, 0 * one)
        held = turning_second_moment(gates, MIXTURE)
        assert np.isinf(held[0])
        assert np.isfinite(held[1])


def test_the_squared_derivative_grows_with_the_logarithm_of_what_is_left_out() -> None:
    """E|dλ/d Re b|² outside |a| = ε: p(0) π/4 more with every factor e of ε, whatever b is."""
    mean, covariance = np.array([0.8, -0.4]), np.array([[1.0, 0.3], [0.3, 0.5]])

    def polar(a: jax.Array) -> jax.Array:
        radius = jnp.hypot(a[0], a[1])
        return jax.nn.sigmoid(radius) * a / radius

    density = multivariate_normal(mean, covariance).pdf
    with jax.enable_x64(True):
        moved = jax.vmap(jax.jacfwd(polar))
        angle = 2 * np.pi * np.arange(64) / 64
        circle = np.stack((np.cos(angle), np.sin(angle)), axis=-1)

        def ring(radius: float) -> float:
            """The part of E|dλ/d Re b|² on a circle, times its radius."""
            at = radius * circle
            squared = np.sum(np.asarray(moved(jnp.asarray(at)))[:, :, 0] ** 2, axis=-1)
            return float(np.mean(squared * density(at)) * 2 * np.pi * radius**2)

        for radius in (1e-3, 1e-6, 1e-9):
            assert_allclose(ring(radius), np.pi / 4 * density(np.zeros(2)), rtol=2e-3)
