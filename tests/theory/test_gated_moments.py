"""The moments under gates drawn at every step, against simulation, autodiff and known limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm
from theory.gates import LAWS, MIXTURES, cross_moments

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.gates.laws import (
    LOGISTIC,
    Clipped,
    Exponent,
    Exponential,
    GateLaw,
    Keep,
    Mix,
    Overwrite,
    StepSize,
    Write,
)
from memcurse_cli.theory.gates.moments import (
    GatedMoments,
    Preactivation,
    gated_moments,
    mean_of,
    normal_nodes,
)
from memcurse_cli.theory.moments import moments
from memcurse_cli.theory.sensitivity import parameter_sensitivity

MEANS = np.array([-3.0, -0.5, 0.1, 1.2, 4.0])


def unit(mean: float, spread: float) -> Preactivation:
    return Preactivation(np.array([mean]), np.array([spread]))


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("name", LAWS)
def test_without_spread_it_is_the_theory_of_a_constant_eigenvalue(name: str, mixture: str) -> None:
    law, autocorrelation = LAWS[name], MIXTURES[mixture]
    values = law(MEANS)
    # 1 - λ is exact in the laws, and log λ is what the theory of a constant λ takes.
    lost = np.minimum(values.complement, 0.5)
    logs = np.where(values.complement < 0.5, np.log1p(-lost), np.log(values.eigenvalue))
    expected, log_gain = moments(logs, autocorrelation), np.log(values.gain).astype(complex)
    for spread in (0.0, 1e-7):
        found = gated_moments(law, Preactivation(MEANS, np.full(5, spread)), autocorrelation)
        assert_allclose(found.second_moment, values.gain**2 * expected.second_moment, rtol=1e-10)
        assert found.sensitivities.keys() == values.motions.keys()
        for parameter, motion in values.motions.items():
            by_gain = (motion.gain / values.gain).astype(complex)
            sensitivity, _ = parameter_sensitivity(
                expected, log_gain, motion.eigenvalue.astype(complex), by_gain
            )
            # A constant input that γ = 1 - λ passes on is not moved: there d² E h² and the rest
            # cancel.
            slope = motion.eigenvalue**2 / values.complement**2
            slope = np.where(slope > 0, slope, 1.0)  # what moves the gain alone
            assert_allclose(
                found.sensitivities[parameter] / slope, sensitivity / slope, rtol=1e-10, atol=1e-10
            )


def simulate(
    law: GateLaw,
    gate: tuple[float, float],
    pole: complex,
    write: Write | None,
    written: tuple[float, float],
) -> dict[str, np.ndarray]:
    """(runs, ) time-averaged h², s² and hs of every parameter, by running the recurrence.

    The drive x has R(Δ) = Re pole^Δ. A delta rule takes β k kᵀ of a row of its memory away, with a
    key k of any direction.
    """
    random = np.random.default_rng(11)
    width = 1 if write is None or math.isinf(write.width) else int(write.width)
    runs, steps, skipped = 4000, 300, 150
    drive = random.standard_normal((runs, width)) + 1j * random.standard_normal((runs, width))
    h = np.zeros((runs, width))
    s: dict[str, np.ndarray] = {}
    sums: dict[str, np.ndarray] = {}
    for step in range(steps):
        noise = random.standard_normal(h.shape) + 1j * random.standard_normal(h.shape)
        drive = pole * drive + np.sqrt(1 - abs(pole) ** 2) * noise
        x = drive.real
        values = law((gate[0] + gate[1] * random.standard_normal(runs))[:, None])
        motions = dict(values.motions)
        kept, gain, lost = values.eigenvalue, values.gain, np.zeros((runs, 1))
        key = np.ones((runs, 1))
        if write is not None:
            z = written[0] + written[1] * random.standard_normal(runs)[:, None]
            opened, slope = write.factor * LOGISTIC(z).value, write.factor * LOGISTIC(z).slope
            if width > 1:
                key = random.standard_normal(x.shape)
                key /= np.linalg.norm(key, axis=1, keepdims=True)
                lost = opened
            motions = {name: of._replace(gain=of.gain * opened) for name, of in motions.items()}
            gain, by_write = gain * opened, gain * slope

        def left(of: np.ndarray, lost: np.ndarray = lost, key: np.ndarray = key) -> np.ndarray:
            return of - lost * (of * key).sum(axis=1, keepdims=True) * key

        for name, (d, e) in motions.items():
            s[name] = kept * left(s.get(name, np.zeros_like(x))) + d * left(h) + e * x
        if write is not None:
            overwritten = slope * (h * key).sum(axis=1, keepdims=True) * key * (width > 1)
            before = s.get(write.parameter, np.zeros_like(x))
            s[write.parameter] = kept * (left(before) - overwritten) + by_write * x
        h = kept * left(h) + gain * x
        if step >= skipped:
            products = {"h": h * h} | {name: of * of for name, of in s.items()}
            products |= {f"h {name}": h * of for name, of in s.items()}
            for name, product in products.items():
                mean = product.mean(axis=1) / (steps - skipped)
                sums[name] = sums.get(name, np.zeros(runs)) + mean
    return sums


@pytest.mark.parametrize(("rho", "frequency"), [(0.0, 0.0), (0.7, 0.6)])
@pytest.mark.parametrize(
    ("law", "gate", "write", "written"),
    [
        (Mix(), (1.0, 1.5), None, (0.0, 0.0)),
        (Keep(), (0.5, 1.2), Write(), (-0.5, 1.0)),
        (StepSize(np.array([1.5])), (-1.0, 1.0), None, (0.0, 0.0)),
        (Exponent(np.array([2.0]), np.array([0.6])), (0.3, 1.5), Write(), (0.2, 0.8)),
        (StepSize(np.array([0.02]), writes=False), (0.5, 1.0), Write(width=8), (0.4, 1.5)),
        (Keep(), (3.0, 0.5), Write(factor=2.0, width=8), (0.4, 1.5)),
    ],
)
def test_against_simulation(
    law: GateLaw,
    gate: tuple[float, float],
    write: Write | None,
    written: tuple[float, float],
    rho: float,
    frequency: float,
) -> None:
    sums = simulate(law, gate, rho * np.exp(1j * frequency), write, written)
    of = None if write is None else unit(*written)
    cosine = Autocorrelation((1.0,), (rho,), (frequency,))
    found = gated_moments(law, unit(*gate), cosine, write, of)
    expected = {"h": found.second_moment[0]}
    for name, sensitivity in found.sensitivities.items():
        expected[name] = sensitivity[0]
        expected[f"h {name}"] = cross_moments(found)[name][0]
    assert expected.keys() == sums.keys()
    for name, value in expected.items():
        error = sums[name].std() / np.sqrt(sums[name].size)
        assert abs(sums[name].mean() - value) < 4 * error, name
        assert error < 0.05 * np.sqrt(expected["h"] * max(value, expected["h"]))


def test_a_delta_rule_without_a_decay_is_a_law_of_its_own() -> None:
    """In closed form d E β² / E β(2-β) under white drives, a third of d at β = 1/2."""
    gate, of = unit(0.4, 1.5), Autocorrelation.from_rho(0.4)
    beside = gated_moments(Keep(), unit(800.0, 0.0), of, Write(factor=2.0, width=8), gate)
    alone = gated_moments(Overwrite(8, 2.0), gate, of)
    assert_allclose(beside.second_moment, alone.second_moment, rtol=1e-13)
    third = gated_moments(Overwrite(64), unit(0.0, 0.0))
    assert_allclose(third.second_moment, 64 / 3, rtol=1e-14)
    assert gated_moments(Overwrite(np.inf), gate).second_moment == np.inf


@pytest.mark.parametrize(
    ("name", "write", "rho"),
    [
        ("step", Write(), 0.6),
        ("offset", Write(), 1.0),
        ("offset", Write(factor=2.0, width=5.0), 0.6),
    ],
)
def test_the_cross_moment_is_half_the_slope_of_the_second_moment(
    name: str, write: Write, rho: float
) -> None:
    """dE h²/db = 2 E[h s], by JAX's automatic differentiation through the whole computation."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        law, spread = LAWS[name], np.full(5, 0.8)
        means = MEANS, np.linspace(-1.0, 0.9, 5)

        def moment(mean: Any, written: Any) -> GatedMoments:
            gates = Preactivation(mean, spread), Preactivation(written, spread)
            return gated_moments(law, gates[0], Autocorrelation.from_rho(rho), write, gates[1])

        slopes = jax.jit(jax.grad(lambda *at: moment(*at).second_moment.sum(), (0, 1)))(*means)
        cross = cross_moments(moment(*means))
        for slope, parameter in zip(slopes, (next(iter(cross)), "input"), strict=True):
            assert_allclose(2 * cross[parameter], slope, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("spread", [0.01, 0.5, 2.0, 5.0, 20.0])
@pytest.mark.parametrize("name", LAWS)
def test_the_nodes_are_enough(name: str, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    law = LAWS[name]
    gate = Preactivation(np.array([-8.0, -0.5, 0.0, 3.0, 12.0]), np.full(5, spread))
    found = gated_moments(law, gate, MIXTURES["half"])
    monkeypatch.setattr("memcurse_cli.theory.gates.moments.DIGITS", 150.0)
    monkeypatch.setattr("memcurse_cli.theory.gates.moments.LARGEST_STEP", 0.1)
    monkeypatch.setattr("memcurse_cli.theory.gates.moments.TAIL", 14.0)
    finer = gated_moments(law, gate, MIXTURES["half"])
    assert_allclose(found.second_moment, finer.second_moment, rtol=1e-11)
    for parameter, sensitivity in finer.sensitivities.items():
        # The sensitivity of a state that has died out (λ = e⁻⁹⁶) is small beyond any meaning.
        assert_allclose(found.sensitivities[parameter], sensitivity, rtol=1e-11, atol=1e-30)


def test_log_normal_moments_in_the_far_tail() -> None:
    """Where σ(-z) is e⁻ᶻ, its mean is that of a log-normal."""
    gate = unit(60.0, 5.0)
    found = mean_of(lambda z: LOGISTIC(z).complement ** 2, gate)
    assert found == pytest.approx(np.exp(-2 * 60.0 + 2 * 25.0), rel=1e-9)


def test_hard_sigmoids() -> None:
    """The mean of a clipped line of a Gaussian, in closed form."""
    mean, spread = 0.7, 2.0
    law = Mix(opening=Clipped(0.2, 0.5))
    nodes, weights = normal_nodes(np.array([mean]), np.array([spread]), law.smooth)
    found = weights @ law((mean + spread * nodes)[:, None]).eigenvalue[:, 0]
    line = norm(0.2 * mean + 0.5, 0.2 * spread)
    low, high = line.cdf(0.0), line.cdf(1.0)
    inside = (0.2 * mean + 0.5) * (high - low) - (0.2 * spread) ** 2 * (line.pdf(1) - line.pdf(0))
    assert found == pytest.approx(inside + 1 - high, rel=1e-5)
    # At z = 5 it stays at 1: nothing is forgotten and the state has no stationary size.
    stuck = gated_moments(Keep(Clipped(0.2, 0.5)), unit(5.0, 0.0))
    assert np.isinf(stuck.second_moment[0])
    assert np.isinf(stuck.sensitivities["forget"][0])


@pytest.mark.parametrize("chunk", [700, 1 << 17])
def test_states_that_share_a_gate_are_as_each_on_its_own(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memcurse_cli.theory.gates.moments.CHUNK", chunk)
    random = np.random.default_rng(5)
    law = StepSize(np.exp(random.uniform(-3.0, 1.4, 72)))
    gate = Preactivation(  # that three states of a channel share
        np.repeat(random.uniform(-5.0, 2.0, 24), 3), np.repeat(random.uniform(0.02, 4.0, 24), 3)
    )
    whole = gated_moments(law, gate, MIXTURES["half"])
    for unit in range(72):
        only = slice(unit, unit + 1)
        alone = gated_moments(law.take(only), gate.take(only), MIXTURES["half"])
        # h s changes its sign, so that it is measured by what it may be at most.
        scale = np.maximum(np.abs(alone.figures), 1e-30)
        held, squares = alone.second_moment[0], alone.sensitivities
        scale[1:-2:2, 0] = [math.sqrt(held * squares[name][0]) for name in squares]
        assert_allclose(whole.figures[:, only] / scale, alone.figures / scale, atol=1e-12)


def test_a_state_that_keeps_nothing_has_moments_under_a_cosine() -> None:
    """At λ = e⁻⁷² the mean of 1 - λ may round to more than 1; E h² is E γ² there."""
    gate = Preactivation(np.linspace(3.5, 4.5, 40), np.geomspace(0.003, 0.3, 40))
    found = gated_moments(StepSize(np.full(40, 18.0)), gate, MIXTURES["cosine"])
    steps = mean_of(lambda z: np.log1p(np.exp(z)) ** 2, gate)
    assert_allclose(found.second_moment, steps, rtol=1e-13)
    slopes = mean_of(lambda z: LOGISTIC(z).value ** 2, gate)
    assert_allclose(found.sensitivities["dt_bias"], slopes, rtol=1e-13)


@pytest.mark.parametrize("spread", [0.5, 6.0, 30.0])
def test_an_exponential_write_has_log_normal_moments(spread: float) -> None:
    """E e^{2z} = e^{2b + 2σ²}, whose weight is 2σ standard deviations off; ∞ beyond all floats."""
    kept = 1 / (1 + math.exp(-1.0))
    gates = unit(1.0, 0.0), WHITE, Write(Exponential()), unit(-0.5, spread)
    found = gated_moments(Keep(), *gates)
    exponent = -1.0 + 2 * spread**2
    square = math.exp(exponent) if exponent < 700 else math.inf
    assert_allclose(found.second_moment, square / (1 - kept**2), rtol=1e-12)
    assert_allclose(found.sensitivities["input"], square / (1 - kept**2), rtol=1e-12)


@pytest.mark.parametrize("bias", [4.0, 14.0])
def test_a_slow_gate_off_resonance_keeps_its_digits(bias: float) -> None:
    """Where the products of the gate would cancel: 6 % off at a bias of 12."""
    source = Autocorrelation((1.0,), (1.0,), (1.0,))
    found = gated_moments(Keep(), unit(bias, 0.0), source)
    log = np.array([-np.log1p(math.exp(-bias))])
    slope = math.exp(log[0]) / (1 + math.exp(bias))
    expected = moments(log, source).sensitivity[0] * slope**2
    assert found.sensitivities["forget"][0] == pytest.approx(expected, rel=1e-12, abs=0)
