"""The setups that the usable learning rate was calibrated on, and those it was then tested on."""

from __future__ import annotations

from dataclasses import dataclass

from memcurse_cli.experiments.networks import (
    LRU,
    BlockDiagonalRNN,
    ComplexDiagonalRNN,
    DenseLinearRNN,
    Network,
    S4DChannel,
)

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
