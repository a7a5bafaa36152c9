"""Moments of a trapezoidal step against JAX's jvp through the recurrence, with gates drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from theory.trapezoids import LAWS, flat, gates_of

from memcurse_cli.theory.autocorrelation.mixture import WHITE, Autocorrelation
from memcurse_cli.theory.gates.laws import RatedStep, Softplus
from memcurse_cli.theory.gates.trapezoid_moments import trapezoid_moments
from memcurse_cli.theory.gates.trapezoid_nodes import TrapezoidGates

Floats = NDArray[np.float64]

COSINE = Autocorrelation((1.0,), (0.9,), (0.7,))


def unrolled(
    law: RatedStep, gates: TrapezoidGates, part: Autocorrelation, runs: int
) -> tuple[Floats, Floats]:
    """The same of the first head and their errors, by JAX's jvp through the recurrence."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    steps, skipped = 320, 120
    (rho,), (frequency,) = part.rhos, part.frequencies
    random = np.random.default_rng(3)
    correlation = np.eye(3)
    correlation[0, 1] = correlation[1, 0] = gates.rated.correlation[0]
    correlation[0, 2] = correlation[2, 0] = gates.with_step[0]
    correlation[1, 2] = correlation[2, 1] = gates.with_rate[0]
    factor = np.linalg.cholesky(correlation)
    kinds = np.append(gates.angles, 0.0)
    each = np.append(np.full(gates.angles.size, gates.turning / max(gates.angles.size, 1)), 0.0)
    each[-1] = 1 - each.sum()
    # Every kind of state at its share of the runs.
    angles = kinds[np.searchsorted(np.cumsum(each), (np.arange(runs) + 0.5) / runs)]

    def complex_normal(*shape: int) -> NDArray[np.complex128]:
        return (random.normal(size=shape) + 1j * random.normal(size=shape)) / np.sqrt(2)

    # The mean of two processes that turn either way has ρ^Δ cos(ωΔ).
    noise, pole = complex_normal(2, steps, runs), rho * np.exp(1j * frequency)
    parts = noise.copy()
    for time in range(1, steps):
        for way, turn in enumerate((pole, np.conj(pole))):
            parts[way, time] = turn * parts[way, time - 1]
            parts[way, time] += np.sqrt(1 - rho**2) * noise[way, time]
    drive = parts.sum(axis=0) / np.sqrt(2)
    moved = np.einsum("ij,jtr->itr", factor, random.normal(size=(3, steps, runs)))
    second = gates.rated.second.spread[0] * moved[1]
    positive, negative = np.maximum(second, 0), np.minimum(second, 0)
    soft = isinstance(law.rate, Softplus)
    rate = np.log1p(np.exp(second)) if soft else positive + 1 / (1 - negative)
    rate = np.maximum(rate, np.exp(law.log_floor))
    weight = gates.weight.mean[0] + gates.weight.spread[0] * moved[2]
    theta = np.pi * np.tanh(angles * random.normal(size=(steps, runs)))
    sequence = (gates.rated.first.spread[0] * moved[0], rate, 1 / (1 + np.exp(-weight)), theta)

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
        states, changes = jax.jvp(run, (float(gates.rated.first.mean[0]),), (1.0,))
    h, s = np.asarray(states)[skipped:], np.asarray(changes)[skipped:]
    of_runs = np.array([np.abs(h) ** 2, (h * s.conj()).real, np.abs(s) ** 2]).mean(axis=1)
    return of_runs.mean(axis=1), of_runs.std(axis=1) / np.sqrt(runs)


CASES: dict[str, dict[str, Any]] = {
    "three gates": {
        "biases": -1.0,
        "spreads": (1.0, 0.8, 1.2),
        "correlations": (0.5, -0.4, 0.3),
    },
    "wide, and angles": {
        "biases": 0.5,
        "spreads": (1.5, 1.5, 2.0),
        "correlations": (-0.6, 0.4, -0.5),
        "angles": (0.2, 1.0, 3.0),
        "turning": 0.75,
    },
    "angles that turn the mean over": {
        "biases": 0.6,
        "spreads": (0.3, 0.2, 0.5),
        "angles": (30.0,),
        "turning": 1.0,
    },
}


@pytest.mark.parametrize("part", [WHITE, Autocorrelation.from_rho(0.8), COSINE], ids=str)
@pytest.mark.parametrize(("case", "name"), list(zip(CASES, LAWS, strict=True)))
def test_the_moments_are_those_of_the_recurrence(
    case: str, name: str, part: Autocorrelation
) -> None:
    gates = gates_of(**CASES[case])
    seen, error = unrolled(LAWS[name], gates, part, runs=2500)
    found = flat(trapezoid_moments(LAWS[name], gates, part))[:, 0]
    assert (np.abs(found - seen) < 4 * error).all()
    assert (error < 0.04 * found).all()
