"""An LRU and an S4D of complex states, with random weights or taught by a linear teacher."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import Tensor

from benchmarks.calibration.setups import NETWORKS
from memcurse_cli.experiments.training import (
    InitialValues,
    LinearNetwork,
    causal_convolution,
    teacher_kernel,
)

UNITS, MODULUS, LENGTH, BATCH, RATE = 128, 0.9, 200, 16, 3e-3


def build(family: str, steps: int) -> tuple[InitialValues, Tensor, Tensor]:
    """The tensors after so many steps of Adam; λ and γ B of every unit."""
    network = NETWORKS[family]
    assert isinstance(network, LinearNetwork)
    with jax.enable_x64(True):
        drawn = network.initialise(np.random.default_rng(0), UNITS, MODULUS)
        parameters = {name: jnp.asarray(value) for name, value in drawn.items()}
        teacher = jnp.asarray(teacher_kernel(UNITS, MODULUS, 1, LENGTH))
        optimizer = optax.adam(RATE)
        state = optimizer.init(parameters)

        def loss(parameters: dict[str, jax.Array], inputs: jax.Array) -> jax.Array:
            wanted = causal_convolution(teacher, inputs)
            return jnp.mean((network.outputs(parameters, inputs) - wanted) ** 2) / 2

        slope = jax.jit(jax.grad(loss))
        for key in jax.random.split(jax.random.key(2), steps):
            gradient = slope(parameters, jax.random.normal(key, (BATCH, LENGTH)))
            updates, state = optimizer.update(gradient, state)
            parameters = optax.apply_updates(parameters, updates)
        transition, readin, _ = network.system(parameters)
        tensors = {name: np.array(value) for name, value in parameters.items()}
    return tensors, torch.from_numpy(np.array(transition)), torch.from_numpy(np.array(readin))


class Stepped:
    """``h[t] = λ h[t-1] + γ B x[t]`` in double precision, of white inputs of unit variance."""

    parts = 2

    def __init__(self, transition: Tensor, readin: Tensor, horizon: int, sequences: int) -> None:
        self.transition, self.readin, self.sequences = transition, readin, sequences
        random = torch.Generator().manual_seed(2)
        self.inputs = torch.randn(sequences, horizon, generator=random, dtype=torch.float64)

    def start(self, copies: int, sequences: int) -> None:
        """Forget all, and take so many copies of the first sequences."""
        self.fed = self.inputs[:sequences].repeat(copies, 1)
        self.held = torch.zeros(len(self.fed), 2, len(self.readin), dtype=torch.float64)

    def step(self, t: int) -> list[Tensor]:
        """The states after one more input, their real parts and behind them the imaginary ones."""
        state = torch.complex(self.held[:, 0], self.held[:, 1])
        state = self.transition * state + self.readin * self.fed[:, t, None]
        self.held = torch.stack([state.real, state.imag], dim=1)
        return [self.held]
