"""Train a student at many constant learning rates at once, and keep what became of each run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from memcurse_cli.experiments.training import (
    Network,
    Parameters,
    causal_convolution,
    teacher_kernel,
)

RATES = tuple(float(10 ** (exponent / 3)) for exponent in range(-15, -2))
"""1e-5 to 1e-1, three to a decade."""

TEACHER_UNITS = 10
CHUNK = 50


@dataclass(frozen=True)
class Sweep:
    """Runs from the same start, one per rate.

    Attributes:
        initial: the student that every run starts from.
        trained: its parameters at the end of each run, with the rates along the first axis.
        losses: (rates, chunks) the mean training loss of every `CHUNK` steps.
        silent_loss: the loss of a student whose output is zero.
    """

    initial: dict[str, NDArray[np.float64]]
    trained: dict[str, NDArray[np.float64]]
    losses: NDArray[np.float64]
    silent_loss: float


def initialise(
    network: Network, units: int, modulus: float, seed: int
) -> dict[str, NDArray[np.float64]]:
    """The student that every run starts from."""
    return network.initialise(np.random.default_rng([seed, 1]), units, modulus)


def sweep(
    network: Network,
    *,
    units: int,
    modulus: float,
    horizon: int,
    seed: int,
    steps: int,
    batch: int,
    report: Callable[[int], None] | None = None,
) -> Sweep:
    """Adam at every rate of `RATES`, on sequences of white inputs drawn anew at every step.

    Args:
        network: the student.
        units: its hidden units.
        modulus: the smallest |λ| of the teacher and of the student's start.
        horizon: steps of a sequence; the loss is half the mean squared error over all of them.
        seed: of teacher, student and inputs.
        steps: optimizer steps.
        batch: sequences per step; all rates see the same ones.
        report: called with the steps done.
    """
    initial = initialise(network, units, modulus, seed)
    teacher = teacher_kernel(TEACHER_UNITS, modulus, seed, horizon)
    rates = jnp.asarray(RATES, jnp.float32)
    optimizer = optax.scale_by_adam()
    key = jax.random.key(seed)

    def loss_of(parameters: Parameters, inputs: Any, target: Any) -> Any:
        return 0.5 * jnp.mean((network.outputs(parameters, inputs) - target) ** 2)

    def one_rate(parameters: Any, state: Any, rate: Any, inputs: Any, target: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(parameters, inputs, target)
        updates, state = optimizer.update(gradient, state, parameters)
        moved = jax.tree.map(lambda value, update: value - rate * update, parameters, updates)
        return moved, state, loss

    every_rate = jax.vmap(one_rate, in_axes=(0, 0, 0, None, None))
    kernel = jnp.asarray(teacher, jnp.float32)

    @jax.jit
    def advance(parameters: Any, state: Any, begin: Any) -> Any:
        def step(index: Any, carry: Any) -> Any:
            parameters, state, total = carry
            inputs = jax.random.normal(jax.random.fold_in(key, index), (batch, horizon))
            target = causal_convolution(kernel, inputs)
            parameters, state, loss = every_rate(parameters, state, rates, inputs, target)
            return parameters, state, total + loss

        start = parameters, state, jnp.zeros(len(RATES))
        parameters, state, total = jax.lax.fori_loop(begin, begin + CHUNK, step, start)
        return parameters, state, total / CHUNK

    def stacked(value: NDArray[np.float64]) -> Any:
        return jnp.tile(jnp.asarray(value, jnp.float32), (len(RATES),) + (1,) * value.ndim)

    parameters = {name: stacked(value) for name, value in initial.items()}
    state = jax.vmap(optimizer.init)(parameters)
    losses = []
    for begin in range(0, steps, CHUNK):
        parameters, state, loss = advance(parameters, state, begin)
        losses.append(np.asarray(loss, np.float64))
        if report is not None:
            report(begin + CHUNK)
    remaining = 1 - np.arange(horizon) / horizon
    return Sweep(
        initial,
        {name: np.asarray(value, np.float64) for name, value in parameters.items()},
        np.array(losses).T,
        float(0.5 * np.sum(remaining * teacher**2)),
    )
