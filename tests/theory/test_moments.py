from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import jax
import mpmath
import numpy as np
import pytest
import torch
from theory import brute_force

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.moments import Moments, Readout, bilinear, moments, one_minus_exp

RHOS = [0.0, 0.3, 0.9, 0.997, 1.0]
DECAYS = [2.0, 0.5, 1e-2, 1e-4, 1e-8, 1e-12]
ANGLES = [0.0, 1e-9, 1e-3, 0.3, np.pi / 2, 3.0, np.pi]


def at(log_eigenvalue: complex, rho: float, horizon: int | None = None) -> Moments:
    return moments(np.array([log_eigenvalue]), Autocorrelation.from_rho(rho), horizon)


def exact(log_alpha: complex, log_beta: complex, rho: float) -> tuple[complex, ...]:
    """f, ∂α f, ∂β f and ∂α∂β f in 80 digits, by the formulas of section 2 of the theory."""
    with mpmath.workdps(80):
        a, b, r = mpmath.exp(log_alpha), mpmath.exp(log_beta), mpmath.mpf(rho)
        s = a * b
        u, p, q = 1 - s, 1 - r * a, 1 - r * b
        f = (1 - r**2 * s) / (u * p * q)
        alpha = b * (1 - r**2) / (u**2 * p * q) + r * (1 - r**2 * s) / (u * p**2 * q)
        beta = a * (1 - r**2) / (u**2 * p * q) + r * (1 - r**2 * s) / (u * p * q**2)
        mixed = (1 - r**2) * (u * (1 - r**2 * s**2) + 2 * s * p * q) + r**2 * u**3
        return tuple(complex(value) for value in (f, alpha, beta, mixed / (u**3 * p**2 * q**2)))


def assert_close(found: Moments, expected: tuple[complex, complex, complex], tolerance: float):
    f, c, s = (complex(value[0]) for value in found)
    assert f == pytest.approx(expected[0], rel=tolerance)
    assert s == pytest.approx(expected[2], rel=tolerance)
    # E[s h̄] may pass through zero; Cauchy-Schwarz gives the scale that matters.
    assert abs(c - expected[1]) <= tolerance * np.sqrt(abs(expected[0] * expected[2]))


@pytest.mark.parametrize(("rho", "decay"), list(product(RHOS, DECAYS)))
def test_moments_to_the_last_digits_of_a_float(rho: float, decay: float) -> None:
    for angle in ANGLES:
        z = complex(-decay, angle)
        f, cross, _, s = exact(z, z.conjugate(), rho)
        assert_close(at(z, rho), (f, cross, s), 1e-14)


@pytest.mark.parametrize(("rho", "decay"), list(product(RHOS, [2.0, 0.5, 0.02])))
def test_moments_are_the_sums_that_define_them(rho: float, decay: float) -> None:
    for angle in ANGLES:
        z = complex(-decay, angle)
        expected = brute_force.moments(np.exp(z), rho, 3000)
        assert_close(at(z, rho), expected, 1e-11)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("angle", [0.0, np.pi])
def test_an_eigenvalue_of_zero_passes_its_input_on(rho: float, angle: float) -> None:
    found = at(complex(-np.inf, angle), rho)
    assert found.second_moment[0] == pytest.approx(1, abs=1e-15)
    assert found.sensitivity[0] == pytest.approx(1, abs=1e-15)  # s[t+1] = h[t] = x[t]
    assert found.cross_moment[0] == pytest.approx(rho, abs=1e-16)


@pytest.mark.parametrize("rho", RHOS)
def test_outside_the_unit_disk_the_moments_are_infinite_and_never_nan(rho: float) -> None:
    log = np.array([0j, 1j, 0.1 + 2j, 1e-300 + 0j, 300 + 1j, -0.5 + 1j])
    found = moments(log, Autocorrelation.from_rho(rho))
    assert np.isposinf(found.second_moment[:-1]).all()
    assert np.isposinf(found.sensitivity[:-1]).all()
    assert (found.cross_moment[:-1] == 0).all()
    assert_close(Moments(*(value[-1:] for value in found)), tuple(at(log[-1], rho)), 1e-15)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_real_eigenvalues_agree_with_complex_ones_that_barely_turn(dtype: type) -> None:
    log = -np.logspace(-10, 1, 20)
    mixture = Autocorrelation((0.3, 2.0), (0.0, 0.9))
    real = moments(log.astype(dtype), mixture)
    turned = moments(log + 1e-300j, mixture)
    for one, other in zip(real, turned, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)
    assert real.cross_moment.dtype == np.complex128
    assert real.second_moment.dtype == np.float64


def test_moments_are_linear_in_the_autocorrelation() -> None:
    log = np.array([-0.1 + 1j, -1e-6 + 0j])
    mixed = moments(log, Autocorrelation((0.5, 2.0, 0.0), (0.2, 1.0, 0.4)))
    parts = [moments(log, Autocorrelation.from_rho(rho)) for rho in (0.2, 1.0)]
    for whole, first, second in zip(mixed, *parts, strict=True):
        np.testing.assert_allclose(whole, 0.5 * first + 2 * second, rtol=1e-14)


@pytest.mark.parametrize(("horizon", "readout"), [(None, "last"), (37, "last"), (300, "every")])
@pytest.mark.parametrize("autocorrelation", [WHITE, Autocorrelation((0.4, 1.0), (0.0, 0.8))])
def test_the_same_lines_run_on_torch_and_jax(
    horizon: int | None, readout: Readout, autocorrelation: Autocorrelation
) -> None:
    log = np.array([-0.1 + 1j, -1e-6 + 3j, -2 + 0j])
    expected = moments(log, autocorrelation, horizon, readout)
    found = moments(torch.tensor(log), autocorrelation, horizon, readout)
    for name, value in zip(Moments._fields, found, strict=True):
        np.testing.assert_allclose(value.numpy(), getattr(expected, name), rtol=1e-13)
    with jax.enable_x64(True):
        compiled = jax.jit(lambda z: moments(z, autocorrelation, horizon, readout))
        for name, value in zip(Moments._fields, compiled(jax.numpy.array(log)), strict=True):
            np.testing.assert_allclose(value, getattr(expected, name), rtol=1e-12)


@pytest.mark.parametrize("rho", RHOS)
def test_bilinear_for_any_pair(rho: float) -> None:
    logs = np.array([complex(-d, a) for d, a in product([2.0, 1e-3, 1e-10], [0.0, 0.3, -2.0])])
    found = bilinear(logs[:, None], logs[None, :], rho)
    for i, j in product(range(logs.size), repeat=2):
        expected = exact(complex(logs[i]), complex(logs[j]), rho)
        for value, right in zip(found, expected, strict=True):
            assert abs(value[i, j] - right) <= 1e-12 * abs(right)


@pytest.mark.parametrize("rho", RHOS)
def test_bilinear_on_conjugates_is_the_moments(rho: float) -> None:
    logs = np.array([complex(-d, a) for d, a in product(DECAYS, ANGLES)] + [-np.inf])
    found = bilinear(logs, logs.conj(), rho)
    expected = moments(logs, Autocorrelation.from_rho(rho))
    np.testing.assert_allclose(found.value.real, expected.second_moment, rtol=1e-13)
    np.testing.assert_allclose(found.mixed_derivative.real, expected.sensitivity, rtol=1e-12)
    scale = np.sqrt(expected.second_moment * expected.sensitivity)
    np.testing.assert_array_less(abs(found.derivative_alpha - expected.cross_moment), 1e-13 * scale)


@pytest.mark.parametrize("rho", [0.0, 0.9, 1.0])
def test_bilinear_derivatives_are_those_of_its_value(rho: float) -> None:
    """Autodiff in log α: ∂f/∂(log α) = α ∂f/∂α."""
    log_alpha, log_beta = -0.05 + 0.4j, -0.3 - 1.1j

    def component(index: int, argument: int) -> complex:
        def function(a: complex, b: complex) -> jax.Array:
            return bilinear(jax.numpy.array(a), jax.numpy.array(b), rho)[index]

        with jax.enable_x64(True):
            slope = jax.grad(function, argnums=argument, holomorphic=True)
            point = np.exp(log_beta if argument else log_alpha)
            return complex(slope(log_alpha, log_beta)) / complex(point)

    found = bilinear(np.array(log_alpha), np.array(log_beta), rho)
    assert component(0, 0) == pytest.approx(complex(found.derivative_alpha), rel=1e-12)
    assert component(0, 1) == pytest.approx(complex(found.derivative_beta), rel=1e-12)
    assert component(1, 1) == pytest.approx(complex(found.mixed_derivative), rel=1e-12)
    assert component(2, 0) == pytest.approx(complex(found.mixed_derivative), rel=1e-12)


def test_one_minus_exp_keeps_every_digit_near_zero() -> None:
    for x, y in product([-1e-300, -1e-12, -1.0, 0.5, -50.0], [0.0, 1e-12, 0.5, 3.0]):
        with mpmath.workdps(400):
            expected = complex(-mpmath.expm1(mpmath.mpc(x, y)))
        found = complex(one_minus_exp(np.array(complex(x, y))))
        assert abs(found - expected) <= 1e-15 * abs(expected)
    assert complex(one_minus_exp(np.array(complex(-np.inf, 2.0)))) == 1
    assert float(one_minus_exp(np.array(-1e-12))) == -np.expm1(-1e-12)


def test_the_numbers_of_the_papers_own_code(paper: Path) -> None:
    data = json.loads((paper / "one_dimensional.json").read_text())
    with np.errstate(divide="ignore"):
        for rho, eigenvalue, _, expected in data["dh_dlamb"]:
            found = at(np.log(complex(eigenvalue)), rho).sensitivity[0]
            assert found == pytest.approx(expected, rel=1e-7)  # λ itself rounds 1 - λ
        for rho, eigenvalue, expected in data["h2"]:
            found = at(np.log(complex(eigenvalue)), rho).second_moment[0]
            assert found == pytest.approx(expected, rel=1e-10)
