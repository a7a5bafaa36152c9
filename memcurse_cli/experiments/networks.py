"""Students and their linear teacher, whose values NumPy draws in double precision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from memcurse_cli.experiments.settings import NetworkName
from memcurse_cli.theory.linalg import Complexes, Floats

Parameters = Mapping[str, Array]
InitialValues = dict[str, Floats]

TRUNCATED_DEVIATION = 0.87962566103423978  # of a standard normal that is cut off at ±2


def truncated_normal(random: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> Floats:
    """Normal values cut off at two deviations, rescaled to variance 1/fan_in (LeCun)."""
    values = random.standard_normal(shape)
    while (outside := np.abs(values) > 2).any():
        values[outside] = random.standard_normal(np.count_nonzero(outside))
    return values / (TRUNCATED_DEVIATION * np.sqrt(fan_in))


def dense_transition(random: np.random.Generator, units: int, modulus: float) -> Floats:
    """(n, n) a real random matrix, its eigenvalues moved towards the unit circle, none below ν.

    The entries of A are N(0, 1/√n) (deviation). Its eigenvalues are mapped by
    ``|λ| → ν + (1 - ν) tanh|λ|``, angles and eigenvectors kept, which keeps A real: Zucchet &
    Orvieto 2024, eq. 133 with θ₀ = π.
    """
    raw = random.standard_normal((units, units)) / np.sqrt(units)
    eigenvalues, eigenvectors = np.linalg.eig(raw)
    moduli = np.abs(eigenvalues)
    moved = eigenvalues / moduli * (modulus + (1 - modulus) * np.tanh(moduli))
    # A = P diag(λ) P⁻¹ solved from the right; what is left of an imaginary part is rounding.
    return np.linalg.solve(eigenvectors.T, (eigenvectors * moved).T).T.real


def ring_eigenvalues(random: np.random.Generator, units: int, modulus: float) -> Complexes:
    """(n,) eigenvalues drawn uniformly by area from the upper half of the ring ν ≤ |λ| < 1.

    Orvieto et al. 2023, lemma 3.2. A real readout sees λ and its conjugate alike, so the upper
    half is the whole ring.
    """
    squared_moduli = random.uniform(modulus**2, 1, units)
    return np.sqrt(squared_moduli) * np.exp(1j * random.uniform(0, np.pi, units))


def single_channel(random: np.random.Generator, units: int) -> dict[str, Floats]:
    """B (n, 1), C (1, n) and D (1, 1) of a real system with one input and one output."""
    return {
        "B": truncated_normal(random, (units, 1), fan_in=1),
        "C": truncated_normal(random, (1, units), fan_in=units),
        "D": truncated_normal(random, (1, 1), fan_in=1),
    }


@dataclass(frozen=True)
class Teacher:
    """``h[t] = A h[t-1] + B x[t]``, ``y[t] = C h[t] + D x[t]`` with one input and one output.

    Zucchet & Orvieto 2024, section 4.2 and appendix B.4.
    """

    A: Floats  # (n, n) transition
    B: Floats  # (n, 1) readin
    C: Floats  # (1, n) readout
    D: Floats  # (1, 1) skip connection

    def kernel(self, horizon: int) -> Floats:
        """The response to an impulse: ``D + C B, C A B, C A² B, …``, one number per step."""
        response = np.empty(horizon)
        state = self.B[:, 0]
        for step in range(horizon):
            response[step] = self.C[0] @ state
            state = self.A @ state
        response[0] += self.D[0, 0]
        return response


def draw_teacher(units: int, modulus: float, seed: int) -> Teacher:
    """A random teacher with every |λ| between ν and 1."""
    random = np.random.default_rng([seed, 0])
    return Teacher(dense_transition(random, units, modulus), **single_channel(random, units))


def impulse_states(transition: Array, readin: Array, horizon: int) -> Array:
    """(n, T) the states ``A^t b`` that an impulse leaves after t = 0 … T-1 steps."""
    multiply = jnp.matmul if transition.ndim == 2 else jnp.multiply
    power = transition if transition.ndim == 2 else transition[:, None]
    states = readin[:, None]
    while states.shape[1] < horizon:
        states = jnp.concatenate([states, multiply(power, states)], axis=1)
        # The power after the last doubling is never used and could overflow.
        power = multiply(power, power) if states.shape[1] < horizon else power
    return states[:, :horizon]


def causal_convolution(kernel: Array, inputs: Array) -> Array:
    """``y[t] = Σ_{s≤t} kernel[s] x[t-s]`` for every sequence of a (batch, T).

    The transforms are padded to twice the horizon, so that nothing wraps around.
    """
    horizon = kernel.shape[0]
    product = jnp.fft.rfft(kernel, 2 * horizon) * jnp.fft.rfft(inputs, 2 * horizon)
    return jnp.fft.irfft(product, 2 * horizon)[:, :horizon]


class Network(ABC):
    """A recurrent network with one input and one output, as pure functions of its parameters."""

    @abstractmethod
    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values of n units by the name that the checkpoint will give them.

        The modulus is the smallest |λ|, for networks whose eigenvalues are set.
        """

    @abstractmethod
    def outputs(self, parameters: Parameters, inputs: Array) -> Array:
        """(batch, T) the outputs of every step of (batch, T) inputs, from a zero state."""


class LinearNetwork(Network):
    """``h[t] = A h[t-1] + B x[t]``, ``y[t] = Re[C h[t]] + D x[t]`` as its impulse response.

    It is ``D + C B, C A B, C A² B, …`` and does not depend on the batch, so that a training step
    costs one Fourier transform of the batch instead of T products with it.
    """

    @abstractmethod
    def system(self, parameters: Parameters) -> tuple[Array, Array, Array]:
        """A, or its diagonal, B (n,) and C (n,)."""

    def kernel(self, parameters: Parameters, horizon: int) -> Array:
        """(T,) Re C Aᵗ B, without D."""
        transition, readin, readout = self.system(parameters)
        return (readout @ impulse_states(transition, readin, horizon)).real

    def outputs(self, parameters: Parameters, inputs: Array) -> Array:
        """The convolution of the inputs with the impulse response."""
        kernel = self.kernel(parameters, inputs.shape[1])
        return causal_convolution(kernel.at[0].add(parameters["D"].ravel()[0]), inputs)


class DenseLinearRNN(LinearNetwork):
    """A is (n, n), B (n, 1), C (1, n) and D (1, 1). It starts as the teachers do."""

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values, with eigenvalues on the ring ν ≤ |λ| < 1."""
        return {"A": dense_transition(random, units, modulus), **single_channel(random, units)}

    def system(self, parameters: Parameters) -> tuple[Array, Array, Array]:
        """As they are stored."""
        return parameters["A"], parameters["B"][:, 0], parameters["C"][0]


class ComplexDiagonalRNN(LinearNetwork):
    """A (n,), B (n, 1) and C (1, n) are stored as real and imaginary parts, D is (1,)."""

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values, with eigenvalues on the ring ν ≤ |λ| < 1."""
        eigenvalues = ring_eigenvalues(random, units, modulus)
        return {
            "A_re": eigenvalues.real,
            "A_im": eigenvalues.imag,
            # minimal-LRU halves the variance of B between its parts; C it does not.
            "B_re": truncated_normal(random, (units, 1), fan_in=2),
            "B_im": truncated_normal(random, (units, 1), fan_in=2),
            "C_re": truncated_normal(random, (1, units), fan_in=units),
            "C_im": truncated_normal(random, (1, units), fan_in=units),
            "D": truncated_normal(random, (1,), fan_in=1),
        }

    def system(self, parameters: Parameters) -> tuple[Array, Array, Array]:
        """The two parts of each as one."""
        return parameters["A_re"] + 1j * parameters["A_im"], *_readin_and_readout(parameters)


def _readin_and_readout(parameters: Parameters) -> tuple[Array, Array]:
    readin = parameters["B_re"][:, 0] + 1j * parameters["B_im"][:, 0]
    return readin, parameters["C_re"][0] + 1j * parameters["C_im"][0]


class LRU(ComplexDiagonalRNN):
    """``h[t] = λ h[t-1] + γ B x[t]``, ``y[t] = Re[C h[t]] + D x[t]``; Orvieto et al. 2023.

    ``λ = exp(-exp(nu_log) + i exp(theta_log))`` and ``γ = exp(gamma_log)``, each (n,), B (n, 1) and
    C (1, n) as real and imaginary parts, D (1,): the names and shapes of minimal-LRU.
    """

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values, with eigenvalues on the ring ν ≤ |λ| < 1 and γ = √(1 - |λ|²)."""
        drawn = super().initialise(random, units, modulus)
        eigenvalues = drawn.pop("A_re") + 1j * drawn.pop("A_im")
        decay = -np.log(np.abs(eigenvalues))
        return {
            "nu_log": np.log(decay),
            "theta_log": np.log(np.angle(eigenvalues)),
            "gamma_log": 0.5 * np.log(-np.expm1(-2 * decay)),
            **drawn,
        }

    def system(self, parameters: Parameters) -> tuple[Array, Array, Array]:
        """λ, γB and C."""
        decay, angle = jnp.exp(parameters["nu_log"]), jnp.exp(parameters["theta_log"])
        readin, readout = _readin_and_readout(parameters)
        return jnp.exp(-decay + 1j * angle), jnp.exp(parameters["gamma_log"]) * readin, readout


class GRU(Network):
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

    def outputs(self, parameters: Parameters, inputs: Array) -> Array:
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


NETWORKS: dict[NetworkName, Network] = {
    NetworkName.DENSE_LINEAR_RNN: DenseLinearRNN(),
    NetworkName.COMPLEX_DIAGONAL_RNN: ComplexDiagonalRNN(),
    NetworkName.LRU: LRU(),
    NetworkName.GRU: GRU(),
}
