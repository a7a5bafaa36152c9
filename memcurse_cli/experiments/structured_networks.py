"""Two more linear students: a block-diagonal recurrence and an S4D channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from memcurse_cli.experiments.initialisation import (
    dense_transition,
    ring_eigenvalues,
    truncated_normal,
)
from memcurse_cli.experiments.linear_response import (
    causal_convolution,
    dense_impulse_states,
    diagonal_impulse_states,
)
from memcurse_cli.experiments.network import InitialValues, Parameters

if TYPE_CHECKING:
    from jaxtyping import Float

HEADS = 8


class BlockDiagonalRNN:
    """A `DenseLinearRNN` whose transition is block diagonal, one block per head.

    A is (heads, n/heads, n/heads), B (n, 1), C (1, n) and D (1, 1).
    """

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values, every block with eigenvalues on the ring ν ≤ |λ| < 1."""
        most = max(1, min(HEADS, units // 2))
        heads = next(heads for heads in range(most, 0, -1) if units % heads == 0)
        blocks = [dense_transition(random, units // heads, modulus) for _ in range(heads)]
        return {
            "A": np.stack(blocks),
            "B": truncated_normal(random, (units, 1), fan_in=1),
            "C": truncated_normal(random, (1, units), fan_in=units),
            "D": truncated_normal(random, (1, 1), fan_in=1),
        }

    def outputs(
        self, parameters: Parameters, inputs: Float[Array, "batch horizon"]
    ) -> Float[Array, "batch horizon"]:
        """The outputs from a zero state."""
        heads, size, _ = parameters["A"].shape
        readin = parameters["B"][:, 0].reshape(heads, size)
        horizon = inputs.shape[1]
        states = jax.vmap(lambda a, b: dense_impulse_states(a, b, horizon))(parameters["A"], readin)
        kernel = parameters["C"][0] @ states.reshape(heads * size, horizon)
        return causal_convolution(kernel.at[0].add(parameters["D"][0, 0]), inputs)


class S4DChannel:
    """One channel of S4D: ``λ = exp(Δ A)``, ``y[t] = 2 Re[C h[t]] + D x[t]``.

    ``Δ = exp(log_dt)``, ``A = -exp(log_A_real) + i A_imag`` and the zero-order hold
    ``B̄ = (λ - 1)/A``: log_dt (1,), log_A_real and A_imag (1, n), C (1, n, 2) and D (1,), the names
    and shapes of the minimal S4D of state-spaces/s4.
    """

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values: Δ such that |Re A| is 1/2 in geometric mean, as S4D-Lin starts."""
        eigenvalues = ring_eigenvalues(random, units, modulus)
        decay = -np.log(np.abs(eigenvalues))
        log_step = float(np.mean(np.log(2 * decay)))
        readout = random.standard_normal((1, units, 2)) * np.sqrt(0.5)
        return {
            "log_dt": np.array([log_step]),
            "log_A_real": (np.log(decay) - log_step)[None],
            "A_imag": (np.angle(eigenvalues) / np.exp(log_step))[None],
            "C": readout,
            "D": random.standard_normal(1),
        }

    def outputs(
        self, parameters: Parameters, inputs: Float[Array, "batch horizon"]
    ) -> Float[Array, "batch horizon"]:
        """The outputs from a zero state."""
        rate = -jnp.exp(parameters["log_A_real"][0]) + 1j * parameters["A_imag"][0]
        eigenvalues = jnp.exp(jnp.exp(parameters["log_dt"][0]) * rate)
        readin = (eigenvalues - 1) / rate
        readout = parameters["C"][0, :, 0] + 1j * parameters["C"][0, :, 1]
        states = diagonal_impulse_states(eigenvalues, readin, inputs.shape[1])
        kernel = 2 * (readout @ states).real
        return causal_convolution(kernel.at[0].add(parameters["D"][0]), inputs)
