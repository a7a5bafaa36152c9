"""A GRU or an LSTM as the arrays that its equations need, and how it works when it is run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GRU_GATES = ("reset", "update", "new")
LSTM_GATES = ("input", "forget", "cell", "output")

SEQUENCES = 8
SEED = 0
LARGEST = 1024
"""The units above which a run takes too long."""
LONGEST, SHORTEST = 2000, 200
WORK = 2e8
"""What H² times the number of steps may be: seconds."""
DRIFT = 0.05
"""How much E h² may change from one quarter to the next of a layer that has settled, beside two
standard errors."""


@dataclass(frozen=True)
class GateStatistics:
    """What a mean field keeps of one pre-activation ``W h + U x + b``.

    σ² = N var W, N mean W, ν² = inputs · mean U² and b, which stays from step to step.
    """

    hidden_variance: float
    hidden_mean: float
    input_variance: float
    bias: Floats

    @classmethod
    def of(cls, hidden: Floats, inputs: Floats, bias: Floats) -> GateStatistics:
        """From W (H, H), U (H, inputs) and b."""
        size, width = len(hidden), inputs.shape[1]
        driven = width * float(np.mean(inputs**2)) if inputs.size else 0.0
        return cls(size * float(np.var(hidden)), size * float(np.mean(hidden)), driven, bias)


@dataclass(frozen=True)
class GatedNetwork:
    """One layer.

    A GRU is ``h' = z h + (1-z) tanh(n)`` with z and r the sigmoids of ``update`` and ``reset``, and
    ``n = U x + b + r (W h + b_inner)``, or ``n = U x + b + W (r h)`` without an inner bias; an LSTM
    is ``c' = f c + i tanh(g)``, ``h' = o tanh(c')``.
    """

    hidden: Mapping[str, Floats]  # (H, H) W of each of `GRU_GATES` or `LSTM_GATES`, row = target
    inputs: Mapping[str, Floats]  # (H, inputs) U of each
    # (H,) b of each, summed over the tensors that hold it; for ``new`` without b_inner
    bias: Mapping[str, Floats]
    # (H,) b_inner of a GRU, zeros where there is none; None where the reset gate acts before the
    # matrix, and for an LSTM
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
        return GateStatistics.of(self.hidden[gate], self.inputs[gate], self.bias[gate])


@dataclass(frozen=True)
class GateLevel:
    """How far a gate is open, over the units and in time: E σ(u), and its standard deviation."""

    mean: float
    spread: float

    @classmethod
    def of(cls, mean: float, square: float) -> GateLevel:
        """From the first two moments."""
        return cls(float(mean), math.sqrt(max(float(square - mean**2), 0.0)))


def sigmoid(u: Floats) -> Floats:
    """1 / (1 + e⁻ᵘ)."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -u)))


@dataclass(frozen=True)
class GatedSimulation:
    """What a layer did over the second half of a run, over units, sequences and steps."""

    second_moment: float  # E h²
    growth: float  # exp(2 × the largest Lyapunov exponent)
    growth_error: float  # its standard error, over sequences
    gates: Mapping[str, GateLevel]  # how far they were open
    steps: int  # how long each sequence was, from a zero state
    settled: bool  # whether E h² was as large in the last quarter as in the one before


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def simulate_gated(
    network: GatedNetwork, input_variance: float = 1.0, steps: int | None = None
) -> GatedSimulation | None:
    """Run a layer on inputs N(0, R(0)), drawn anew for every step, sequence and component.

    Every sequence carries a tangent vector of the state along, set back to norm 1 at every step.
    The mean logarithm of its growth is the largest Lyapunov exponent; twice that is the logarithm
    of the growth of its square, which a mean field calls χ.

    Args:
        network: the layer.
        input_variance: R(0).
        steps: of each of the `SEQUENCES`; by default as many as its size allows, up to `LONGEST`.

    Returns:
        What it did, or None where its weights are so large that products overflow.
    """
    size, width = network.size, next(iter(network.inputs.values())).shape[1]
    if steps is None:
        steps = int(min(LONGEST, max(SHORTEST, WORK / size**2)))
    random = np.random.default_rng(SEED)
    state = np.zeros((2, size, SEQUENCES))  # h, and c of an LSTM
    tangent = random.standard_normal(state.shape)
    if not network.is_lstm:
        tangent[1] = 0.0
    step = _lstm_step if network.is_lstm else _gru_step
    read = ("forget", "input", "output") if network.is_lstm else ("update", "reset")
    moments, logarithms = np.zeros((2, steps, SEQUENCES))
    sums = {gate: np.zeros(2) for gate in read}
    for index in range(steps):
        inputs = math.sqrt(input_variance) * random.standard_normal((width, SEQUENCES))
        opened = step(network, state, tangent, inputs)
        norms = np.sqrt(np.einsum("kij,kij->j", tangent, tangent))
        moments[index] = np.mean(state[0] ** 2, axis=0)
        logarithms[index] = np.log(norms)
        tangent /= np.where(norms > 0, norms, 1.0)
        if index >= steps // 2:
            for gate in read:
                sums[gate] += np.mean(opened[gate]), np.mean(opened[gate] ** 2)
    if not np.isfinite(state).all() or np.isnan(logarithms).any():
        return None
    later = steps - steps // 2
    exponents = 2 * logarithms[steps // 2 :].mean(axis=0)
    growth = math.exp(float(exponents.mean()))
    error = growth * float(exponents.std(ddof=1)) / math.sqrt(SEQUENCES) if growth else 0.0
    before, after = moments[steps // 2 : steps - steps // 4], moments[steps - steps // 4 :]
    second = float(moments[steps // 2 :].mean())
    drift = after.mean(axis=0) - before.mean(axis=0)
    noise = float(drift.std(ddof=1)) / math.sqrt(SEQUENCES)
    return GatedSimulation(
        second_moment=second,
        growth=growth,
        growth_error=error,
        gates={gate: GateLevel.of(*(total / later)) for gate, total in sums.items()},
        steps=steps,
        settled=abs(float(drift.mean())) <= DRIFT * second + 2 * noise,
    )


def _gru_step(
    network: GatedNetwork, state: Floats, tangent: Floats, inputs: Floats
) -> dict[str, Floats]:
    """Move h and its tangent on, in place; gives the gates."""
    h, moved = state[0].copy(), tangent[0].copy()
    drive = {
        gate: network.inputs[gate] @ inputs + network.bias[gate][:, None] for gate in GRU_GATES
    }
    hidden = network.hidden
    z = sigmoid(hidden["update"] @ h + drive["update"])
    r = sigmoid(hidden["reset"] @ h + drive["reset"])
    z_moved = z * (1 - z) * (hidden["update"] @ moved)
    r_moved = r * (1 - r) * (hidden["reset"] @ moved)
    if network.inner_bias is None:
        v = hidden["new"] @ (r * h) + drive["new"]
        v_moved = hidden["new"] @ (r * moved + r_moved * h)
    else:
        w = hidden["new"] @ h + network.inner_bias[:, None]
        v = r * w + drive["new"]
        v_moved = r * (hidden["new"] @ moved) + r_moved * w
    n = np.tanh(v)
    tangent[0] = z * moved + (h - n) * z_moved + (1 - z) * (1 - n**2) * v_moved
    state[0] = z * h + (1 - z) * n
    return {"update": z, "reset": r}


def _lstm_step(
    network: GatedNetwork, state: Floats, tangent: Floats, inputs: Floats
) -> dict[str, Floats]:
    """Move h, c and their tangents on, in place; gives the gates."""
    (h, c), (h_moved, c_moved) = state.copy(), tangent.copy()
    u = {
        gate: network.hidden[gate] @ h + network.inputs[gate] @ inputs + network.bias[gate][:, None]
        for gate in LSTM_GATES
    }
    u_moved = {gate: network.hidden[gate] @ h_moved for gate in LSTM_GATES}
    f, i, o = (sigmoid(u[gate]) for gate in ("forget", "input", "output"))
    g = np.tanh(u["cell"])
    state[1] = f * c + i * g
    tangent[1] = f * c_moved + c * f * (1 - f) * u_moved["forget"]
    tangent[1] += g * i * (1 - i) * u_moved["input"] + i * (1 - g**2) * u_moved["cell"]
    bent = np.tanh(state[1])
    state[0] = o * bent
    tangent[0] = o * (1 - bent**2) * tangent[1] + bent * o * (1 - o) * u_moved["output"]
    return {"forget": f, "input": i, "output": o}
