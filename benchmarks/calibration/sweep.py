"""Train a student at many constant learning rates at once, and keep what became of each run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
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
WARM_UP = 0.1
CLIPPED_NORM = 1.0

Values = dict[str, NDArray[np.float64]]
Draw = Callable[[Array], Any]
"""A batch from a key."""
Loss = Callable[[Parameters, Any], Array]
"""Of a batch."""


@dataclass(frozen=True)
class Sweep:
    """Runs from the same start, one per rate.

    Attributes:
        initial: the student that every run starts from.
        trained: its parameters at the end of each run, with the rates along the first axis.
        losses: (rates, chunks) the mean training loss of every `CHUNK` steps.
        silent_loss: the loss of a student whose output is zero, or the best constant.
    """

    initial: Values
    trained: Values
    losses: NDArray[np.float64]
    silent_loss: float


@dataclass(frozen=True)
class Optimizer:
    """Adam, and what may stand around it.

    Attributes:
        decay: AdamW's weight decay, times the rate.
        scheduled: a linear warm-up over `WARM_UP` of all steps, then a cosine to zero; the rate is
            the peak.
        clipped: gradients are, at a norm of `CLIPPED_NORM`.
    """

    decay: float = 0.0
    scheduled: bool = False
    clipped: bool = False

    @property
    def direction(self) -> optax.GradientTransformation:
        """From gradients to steps of a rate of 1."""
        clip = [optax.clip_by_global_norm(CLIPPED_NORM)] if self.clipped else []
        decay = [optax.add_decayed_weights(self.decay)] if self.decay else []
        return optax.chain(*clip, optax.scale_by_adam(), *decay)

    def share(self, index: Array, steps: Array) -> Array | float:
        """What of the rate is used at a step."""
        if not self.scheduled:
            return 1.0
        warm = WARM_UP * steps
        cosine = 0.5 * (1 + jnp.cos(jnp.pi * (index - warm) / (steps - warm)))
        return jnp.where(index < warm, (index + 1) / warm, cosine)


ADAM = Optimizer()


class Trainer:
    """Runs at several rates, compiled once for the shapes of a student."""

    def __init__(
        self,
        loss: Loss,
        draw: Draw,
        optimizer: Optimizer = ADAM,
        rates: Sequence[float] = RATES,
        apart: Collection[str] = (),
        rest: float = 0.0,
        most: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """All rates see the same batches; those of tensors ``apart`` alone, beside a ``rest``.

        A tensor has no rate above its ``most``.
        """
        self.rates = tuple(rates)
        direction, several = optimizer.direction, jnp.asarray(rates, jnp.float32)

        def one_rate(parameters: Any, state: Any, rate: Any, share: Any, batch: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(parameters, batch)
            updates, state = direction.update(gradient, state, parameters)

            def rate_of(name: str) -> Any:
                given = rate if name in apart or not apart else rest
                return share * (jnp.minimum(given, most[name]) if name in most else given)

            moved = {name: old - rate_of(name) * updates[name] for name, old in parameters.items()}
            return moved, state, value

        every_rate = jax.vmap(one_rate, in_axes=(0, 0, 0, None, None))

        @jax.jit
        def advance(parameters: Any, state: Any, key: Array, begin: Any, steps: Any) -> Any:
            def step(index: Any, carry: Any) -> Any:
                parameters, state, total = carry
                batch = draw(jax.random.fold_in(key, index))
                share = optimizer.share(index, steps)
                parameters, state, loss = every_rate(parameters, state, several, share, batch)
                return parameters, state, total + loss

            start = parameters, state, jnp.zeros(len(self.rates))
            parameters, state, total = jax.lax.fori_loop(begin, begin + CHUNK, step, start)
            return parameters, state, total / CHUNK

        self._advance, self._initial_state = advance, jax.vmap(direction.init)

    def run(
        self,
        start: Mapping[str, NDArray[Any]],
        *,
        seed: int,
        steps: int,
        report: Callable[[int], None] | None = None,
    ) -> tuple[Values, NDArray[np.float64]]:
        """The ends of all runs from a start, and the mean loss of every `CHUNK` steps of each."""
        key = jax.random.key(seed)

        def stacked(value: NDArray[Any]) -> Any:
            return jnp.tile(jnp.asarray(value, jnp.float32), (len(self.rates),) + (1,) * value.ndim)

        parameters = {name: stacked(value) for name, value in start.items()}
        state = self._initial_state(parameters)
        losses = []
        for begin in range(0, steps, CHUNK):
            parameters, state, loss = self._advance(parameters, state, key, begin, steps)
            losses.append(np.asarray(loss, np.float64))
            if report is not None:
                report(begin + CHUNK)
        ends = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
        return ends, np.array(losses).T


def initialise(network: Network, units: int, modulus: float, seed: int) -> Values:
    """The student that every run starts from."""
    return network.initialise(np.random.default_rng([seed, 1]), units, modulus)


def linear_task(
    network: Network, *, modulus: float, horizon: int, seed: int, batch: int
) -> tuple[Loss, Draw, float]:
    """A linear teacher's loss and batches, and the loss of a student whose output is zero.

    Args:
        network: the student.
        modulus: the smallest |λ| of the teacher.
        horizon: steps of a sequence; the loss is half the mean squared error over all of them.
        seed: of the teacher.
        batch: sequences per step.
    """
    teacher = teacher_kernel(TEACHER_UNITS, modulus, seed, horizon)
    kernel = jnp.asarray(teacher, jnp.float32)

    def loss(parameters: Parameters, drawn: Any) -> Array:
        inputs, target = drawn
        return 0.5 * jnp.mean((network.outputs(parameters, inputs) - target) ** 2)

    def draw(key: Array) -> Any:
        inputs = jax.random.normal(key, (batch, horizon))
        return inputs, causal_convolution(kernel, inputs)

    remaining = 1 - np.arange(horizon) / horizon
    return loss, draw, float(0.5 * np.sum(remaining * teacher**2))


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
        horizon: as `linear_task` has it.
        seed: of teacher, student and inputs.
        steps: optimizer steps.
        batch: sequences per step; all rates see the same ones.
        report: called with the steps done.
    """
    initial = initialise(network, units, modulus, seed)
    loss, draw, silent = linear_task(
        network, modulus=modulus, horizon=horizon, seed=seed, batch=batch
    )
    trained, losses = Trainer(loss, draw).run(initial, seed=seed, steps=steps, report=report)
    return Sweep(initial, trained, losses, silent)
