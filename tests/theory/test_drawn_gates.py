"""Drawn gates: bands and moments by brute force, closed forms, one-gate quadrature and autodiff."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.stats import norm
from theory.gates import JOINT, cross_moments

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.gates.laws import (
    LOGISTIC,
    Exponential,
    JointLaw,
    Keep,
    TrapezoidStep,
    Write,
)
from memcurse_cli.theory.gates.moments import (
    AIM,
    REPLICATES,
    Drawn,
    JointPreactivations,
    OwnState,
    Preactivation,
    averaged_variance,
    drawn_gates,
    gated_moments,
    run_own_states,
)
from memcurse_cli.theory.moments import moments

Floats = NDArray[np.float64]

SHARES = (0.05, 0.1587, 0.8413, 0.95)
COSINE = Autocorrelation((1.0,), (0.9,), (0.7,))
MIXTURE = Autocorrelation((0.3, 0.2, 0.5), (0.0, 0.97, 0.9), (0.0, 0.0, 0.7))
PARAMETERS = {"share": ["forget", "input"], "turn": []}
LAWS = {name: (law, PARAMETERS.get(name, ["dt_bias"])) for name, law in JOINT.items()}
MEANS = np.array([[-3.0, 0.0], [-1.0, 1.0], [0.3, -2.0], [2.0, -0.5], [0.5, 0.2]])


def gates_of(
    law: JointLaw,
    means: Any = MEANS,
    spreads: Sequence[float] = (1.0, 0.8),
    correlation: float = 0.4,
    others: Sequence[float] = (1.1, 0.9),
    weight: float = 0.0,
) -> JointPreactivations:
    """Two correlated pre-activations, and of a trapezoid two more that are independent."""
    means = np.asarray(means, dtype=float)
    count = 4 if isinstance(law, TrapezoidStep) else 2
    spread = np.array([*spreads, *others][:count])
    correlations = np.eye(count)
    correlations[0, 1] = correlations[1, 0] = correlation
    covariance = np.tile(spread[:, None] * correlations * spread, (len(means), 1, 1))
    means = np.pad(means, ((0, 0), (0, count - 2)))
    means[:, 2:3] = weight
    return JointPreactivations(means, covariance)


def found_of(name: str, part: Autocorrelation = WHITE, **gates: Any) -> Drawn:
    law, parameters = LAWS[name]
    return drawn_gates(law, gates_of(law, **gates), part, SHARES, parameters=parameters)


def log_modulus_of(name: str, first: Floats, second: Floats) -> Floats:
    """log|λ| as the libraries write it."""
    if name == "turn":
        return -np.log1p(np.exp(-np.hypot(first, second)))
    if name == "share":
        forget, opened = 1 / (1 + np.exp(-first)), 1 / (1 + np.exp(-second))
        return np.log(forget / (forget + opened))
    rate = np.log1p(np.exp(second))
    if name != "softplus":
        rate = np.maximum(second, 0) + 1 / (1 - np.minimum(second, 0))
    return -np.log1p(np.exp(first)) * np.maximum(rate, 0.4 if name == "high floor" else 1e-4)


@pytest.mark.parametrize(
    ("spreads", "correlation"), [((0.5, 2.0), 0.7), ((4.0, 4.0), -1.0), ((2.0, 0.0), 0)]
)
@pytest.mark.parametrize("name", LAWS)
def test_the_quantiles_are_those_of_random_gates(
    name: str, spreads: tuple[float, float], correlation: float
) -> None:
    u, v = np.random.default_rng(5).standard_normal((2, 200_000, 1))
    second = correlation * u + math.sqrt(1 - correlation**2) * v
    seen = log_modulus_of(name, MEANS[:, 0] + spreads[0] * u, MEANS[:, 1] + spreads[1] * second)
    found = found_of(name, spreads=spreads, correlation=correlation)
    for share, at in zip(SHARES, found.log_moduli, strict=True):
        # λ of a rate at its floor has an atom.
        below, to = (seen < at - 1e-9).mean(axis=0), (seen <= at + 1e-9).mean(axis=0)
        assert (below < share + 0.005).all()
        assert (to > share - 0.005).all()


def unrolled(
    law: TrapezoidStep, gates: JointPreactivations, kinds: Floats, part: Autocorrelation, runs: int
) -> tuple[Floats, Floats]:
    """E|h|², Re E hs* and E|s|² of a head and their errors, by JAX's jvp through the recurrence."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    steps, skipped = 320, 120
    (rho,), (frequency,) = part.rhos, part.frequencies
    random = np.random.default_rng(3)
    # Every kind of state at its share of the runs.
    kind = np.searchsorted(np.cumsum(kinds), (np.arange(runs) + 0.5) / runs)

    # The real part of a process that turns has ρ^Δ cos(ωΔ).
    drive = random.normal(size=(steps, runs)) + 1j * random.normal(size=(steps, runs))
    drive[1:] *= np.sqrt(1 - rho**2)
    for time in range(1, steps):
        drive[time] += rho * np.exp(1j * frequency) * drive[time - 1]
    drive = drive.real.astype(complex)
    factor = np.linalg.cholesky(gates.covariance[0] + 1e-12 * np.eye(4))
    z = gates.mean[0] + random.normal(size=(steps, runs, 4)) @ factor.T
    turning = np.sqrt(gates.covariance[:, 3, 3])[kind] * random.normal(size=(steps, runs))
    floor = law.floor
    if law.softplus_rate:
        rate = np.log1p(np.exp(z[..., 1]))
    else:
        rate = np.maximum(z[..., 1], 0) + 1 / (1 - np.minimum(z[..., 1], 0))
    sequence = (
        z[..., 0] - gates.mean[0, 0],
        np.maximum(rate, floor),
        1 / (1 + np.exp(-z[..., 2])),
        np.pi * np.tanh(turning),
    )

    def run(bias: Any) -> Any:
        def step(carry: Any, now: Any) -> Any:
            state, last = carry
            off, rate, weight, theta, drive = now
            size = jax.nn.softplus(bias + off)
            kept = jnp.exp(-rate * size - 1j * theta * size)
            state = kept * (state + (1 - weight) * size * last) + weight * size * drive
            return (state, drive), state

        empty = jnp.zeros(runs, dtype=complex)
        return jax.lax.scan(step, (empty, empty), (*sequence, drive))[1]

    with jax.enable_x64(True):
        states, changes = jax.jvp(run, (float(gates.mean[0, 0]),), (1.0,))
    h, s = np.asarray(states)[skipped:], np.asarray(changes)[skipped:]
    of_runs = np.array([np.abs(h) ** 2, (h * s.conj()).real, np.abs(s) ** 2]).mean(axis=1)
    return of_runs.mean(axis=1), of_runs.std(axis=1) / np.sqrt(runs)


@pytest.mark.parametrize(
    ("name", "part", "bias", "spreads", "correlation", "angles"),
    [
        ("heavy tail", COSINE, -1.0, (1.0, 0.8), 0.5, (0.0,)),
        ("softplus", Autocorrelation.from_rho(0.8), 0.5, (1.5, 1.5), -0.6, (0.2, 1.0, 3.0, 0.0)),
        ("high floor", WHITE, 0.6, (0.3, 0.2), 0.0, (30.0,)),
    ],
)
def test_a_trapezoid_has_the_moments_of_its_recurrence(
    name: str,
    part: Autocorrelation,
    bias: float,
    spreads: tuple[float, float],
    correlation: float,
    angles: tuple[float, ...],
) -> None:
    law, parameters = LAWS[name]
    assert isinstance(law, TrapezoidStep)
    gates = gates_of(law, [[bias, 0.0]] * len(angles), spreads, correlation)
    gates.covariance[:, 3, 3] = np.square(angles)
    gates.covariance[:, 2, 0] = gates.covariance[:, 0, 2] = 0.3 * spreads[0]
    kinds = np.full(len(angles), 1 / len(angles))
    found = drawn_gates(law, gates, part, SHARES, parameters=parameters, kinds=tuple(kinds))
    held, mixed = found.moments.second_moment, cross_moments(found.moments)
    moved = found.moments.sensitivities
    seen, error = unrolled(law, gates, kinds, part, runs=2500)
    expected = np.array([held[0], mixed["dt_bias"][0], moved["dt_bias"][0]])
    assert (np.abs(expected - seen) < 4 * error + 2 * found.error * seen).all()
    assert (error < 0.04 * expected).all()


@pytest.mark.parametrize("part", [WHITE, MIXTURE], ids=["white", "mixture"])
@pytest.mark.parametrize("name", ["turn", "share"])
def test_the_second_moment_is_that_of_mean_products(name: str, part: Autocorrelation) -> None:
    """h = Σ γ_k λ_1…λ_(k-1) x: of two products the shorter squares, the rest is a mean."""
    random = np.random.default_rng(3)
    a = MEANS + random.standard_normal((400_000, 1, 2)) * (1.0, 0.8) @ [[1.0, 0.4], [0.0, 0.9]]
    spreads, correlation = (1.0, math.hypot(0.4, 0.72)), 0.4 / math.hypot(0.4, 0.72)
    kept = np.exp(log_modulus_of(name, a[..., 0], a[..., 1])).astype(complex)
    gain = 1 - kept if name == "share" else np.ones_like(kept)
    if name == "turn":
        kept *= np.exp(1j * np.arctan2(a[..., 1], a[..., 0]))
    lag = np.arange(400)[:, None]
    before = (kept.mean(axis=0) ** lag * part.at(lag + 1.0)).sum(axis=0) * gain.mean(axis=0)
    expected = part.variance * (gain**2).mean(axis=0)
    expected = (expected + 2 * (before * (kept * gain).mean(axis=0))).real
    expected /= 1 - (np.abs(kept) ** 2).mean(axis=0)
    found = found_of(name, part, spreads=spreads, correlation=correlation)
    assert_allclose(found.moments.second_moment, expected, rtol=0.01)


@pytest.mark.parametrize(("mean", "spread"), [(6.0, 0.5), (15.0, 1.5), (30.0, 2.0)])
def test_an_angle_that_stays_is_a_real_gate(mean: float, spread: float) -> None:
    """1 - λ is 1e-13 at a mean of 30, where no difference from 1 has a digit of it."""
    one = np.ones(1)
    for part in (WHITE, MIXTURE):
        expected = gated_moments(Keep(), Preactivation(mean * one, spread * one), part)
        found = found_of("turn", part, means=[[mean, 0.0]], spreads=(spread, 0.0), correlation=0.0)
        assert_allclose(found.moments.second_moment, expected.second_moment, rtol=AIM)


@pytest.mark.parametrize(
    "part", [WHITE, MIXTURE, Autocorrelation((0.5, 0.5), (1, 1), (0.0, 1.0))], ids=str
)
@pytest.mark.parametrize("name", LAWS)
def test_gates_that_stand_still_are_a_constant_eigenvalue(name: str, part: Autocorrelation) -> None:
    law, parameters = LAWS[name]
    means = np.concatenate([MEANS, [[-9.0, 0.5]]])  # slow in a trapezoid
    gates = gates_of(law, means, weight=60.0).still  # nothing comes in a step later
    found = drawn_gates(law, gates, part, SHARES, parameters=parameters)
    values = law(gates.mean)
    assert found.error == 0
    assert_allclose(found.log_moduli, np.tile(values.log_eigenvalue.real, (4, 1)), rtol=1e-14)
    gain, expected = np.exp(values.log_gain), moments(values.log_eigenvalue, part)
    assert_allclose(found.moments.second_moment, gain**2 * expected.second_moment, rtol=1e-9)
    for parameter in parameters:
        by_eigenvalue, by_gain = values.nominal.motions[parameter]
        squared = gain**2 * np.abs(by_eigenvalue) ** 2 * expected.sensitivity
        squared += 2 * gain * by_gain * (np.conj(by_eigenvalue) * expected.cross_moment).real
        squared += by_gain**2 * expected.second_moment
        assert_allclose(found.moments.sensitivities[parameter], squared, rtol=1e-6)


@pytest.mark.parametrize("name", LAWS)
def test_far_out_the_figures_are_no_nan(name: str) -> None:
    far = np.array([-1e70, -800.0, -40.0, 40.0, 800.0, 1e70])
    for spread in (1e4, 1e70):
        for correlation in (0.0, -1.0):
            found = found_of(
                name,
                means=np.stack([far, far[::-1]], axis=1),
                spreads=(spread, spread),
                correlation=correlation,
            )
            assert not np.isnan(found.log_moduli).any()
            assert (np.diff(found.log_moduli, axis=0) >= 0).all()
            for each in (found.moments.second_moment, *found.moments.sensitivities.values()):
                assert (each >= 0).all()


def test_a_gate_that_never_forgets_diverges() -> None:
    for spread in (0.0, 0.5):
        held = found_of("turn", MIXTURE, means=[[800.0, 0.0], [2.0, 0.0]], spreads=(spread, spread))
        assert np.isinf(held.moments.second_moment).tolist() == [True, False]


@pytest.mark.parametrize("own", [0.0, 1.5])
def test_gates_that_see_their_own_state_are_those_of_a_long_run(own: float) -> None:
    """``c' = σ(z) c + (1 - σ(z)) u`` with z = z₀ + v c, correlated with u."""
    mean, covariance = np.array([0.5, 0.0]), np.array([[1.0, 0.6], [0.6, 1.44]])
    units = 64
    gates = JointPreactivations(np.tile(mean, (units, 1)), np.tile(covariance, (units, 1, 1)))

    def step(z: Floats, c: Floats, some: NDArray[np.intp]) -> OwnState:
        kept = z[..., 0] + own * c
        opened = LOGISTIC(kept).value
        return OwnState(kept, opened * c + (1 - opened) * z[..., 1])

    found, shown = run_own_states(lambda _: gates, step)
    assert shown is None
    assert found.shape == (REPLICATES, 1000, units)
    random = np.random.default_rng(4)
    c, seen = np.zeros(4000), []
    for _ in range(300):
        first, second = random.multivariate_normal(mean, covariance, 4000).T
        kept = 1 / (1 + np.exp(-first - own * c))
        c = kept * c + (1 - kept) * second
        seen.append(kept)
    places = LOGISTIC(np.quantile(found, SHARES)).value
    assert_allclose(places, np.quantile(seen[100:], SHARES), atol=0.01)
    still = LOGISTIC(0.5 + norm.ppf(SHARES)).value
    assert (np.abs(places - still) < 0.005).all() == (own == 0)


def mean_squares(
    means: tuple[float, float], spreads: tuple[float, float], of: Autocorrelation, units: int = 256
) -> np.ndarray:
    forget, opened = (
        Preactivation(np.full(units, mean), np.full(units, spread))
        for mean, spread in zip(means, spreads, strict=True)
    )
    return averaged_variance(Keep(), forget, Write(Exponential()), opened, of)


@pytest.mark.parametrize("of", [WHITE, MIXTURE], ids=["white", "mixture"])
@pytest.mark.parametrize("spreads", [(0.5, 0.5), (0.3, 4.0)])
def test_a_weighted_mean_has_its_double_sum(
    spreads: tuple[float, float], of: Autocorrelation
) -> None:
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
    mine = mean_squares((1.5, -0.7), spreads, of)
    error = np.hypot(drawn.std() / np.sqrt(runs), mine.std() / np.sqrt(mine.size))
    assert abs(mine.mean() - drawn.mean()) < 4 * error
    assert error < 0.02 * drawn.mean()


def test_limits_of_weighted_means() -> None:
    """m' = λ m + (1-λ) u once n has filled; what both take in has no scale."""
    kept = 1 / (1 + np.exp(-2.0))
    still = mean_squares((2.0, 0.4), (0.0, 0.0), WHITE)
    assert_allclose(still, (1 - kept) / (1 + kept), rtol=1e-10)
    assert_allclose(mean_squares((2.0, 0.0), (1.0, 2.0), Autocorrelation.from_rho(1.0), 5), 1.0)
    one, other = (mean_squares((1.0, mean), (1.0, 1.0), MIXTURE, 40) for mean in (0.0, 300.0))
    assert_allclose(one, other, rtol=1e-9)
