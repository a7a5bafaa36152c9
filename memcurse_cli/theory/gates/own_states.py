"""Gates that see the state of their own unit, which stays from step to step: drawn, unit by unit.

Such a gate is not independent of the state that it multiplies: what it keeps decides what it keeps
next. The units run under random inputs from a zero state, in many chains each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.gates.laws import LOGISTIC, Opening
from memcurse_cli.theory.gates.quadrature import Preactivation, evenly_taken

Floats = NDArray[np.float64]
Normals = Callable[[], Floats]

CHAINS = 8
STEPS = 2000
"""The second half counts."""
SEED = 11


@dataclass(frozen=True)
class DrawnGates:
    """What units did that ran.

    Attributes:
        preactivation: (draws, units) z of the gate that keeps the state, at every step that counts.
        shown: E h² of what the hidden weights show, None where they show nothing.
    """

    preactivation: Floats
    shown: float | None = None


def draw_mixing_gates(
    gate: Preactivation, taken: Preactivation, correlation: Floats, own: Floats
) -> DrawnGates:
    """``c' = σ(z) c + (1 - σ(z)) u`` with ``z = z₀ + v c``: the SRU.

    Args:
        gate: z₀ of every unit, Gaussian and independent in time.
        taken: u, likewise.
        correlation: (n,) of both.
        own: (n,) v.
    """
    some, normals = _draws(own.size)
    left = np.sqrt(np.maximum((1 - correlation) * (1 + correlation), 0.0))[some]
    gate, taken = gate.take(some), taken.take(some)
    c, counted = np.zeros((CHAINS, some.size)), []
    for step in range(STEPS):
        first = normals()
        second = correlation[some] * first + left * normals()
        z = gate.mean + gate.spread * first + own[some] * c
        kept = LOGISTIC(z)
        c = kept.value * c + kept.complement * (taken.mean + taken.spread * second)
        if step >= STEPS // 2:
            counted.append(z)
    return DrawnGates(np.concatenate(counted))


def draw_lstm_gates(
    gates: Callable[[float], dict[str, Preactivation]],
    peepholes: dict[str, Floats],
    opening: Opening = LOGISTIC,
    projection: float = 1.0,
) -> DrawnGates:
    """``c' = σ(f + p_f c) c + σ(i + p_i c) tanh(g)``, ``h = σ(o + p_o c') tanh(c')``.

    The other units are seen by the mean of h² over all that run, as at every step.

    Args:
        gates: f, i, g and o of every unit by the names forget, input, cell and output, for E h².
        peepholes: (n,) p by gate, of those that are there.
        opening: σ.
        projection: what a projection makes of E h².
    """
    size = gates(0.0)["forget"].mean.size
    some, normals = _draws(size)
    none = np.zeros(some.size)
    p = {gate: peepholes[gate][some] if gate in peepholes else none for gate in ("forget", "input")}
    p_output = peepholes["output"][some] if "output" in peepholes else none
    c, counted = np.zeros((CHAINS, some.size)), []
    held, shown = 0.0, 0.0
    for step in range(STEPS):
        drawn = {
            name: at.mean[some] + at.spread[some] * normals() for name, at in gates(held).items()
        }
        z = drawn["forget"] + p["forget"] * c
        written = opening(drawn["input"] + p["input"] * c).value * np.tanh(drawn["cell"])
        c = opening(z).value * c + written
        h = opening(drawn["output"] + p_output * c).value * np.tanh(c)
        held = projection * float(np.mean(h**2))
        if step >= STEPS // 2:
            counted.append(z)
            shown += held
    return DrawnGates(np.concatenate(counted), shown / len(counted))


def _draws(size: int) -> tuple[NDArray[np.intp], Normals]:
    """The units that run, and their normal draws; the same at every call."""
    some = evenly_taken(size)
    random = np.random.default_rng(SEED)
    return some, lambda: random.standard_normal((CHAINS, some.size))
