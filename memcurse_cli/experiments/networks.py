"""The students: initial values and outputs; their parameters are a plain dictionary.

A linear one is its impulse response, every step at once instead of one by one. From a zero state,
``h[t] = A h[t-1] + B x[t]``, ``y[t] = C h[t] + D x[t]`` is the convolution of x with the kernel
``D + C B, C A B, C A² B, …``. The kernel does not depend on the batch, and doubling gives T of its
terms in log₂ T products, so that a training step costs one Fourier transform of the batch instead
of T products with it. The numbers and gradients are those of the recurrence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from memcurse_cli.experiments.teacher import (
    dense_transition,
    ring_eigenvalues,
    single_channel,
    truncated_normal,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Inexact

HEADS = 8


Parameters = Mapping[str, Array]
InitialValues = dict[str, NDArray[np.float64]]


class Network(Protocol):
    """A recurrent network with one input and one output, as pure functions of its parameters."""

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values by the name that the checkpoint will give them.

        Args:
            random: the source of randomness.
            units: hidden units n.
            modulus: the smallest |λ|, for networks whose eigenvalues are set.
        """

    def outputs(
        self, parameters: Parameters, inputs: Float[Array, "batch horizon"]
    ) -> Float[Array, "batch horizon"]:
        """The outputs of every step of a batch of sequences, from a zero state."""


def impulse_states(
    transition: Inexact[Array, "*n n"], readin: Inexact[Array, " n"], horizon: int
) -> Inexact[Array, "n horizon"]:
    """The states ``A^t b`` that an impulse leaves after t = 0 … T-1 steps."""
    multiply = jnp.matmul if transition.ndim == 2 else jnp.multiply
    power = transition if transition.ndim == 2 else transition[:, None]
    states = readin[:, None]
    while states.shape[1] < horizon:
        states = jnp.concatenate([states, multiply(power, states)], axis=1)
        # The power after the last doubling is never used and could overflow.
        power = multiply(power, power) if states.shape[1] < horizon else power
    return states[:, :horizon]


def causal_convolution(
    kernel: Float[Array, " horizon"], inputs: Float[Array, "batch horizon"]
) -> Float[Array, "batch horizon"]:
    """``y[t] = Σ_{s≤t} kernel[s] x[t-s]`` for every sequence of a batch.

    The transforms are padded to twice the horizon, so that nothing wraps around.
    """
    horizon = kernel.shape[0]
    product = jnp.fft.rfft(kernel, 2 * horizon) * jnp.fft.rfft(inputs, 2 * horizon)
    return jnp.fft.irfft(product, 2 * horizon)[:, :horizon]


class DenseLinearRNN:
    """``h[t] = A h[t-1] + B x[t]``, ``y[t] = C h[t] + D x[t]``.

    A is (n, n), B (n, 1), C (1, n) and D (1, 1). It starts as the teachers do.
    """

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values, with eigenvalues on the ring ν ≤ |λ| < 1."""
        return {"A": dense_transition(random, units, modulus), **single_channel(random, units)}

    def outputs(
        self, parameters: Parameters, inputs: Float[Array, "batch horizon"]
    ) -> Float[Array, "batch horizon"]:
        """The outputs from a zero state."""
        states = impulse_states(parameters["A"], parameters["B"][:, 0], inputs.shape[1])
        return _real_outputs(parameters, states, inputs)


class BlockDiagonalRNN:
    """A `DenseLinearRNN` whose transition is block diagonal, one block per head.

    A is (heads, n/heads, n/heads), B (n, 1), C (1, n) and D (1, 1).
    """

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values, every block with eigenvalues on the ring ν ≤ |λ| < 1."""
        most = max(1, min(HEADS, units // 2))
        heads = next(heads for heads in range(most, 0, -1) if units % heads == 0)
        blocks = [dense_transition(random, units // heads, modulus) for _ in range(heads)]
        return {"A": np.stack(blocks), **single_channel(random, units)}

    def outputs(
        self, parameters: Parameters, inputs: Float[Array, "batch horizon"]
    ) -> Float[Array, "batch horizon"]:
        """The outputs from a zero state."""
        heads, size, _ = parameters["A"].shape
        readin = parameters["B"][:, 0].reshape(heads, size)
        horizon = inputs.shape[1]
        states = jax.vmap(lambda a, b: impulse_states(a, b, horizon))(parameters["A"], readin)
        return _real_outputs(parameters, states.reshape(heads * size, horizon), inputs)


def _real_outputs(parameters: Parameters, states: Array, inputs: Array) -> Array:
    kernel = parameters["C"][0] @ states
    return causal_convolution(kernel.at[0].add(parameters["D"][0, 0]), inputs)


class ComplexDiagonalRNN:
    """``h[t] = (A_re + i A_im) h[t-1] + B x[t]``, ``y[t] = Re[C h[t]] + D x[t]``.

    A (n,), B (n, 1) and C (1, n) are stored as real and imaginary parts, D is (1,).
    """

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values, with eigenvalues on the ring ν ≤ |λ| < 1."""
        eigenvalues = ring_eigenvalues(random, units, modulus)
        return {
            "A_re": eigenvalues.real,
            "A_im": eigenvalues.imag,
            **_initialise_readin_and_readout(random, units),
        }

    def outputs(
        self, parameters: Parameters, inputs: Float[Array, "batch horizon"]
    ) -> Float[Array, "batch horizon"]:
        """The outputs from a zero state."""
        eigenvalues = parameters["A_re"] + 1j * parameters["A_im"]
        return _diagonal_outputs(parameters, eigenvalues, _readin(parameters), inputs)


class LRU:
    """``h[t] = λ h[t-1] + γ B x[t]``, ``y[t] = Re[C h[t]] + D x[t]``; Orvieto et al. 2023.

    ``λ = exp(-exp(nu_log) + i exp(theta_log))`` and ``γ = exp(gamma_log)``, each (n,), B (n, 1) and
    C (1, n) as real and imaginary parts, D (1,): the names and shapes of minimal-LRU.
    """

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values, with eigenvalues on the ring ν ≤ |λ| < 1 and γ = √(1 - |λ|²)."""
        eigenvalues = ring_eigenvalues(random, units, modulus)
        decay = -np.log(np.abs(eigenvalues))
        return {
            "nu_log": np.log(decay),
            "theta_log": np.log(np.angle(eigenvalues)),
            "gamma_log": 0.5 * np.log(-np.expm1(-2 * decay)),
            **_initialise_readin_and_readout(random, units),
        }

    def outputs(
        self, parameters: Parameters, inputs: Float[Array, "batch horizon"]
    ) -> Float[Array, "batch horizon"]:
        """The outputs from a zero state."""
        decay, angle = jnp.exp(parameters["nu_log"]), jnp.exp(parameters["theta_log"])
        readin = jnp.exp(parameters["gamma_log"]) * _readin(parameters)
        return _diagonal_outputs(parameters, jnp.exp(-decay + 1j * angle), readin, inputs)


def _initialise_readin_and_readout(random: np.random.Generator, units: int) -> InitialValues:
    # minimal-LRU halves the variance of B between its parts; C it does not.
    return {
        "B_re": truncated_normal(random, (units, 1), fan_in=2),
        "B_im": truncated_normal(random, (units, 1), fan_in=2),
        "C_re": truncated_normal(random, (1, units), fan_in=units),
        "C_im": truncated_normal(random, (1, units), fan_in=units),
        "D": truncated_normal(random, (1,), fan_in=1),
    }


def _readin(parameters: Parameters) -> Array:
    return parameters["B_re"][:, 0] + 1j * parameters["B_im"][:, 0]


def _diagonal_outputs(
    parameters: Parameters, eigenvalues: Array, readin: Array, inputs: Array
) -> Array:
    states = impulse_states(eigenvalues, readin, inputs.shape[1])
    readout = parameters["C_re"][0] + 1j * parameters["C_im"][0]
    kernel = (readout @ states).real
    return causal_convolution(kernel.at[0].add(parameters["D"][0]), inputs)


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
        states = impulse_states(eigenvalues, readin, inputs.shape[1])
        kernel = 2 * (readout @ states).real
        return causal_convolution(kernel.at[0].add(parameters["D"][0]), inputs)


class GRU:
    """`torch.nn.GRU` with one layer and one input, then `torch.nn.Linear` as ``head``.

    ``r = σ(W_ir x + b_ir + W_hr h + b_hr)``, z likewise,
    ``n = tanh(W_in x + b_in + r (W_hn h + b_hn))`` and ``h ← (1 - z) n + z h``; the rows of
    weight_ih_l0 (3n, 1), weight_hh_l0 (3n, n) and of both biases (3n,) are r, z, n in this order.
    """

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values uniform in ±1/√n as in torch; the modulus is not used."""
        limit = 1 / np.sqrt(units)
        shapes = {
            "weight_ih_l0": (3 * units, 1),
            "weight_hh_l0": (3 * units, units),
            "bias_ih_l0": (3 * units,),
            "bias_hh_l0": (3 * units,),
            "head.weight": (1, units),
            "head.bias": (1,),
        }
        return {name: random.uniform(-limit, limit, shape) for name, shape in shapes.items()}

    def outputs(
        self, parameters: Parameters, inputs: Float[Array, "batch horizon"]
    ) -> Float[Array, "batch horizon"]:
        """The outputs from a zero state."""
        from_input = parameters["weight_ih_l0"].T, parameters["bias_ih_l0"]
        from_state = parameters["weight_hh_l0"].T, parameters["bias_hh_l0"]
        units = parameters["weight_hh_l0"].shape[1]

        def step(state: Array, column: Array) -> tuple[Array, Array]:
            driven = column[:, None] * from_input[0] + from_input[1]
            fed_back = state @ from_state[0] + from_state[1]
            gates = jax.nn.sigmoid(driven[:, : 2 * units] + fed_back[:, : 2 * units])
            reset, update = gates[:, :units], gates[:, units:]
            candidate = jnp.tanh(driven[:, 2 * units :] + reset * fed_back[:, 2 * units :])
            state = (1 - update) * candidate + update * state
            return state, state @ parameters["head.weight"][0]

        initial = jnp.zeros((inputs.shape[0], units), inputs.dtype)
        _, outputs = jax.lax.scan(step, initial, inputs.T)
        return outputs.T + parameters["head.bias"][0]
