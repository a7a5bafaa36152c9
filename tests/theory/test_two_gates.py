"""Two pre-activations that move one λ: its quantiles and moments, by draws and closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.integrate import dblquad
from scipy.stats import norm

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.gates.laws import (
    GateValues,
    HeavyTail,
    RatedStep,
    Share,
    Softplus,
    StepSize,
    TwoGateLaw,
)
from memcurse_cli.theory.gates.moments import gated_moments
from memcurse_cli.theory.gates.quadrature import Preactivation
from memcurse_cli.theory.gates.two_gate_bands import TwoPreactivations, log_rate_quantiles
from memcurse_cli.theory.gates.two_gate_moments import two_gate_moments

Floats = NDArray[np.float64]

FLOOR = float(np.log(1e-4))
LAWS: dict[str, TwoGateLaw] = {
    "share": Share(),
    "heavy tail": RatedStep(HeavyTail(), FLOOR),
    "softplus": RatedStep(Softplus(), FLOOR),
}
SHARES = (0.05, 0.1587, 0.8413, 0.95)
FIRST = np.array([-3.0, -1.0, 0.0, 2.0, 5.0, 0.5])
SECOND = np.array([0.0, 1.0, -2.0, -5.0, 4.0, 0.0])


def gates_of(
    first: tuple[Any, Any], second: tuple[Any, Any], correlation: float
) -> TwoPreactivations:
    """Both from (mean, spread)."""
    means = [np.atleast_1d(np.asarray(mean, dtype=float)) for mean, _ in (first, second)]
    spreads = [np.full(means[0].shape, float(spread)) for _, spread in (first, second)]
    return TwoPreactivations(
        *map(Preactivation, means, spreads), np.full(means[0].shape, correlation)
    )


def draws(gates: TwoPreactivations, count: int, seed: int = 5) -> tuple[Floats, Floats]:
    """(count, n) of both."""
    u, v = np.random.default_rng(seed).standard_normal((2, count, 1))
    moved = gates.correlation * u + np.sqrt(1 - gates.correlation**2) * v
    return (
        gates.first.mean + gates.first.spread * u,
        gates.second.mean + gates.second.spread * moved,
    )


def decay_of(name: str, first: Floats, second: Floats) -> Floats:
    """-log λ as the libraries write it."""
    if name == "share":
        forget, opened = 1 / (1 + np.exp(-first)), 1 / (1 + np.exp(-second))
        return -np.log(forget / (forget + opened))
    step = np.log1p(np.exp(first))
    if name == "softplus":
        return step * np.maximum(np.log1p(np.exp(second)), 1e-4)
    return step * np.maximum(np.maximum(second, 0) + 1 / (1 - np.minimum(second, 0)), 1e-4)


@pytest.mark.parametrize(
    "spreads", [(1.0, 1.0, 0.0), (0.5, 2.0, 0.7), (2.0, 0.3, -0.9), (4, 4, 0.3)]
)
@pytest.mark.parametrize("name", LAWS)
def test_the_quantiles_are_those_of_draws(name: str, spreads: tuple[float, float, float]) -> None:
    gates = gates_of((FIRST, spreads[0]), (SECOND, spreads[1]), spreads[2])
    decay = np.log(decay_of(name, *draws(gates, 400_000)))
    for share, at in zip(SHARES, log_rate_quantiles(LAWS[name], gates, SHARES), strict=True):
        error = np.sqrt(share * (1 - share) / len(decay))
        assert_allclose((decay <= at).mean(axis=0), share, atol=4 * error)


@pytest.mark.parametrize("name", LAWS)
def test_one_input_makes_two_gates_that_are_one(name: str) -> None:
    """Where both see a single component, λ is a function of it that need not be monotonic."""
    for sign in (1.0, -1.0):
        gates = gates_of((FIRST, 1.5), (SECOND, 1.0), sign)
        at = norm.ppf((np.arange(200_000) + 0.5) / 200_000)[:, None]
        decay = np.log(decay_of(name, FIRST + 1.5 * at, SECOND + sign * at))
        expected = np.quantile(decay, SHARES, axis=0)
        found = log_rate_quantiles(LAWS[name], gates, SHARES)
        assert_allclose(found, expected, atol=1e-3 * float(decay.std(axis=0).max()))


@pytest.mark.parametrize("correlation", [0.0, 0.6, -0.95])
def test_far_below_zero_the_logarithm_of_the_rate_is_gaussian(correlation: float) -> None:
    """log(1 + e^z) is e^z there, so that log(-log λ) = z₁ + z₂."""
    gates = gates_of(([-90.0, -70.0], 1.3), ([-80.0, -100.0], 0.8), correlation)
    found = log_rate_quantiles(RatedStep(Softplus(), -1e3), gates, SHARES)
    spread = np.sqrt(1.3**2 + 0.8**2 + 2 * correlation * 1.3 * 0.8)
    expected = gates.first.mean + gates.second.mean + spread * norm.ppf(SHARES)[:, None]
    assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("name", LAWS)
def test_where_one_stays_the_other_gives_the_quantiles(name: str) -> None:
    law = LAWS[name]
    places = norm.ppf(SHARES)[:, None]
    for spreads in ((1.2, 0.0), (0.0, 1.2)):
        gates = gates_of((FIRST, spreads[0]), (SECOND, spreads[1]), 0.0)
        first, second = (
            gate.mean + sign * places * gate.spread
            for gate, sign in zip((gates.first, gates.second), law.signs, strict=True)
        )
        expected = law.log_rate(first, second)
        # The floor of the rate is where no quantile moves.
        assert_allclose(log_rate_quantiles(law, gates, SHARES), expected, atol=1e-5)


def test_a_rate_that_stays_leaves_the_law_of_one_gate() -> None:
    rate = np.array([0.2, 1.0, 3.0])
    second = np.log(np.expm1(rate))
    gates = gates_of(([-2.0, 0.0, 1.0], 1.0), (second, 0.0), 0.0)
    found = log_rate_quantiles(RatedStep(Softplus(), FLOOR), gates, [0.5, 0.95])
    for place, row in zip((0.0, norm.ppf(0.95)), found, strict=True):
        values = StepSize(rate)(gates.first.mean + place * gates.first.spread)
        assert_allclose(np.exp(-np.exp(row)), values.eigenvalue, rtol=1e-6)


@pytest.mark.parametrize("name", LAWS)
def test_gates_that_stand_still_have_one_value(name: str) -> None:
    law = LAWS[name]
    nominal = law.log_rate(FIRST, SECOND)
    assert_allclose(nominal, np.log(decay_of(name, FIRST, SECOND)), rtol=1e-12)
    for spread, tolerance in ((0.0, 1e-12), (1e-4, 5e-4)):
        gates = gates_of((FIRST, spread), (SECOND, spread), 0.3)
        found = log_rate_quantiles(law, gates, SHARES)
        assert_allclose(found, np.broadcast_to(nominal, found.shape), atol=tolerance)


@pytest.mark.parametrize("name", LAWS)
def test_either_pre_activation_is_found_at_a_rate(name: str) -> None:
    law = LAWS[name]
    at = law.log_rate(FIRST, SECOND)
    assert_allclose(law.first_at(at, SECOND), FIRST, rtol=1e-9, atol=1e-12)
    assert_allclose(law.second_at(at, FIRST), SECOND, rtol=1e-9, atol=1e-12)


def test_what_no_pre_activation_reaches_is_infinite() -> None:
    # -log λ of a share is at most log(1 + 1/f), and a rate at least its floor times the step.
    assert Share().second_at(np.array([3.0]), np.array([2.0]))[0] == np.inf
    assert Share().first_at(np.array([-9.0]), np.array([2.0]))[0] == np.inf
    step = RatedStep(Softplus(), FLOOR)
    assert step.second_at(np.array([-12.0]), np.array([1.0]))[0] == -np.inf


@pytest.mark.parametrize("name", LAWS)
def test_far_out_the_quantiles_stay_numbers(name: str) -> None:
    far = np.array([-1e70, -800.0, -40.0, 40.0, 800.0, 1e70])
    for spread in (0.0, 1.0, 1e4, 1e70):
        for correlation in (0.0, 1.0, -1.0):
            gates = gates_of((far, spread), (far[::-1], spread), correlation)
            found = log_rate_quantiles(LAWS[name], gates, SHARES)
            assert np.isfinite(found).all()
            assert (np.diff(found, axis=0) >= -1e-6 * np.abs(found[1:])).all()


def simulate(gates: TwoPreactivations, rho: float) -> tuple[dict[str, Floats], int]:
    """(runs,) time-averaged h², hs and s² of the first unit, by running the recurrence."""
    random = np.random.default_rng(8)
    runs, steps, skipped = 6000, 250, 50
    x = random.standard_normal(runs)
    h = np.zeros(runs)
    s = {"forget": np.zeros(runs), "input": np.zeros(runs)}
    sums: dict[str, Floats] = {}
    for step in range(steps):
        x = rho * x + np.sqrt(1 - rho**2) * random.standard_normal(runs)
        first, second = (z[:, 0] for z in draws(gates, runs, seed=1000 + step))
        forget, opened = 1 / (1 + np.exp(-first)), 1 / (1 + np.exp(-second))
        kept = forget / (forget + opened)
        moved = kept * (1 - kept)
        by = {"forget": moved * (1 - forget), "input": -moved * (1 - opened)}
        for name, slope in by.items():
            s[name] = kept * s[name] + slope * (h - x)
        h = kept * h + (1 - kept) * x
        if step >= skipped:
            seen = {"h": h * h} | {name: state**2 for name, state in s.items()}
            seen |= {f"h {name}": h * state for name, state in s.items()}
            for name, square in seen.items():
                sums[name] = sums.get(name, np.zeros(runs)) + square / (steps - skipped)
    return sums, runs


@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_the_moments_are_those_of_the_recurrence(rho: float) -> None:
    gates = gates_of((1.0, 1.5), (-0.5, 1.0), 0.5)
    sums, runs = simulate(gates, rho)
    found = two_gate_moments(Share(), gates, Autocorrelation.from_rho(rho))
    expected = {"h": found.second_moment} | dict(found.sensitivities)
    expected |= {f"h {name}": moment for name, moment in found.cross_moments.items()}
    assert expected.keys() == sums.keys()
    for name, value in expected.items():
        error = sums[name].std() / np.sqrt(runs)
        assert abs(sums[name].mean() - value[0]) < 4 * error, name
        assert error < 0.02 * np.sqrt(expected["h"][0] * max(value[0], expected["h"][0]))


@pytest.mark.parametrize(
    ("means", "spreads", "correlation"),
    [((1.0, -0.5), (1.5, 1.0), 0.5), ((3.0, -2.0), (0.6, 0.6), 0.0), ((0.0, 1.0), (2, 3), -0.8)],
)
def test_the_expectations_are_those_of_scipy(
    means: tuple[float, float], spreads: tuple[float, float], correlation: float
) -> None:
    """E h² = E γ² / (1 - E λ²) for a white drive, with SciPy's integrals over the plane."""
    gates = gates_of((means[0], spreads[0]), (means[1], spreads[1]), correlation)
    free = np.sqrt(1 - correlation**2)

    def mean(power: int, *, gain: bool) -> float:
        def integrand(v: float, u: float) -> float:
            y = np.logaddexp(0, -(means[0] + spreads[0] * u))
            y -= np.logaddexp(0, -(means[1] + spreads[1] * (correlation * u + free * v)))
            share = 1 / (1 + np.exp(-y if gain else y))
            return float(share**power * np.exp(-(u * u + v * v) / 2) / (2 * np.pi))

        return dblquad(integrand, -9, 9, -9, 9, epsabs=1e-10, epsrel=1e-10)[0]

    expected = mean(2, gain=True) / (1 - mean(2, gain=False))
    assert_allclose(two_gate_moments(Share(), gates).second_moment, expected, rtol=1e-7)


@dataclass(frozen=True)
class OneStays:
    """The law of one gate that is left where the other stands still."""

    which: int
    at: float
    smooth = True

    def __call__(self, z: Any) -> GateValues:
        held = np.full_like(z, self.at)
        return Share()(z, held) if self.which else Share()(held, z)

    def take(self, units: Any) -> OneStays:
        return self


@pytest.mark.parametrize("mixture", [WHITE, Autocorrelation((0.3, 0.7), (0.0, 0.97), (0.0, 0.4))])
def test_where_one_stays_the_moments_are_those_of_one_gate(mixture: Autocorrelation) -> None:
    for still in (0, 1):
        spreads = (1.4, 0.0) if still else (0.0, 1.4)
        gates = gates_of((FIRST, spreads[0]), (SECOND, spreads[1]), 0.0)
        found = two_gate_moments(Share(), gates, mixture)
        moves, stays = (FIRST, SECOND) if still else (SECOND, FIRST)
        for unit in range(FIRST.size):
            one = Preactivation(moves[unit : unit + 1], np.array([1.4]))
            expected = gated_moments(OneStays(still, float(stays[unit])), one, mixture)
            assert_allclose(found.second_moment[unit], expected.second_moment[0], rtol=1e-8)
            assert expected.sensitivities.keys() == found.sensitivities.keys()
            for name, moment in expected.sensitivities.items():
                assert_allclose(found.sensitivities[name][unit], moment[0], rtol=1e-8)


def test_units_of_all_widths_are_integrated_each_on_its_own() -> None:
    random = np.random.default_rng(2)
    size = 300
    gates = TwoPreactivations(
        Preactivation(random.normal(size=size), random.uniform(0, 3, size)),
        Preactivation(random.normal(size=size), random.uniform(0, 3, size)),
        random.uniform(-1, 1, size),
    )
    found = two_gate_moments(Share(), gates)
    for unit in (0, 17, 299):
        alone = two_gate_moments(Share(), gates.take(np.array([unit])))
        assert_allclose(found.second_moment[unit], alone.second_moment[0], rtol=1e-7)
        for name, moment in alone.sensitivities.items():
            assert_allclose(found.sensitivities[name][unit], moment[0], rtol=1e-7)


def test_the_derivatives_of_the_law_are_those_of_autodiff() -> None:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        # without 0, where |z| has no slope
        first, second = jax.numpy.asarray(FIRST) + 0.02, jax.numpy.asarray(SECOND) + 0.01
        values = Share()(first, second)
        assert_allclose(values.eigenvalue + values.gain, 1.0, rtol=1e-15)
        for argument, name in ((0, "forget"), (1, "input")):
            for field in ("eigenvalue", "gain"):
                slope = jax.grad(
                    lambda *at, field=field: getattr(Share()(*at), field).sum(), argument
                )(first, second)
                assert_allclose(getattr(values.motions[name], field), slope, rtol=1e-10, atol=1e-15)
        for name, law in LAWS.items():
            # λ falls where log(-log λ) rises.
            for argument, sign in enumerate(law.signs):
                slope = jax.grad(lambda *at, law=law: law.log_rate(*at).sum(), argument)(
                    first, second
                )
                assert (sign * slope > 0).all(), name


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_the_cross_moment_is_half_the_slope_of_the_second_moment(rho: float) -> None:
    """dE h²/db = 2 E[h s], by JAX's automatic differentiation through the whole computation."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        still = gates_of((FIRST, 1.2), (SECOND, 0.7), 0.4)

        def moment(first: Any, second: Any) -> Any:
            gates = TwoPreactivations(
                Preactivation(first, still.first.spread),
                Preactivation(second, still.second.spread),
                still.correlation,
            )
            return two_gate_moments(Share(), gates, Autocorrelation.from_rho(rho))

        means = jax.numpy.asarray(FIRST) + 0.02, jax.numpy.asarray(SECOND) + 0.01
        here = moment(*means)
        for argument, name in ((0, "forget"), (1, "input")):
            slope = jax.grad(lambda *at: moment(*at).second_moment.sum(), argument)(*means)
            assert_allclose(2 * here.cross_moments[name], slope, rtol=1e-7, atol=1e-12)
