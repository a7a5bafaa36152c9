"""A delta rule under random keys, by running it: what a memory keeps, and how large it gets."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.gates.laws import Keep, Overwrite, StepSize, Write
from memcurse_cli.theory.gates.moments import GatedMoments, Preactivation, gated_moments, mean_of

WIDTH, MEAN, SPREAD = 8, 0.4, 1.5


def keys(random: np.random.Generator, runs: int) -> np.ndarray:
    drawn = random.standard_normal((runs, WIDTH))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def strengths(random: np.random.Generator, runs: int, factor: float) -> np.ndarray:
    return factor / (1 + np.exp(-(MEAN + SPREAD * random.standard_normal(runs))))


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_what_is_left_of_a_memory(factor: float) -> None:
    """Its mean falls as E λ, its square as 1 - E[1 - λ²]."""
    random = np.random.default_rng(1)
    runs, steps = 100_000, 4
    left = np.zeros((runs, WIDTH))
    left[:, 0] = 1.0
    for _ in range(steps):
        k, beta = keys(random, runs), strengths(random, runs, factor)
        left -= (beta * (left * k).sum(1))[:, None] * k
    gate = Preactivation(np.array([MEAN]), np.array([SPREAD]))
    law = Overwrite(WIDTH, factor)
    kept = mean_of(lambda z: law(z).eigenvalue, gate)[0]
    lost = mean_of(lambda z: law(z).squared_complement, gate)[0]
    assert_allclose(left[:, 0].mean(), kept**steps, atol=4 * left[:, 0].std() / runs**0.5)
    squares = (left**2).sum(1)
    assert_allclose(squares.mean(), (1 - lost) ** steps, atol=4 * squares.std() / runs**0.5)


@pytest.mark.parametrize("rho", [0.0, 0.8])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_the_size_of_the_state(factor: float, rho: float) -> None:
    """One row of S, driven along the keys by a v of variance d, so that β v k is β on average."""
    random = np.random.default_rng(2)
    runs, steps, skipped = 4000, 300, 150
    state, x = np.zeros((runs, WIDTH)), random.standard_normal((runs, WIDTH))
    squares = np.zeros(runs)
    for step in range(steps):
        x = rho * x + np.sqrt(1 - rho**2) * random.standard_normal((runs, WIDTH))
        k, beta = keys(random, runs), strengths(random, runs, factor)
        # The drive of an entry is independent of the keys, as in the theory of the other gates.
        state += beta[:, None] * (x - (state * k).sum(1)[:, None] * k)
        if step >= skipped:
            squares += (state**2).mean(1) / (steps - skipped)
    found = gated_moments(
        Overwrite(WIDTH, factor),
        Preactivation(np.array([MEAN]), np.array([SPREAD])),
        Autocorrelation.from_rho(rho),
    )
    error = squares.std() / runs**0.5
    assert abs(squares.mean() - found.second_moment[0]) < 4 * error
    assert error < 0.02 * found.second_moment[0]


def test_a_key_of_its_own_at_every_step_writes_over_a_third() -> None:
    """In closed form under white drives: d E β² / E β(2-β), a third of d at β = 1/2."""
    found = gated_moments(Overwrite(64), Preactivation(np.zeros(1), np.zeros(1)))
    assert_allclose(found.second_moment, 64 / 3, rtol=1e-14)


@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_a_decay_beside_what_is_overwritten(rho: float) -> None:
    """A gated delta rule: rows of S by S' = α S (I - β k kᵀ) + β x, and s = dS/db of α's bias."""
    random = np.random.default_rng(3)
    runs, steps, skipped = 4000, 300, 150
    rate = np.array([0.02])
    state, moved = np.zeros((2, runs, WIDTH))
    x = random.standard_normal((runs, WIDTH))
    squares = np.zeros((3, runs))
    law = StepSize(rate, writes=False)
    for step in range(steps):
        x = rho * x + np.sqrt(1 - rho**2) * random.standard_normal((runs, WIDTH))
        k, beta = keys(random, runs), strengths(random, runs, 1.0)
        values = law((0.5 + random.standard_normal(runs))[:, None])
        alpha, slope = values.eigenvalue, values.motions["dt_bias"].eigenvalue
        left, moved_left = (of - (beta * (of * k).sum(1))[:, None] * k for of in (state, moved))
        moved = alpha * moved_left + slope * left
        state = alpha * left + beta[:, None] * x
        if step >= skipped:
            for square, product in zip(squares, (state**2, state * moved, moved**2), strict=True):
                square += product.mean(1) / (steps - skipped)
    found = gated_moments(
        law,
        Preactivation(np.array([0.5]), np.ones(1)),
        Autocorrelation.from_rho(rho),
        Write(parameter="strength", width=WIDTH),
        Preactivation(np.array([MEAN]), np.array([SPREAD])),
    )
    expected = (
        found.second_moment[0],
        found.cross_moments["dt_bias"][0],
        found.sensitivities["dt_bias"][0],
    )
    for square, value in zip(squares, expected, strict=True):
        assert abs(square.mean() - value) < 4 * square.std() / runs**0.5
        assert square.std() / runs**0.5 < 0.03 * abs(value)


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_the_cross_moment_by_the_strength_is_half_the_slope(rho: float) -> None:
    """dE S²/db = 2 E[S s] of a β that moves both what is kept and what is written."""
    step = 1e-5

    def at(bias: float) -> GatedMoments:
        return gated_moments(
            StepSize(np.array([0.1]), writes=False),
            Preactivation(np.array([-1.0]), np.ones(1)),
            Autocorrelation.from_rho(rho),
            Write(parameter="strength", factor=2.0, width=5.0),
            Preactivation(np.array([bias]), np.array([0.8])),
        )

    slope = (at(0.3 + step).second_moment - at(0.3 - step).second_moment) / (2 * step)
    assert_allclose(2 * at(0.3).cross_moments["strength"], slope, rtol=1e-8)


def test_a_decay_of_one_is_the_delta_rule_itself() -> None:
    gate = Preactivation(np.array([MEAN]), np.array([SPREAD]))
    still = Preactivation(np.array([800.0]), np.zeros(1))
    found = gated_moments(
        Keep(), still, Autocorrelation.from_rho(0.4), Write(factor=2.0, width=WIDTH), gate
    )
    alone = gated_moments(Overwrite(WIDTH, 2.0), gate, Autocorrelation.from_rho(0.4))
    assert_allclose(found.second_moment, alone.second_moment, rtol=1e-13)


def test_keys_that_vanish_forget_nothing() -> None:
    values = Overwrite(np.inf, 2.0)(np.array([0.3]))
    assert_allclose([values.eigenvalue, values.complement], [[1.0], [0.0]], rtol=0)
    found = gated_moments(Overwrite(np.inf), Preactivation(np.zeros(1), np.ones(1)))
    assert found.second_moment == np.inf
