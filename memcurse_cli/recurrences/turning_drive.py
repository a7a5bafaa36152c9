"""What moves an eigenvalue that turns as it decays: a complex projection of the input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.recurrences.gate_drive import GateInput
from memcurse_cli.theory.turning_gates import TurningGates

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TurningDrive:
    """What drives ``λ = σ(|a|) e^(i arg a)`` of a layer beside the bias of a; γ = 1.

    E|dλ/da|² is infinite where a has a density at 0, and with it every sensitivity.

    Attributes:
        real: Re a of every eigenvalue, without a part that sees the state.
        imaginary: Im a, likewise.
        shared: (n,) W₁ᵢ·W₂ᵢ, the inner product of their weights.
        sees: what the weights multiply.
    """

    real: GateInput
    imaginary: GateInput
    shared: Floats
    sees: str = "the layer's input"

    def spreads(self, input_second_moment: float) -> Floats:
        """(2n,) the standard deviations of both parts, real parts first."""
        both = [gate.variance(input_second_moment, 0.0) for gate in (self.real, self.imaginary)]
        return np.sqrt(np.concatenate(both))

    def gates(self, input_second_moment: float) -> TurningGates:
        """a for an input of independent components of this second moment."""
        return TurningGates.from_covariance(
            self.real.bias + 1j * self.imaginary.bias,
            self.real.variance(input_second_moment, 0.0),
            self.imaginary.variance(input_second_moment, 0.0),
            self.shared * input_second_moment,
        )
