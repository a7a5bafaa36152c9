"""What moves gates that see, beside their input, the state of their own unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.recurrences.gate_drive import GateDrive, GateInput
from memcurse_cli.theory.gate_laws import LOGISTIC, Opening
from memcurse_cli.theory.own_states import DrawnGates, draw_lstm_gates, draw_mixing_gates

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MixingDrive:
    """The SRU's forget gate ``σ(z₀ + v c)``, behind which it takes in u.

    Attributes:
        gate: z₀ of every unit, without a part that sees other units.
        taken: u, likewise.
        shared: (n,) the inner product of their weights.
        own: (n,) v.
        sees: what the weights multiply.
        reason: why there are no moments, as a clause.
    """

    gate: GateInput
    taken: GateInput
    shared: Floats
    own: Floats
    reason: str
    sees: str = "the layer's input"
    opening = LOGISTIC

    def draw(self, input_second_moment: float) -> DrawnGates:
        """Both of the same Gaussian input."""
        gate, taken = (of.preactivation(input_second_moment) for of in (self.gate, self.taken))
        scale = 1.0 if self.gate.fixed is not None else input_second_moment
        both = gate.spread * taken.spread
        correlation = np.divide(self.shared * scale, both, out=np.zeros_like(both), where=both > 0)
        return draw_mixing_gates(gate, taken, np.clip(correlation, -1.0, 1.0), self.own)


@dataclass(frozen=True)
class PeepholeDrive:
    """An LSTM's gates, some of which see c.

    Attributes:
        plain: what drives the LSTM without its peepholes.
        peepholes: (n,) p_f, p_i and p_o by gate, of those that are there.
        reason: why there are no moments, as a clause.
    """

    plain: GateDrive
    peepholes: Mapping[str, Floats]
    reason: str

    @property
    def sees(self) -> str:
        """That of the gates."""
        return self.plain.sees

    @property
    def opening(self) -> Opening:
        """That of the gates."""
        return LOGISTIC if self.plain.state is None else self.plain.state.opening

    def draw(self, input_second_moment: float) -> DrawnGates:
        """The gates under an input and a state of independent components."""
        plain, state = self.plain, self.plain.state
        assert state is not None
        inputs = {
            "forget": plain.gate,
            "input": plain.write_gate,
            "cell": state.candidate,
            "output": state.output,
        }
        gates = {name: of for name, of in inputs.items() if of is not None}
        projection = 1.0 if state.projection is None else float(np.mean(state.projection))
        return draw_lstm_gates(
            lambda held: {
                name: of.preactivation(input_second_moment, held) for name, of in gates.items()
            },
            dict(self.peepholes),
            state.opening,
            projection,
        )


OwnStateDrive = MixingDrive | PeepholeDrive
"""Gates whose band is drawn: no theory of gates that are drawn anew at every step fits them."""
