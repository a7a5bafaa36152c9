"""Moments where floats run out, against 80 digits and more: the unit circle, -1, long horizons."""

from __future__ import annotations

from itertools import product

import mpmath
import numpy as np
import pytest
from theory.brute_force import assert_close, closed_form

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.moments import Readout, moments
from memcurse_cli.theory.parametrization import normalizing_rate, parametrize
from memcurse_cli.theory.sensitivity import parameter_sensitivity, state_second_moment

DECAYS = [5e-324, 1e-300, 1e-16, 1e-12, 1e-5, 1.0, 800.0]
ANGLES = [0.0, 1e-300, 1e-9, 0.3, np.pi / 2, np.pi - 1e-9, np.pi]
RHOS = [0.0, 1e-300, 0.5, 1 - 1e-12, 1 - 2.0**-53, 1.0]
LOG_MODULI = [0.5, 1e-12, 0.0, -1e-12, -1e-5, -1.0]


def stationary(
    log: complex, rho: float, frequency: float = 0.0, digits: int = 1000
) -> tuple[mpmath.mpf, mpmath.mpc, mpmath.mpf]:
    """Section 2 of the theory, with as many digits as 1 - |λ|² needs at the smallest float.

    A cosine is the mean of two inputs, whose poles ρ turn either way.
    """
    if frequency:
        ways = [stationary(log, rho * mpmath.expj(w), 0, digits) for w in (frequency, -frequency)]
        return tuple((one + other) / 2 for one, other in zip(*ways, strict=True))
    f, cross, _, squared = closed_form(log, log.conjugate(), rho, digits)
    return f.real, cross, squared.real


def finite(
    log: complex, rho: float, steps: int
) -> dict[Readout, tuple[mpmath.mpf, mpmath.mpc, mpmath.mpf]]:
    """Section 4 of the theory: P' = M P M† + N N† for z = (x, h, s), by doubling.

    With Q the covariance that k steps of noise leave and S the sum of P(1) … P(k):
    Q(2k) = Q + M^k Q M^k†, P(2k) = M^k P M^k† + Q and S(2k) = S + M^k S M^k† + k Q.
    """
    with mpmath.workdps(40):
        a, r = mpmath.exp(mpmath.mpc(log)), mpmath.mpf(rho)
        one = mpmath.matrix([[r, 0, 0], [r, a, 0], [0, 1, a]])
        noise = (1 - r**2) * mpmath.matrix([[1, 1, 0], [1, 1, 0], [0, 0, 0]])
        q, power = noise, one
        p = total = one * mpmath.diag([1, 0, 0]) * one.H + noise
        k = 1
        for bit in bin(steps)[3:]:
            total = total + power * total * power.H + k * q
            p, q = power * p * power.H + q, q + power * q * power.H
            power, k = power * power, 2 * k
            if bit == "1":
                p, q = one * p * one.H + noise, one * q * one.H + noise
                total, power, k = total + p, one * power, k + 1
        return {
            "last": (p[1, 1].real, p[2, 1], p[2, 2].real),
            "every": (total[1, 1].real / k, total[2, 1] / k, total[2, 2].real / k),
        }


@pytest.mark.parametrize("rho", RHOS)
def test_an_infinite_sequence(rho: float) -> None:
    for decay, angle in product(DECAYS, ANGLES):
        if rho == 1 and 0 < angle < 1e-100:
            continue  # 1 - λ is a number that no float holds the square of
        log = complex(-decay, angle)
        found = moments(np.array([log]), Autocorrelation.from_rho(rho))
        expected = stationary(log, rho)
        tolerance = 1e-13
        if min(decay, angle or decay) < 1e-290 and rho > 0.5:
            tolerance = 1e-6  # where it is made of subnormal numbers
        assert_close(found, expected, tolerance)


def test_near_the_circle_on_and_off_resonance() -> None:
    """The closed form at a complex ρ loses its digits there."""
    for decay, damping, off in product(
        (1e-2, 1e-6, 1e-10), (1e-1, 1e-6, 1e-12, 0.0), (0, 1e-9, 1e-3, 1)
    ):
        log, part = complex(-decay, 1.25), (1 - damping, 1.25 + off)
        found = moments(np.array([log]), Autocorrelation((1.0,), *([one] for one in part)))
        with mpmath.workdps(80):
            assert_close(found, stationary(log, *part, digits=80), 1e-13)


@pytest.mark.parametrize("steps", [1, 2, 101, 10**4, 10**9])
@pytest.mark.parametrize("rho", [0.0, 0.9, 1 - 1e-12, 1.0])
def test_a_finite_sequence(rho: float, steps: int) -> None:
    """Also at a horizon of 1e9, where the angle has turned 1e8 times, and near -1."""
    places = product(LOG_MODULI, [0.3, 3.0])
    # λ near -1 forgets every second step of a constant: nothing is left of the larger terms.
    for log_modulus, angle in [*places, (-1e-3, np.pi), (-1e-7, np.pi), (-1e-5, 0.0), (0.0, 0.0)]:
        log = complex(log_modulus, angle)
        for readout, expected in finite(log, rho, steps).items():
            found = moments(np.array([log]), Autocorrelation.from_rho(rho), steps, readout)
            assert_close(found, expected, 1e-8 if angle == np.pi else 1e-9)


@pytest.mark.parametrize("parametrization", ["polar", "lru", "optimal", "s4"])
@pytest.mark.parametrize("decay", [1e-290, 1e-16, 1e-12, 1e-3])
def test_what_only_turns_an_eigenvalue_leaves_its_gain_alone(
    parametrization: str, decay: float
) -> None:
    """1 - |λ|² enlarges whatever rounding of Re[λ̄ λ'] is left: 6 % of κ at a decay of 1e-16."""
    logs = np.array([complex(-decay, 0.3)])
    name = {"polar": "theta", "lru": "theta_log", "optimal": "omega_theta", "s4": "A_imag"}
    coupled = parametrize(logs, parametrization, "coupled")
    found = coupled.derivatives[name[parametrization]]
    assert found.log_gain[0] == 0
    assert normalizing_rate(logs, found.eigenvalue)[0] == 0
    moment = moments(logs, Autocorrelation.from_rho(1.0))
    _, kappa = parameter_sensitivity(moment, coupled.log_gain, found.eigenvalue, found.log_gain)
    expected = abs(found.eigenvalue[0]) ** 2 / abs(np.expm1(logs[0])) ** 2
    assert kappa[0] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("decay", [1e-16, 1e-12, 1e-3, 1.0])
def test_a_gated_average_of_a_constant_is_that_constant(decay: float) -> None:
    """γ = 1 - λ: nothing moves the state, though λ' s and γ' h are 1e32 times what is left."""
    logs = np.array([complex(-decay)])
    moment = moments(logs, Autocorrelation.from_rho(1.0))
    for parametrization in ("real-imaginary", "polar", "lru", "s4", "sigmoid-gate"):
        found = parametrize(logs, parametrization, "gru")
        for moved in found.derivatives.values():
            each = parameter_sensitivity(moment, found.log_gain, moved.eigenvalue, moved.log_gain)
            assert (each.sensitivity[0], each.relative_sensitivity[0]) == (0, 0)


def test_what_overflows_on_the_way_is_divergent_and_never_nan() -> None:
    logs = np.array([complex(-1e-290, 0.3)])
    moment = moments(logs, Autocorrelation.from_rho(1.0))
    found = parametrize(logs, "polar", "coupled")
    nu = found.derivatives["nu"]
    each = parameter_sensitivity(moment, found.log_gain, nu.eigenvalue, nu.log_gain)
    assert np.isposinf(each.sensitivity[0])
    assert np.isposinf(each.relative_sensitivity[0])


def test_a_state_that_receives_nothing_is_zero_even_where_others_diverge() -> None:
    """A GRU's gate that is shut so far that 1 - λ is 0 in a float."""
    moment = moments(np.array([0j, 0j, -1e-3 + 0j]))
    found = state_second_moment(moment, np.array([-np.inf, 0, 400], complex))
    assert found.tolist() == [0, np.inf, np.inf]
