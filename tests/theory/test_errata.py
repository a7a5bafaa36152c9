"""The misprints of the papers: what is right agrees with the sums, and what is printed does not.

Those that need more than the moments of one eigenvalue stand with their subject: the angle rows of
the Hessian in `test_hessian`, Chrono initialisation and the GRU's curve in `test_parametrization`,
the Jacobian's second moment of Gilboa et al. 2019 in `test_mean_field`, and the clipped effective
learning rates in `diagnosis/test_optimizer`.
"""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from theory import brute_force
from theory.test_parametrization import maps

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.moments import bilinear, moments
from memcurse_cli.theory.parametrization import parametrize
from memcurse_cli.theory.sensitivity import parameter_sensitivity

STEPS = 400
EIGENVALUES = [0.5, -0.7, 0.8 * np.exp(0.7j), 0.9 * np.exp(2.5j)]


def expanded(a: complex, b: complex, rho: float, factor: float) -> complex:
    """Eq. 37 (59) and 110 of Zucchet & Orvieto 2024, whose ``factor`` is printed as 1-ρ."""
    s = a * b
    numerator = (
        factor * (1 + s)
        + rho**2 * (1 - s) ** 3
        + rho * factor * s * (rho * s * (1 + s) - 2 * a - 2 * b)
    )
    return numerator / ((1 - s) ** 3 * (1 - rho * a) ** 2 * (1 - rho * b) ** 2)


def sensitivity(eigenvalue: complex, rho: float) -> float:
    log = np.log(np.array([eigenvalue], complex))
    return float(moments(log, Autocorrelation.from_rho(rho)).sensitivity[0])


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_eq_37_and_110_have_one_minus_rho_squared(rho: float) -> None:
    """E[s_i s̄_j]; of one eigenvalue it is E|s|². White and constant inputs hide the misprint."""
    source = Autocorrelation.from_rho(rho)
    for first, second in product(EIGENVALUES, repeat=2):
        s_first, s_second = (brute_force.impulse_responses(of, STEPS)[1] for of in (first, second))
        wanted = brute_force.expectation(s_first, s_second, source)
        logs = np.log(np.array([first, np.conj(second)], complex))
        assert complex(bilinear(*logs[:, None], source).ss[0]) == pytest.approx(wanted, rel=1e-11)
        if first == second:
            assert sensitivity(first, rho) == pytest.approx(wanted.real, rel=1e-12)
        right, printed = (
            expanded(first, np.conj(second), rho, factor) for factor in (1 - rho**2, 1 - rho)
        )
        assert right == pytest.approx(wanted, rel=1e-11)
        assert (abs(printed - wanted) > 0.1 * abs(wanted)) == (rho == 0.5)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("eigenvalue", EIGENVALUES)
def test_eq_35_divides_by_one_minus_the_squared_modulus(eigenvalue: complex, rho: float) -> None:
    """Eq. 35 (57), for any R: (1+|λ|²) Σ / (1-|λ|²)³ + 2 Re Σ Δ λ^Δ R(Δ) / (1-|λ|²)²."""
    lags = np.arange(1, STEPS)
    powers = eigenvalue**lags * rho**lags
    squared = abs(eigenvalue) ** 2

    def sums(cube: float) -> float:
        whole = 1 + 2 * powers.sum().real
        slope = 2 * (lags * powers).sum().real
        return float((1 + squared) * whole / cube + slope / (1 - squared) ** 2)

    wanted = brute_force.moments(eigenvalue, Autocorrelation.from_rho(rho), STEPS)[2]
    assert sums((1 - squared) ** 3) == pytest.approx(wanted, rel=1e-12)
    assert sensitivity(eigenvalue, rho) == pytest.approx(wanted, rel=1e-12)
    printed = sums((1 - abs(eigenvalue)) ** 3)
    assert printed > 2 * wanted


@pytest.mark.parametrize("parametrization", ["real-imaginary", "polar", "lru"])
def test_eq_56_to_60_have_no_factor_from_wirtinger_calculus(parametrization: str) -> None:
    """E|dh/dω|² = |dλ/dω|² E|dh/dλ|²; a quarter and a half of it are printed."""
    rho, lags, z = 0.5, np.arange(STEPS), complex(np.log(0.8), 0.7)
    point, log = maps(parametrization, z)
    moment = moments(np.array([z]), Autocorrelation.from_rho(rho))
    with jax.enable_x64(True):
        slopes = jax.jacfwd(lambda w: jnp.exp(lags * log(w)))(np.array(list(point.values())))
    for name, slope in zip(point, np.asarray(slopes).T, strict=True):
        wanted = brute_force.expectation(slope, slope, Autocorrelation.from_rho(rho)).real
        moved = parametrize(np.array([z]), parametrization).derivatives[name].eigenvalue
        found = parameter_sensitivity(moment, np.zeros(1, complex), moved).sensitivity[0]
        assert found == pytest.approx(wanted, rel=1e-10)
        right = abs(moved[0]) ** 2 * moment.sensitivity[0]
        assert right == pytest.approx(wanted, rel=1e-10)
        assert right / 2 < 0.6 * wanted


@pytest.mark.parametrize("modulus", [0.3, 0.9, 0.99])
def test_eq_68_has_the_square_of_the_gain(modulus: float) -> None:
    """E|h|² = γ²/(1-|λ|²), which the γ of the LRU makes 1; γ/(1-|λ|²) is printed."""
    log = np.array([complex(np.log(modulus), 0.7)])
    gain = float(np.exp(parametrize(log, "lru", "lru").log_gain[0].real))
    responses, _ = brute_force.impulse_responses(np.exp(log[0]), 3000)
    wanted = brute_force.expectation(
        gain * responses, gain * responses, Autocorrelation.from_rho(0.0)
    ).real
    assert gain**2 * moments(log).second_moment[0] == pytest.approx(wanted, rel=1e-12)
    assert wanted == pytest.approx(1, rel=1e-12)
    printed = gain / (1 - modulus**2)
    assert printed > 1.04 * wanted
