"""A GRU or an LSTM as the arrays that its equations need, and what a mean field keeps of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GRU_GATES = ("reset", "update", "new")
LSTM_GATES = ("input", "forget", "cell", "output")


@dataclass(frozen=True)
class GateStatistics:
    """What a mean field keeps of one pre-activation ``W h + U x + b``.

    Attributes:
        hidden_variance: σ² = N var W.
        hidden_mean: N mean W, which 0 is for weights without a bias of their own.
        input_variance: ν² = inputs · mean U².
        bias: (N,) b of every unit, which stays what it is from step to step.
    """

    hidden_variance: float
    hidden_mean: float
    input_variance: float
    bias: Floats


@dataclass(frozen=True)
class GatedNetwork:
    """One layer.

    A GRU is ``h' = z h + (1-z) tanh(n)`` with z and r the sigmoids of ``update`` and ``reset``, and
    ``n = U x + b + r (W h + b_inner)``, or ``n = U x + b + W (r h)`` without an inner bias; an LSTM
    is ``c' = f c + i tanh(g)``, ``h' = o tanh(c')``.

    Attributes:
        hidden: (H, H) W of each of `GRU_GATES` or `LSTM_GATES`, row = target.
        inputs: (H, inputs) U of each.
        bias: (H,) b of each, summed over the tensors that hold it; for ``new`` without b_inner.
        inner_bias: (H,) b_inner of a GRU, zeros where there is none; None where the reset gate
            acts before the matrix, and for an LSTM.
    """

    hidden: Mapping[str, Floats]
    inputs: Mapping[str, Floats]
    bias: Mapping[str, Floats]
    inner_bias: Floats | None = None

    @property
    def is_lstm(self) -> bool:
        """Whether it has a cell beside its state."""
        return "cell" in self.hidden

    @property
    def size(self) -> int:
        """The number H of units."""
        return len(next(iter(self.hidden.values())))

    def statistics(self, gate: str) -> GateStatistics:
        """Those of one gate."""
        hidden, inputs = self.hidden[gate], self.inputs[gate]
        return GateStatistics(
            hidden_variance=self.size * float(np.var(hidden)),
            hidden_mean=self.size * float(np.mean(hidden)),
            input_variance=inputs.shape[1] * float(np.mean(inputs**2)) if inputs.size else 0.0,
            bias=self.bias[gate],
        )
