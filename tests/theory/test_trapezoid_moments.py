"""Moments of a trapezoidal step whose gates move, by draws, closed forms, SciPy and autodiff."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.integrate import dblquad, quad
from theory.trapezoids import LAWS, flat, gates_of

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.gates import trapezoid_nodes
from memcurse_cli.theory.gates.laws import GateValues, Motion, StepSize
from memcurse_cli.theory.gates.moments import gated_moments
from memcurse_cli.theory.gates.trapezoid_gates import turns_of
from memcurse_cli.theory.gates.trapezoid_moments import (
    BIAS,
    MOST_TERMS,
    terms_of_three,
    trapezoid_moments,
)
from memcurse_cli.theory.gates.two_gate_moments import two_gate_moments

Floats = NDArray[np.float64]

BIASES = np.array([-7.0, -4.0, -1.0, 0.5, 3.0])
MIXTURE = Autocorrelation((0.3, 0.2, 0.5), (0.0, 0.97, 0.9), (0.0, 0.0, 0.7))


@pytest.mark.parametrize("part", [WHITE, MIXTURE, Autocorrelation((0.5, 0.5), (1, 1), (0.0, 1.0))])
def test_gates_that_stand_still_are_a_constant_recurrence(part: Autocorrelation) -> None:
    """c_0 = wΔ and c_k = Δλᵏ, whose derivative is by autodiff."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    biases, lags = BIASES[1:3], np.arange(2000)
    weight = 1 / (1 + np.exp(-0.7))

    def response(bias: Any) -> Any:
        size = jax.nn.softplus(bias)
        return size * jnp.exp(-size * lags) * jnp.where(lags == 0, weight, 1.0)

    law, still = LAWS["heavy tail"], gates_of(biases, (0, 0, 0), weight=0.7)
    found = flat(trapezoid_moments(law, still, part))
    seen = part.at(np.abs(lags[:, None] - lags).astype(float))
    with jax.enable_x64(True):
        for unit, bias in enumerate(biases):
            c, d = map(np.asarray, jax.jvp(response, (float(bias),), (1.0,)))
            expected = [left @ seen @ right for left, right in ((c, c), (c, d), (d, d))]
            assert_allclose(found[:, unit], expected, rtol=1e-8)
    moving = gates_of(biases, (1e-5, 1e-5, 1e-5), (0.3, 0.1, 0.2), (1e-5,), weight=0.7)
    assert_allclose(flat(trapezoid_moments(law, moving, part)), found, rtol=1e-6)


class RatedValues:
    """λ and γ = Δ of an input that comes in once, with a rate that moves."""

    def __call__(self, first: Floats, second: Floats) -> GateValues:
        """dλ/db = -aσ(z₁)λ."""
        rate, size, slope = (
            np.logaddexp(0, second),
            np.logaddexp(0, first),
            1 / (1 + np.exp(-first)),
        )
        kept = np.exp(-rate * size)
        motions = {BIAS: Motion(-rate * slope * kept, slope + 0 * kept)}
        return GateValues(kept, -np.expm1(-rate * size), size + 0 * kept, motions)


@pytest.mark.parametrize("part", [WHITE, MIXTURE])
def test_a_weight_of_one_leaves_the_plain_recurrence(part: Autocorrelation) -> None:
    law = LAWS["softplus"]
    one = gates_of(BIASES, (1.3, 0.0, 0.0), weight=60.0)
    plain = gated_moments(StepSize(np.full(BIASES.shape, np.log(2))), one.rated.first, part)
    assert_allclose(
        flat(trapezoid_moments(law, one, part)),
        [plain.second_moment, plain.cross_moments[BIAS], plain.sensitivities[BIAS]],
        rtol=2e-8,
    )
    both = gates_of(BIASES, (0.8, 0.6, 0.0), (0.5, 0.0, 0.0), weight=60.0)
    two = two_gate_moments(RatedValues(), both.rated, part)
    assert_allclose(flat(trapezoid_moments(law, both, part)), flat(two), rtol=1e-6)


@pytest.mark.parametrize("name", ["softplus", "high floor"])
def test_the_expectations_are_those_of_scipy(name: str) -> None:
    """E h² for a white drive: (E ν² + E μ² + 2 E[λμ] E ν) / (1 - E λ²)."""
    law, spreads, rated = LAWS[name], (1.2, 0.9), 0.4
    gates = gates_of(-0.5, (*spreads, 1.5), (rated, 0.0, 0.0))

    def logistic(z: float) -> float:
        return float(1 / (1 + np.exp(-z)))

    def normal(z: float) -> float:
        return float(np.exp(-z * z / 2) / np.sqrt(2 * np.pi))

    weight, square = (
        quad(lambda x, power=power: logistic(1.5 * x) ** power * normal(x), -9, 9)[0]
        for power in (1, 2)
    )
    corner = float(law.rate.at_log(np.asarray(law.log_floor))) / spreads[1]

    def mean(of_size: int, of_kept: int) -> float:
        def integrand(u: float, v: float) -> float:
            first = -0.5 + spreads[0] * (rated * v + np.sqrt(1 - rated**2) * u)
            size = np.logaddexp(0, first)
            rate = np.exp(max(law.rate.log(np.asarray(spreads[1] * v)), law.log_floor))
            return float(size**of_size * np.exp(-of_kept * rate * size)) * normal(u) * normal(v)

        places = sorted({-8.0, max(corner, -8.0), 0.0, 8.0})
        return sum(
            dblquad(integrand, left, right, -8, 8, epsabs=1e-9, epsrel=1e-8)[0]
            for left, right in pairwise(places)
        )

    written = mean(2, 0) * square + mean(2, 2) * (1 - 2 * weight + square)
    written += 2 * mean(1, 2) * (1 - weight) * mean(1, 0) * weight
    expected = written / (1 - mean(0, 2))
    assert_allclose(trapezoid_moments(law, gates).second_moment, expected, rtol=1e-7)


@pytest.mark.parametrize("part", [WHITE, MIXTURE])
def test_the_cross_moment_is_half_the_slope_of_the_second_moment(part: Autocorrelation) -> None:
    """d E|h|²/db = 2 Re E[h s*], by central differences."""

    def moments(shift: float) -> Floats:
        gates = gates_of(BIASES + shift, (0.9, 0.7, 1.1), (0.3, -0.2, 0.4), (0.4, 2.0))
        return flat(trapezoid_moments(LAWS["heavy tail"], gates, part))

    slope = (moments(1e-3)[0] - moments(-1e-3)[0]) / 2e-3
    assert_allclose(2 * moments(0.0)[1], slope, rtol=1e-5)


@pytest.mark.parametrize(
    ("spreads", "correlations"),
    [
        ((0.3, 0.3, 0.3), (0.0, 0.0, 0.0)),
        ((1.0, 3.0, 1.0), (0.8, 0.5, -0.1)),
        ((1.0, 1.0, 1.0), (1.0, 0.5, 0.5)),
        ((1.0, 0.5, 6.0), (-1.0, 0.2, -0.2)),
    ],
)
@pytest.mark.parametrize("part", [WHITE, MIXTURE], ids=["white", "mixture"])
def test_the_rule_is_exact(
    monkeypatch: pytest.MonkeyPatch,
    spreads: tuple[float, ...],
    correlations: tuple[float, ...],
    part: Autocorrelation,
) -> None:
    gates = gates_of([-5.0, 0.5], spreads, correlations, (0.5, 2.0))
    found = flat(trapezoid_moments(LAWS["high floor"], gates, part))
    for name, value in {"DIGITS": 35.0, "PANEL": 0.6, "PANEL_NODES": 12, "TAIL": 7.2}.items():
        monkeypatch.setattr(trapezoid_nodes, name, value)
    assert_allclose(found, flat(trapezoid_moments(LAWS["high floor"], gates, part)), rtol=1e-7)


def test_the_angles_are_those_of_scipy() -> None:
    spreads = (0.1, 0.8, 5.0)
    turns = turns_of(gates_of(-1.0, (1.0, 0.0, 0.0), angles=spreads, turning=0.6), white=False)
    assert_allclose(turns.shares, [0.2, 0.2, 0.2, 0.4])
    for kind, spread in enumerate((*spreads, 0.0)):

        def mean(function: Any, spread: float = spread) -> float:
            def integrand(z: float) -> float:
                return float(function(np.pi * np.tanh(spread * z)) * np.exp(-z * z / 2))

            return quad(integrand, 0, 9, limit=200, epsabs=1e-11)[0] * np.sqrt(2 / np.pi)

        assert_allclose(turns.second_moment[kind], mean(np.square), atol=1e-8)
        for size in (0.0, 0.3, 2.0, 6.0):
            found = turns.weights[kind] @ np.cos(turns.nodes * size)
            assert_allclose(found, mean(lambda theta, size=size: np.cos(theta * size)), atol=1e-8)


def test_heads_are_integrated_each_on_its_own() -> None:
    random = np.random.default_rng(1)
    gates = gates_of(random.uniform(-7, 0, 12), (1.0, 1.0, 1.0), (0.2, 0.1, -0.3), (0.5, 1.5))
    for spread in (gates.rated.first.spread, gates.rated.second.spread, gates.weight.spread):
        spread *= random.uniform(0, 2, spread.size)
    found = flat(trapezoid_moments(LAWS["heavy tail"], gates, MIXTURE))
    for head in (0, 5, 11):
        alone = trapezoid_moments(LAWS["heavy tail"], gates.take(np.array([head])), MIXTURE)
        assert_allclose(found[:, head], flat(alone)[:, 0], rtol=1e-7)


def test_terms_are_counted_before_they_are_taken() -> None:
    law = LAWS["heavy tail"]
    narrow = gates_of(BIASES, (1.0, 1.0, 1.0), angles=(1.0,))
    counts = [terms_of_three(law, narrow, part) for part in (WHITE, MIXTURE)]
    assert 0 < counts[0] < counts[1] < MOST_TERMS
    for spread in (60.0, 1e200, np.inf, np.nan):
        for place in range(3):
            spreads = [20.0, 20.0, 20.0]
            spreads[place] = spread
            assert not terms_of_three(law, gates_of(BIASES, spreads), WHITE) <= MOST_TERMS
