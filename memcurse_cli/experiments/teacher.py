"""The linear teacher whose long memory the students have to learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memcurse_cli.experiments.initialisation import dense_transition, truncated_normal

if TYPE_CHECKING:
    from jaxtyping import Float64


@dataclass(frozen=True)
class Teacher:
    """``h[t] = A h[t-1] + B x[t]``, ``y[t] = C h[t] + D x[t]`` with one input and one output.

    Zucchet & Orvieto 2024, section 4.2 and appendix B.4.

    Attributes:
        A: (n, n) transition.
        B: (n, 1) readin.
        C: (1, n) readout.
        D: (1, 1) skip connection.
    """

    A: Float64[np.ndarray, "n n"]
    B: Float64[np.ndarray, "n 1"]
    C: Float64[np.ndarray, "1 n"]
    D: Float64[np.ndarray, "1 1"]

    def kernel(self, horizon: int) -> Float64[np.ndarray, " horizon"]:
        """The response to an impulse: ``D + C B, C A B, C A² B, …``, one number per step."""
        response = np.empty(horizon)
        state = self.B[:, 0]
        for step in range(horizon):
            response[step] = self.C[0] @ state
            state = self.A @ state
        response[0] += self.D[0, 0]
        return response


def draw_teacher(units: int, modulus: float, seed: int) -> Teacher:
    """A random teacher with every |λ| between ν and 1.

    Args:
        units: its hidden units.
        modulus: ν in [0, 1).
        seed: the same seed gives the same teacher whoever the student is.
    """
    random = np.random.default_rng([seed, 0])
    return Teacher(
        A=dense_transition(random, units, modulus),
        B=truncated_normal(random, (units, 1), fan_in=1),
        C=truncated_normal(random, (1, units), fan_in=units),
        D=truncated_normal(random, (1, 1), fan_in=1),
    )
