"""Cells that are run, against JAX's own tangents, closed forms and matrices written out."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.duals import Dual, Weight, join, sigmoid, tanh
from memcurse_cli.theory.simulation import (
    MEMORY,
    TRIALS,
    CellDynamics,
    Estimate,
    Signs,
    drawn_inputs,
    remembered,
    run,
    stability_rate,
)

UNITS, WIDTH, STEPS, SEQUENCES = 5, 3, 12, 4
GATES = "ifgo"


def lstm_weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = {"U": (UNITS, WIDTH), "W": (UNITS, UNITS), "b": (UNITS,)}
    return {
        f"{name}{gate}": 0.6 * random.standard_normal(shape)
        for gate, (name, shape) in itertools.product(GATES, shapes.items())
    }


def lstm(weights: dict[str, np.ndarray]) -> CellDynamics:
    def begin(draw):
        w = {name: draw(name, values) for name, values in weights.items()}

        def step(state, x):
            h, c = state[..., :UNITS], state[..., UNITS:]
            i, f, g, o = (x @ w["U" + k].T + h @ w["W" + k].T + w["b" + k] for k in GATES)
            c = sigmoid(f) * c + sigmoid(i) * tanh(g)
            return join([sigmoid(o) * tanh(c), c])

        return step

    return CellDynamics(2 * UNITS, slice(UNITS), WIDTH, {name: name for name in weights}, begin)


def last_state(weights: dict[str, jax.Array], xs: jax.Array) -> jax.Array:
    h = c = jnp.zeros(UNITS)
    for x in xs:
        i, f, g, o = (weights["U" + k] @ x + weights["W" + k] @ h + weights["b" + k] for k in GATES)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h


def test_the_tangents_of_an_lstm_are_those_of_jax() -> None:
    weights = lstm_weights()
    xs = np.random.default_rng(1).standard_normal((STEPS, SEQUENCES, WIDTH))
    drawn: dict[str, Dual | Weight] = {}
    signs = Signs(SEQUENCES, np.random.default_rng(2))

    def draw(name: str, values: np.ndarray) -> Dual | Weight:
        drawn[name] = signs(name, values)
        return drawn[name]

    step = lstm(weights).begin(draw)
    state = Dual(np.zeros((SEQUENCES, 2 * UNITS)))
    for x in xs:
        state = step(state, x)
    for name, sequence in itertools.product(weights, range(SEQUENCES)):
        moved = drawn[name].tangents[name]
        along = (
            np.einsum("rm,rn->mn", *(each[sequence] for each in moved))
            if isinstance(drawn[name], Weight)
            else moved[sequence]
        )
        with jax.enable_x64(True):
            value, tangent = jax.jvp(
                lambda one, name=name, sequence=sequence: last_state(
                    {**weights, name: one}, xs[:, sequence]
                ),
                (jnp.asarray(weights[name]),),
                (jnp.asarray(along),),
            )
        np.testing.assert_allclose(state.value[sequence, :UNITS], value, atol=1e-14)
        found = state.tangents[name][sequence, :UNITS]
        np.testing.assert_allclose(found, tangent, rtol=1e-10, atol=1e-13)


def test_random_signs_of_low_rank_are_uncorrelated() -> None:
    """E (Σ_ij J_ij s_ij)² = ‖J‖² for a J that is as coherent as can be."""
    signs = Signs(200_000, np.random.default_rng(3))("W", np.zeros((3, 4)))
    left, right = signs.tangents["W"]
    image = np.einsum("sr,sr->s", left.sum(axis=2), right.sum(axis=2))
    estimate = Estimate.mean(image**2)
    assert abs(estimate.value - 12) < 4 * estimate.error < 1


@pytest.mark.parametrize(
    "autocorrelation", [WHITE, Autocorrelation((0.7, 0.5), (0.9, 0.4), (0.0, 1.1))]
)
def test_inputs_have_the_autocorrelation_that_is_declared(autocorrelation: Autocorrelation) -> None:
    drawn = drawn_inputs(autocorrelation, (20_000, 1), np.random.default_rng(4))
    xs = np.stack([next(drawn)[:, 0] for _ in range(6)])
    for lag in range(6):
        found = Estimate.mean(xs[0] * xs[lag])
        expected = sum(
            weight * rho**lag * math.cos(frequency * lag)
            for weight, rho, frequency in autocorrelation.parts
        )
        assert abs(found.value - expected) < 4 * found.error


def linear(matrix: np.ndarray) -> CellDynamics:
    def begin(draw):
        weight = draw("A", matrix)
        return lambda h, x: h @ weight.T + x

    return CellDynamics(len(matrix), slice(None), len(matrix), {"A": "A"}, begin)


def test_a_linear_layer_has_its_closed_forms() -> None:
    """E‖h‖² and E‖dh/dA‖²_F of white inputs, summed over all pairs of steps."""
    matrix = 0.8 * np.linalg.qr(np.random.default_rng(5).standard_normal((4, 4)))[0]
    steps, powers = 15, [np.eye(4)]
    for _ in range(steps):
        powers.append(matrix @ powers[-1])
    second = sum(np.sum(power**2) for power in powers[:steps])
    # dh_T = Σ_k A^k dA h_{T-1-k}, white inputs: E h_s h_tᵀ = Σ_j A^{s-1-j} (A^{t-1-j})ᵀ.
    moved = 0.0
    for k, m in itertools.product(range(steps - 1), repeat=2):
        s, t = steps - 1 - k, steps - 1 - m
        overlap = sum(np.sum(powers[s - 1 - j] * powers[t - 1 - j]) for j in range(min(s, t)))
        moved += np.sum(powers[k] * powers[m]) * overlap
    drawn = drawn_inputs(WHITE, (4000, 4), np.random.default_rng(6))
    found = run(linear(matrix), drawn, 4000, steps)
    square = Estimate.mean(found.squares.sum(axis=1))
    assert abs(square.value - second) < 4 * square.error
    effect = found.effect("A")
    assert abs(effect.value - math.sqrt(moved / second)) < 4 * effect.error < 0.2 * effect.value
    assert abs(found.exponent.value - math.log(0.8)) < 1e-12


def memory(matrix: np.ndarray, directions: int) -> float:
    drawn = drawn_inputs(WHITE, (2, len(matrix)), np.random.default_rng(7))
    found = remembered(linear(matrix), drawn, 2, directions, 3, 200)
    assert found.ended
    return found.lag.value


def test_a_delay_line_remembers_as_many_steps_as_it_has_units_but_one() -> None:
    line = np.eye(12, k=-1)
    assert memory(line, 12) == 11
    assert (
        run(
            linear(line), drawn_inputs(WHITE, (2, 12), np.random.default_rng(0)), 2, 40
        ).exponent.value
        == -math.inf
    )


def test_the_last_lag_is_that_of_the_norm_of_powers() -> None:
    matrix = 0.1 * np.random.default_rng(8).standard_normal((6, 6)) / math.sqrt(6) + np.triu(
        0.5 * np.ones((6, 6)), 1
    )
    norms = [np.linalg.norm(np.linalg.matrix_power(matrix, k), 2) for k in range(200)]
    assert memory(matrix, 6) == max(k for k, norm in enumerate(norms) if norm >= 1 / math.e)


def test_a_chaotic_network_has_a_positive_exponent() -> None:
    weights = 2.5 * np.random.default_rng(9).standard_normal((100, 100)) / 10

    def begin(draw):
        w = draw("W", weights)
        return lambda h, x: tanh(h @ w.T + 0.1 * x)

    chaotic = CellDynamics(100, slice(None), 100, {"W": "W"}, begin)
    drawn = drawn_inputs(WHITE, (8, 100), np.random.default_rng(10))
    found = run(chaotic, drawn, 8, 400)
    assert found.exponent.value > 4 * found.exponent.error > 0
    assert MEMORY not in found.moved


@pytest.mark.parametrize("eigenvalue", [0.5, 0.9, 0.999, 1.0, 1.05])
@pytest.mark.parametrize("horizon", [10, 300, 10**6])
def test_a_linear_unit_is_stable_until_a_step_takes_it_past_the_unit_circle(
    eigenvalue: float, horizon: int
) -> None:
    """By ``T (log(λ + lr) - max(log λ, 0)) < 1``, as some of the units go up in every draw."""

    def begin(draw):
        kept = draw("a", np.full(32, eigenvalue))
        return lambda h, x: kept * h + x

    dynamics = CellDynamics(32, slice(None), 32, {"a": "a"}, begin, diagonal=True)
    inputs = [np.zeros((4, 2, 32))] * 10
    most = max(eigenvalue, 1.0) * math.exp(1 / horizon) - eigenvalue
    expected = max((rate for rate in TRIALS if rate < most), default=0.0)
    assert stability_rate(dynamics, inputs, horizon) == expected
