"""What peepholes add to an LSTM: gates that also see the cell's own state, unit by unit.

``c' = σ(b_f + p_f c) c + σ(b_i + p_i c) tanh(b_g)`` at zero input and h = 0. The slope at c = 0 is

    λ = σ(b_f) + p_i σ'(b_i) tanh(b_g)

p_f multiplies c², and p_o acts on the output alone: neither moves λ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from memcurse_cli.families.cells.gated_layer import GateBias, GateFunction
from memcurse_cli.families.gate_inputs import GateDrive, peephole_drive
from memcurse_cli.families.reading import log_of_eigenvalues, one_to_one
from memcurse_cli.families.recurrence import Complexes, Floats, Recurrence

PEEPHOLES = (
    "λ is the slope at c = 0, to which of the peepholes only the input gate's adds: "
    "λ = σ(b_f) + p_i σ'(b_i) tanh(b_g)"
)


_OWN_STATE = (
    "peepholes let its gates see their own unit's state, which stays from step to step, where the"
    " theory has gates drawn anew; the band is that of its forget gate, drawn"
)


@dataclass(frozen=True)
class Peephole:
    """The weights by which a gate sees its own unit's cell.

    Attributes:
        name: the name of their group.
        tensor: the tensor that holds them.
        values: (H,) p.
        dtype: the stored type.
    """

    name: str
    tensor: str
    values: Floats
    dtype: str


def with_peepholes(
    recurrence: Recurrence,
    biases: Mapping[str, GateBias],
    peepholes: Mapping[str, Peephole],
    function: GateFunction,
) -> Recurrence:
    """An LSTM's recurrence with its peepholes' term in λ, its derivatives and what moves its gates.

    Args:
        recurrence: the LSTM as it is without peepholes, λ = σ(b_f) and γ = σ(b_i).
        biases: those of its gates.
        peepholes: p_f, p_i and p_o by gate, of those that are there.
        function: σ.
    """
    plain = recurrence.gate
    if isinstance(plain, GateDrive) and plain.state is not None and peepholes:
        seen = {gate: peephole.values for gate, peephole in peepholes.items()}
        drive = peephole_drive(plain, plain.state, seen, _OWN_STATE)
        recurrence = replace(recurrence, gate=drive)
    if "input" not in peepholes:
        return recurrence
    peephole = peepholes["input"]
    opened = function(biases["input"].total)
    slope = opened.derivative
    curvature = 0.0 if function.saturates else slope * (1 - 2 * opened.value)
    candidate = np.tanh(biases["cell"].total)
    bent = curvature * peephole.values * candidate
    groups = [
        replace(group, eigenvalue_derivative=group.eigenvalue_derivative + bent)
        if group.name.endswith("[input]")
        else group
        for group in recurrence.parameters
    ]
    groups += biases["cell"].groups("cell", slope * peephole.values * (1 - candidate**2))
    groups.append(
        one_to_one(
            peephole.name, peephole.tensor, peephole.values, peephole.dtype, slope * candidate
        )
    )
    added = peephole.values * slope * candidate
    return replace(
        recurrence,
        log_eigenvalues=_log_sum(recurrence.log_eigenvalues, added),
        parameters=tuple(groups),
        stable_by_construction=False,
        assumptions=(*recurrence.assumptions, PEEPHOLES),
    )


def _log_sum(log_gate: Complexes, added: Floats) -> Complexes:
    """log(σ + added); as log σ + log1p(added / σ) it keeps its digits next to the unit circle."""
    kept = np.exp(log_gate.real)
    total = kept + added
    ratio = np.divide(added, kept, out=np.full_like(added, np.inf), where=kept > 0)
    precise = np.abs(ratio) < 0.5
    logs = log_gate + np.log1p(np.where(precise, ratio, 0.0))
    return np.where(precise, logs, log_of_eigenvalues(total))
