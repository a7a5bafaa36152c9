"""A GRU or an LSTM at work: the layer itself, run beside a perturbation of its state.

Every sequence carries a tangent vector of the state along, set back to norm 1 at every step. The
mean logarithm of its growth is the largest Lyapunov exponent; twice that is the logarithm of the
growth of its square, which a mean field calls χ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from memcurse_cli.theory.gates.network import GRU_GATES, LSTM_GATES, Floats, GatedNetwork
from memcurse_cli.theory.mean_field.gated import GateLevel, sigmoid

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
class GatedSimulation:
    """What a layer did over the second half of a run.

    Attributes:
        second_moment: E h² over units, sequences and steps.
        growth: exp(2 × the largest Lyapunov exponent).
        growth_error: the standard error of the growth, over sequences.
        gates: how far the gates were open, over units, sequences and steps.
        steps: how long each sequence was, from a zero state.
        settled: whether E h² was as large in the last quarter as in the one before.
    """

    second_moment: float
    growth: float
    growth_error: float
    gates: Mapping[str, GateLevel]
    steps: int
    settled: bool


def simulate_gated(
    network: GatedNetwork, input_variance: float = 1.0, steps: int | None = None
) -> GatedSimulation | None:
    """Run a layer on inputs N(0, R(0)), drawn anew for every step, sequence and component.

    Args:
        network: the layer.
        input_variance: R(0).
        steps: of each of the `SEQUENCES`; by default as many as its size allows, up to `LONGEST`.

    Returns:
        What it did, or None where its weights are so large that products overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _simulate(network, input_variance, steps)


def _simulate(
    network: GatedNetwork, input_variance: float, steps: int | None
) -> GatedSimulation | None:
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
        with np.errstate(divide="ignore"):
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
        gates={gate: _level(*(total / later)) for gate, total in sums.items()},
        steps=steps,
        settled=abs(float(drift.mean())) <= DRIFT * second + 2 * noise,
    )


def _level(mean: float, square: float) -> GateLevel:
    return GateLevel(float(mean), math.sqrt(max(float(square - mean**2), 0.0)))


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
