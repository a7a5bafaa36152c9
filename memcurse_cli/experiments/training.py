"""Train a student to reproduce a linear teacher with Adam, and say how well it does.

Zucchet & Orvieto 2024, section 4.2: sequences of white N(0, 1) inputs, drawn anew at every step,
and half the mean squared error between both outputs at every step of the sequence.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.errors import MemcurseError
from memcurse_cli.experiments.settings import NetworkName, TrainingSettings
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

    Orvieto et al. 2023, lemma 3.2; half is enough, as a real readout sees λ and λ̄ alike.
    """
    squared_moduli = random.uniform(modulus**2, 1, units)
    return np.sqrt(squared_moduli) * np.exp(1j * random.uniform(0, np.pi, units))


def single_channel(random: np.random.Generator, units: int) -> InitialValues:
    """B (n, 1), C (1, n) and D (1, 1) of a real system with one input and one output."""
    return {
        "B": truncated_normal(random, (units, 1), fan_in=1),
        "C": truncated_normal(random, (1, units), fan_in=units),
        "D": truncated_normal(random, (1, 1), fan_in=1),
    }


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
        """Initial values of n units by their checkpoint names; the modulus is the smallest |λ|."""

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


def teacher_kernel(units: int, modulus: float, seed: int, horizon: int) -> Floats:
    """(T,) the response of a random linear teacher to an impulse: ``D + C B, C A B, C A² B, …``.

    Its |λ| are between ν and 1: Zucchet & Orvieto 2024, section 4.2 and appendix B.4.
    """
    teacher = DenseLinearRNN().initialise(np.random.default_rng([seed, 0]), units, modulus)
    response, state = np.empty(horizon), teacher["B"][:, 0]
    for step in range(horizon):
        response[step] = teacher["C"][0] @ state
        state = teacher["A"] @ state
    response[0] += teacher["D"][0, 0]
    return response


NETWORKS: dict[NetworkName, Network] = {
    NetworkName.DENSE_LINEAR_RNN: DenseLinearRNN(),
    NetworkName.COMPLEX_DIAGONAL_RNN: ComplexDiagonalRNN(),
    NetworkName.LRU: LRU(),
    NetworkName.GRU: GRU(),
}


EVALUATION_SEQUENCES = 1024
STEPS_PER_CALL = 50


class DivergenceError(MemcurseError):
    """A training run whose loss left the finite numbers."""


class TrainingResult(Struct, frozen=True):
    """A trained student."""

    parameters: dict[str, NDArray[Any]]  # its tensors by name, in the dtype of the settings
    loss_before: float  # the loss of the initial student on the evaluation sequences
    loss_after: float  # the loss of the trained one on the same sequences
    seconds: float  # wall-clock time of the optimizer steps, compilation included


def _ignore(step: int, _: Any) -> None:
    """For a caller that does not follow the training."""


def train(
    settings: TrainingSettings,
    report: Callable[[int, float], None] = _ignore,
    keep: Callable[[int, Mapping[str, NDArray[Any]]], None] = _ignore,
    every: int = STEPS_PER_CALL,
) -> TrainingResult:
    """Train a student with Adam under a cosine schedule; the same settings give the same student.

    ``report`` is called every `STEPS_PER_CALL` steps with their number and the last batch's loss,
    ``keep`` with the number and the student, at step 0, at the end and ``every`` so many steps.
    Raises DivergenceError: the loss became infinite or NaN.
    """
    initial = initialise(settings)
    # Explicit dtypes everywhere below: this only allows double precision, it does not impose it.
    with jax.enable_x64(True):
        optimizer = optax.adam(optax.cosine_decay_schedule(settings.learning_rate, settings.steps))
        parameters = {name: jnp.asarray(value) for name, value in initial.items()}
        state = optimizer.init(parameters)
        advance = _compile(settings, optimizer)
        started, done = time.perf_counter(), 0
        keep(0, initial)
        while done < settings.steps:
            end = min(done + STEPS_PER_CALL, (done // every + 1) * every, settings.steps)
            parameters, state, loss = advance(parameters, state, done, end)
            done = end
            _require_finite(float(loss), settings, done)
            report(done, float(loss))
            if done % every == 0 or done == settings.steps:
                trained = {name: np.asarray(value) for name, value in parameters.items()}
                keep(done, trained)
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
    """A silent student's exact loss, ``½ Σ_k (T - k)/T kernel[k]²`` for white x of variance 1."""
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


def _teacher_kernel(settings: TrainingSettings) -> Floats:
    return teacher_kernel(settings.teacher_units, settings.modulus, settings.seed, settings.horizon)


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
