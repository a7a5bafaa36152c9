"""Linear students: a dense recurrence, a complex diagonal one and the LRU."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


class DenseLinearRNN:
    """``h[t] = A h[t-1] + B x[t]``, ``y[t] = C h[t] + D x[t]``.

    A is (n, n), B (n, 1), C (1, n) and D (1, 1). It starts as the teachers do.
    """

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values, with eigenvalues on the ring ν ≤ |λ| < 1."""
        return {
            "A": dense_transition(random, units, modulus),
            "B": truncated_normal(random, (units, 1), fan_in=1),
            "C": truncated_normal(random, (1, units), fan_in=units),
            "D": truncated_normal(random, (1, 1), fan_in=1),
        }

    def outputs(
        self, parameters: Parameters, inputs: Float[Array, "batch horizon"]
    ) -> Float[Array, "batch horizon"]:
        """The outputs from a zero state."""
        states = dense_impulse_states(parameters["A"], parameters["B"][:, 0], inputs.shape[1])
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
    states = diagonal_impulse_states(eigenvalues, readin, inputs.shape[1])
    readout = parameters["C_re"][0] + 1j * parameters["C_im"][0]
    kernel = (readout @ states).real
    return causal_convolution(kernel.at[0].add(parameters["D"][0]), inputs)
