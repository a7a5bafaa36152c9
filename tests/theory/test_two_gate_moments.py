"""Moments of two wide pre-activations, against SciPy's integrals and finer rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import expit

from memcurse_cli.theory.gates import two_gate_moments as rule
from memcurse_cli.theory.gates.laws import Share
from memcurse_cli.theory.gates.moments import GatedMoments
from memcurse_cli.theory.gates.quadrature import Preactivation
from memcurse_cli.theory.gates.two_gate_bands import TwoPreactivations
from memcurse_cli.theory.gates.two_gate_moments import MOST_TERMS, terms_of, two_gate_moments

Floats = NDArray[np.float64]

MEANS = np.array([[0.0, 0.0], [3.0, -2.0], [-3.0, 4.0], [-8.0, -8.0], [1.0, -0.5]])
CORRELATIONS = (-1.0, -0.9, 0.0, 0.9, 1.0)


def gates_of(means: Floats, spreads: tuple[float, float], correlation: float) -> TwoPreactivations:
    """Units of these means."""
    size = len(means)
    return TwoPreactivations(
        *(
            Preactivation(mean, np.full(size, spread))
            for mean, spread in zip(means.T, spreads, strict=True)
        ),
        np.full(size, correlation),
    )


def errors(found: GatedMoments, expected: GatedMoments) -> tuple[float, float]:
    """The largest relative ones of E h² and of E s²."""
    held = np.abs(found.second_moment / expected.second_moment - 1).max()
    moved = [
        np.abs(found.sensitivities[name] / moment - 1).max()
        for name, moment in expected.sensitivities.items()
    ]
    return float(held), float(max(moved))


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize("spreads", [(1.0, 1.0), (4.0, 4.0), (4.0, 1.5), (8.0, 3.0)])
def test_the_rule_is_as_exact_as_it_says(
    monkeypatch: pytest.MonkeyPatch, spreads: tuple[float, float], correlation: float
) -> None:
    gates = gates_of(MEANS, spreads, correlation)
    found = two_gate_moments(Share(), gates)
    alone = [gates.take(np.array([unit])) for unit in range(len(MEANS))]
    assert [terms_of(unit) for unit in alone] == [rule._nodes(unit)[2].size for unit in alone]
    assert sum(map(terms_of, alone)) <= terms_of(gates) <= terms_of(alone[3]) * len(MEANS)
    monkeypatch.setattr(rule, "DIGITS", 50.0)
    monkeypatch.setattr(rule, "WIDE_DIGITS", 50.0)
    monkeypatch.setattr(rule, "TAIL", 7.5)
    held, moved = errors(found, two_gate_moments(Share(), gates))
    wide = max(spreads) > 4
    assert held < (3e-8 if wide else 2e-10)
    assert moved < (3e-6 if wide else 2e-9)


@pytest.mark.parametrize("correlation", [-1.0, 1.0])
@pytest.mark.parametrize("spread", [4.0, 16.0, 30.0])
def test_two_gates_that_are_one_are_those_of_scipy(spread: float, correlation: float) -> None:
    (first, second), narrow = MEANS[4], 0.7 * spread

    def mean(power: int, sign: int) -> float:
        def integrand(u: float) -> float:
            opened = np.logaddexp(0, -(second + correlation * narrow * u))
            y = np.logaddexp(0, -(first + spread * u)) - opened
            return float(expit(sign * y) ** power * math.exp(-u * u / 2) / math.sqrt(2 * math.pi))

        return quad(integrand, -9, 9, points=np.linspace(-1, 1, 9), limit=800, epsabs=1e-12)[0]

    kept = quad_of_complement(first, spread, second, correlation * narrow)
    gates = gates_of(MEANS[4:], (spread, narrow), correlation)
    expected = mean(2, 1) / kept
    assert_allclose(two_gate_moments(Share(), gates).second_moment, expected, rtol=1e-8)


def quad_of_complement(first: float, spread: float, second: float, other: float) -> float:
    """E (1 - λ²)."""

    def integrand(u: float) -> float:
        y = np.logaddexp(0, -(first + spread * u)) - np.logaddexp(0, -(second + other * u))
        weight = math.exp(-u * u / 2) / math.sqrt(2 * math.pi)
        return float(expit(y) * (1 + expit(-y)) * weight)

    return quad(integrand, -9, 9, points=np.linspace(-1, 1, 9), limit=800, epsabs=1e-12)[0]


@pytest.mark.parametrize("correlation", CORRELATIONS[:-1])
def test_the_widest_gates_are_switches(correlation: float) -> None:
    """At σ → ∞ λ is 1/2 where both are open, and otherwise 1 or 0 as the forget gate is wider open.

    Both are open at the share of an orthant.
    """
    both = 0.25 + math.asin(correlation) / (2 * math.pi)
    # λ = γ = 1/2 in the quadrant of both; of the rest one half each, by symmetry.
    rest = (1 - both) / 2
    expected = (both / 4 + rest) / (1 - both / 4 - rest)
    off = []
    for spread in (15.0, 60.0):
        gates = gates_of(np.zeros((1, 2)), (spread, spread), correlation)
        off.append(abs(two_gate_moments(Share(), gates).second_moment[0] - expected))
    # What is between the two ends falls with 1/σ.
    assert off[0] < 0.15
    assert off[1] < 0.3 * off[0] + 1e-9


def test_narrow_units_of_a_layer_do_not_pay_for_wide_ones() -> None:
    gates = TwoPreactivations(
        Preactivation(np.zeros(1024), np.full(1024, 0.5)),
        Preactivation(np.zeros(1024), np.full(1024, 0.5)),
        np.zeros(1024),
    )
    narrow = terms_of(gates)
    gates.first.spread[:4] = 16.0
    assert narrow < terms_of(gates) < 2.5 * narrow


@pytest.mark.parametrize("spread", [1e5, 1e300, math.inf])
def test_no_spread_is_too_large_to_count(spread: float) -> None:
    for correlation in CORRELATIONS:
        gates = gates_of(MEANS, (spread, spread), correlation)
        assert not terms_of(gates) <= MOST_TERMS or abs(correlation) == 1
