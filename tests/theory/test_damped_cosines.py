"""Inputs with R(Δ) = ρ^|Δ| cos(ωΔ): against long sums, mpmath, SciPy, autodiff and simulation."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.signal
from hypothesis import strategies as st
from numpy.typing import NDArray

from memcurse_cli.errors import UsageError
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.dense.bases import Eigenbasis
from memcurse_cli.theory.finite_sums import DerivativeSums, Readout, summed_products
from memcurse_cli.theory.gates.laws import Keep, Mix
from memcurse_cli.theory.gates.moments import gated_moments
from memcurse_cli.theory.gates.quadrature import Preactivation
from memcurse_cli.theory.moments import moments

Floats = NDArray[np.float64]

MIXED = Autocorrelation((0.7, 0.3, 0.2), (0.9, 0.0, 0.6), (0.4, 0.0, 0.0))
SWUNG = Autocorrelation((0.7, 0.5), (0.8, 0.95), (2.1, math.pi))
INPUTS = [MIXED, SWUNG]

LOGS = np.log(np.array([0.8 * np.exp(0.5j), -0.7 + 0j, 0.6, 0.9 * np.exp(-2.1j)]))

frequencies = st.floats(0, math.pi)


def covariance(source: Autocorrelation, steps: int) -> Floats:
    """(T, T) R(t - t'), from SciPy."""
    return np.asarray(scipy.linalg.toeplitz(source.at(np.arange(steps, dtype=np.float64))))


def summed(eigenvalue: complex, source: Autocorrelation, steps: int) -> Floats:
    """E|h|², E[s h̄] and E|s|² after T steps, by their definition."""
    n = np.arange(steps)
    h = eigenvalue**n
    s = np.concatenate([[0], n[1:] * eigenvalue ** (n[1:] - 1)])
    seen = covariance(source, steps)
    return np.array([h @ seen @ h.conj(), s @ seen @ h.conj(), s @ seen @ s.conj()])


@pytest.mark.parametrize("source", INPUTS)
@pytest.mark.parametrize("readout", ["last", "every"])
def test_moments_are_the_sums_over_the_sequence(source: Autocorrelation, readout: Readout) -> None:
    endless, finite = moments(LOGS, source), moments(LOGS, source, 30, readout)
    for index, eigenvalue in enumerate(np.exp(LOGS).tolist()):
        limit = [moment[index] for moment in endless]
        np.testing.assert_allclose(limit, summed(eigenvalue, source, 500), rtol=1e-12, atol=1e-13)
        steps = range(1, 31) if readout == "every" else [30]
        expected = np.mean([summed(eigenvalue, source, step) for step in steps], axis=0)
        found = [moment[index] for moment in finite]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("decay", [1e-2, 1e-6, 1e-10])
@pytest.mark.parametrize("damping", [1e-1, 1e-6, 1e-12, 0.0])
@pytest.mark.parametrize("detuning", [0.0, 1e-9, 1e-3, 1.0])
def test_nothing_cancels_near_the_circle(decay: float, damping: float, detuning: float) -> None:
    """With mpmath, on and off resonance: the closed form at a complex ρ loses its digits there."""
    angle, rho = 1.25, 1 - damping
    frequency = angle + detuning
    found = moments(
        np.array([complex(-decay, angle)]), Autocorrelation((1.0,), (rho,), (frequency,))
    )
    with mpmath.workdps(80):
        rate = mpmath.mpf(0)
        cosine = mpmath.mpf(0)
        pole = mpmath.mpf(rho) * mpmath.expjpi(mpmath.mpf(frequency) / mpmath.pi)
        log = mpmath.mpc(-decay, angle)

        def f(alpha: mpmath.mpc, beta: mpmath.mpc, of: mpmath.mpc) -> mpmath.mpc:
            return (1 - of**2 * alpha * beta) / (
                (1 - alpha * beta) * (1 - of * alpha) * (1 - of * beta)
            )

        alpha, beta = mpmath.exp(log), mpmath.exp(mpmath.conj(log))
        cosine = mpmath.re((f(alpha, beta, pole) + f(alpha, beta, mpmath.conj(pole))) / 2)
        for of in (pole, mpmath.conj(pole)):
            s, u = alpha * beta, 1 - alpha * beta
            p, q, square = 1 - of * alpha, 1 - of * beta, of**2
            top = (1 - square) * (u * (1 - square * s**2) + 2 * s * p * q) + square * u**3
            rate += mpmath.re(top / (u**3 * p**2 * q**2)) / 2
        assert float(abs(found.second_moment[0] / cosine - 1)) < 1e-13
        assert float(abs(found.sensitivity[0] / rate - 1)) < 1e-13


def dense() -> tuple[Floats, Eigenbasis, Floats, Floats]:
    random = np.random.default_rng(1)
    matrix = random.standard_normal((5, 5))
    matrix *= 0.7 / np.max(np.abs(np.linalg.eigvals(matrix)))
    values, vectors = np.linalg.eig(matrix)
    basis = Eigenbasis(np.log(values.astype(complex)), vectors.astype(complex))
    return matrix, basis, random.standard_normal((5, 2)), random.standard_normal((3, 5))


@pytest.mark.parametrize("source", INPUTS)
def test_a_gate_that_does_not_move_is_a_constant_eigenvalue(source: Autocorrelation) -> None:
    bias = np.array([-1.0, 0.5, 4.0])
    found = gated_moments(Mix(), Preactivation(bias, np.zeros(3)), source)
    still = gated_moments(Mix(), Preactivation(bias, np.full(3, 1e-6)), source)
    np.testing.assert_allclose(found.second_moment, still.second_moment, rtol=1e-9)
    opened = 1 / (1 + np.exp(-bias))
    plain = moments(np.log(opened), source).second_moment * (1 - opened) ** 2
    np.testing.assert_allclose(found.second_moment, plain, rtol=1e-12)


def test_a_moving_gate_is_what_it_does_in_a_simulation() -> None:
    rho, frequency, bias, spread = 0.95, 0.6, 1.5, 0.8
    random = np.random.default_rng(3)
    sequences, steps = 400, 3000
    noise = random.standard_normal((steps, 2, sequences)) * math.sqrt(1 - rho**2)
    drive = random.standard_normal((2, sequences))
    turn = rho * np.array(
        [[math.cos(frequency), -math.sin(frequency)], [math.sin(frequency), math.cos(frequency)]]
    )
    h, total = np.zeros(sequences), []
    for step in range(steps):
        drive = turn @ drive + noise[step]
        opened = 1 / (1 + np.exp(-bias - spread * random.standard_normal(sequences)))
        h = opened * h + (1 - opened) * drive[0]
        if step >= 200:
            total.append(np.mean(h**2))
    source = Autocorrelation((1.0,), (rho,), (frequency,))
    gate = Preactivation(np.array([bias]), np.array([spread]))
    exact = gated_moments(Mix(), gate, source).second_moment[0]
    assert np.mean(total) == pytest.approx(exact, rel=0.01)


def test_quadratures_keep_their_digits_at_long_lags() -> None:
    """1e6 steps of 3 rad: the product alone would be off by 1e-10."""
    found = Autocorrelation((1.0,), (1.0,), (3.0001,)).at(np.array([1_000_003.0]))
    with mpmath.workdps(40):
        exact = float(mpmath.cos(mpmath.mpf(3.0001) * 1_000_003))
    assert found[0] == pytest.approx(exact, abs=1e-14)


def test_reads_and_gives_back_a_frequency() -> None:
    found = Autocorrelation.parse("0.3:0,0.7:0.99:0.2")
    assert found == Autocorrelation((0.3, 0.7), (0.0, 0.99), (0.0, 0.2))
    assert list(found) == [(0.3, 0.0), (0.7, 0.99, 0.2)]
    assert Autocorrelation.from_components(found) == found
    np.testing.assert_allclose(
        found.at(np.array([0.0, 7.0])), [1, 0.7 * 0.99**7 * math.cos(1.4)], rtol=1e-14
    )


@pytest.mark.parametrize("frequency", [-0.1, 3.15, math.nan, math.inf])
def test_refuses_a_frequency_outside_its_domain(frequency: float) -> None:
    with pytest.raises(UsageError, match="frequency"):
        Autocorrelation((1.0,), (0.5,), (frequency,))
    with pytest.raises(UsageError, match="2 frequencies for 1"):
        Autocorrelation((1.0,), (0.5,), (0.1, 0.2))


def test_the_horizon_of_a_turned_decay_is_its_own() -> None:
    """The frame that turns by ω is exact for |λ| > 1 too."""
    source = Autocorrelation((1.0,), (0.9,), (0.7,))
    eigenvalue = 1.05 * np.exp(0.6j)
    found = moments(np.log(np.array([eigenvalue])), source, 25)
    expected = summed(eigenvalue, source, 25)
    np.testing.assert_allclose([moment[0] for moment in found], expected, rtol=1e-12)
    log_modulus, angle = np.array([math.log(1.05)]), np.array([0.6 + 0.7])
    sums = DerivativeSums(log_modulus, angle, 0.9)
    alone = summed_products(sums, 0.9, 25, "last")[-3]
    assert alone[0] < 2 * found.second_moment[0]


@pytest.mark.parametrize(("bias", "tolerance"), [(4.0, 1e-12), (8.0, 1e-12), (14.0, 1e-12)])
def test_a_slow_gate_off_resonance_keeps_its_digits(bias: float, tolerance: float) -> None:
    """Where the products of the gate would cancel: 6 % off at a bias of 12."""
    source = Autocorrelation((1.0,), (1.0,), (1.0,))
    found = gated_moments(Keep(), Preactivation(np.array([bias]), np.zeros(1)), source)
    log = np.array([-np.log1p(math.exp(-bias))])
    slope = math.exp(log[0]) / (1 + math.exp(bias))
    expected = moments(log, source).sensitivity[0] * slope**2
    assert found.sensitivities["forget"][0] == pytest.approx(expected, rel=tolerance, abs=0)
