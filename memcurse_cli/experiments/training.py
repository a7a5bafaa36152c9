"""Train a student to reproduce a linear teacher with Adam, and say how well it does.

Zucchet & Orvieto 2024, section 4.2: sequences of white N(0, 1) inputs, drawn anew at every step,
and half the mean squared error between both outputs at every step of the sequence.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from memcurse_cli.errors import MemcurseError
from memcurse_cli.experiments.networks import (
    NETWORKS,
    Network,
    Parameters,
    causal_convolution,
    draw_teacher,
)
from memcurse_cli.experiments.settings import TrainingSettings

EVALUATION_SEQUENCES = 1024
STEPS_PER_CALL = 50


class DivergenceError(MemcurseError):
    """A training run whose loss left the finite numbers."""


@dataclass(frozen=True)
class TrainingResult:
    """A trained student."""

    parameters: dict[str, NDArray[Any]]  # its tensors by name, in the dtype of the settings
    loss_before: float  # the loss of the initial student on the evaluation sequences
    loss_after: float  # the loss of the trained one on the same sequences
    seconds: float  # wall-clock time of the optimizer steps, compilation included


def train(
    settings: TrainingSettings,
    report: Callable[[int, float], None] | None = None,
    keep: Callable[[int, Mapping[str, NDArray[Any]]], None] | None = None,
    every: int = STEPS_PER_CALL,
) -> TrainingResult:
    """Train a student with Adam under a cosine schedule; the same settings give the same student.

    ``report`` is called every `STEPS_PER_CALL` steps with their number and the last batch's loss,
    ``keep`` with the number and the student, at step 0, at the end and ``every`` so many steps.

    Raises:
        DivergenceError: the loss became infinite or NaN.
    """
    initial = initialise(settings)
    # Explicit dtypes everywhere below: this only allows double precision, it does not impose it.
    with jax.enable_x64(True):
        optimizer = optax.adam(optax.cosine_decay_schedule(settings.learning_rate, settings.steps))
        parameters = {name: jnp.asarray(value) for name, value in initial.items()}
        state = optimizer.init(parameters)
        advance = _compile(settings, optimizer)
        started, done = time.perf_counter(), 0
        if keep is not None:
            keep(0, initial)
        while done < settings.steps:
            end = min(done + STEPS_PER_CALL, settings.steps)
            if keep is not None:
                end = min(end, (done // every + 1) * every)
            parameters, state, loss = advance(parameters, state, done, end)
            done = end
            _require_finite(float(loss), settings, done)
            if report is not None:
                report(done, float(loss))
            if keep is not None and (done % every == 0 or done == settings.steps):
                keep(done, {name: np.asarray(value) for name, value in parameters.items()})
        trained = {name: np.asarray(value) for name, value in parameters.items()}
        seconds = time.perf_counter() - started
    loss_after = evaluate(settings, trained)
    _require_finite(loss_after, settings, done)
    return TrainingResult(trained, evaluate(settings, initial), loss_after, seconds)


def initialise(settings: TrainingSettings) -> dict[str, NDArray[Any]]:
    """The student before training, in the dtype of the settings."""
    random = np.random.default_rng([settings.seed, 1])
    drawn = NETWORKS[settings.network].initialise(random, settings.units, settings.initial_modulus)
    return {name: value.astype(settings.dtype) for name, value in drawn.items()}


def evaluate(settings: TrainingSettings, parameters: Mapping[str, NDArray[Any]]) -> float:
    """The loss of a student in double precision, on sequences that training never saw."""
    with jax.enable_x64(True):
        _, key = jax.random.split(jax.random.key(settings.seed))
        inputs = jax.random.normal(key, (EVALUATION_SEQUENCES, settings.horizon), jnp.float64)
        kernel = jnp.asarray(_teacher_kernel(settings))
        student = {name: jnp.asarray(value, jnp.float64) for name, value in parameters.items()}
        return float(_loss(NETWORKS[settings.network], student, kernel, inputs))


def teacher_power(settings: TrainingSettings) -> float:
    """The loss of a student that is silent: half the mean of E y² over the steps, exactly.

    ``½ Σ_k (T - k)/T kernel[k]²`` for white inputs of variance 1.
    """
    kernel = _teacher_kernel(settings)
    remaining = 1 - np.arange(settings.horizon) / settings.horizon
    return float(0.5 * np.sum(remaining * kernel**2))


def _require_finite(loss: float, settings: TrainingSettings, step: int) -> None:
    if not math.isfinite(loss):
        raise DivergenceError(
            f"training diverged before step {step}",
            where=f"--learning-rate {settings.learning_rate:g}",
            remedy="take a smaller learning rate",
        )


def _teacher_kernel(settings: TrainingSettings) -> NDArray[np.float64]:
    teacher = draw_teacher(settings.teacher_units, settings.modulus, settings.seed)
    return teacher.kernel(settings.horizon)


def _loss(network: Network, parameters: Parameters, kernel: Array, inputs: Array) -> Array:
    error = network.outputs(parameters, inputs) - causal_convolution(kernel, inputs)
    return 0.5 * jnp.mean(error**2)


def _compile(settings: TrainingSettings, optimizer: Any) -> Callable[..., Any]:
    """Several optimizer steps as one compiled call."""
    network = NETWORKS[settings.network]
    kernel = jnp.asarray(_teacher_kernel(settings), settings.dtype)
    key, _ = jax.random.split(jax.random.key(settings.seed))
    shape = settings.batch, settings.horizon

    def step(index: Array, carry: Any) -> Any:
        parameters, state, _ = carry
        inputs = jax.random.normal(jax.random.fold_in(key, index), shape, settings.dtype)
        loss, gradient = jax.value_and_grad(_loss, argnums=1)(network, parameters, kernel, inputs)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    @jax.jit
    def advance(parameters: Parameters, state: Any, begin: Array, end: Array) -> Any:
        loss = jnp.zeros((), settings.dtype)
        return jax.lax.fori_loop(begin, end, step, (parameters, state, loss))

    return advance
