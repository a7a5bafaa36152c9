"""The tasks that networks are trained on: batches drawn anew at every step, and their loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.calibration.networks import Stack, Start
from memcurse_cli.experiments.training import causal_convolution, teacher_kernel

Batch = tuple[Array, Array]

TEACHER_UNITS = 10
LETTERS, REMEMBERED = 4, 4
CORRELATION = 0.9
"""ρ of the inputs that are not white."""


@dataclass(frozen=True)
class Task:
    """What is learnt.

    Attributes:
        inputs: how wide.
        outputs: how wide.
        horizon: T.
        read: the last steps, so many of which the loss looks at.
        draw: (batch, T, inputs) and the targets of the steps that are read, from a key and a
            number of sequences.
        labels: whether targets are labels, and the loss a cross entropy in place of half the mean
            squared error.
        silent: the loss of the best constant output.
    """

    inputs: int
    outputs: int
    horizon: int
    read: int
    draw: Callable[[Array, int], Batch]
    labels: bool
    silent: float

    def loss(self, outputs: Array, target: Array) -> Array:
        """Of (batch, T, outputs)."""
        seen = outputs[:, self.horizon - self.read :]
        if self.labels:
            chosen = jnp.take_along_axis(jax.nn.log_softmax(seen), target[..., None], axis=-1)
            return -jnp.mean(chosen)
        return 0.5 * jnp.mean((seen - target) ** 2)


def noise(key: Array, batch: int, horizon: int, correlated: bool) -> Array:
    """(batch, T) Gaussian inputs of variance 1, white or of autocorrelation ρ^|Δ|."""
    white = jax.random.normal(key, (batch, horizon))
    if not correlated:
        return white
    fresh = np.sqrt(1 - CORRELATION**2)

    def advance(now: Array, drawn: Array) -> tuple[Array, Array]:
        now = CORRELATION * now + fresh * drawn
        return now, now

    _, inputs = jax.lax.scan(advance, white[:, 0], white.T)
    return inputs.T


def taught(teacher: Callable[[Array], Array], horizon: int, seed: int, correlated: bool) -> Task:
    """To put out what a teacher does of (batch, T) inputs, shifted and scaled to variance 1."""
    sample = teacher(noise(jax.random.key(seed + 7919), 512, horizon, correlated))
    mean, deviation = float(sample.mean()), float(sample.std())

    def draw(key: Array, batch: int) -> Batch:
        inputs = noise(key, batch, horizon, correlated)
        return inputs[..., None], ((teacher(inputs) - mean) / deviation)[..., None]

    return Task(1, 1, horizon, horizon, draw, False, 0.5)


def linear_teacher(horizon: int, seed: int, modulus: float, correlated: bool = False) -> Task:
    """A random linear system of 10 units with |λ| from ν on."""
    kernel = jnp.asarray(teacher_kernel(TEACHER_UNITS, modulus, seed, horizon), jnp.float32)
    return taught(lambda inputs: causal_convolution(kernel, inputs), horizon, seed, correlated)


def own_teacher(student: Stack, horizon: int, seed: int, correlated: bool = False) -> Task:
    """A layer of the student's kind with 10 units, strong hidden weights and gates that keep."""
    start = Start(forget_bias=2.0, gain=2.0)
    teacher = Stack(student.layer, 1, TEACHER_UNITS, 1, 1, (), start)
    drawn = teacher.initialise(np.random.default_rng([seed, 0]))
    parameters = {name: jnp.asarray(value, jnp.float32) for name, value in drawn.items()}

    def respond(inputs: Array) -> Array:
        return teacher.outputs(parameters, inputs[..., None])[..., 0]

    return taught(respond, horizon, seed, correlated)


def adding(horizon: int) -> Task:
    """The sum of the two values of [0, 1] that are marked, one in either half, at the last step."""

    def draw(key: Array, batch: int) -> Batch:
        of_values, *of_marks = jax.random.split(key, 3)
        values = jax.random.uniform(of_values, (batch, horizon))
        half = horizon // 2
        first, second = (jax.random.randint(one, (batch,), 0, half) for one in of_marks)
        marks = jax.nn.one_hot(first, horizon) + jax.nn.one_hot(second + half, horizon)
        return jnp.stack([values, marks], -1), jnp.sum(values * marks, axis=1)[:, None, None]

    return Task(2, 1, horizon, 1, draw, False, 0.5 * 2 / 12)


def copying(horizon: int) -> Task:
    """The first 4 letters of an alphabet of 4, put out at the last 4 steps after a signal."""

    def draw(key: Array, batch: int) -> Batch:
        letters = jax.random.randint(key, (batch, REMEMBERED), 0, LETTERS)
        inputs = jnp.zeros((batch, horizon, LETTERS + 1))
        inputs = inputs.at[:, :REMEMBERED, :LETTERS].set(jax.nn.one_hot(letters, LETTERS))
        return inputs.at[:, horizon - REMEMBERED, LETTERS].set(1.0), letters

    return Task(LETTERS + 1, LETTERS, horizon, REMEMBERED, draw, True, float(np.log(LETTERS)))


def digits(horizon: int) -> Task:
    """scikit-learn's handwritten digits pixel by pixel, each held for T/64 steps."""
    from sklearn.datasets import load_digits

    pictures, names = load_digits(return_X_y=True)
    held = np.repeat(pictures / 8 - 1, horizon // 64, axis=1)[..., None]
    assert held.shape[1] == horizon, "a horizon of digits is a multiple of 64"
    inputs, labels = jnp.asarray(held, jnp.float32), jnp.asarray(names, jnp.int32)

    def draw(key: Array, batch: int) -> Batch:
        chosen = jax.random.randint(key, (batch,), 0, len(labels))
        return inputs[chosen], labels[chosen][:, None]

    return Task(1, 10, horizon, 1, draw, True, float(np.log(10)))
