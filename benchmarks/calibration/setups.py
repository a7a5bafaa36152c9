"""The setups that the usable learning rate was calibrated on, and those it was then tested on."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from memcurse_cli.experiments.training import (
    LRU,
    ComplexDiagonalRNN,
    DenseLinearRNN,
    InitialValues,
    LinearNetwork,
    Network,
    Parameters,
    dense_transition,
    impulse_states,
    ring_eigenvalues,
    single_channel,
)

HEADS = 8


class BlockDiagonalRNN(LinearNetwork):
    """A `DenseLinearRNN` whose transition is block diagonal, one block per head.

    A is (heads, n/heads, n/heads), B (n, 1), C (1, n) and D (1, 1).
    """

    def initialise(self, random: np.random.Generator, units: int, modulus: float) -> InitialValues:
        """Initial values, every block with eigenvalues on the ring ν ≤ |λ| < 1."""
        most = max(1, min(HEADS, units // 2))
        heads = next(heads for heads in range(most, 0, -1) if units % heads == 0)
        blocks = [dense_transition(random, units // heads, modulus) for _ in range(heads)]
        return {"A": np.stack(blocks), **single_channel(random, units)}

    def system(self, parameters: Parameters) -> tuple[Array, Array, Array]:
        return parameters["A"], parameters["B"][:, 0], parameters["C"][0]

    def kernel(self, parameters: Parameters, horizon: int) -> Array:
        transition, readin, readout = self.system(parameters)
        heads, size, _ = transition.shape
        apart = readin.reshape(heads, size)
        states = jax.vmap(lambda a, b: impulse_states(a, b, horizon))(transition, apart)
        return readout @ states.reshape(heads * size, horizon)


class S4DChannel(LinearNetwork):
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

    def system(self, parameters: Parameters) -> tuple[Array, Array, Array]:
        rate = -jnp.exp(parameters["log_A_real"][0]) + 1j * parameters["A_imag"][0]
        eigenvalues = jnp.exp(jnp.exp(parameters["log_dt"][0]) * rate)
        readout = 2 * (parameters["C"][0, :, 0] + 1j * parameters["C"][0, :, 1])
        return eigenvalues, (eigenvalues - 1) / rate, readout


NETWORKS: dict[str, Network] = {
    "dense": DenseLinearRNN(),
    "block diagonal": BlockDiagonalRNN(),
    "complex diagonal": ComplexDiagonalRNN(),
    "LRU": LRU(),
    "S4D": S4DChannel(),
}
STEPS = 3000
BATCH = 32


@dataclass(frozen=True)
class Setup:
    """One student and one task.

    Attributes:
        network: a name of `NETWORKS`.
        units: n.
        modulus: the smallest |λ| of the teacher and of the student's start.
        horizon: T.
        seed: of everything random.
        held_out: whether it had no part in choosing the constants.
    """

    network: str
    units: int
    modulus: float
    horizon: int
    seed: int
    held_out: bool


_CALIBRATION = (
    *((64, modulus, 300, seed) for seed in (0, 1, 2) for modulus in (0.9, 0.99, 0.999)),
    *((32, modulus, 200, 3) for modulus in (0.9, 0.97, 0.99, 0.997, 0.999)),
    *((16, modulus, 500, 4) for modulus in (0.95, 0.995)),
)
_HELD_OUT = (
    (24, 0.93, 150, 10),
    (24, 0.97, 150, 11),
    (24, 0.99, 400, 12),
    (48, 0.9, 300, 13),
    (48, 0.98, 300, 14),
    (48, 0.995, 300, 15),
    (64, 0.98, 300, 16),
    (64, 0.999, 300, 17),
    (96, 0.95, 250, 18),
    (96, 0.99, 250, 19),
)
SETUPS = [
    Setup(network, units, modulus, horizon, seed, held_out)
    for held_out, tasks in ((False, _CALIBRATION), (True, _HELD_OUT))
    for units, modulus, horizon, seed in tasks
    for network in NETWORKS
]
