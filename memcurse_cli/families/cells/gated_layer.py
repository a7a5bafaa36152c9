"""A step of gated cells at zero input and zero state: gates, biases, peepholes, its Jacobian.

λ = σ(b) is what a unit keeps by itself; the Jacobian of one step of the whole state holds the
memory through the hidden weights as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from memcurse_cli.families.gate_inputs import GateDrive, peephole_drive
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    log_of_eigenvalues,
    log_sigmoid,
    one_to_one,
    sigmoid,
)
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, ParameterGroup, Recurrence
from memcurse_cli.theory.gates.laws import LOGISTIC, Opening
from memcurse_cli.theory.linalg.eigendecomposition import eigenvalues

LARGEST_JACOBIAN = 1024
"""The order above which the Jacobian is left out: that of an LSTM of 512 units."""
WITHOUT_BIAS = (
    "the layer has no bias: at zero input its gates stand at 1/2 and only the weights move them, "
    "so no parameter is listed"
)
PEEPHOLES = (
    "λ is the slope at c = 0, to which of the peepholes only the input gate's adds: "
    "λ = σ(b_f) + p_i σ'(b_i) tanh(b_g)"
)
_OWN_STATE = (
    "peepholes let its gates see their own unit's state, which stays from step to step, where the"
    " theory has gates drawn anew; the band is that of its forget gate, drawn"
)


def step_spectra(
    weights: Mapping[str, Floats],
    jacobian: Callable[[], Floats],
    order: int,
    device: str = "auto",
    reason: str | None = None,
) -> HiddenSpectra:
    """The eigenvalues of each gate's (H, H) hidden matrix, and of the Jacobian of one step.

    The Jacobian is made where it is not too large and no ``reason`` is given against it.
    """
    reasons = [] if reason is None else [reason]
    if not weights:
        reasons.append("the gates' hidden matrices are not square and have no eigenvalues")
    if reason is None and order > LARGEST_JACOBIAN:
        reasons.append(
            f"a Jacobian of order {order} costs more than all gates, so those above "
            f"{LARGEST_JACOBIAN} are not taken"
        )
    taken = reason is None and order <= LARGEST_JACOBIAN
    return HiddenSpectra(
        gates={gate: eigenvalues(matrix, device) for gate, matrix in weights.items()},
        jacobian=eigenvalues(jacobian(), device) if taken else None,
        reason="; ".join(reasons) or None,
    )


def lstm_jacobian(
    weights: Mapping[str, Floats],
    biases: Mapping[str, Floats],
    projection: Floats | None = None,
    peepholes: Mapping[str, Floats] | None = None,
) -> Floats:
    """d(h', c')/d(h, c) at zero input, h = 0 and c = 0, by the chain rule.

    ``c' = σ(f) c + σ(i) tanh(g)``, ``h' = R σ(o) tanh(c')``, and every gate is ``W h + b``, plus
    ``p c`` for the input gate and ``p c'`` for the output gate where there are peepholes.

    Args:
        weights: (H, P) W of the gates input, forget, cell and output, row = target.
        biases: (H,) b of each gate.
        projection: (P, H) R, or None for the identity.
        peepholes: (H,) p of the gates input and output, as far as they are there.

    Returns:
        (P + H, P + H), h before c.
    """
    seen = {"input": 0.0, "output": 0.0} | dict(peepholes or {})
    opened, forget = sigmoid(biases["input"]), sigmoid(biases["forget"])
    candidate = np.tanh(biases["cell"])
    written = opened * candidate
    bent = np.tanh(written)
    shown = biases["output"] + seen["output"] * written
    output, turned = sigmoid(shown), sigmoid(shown) * sigmoid(-shown) * bent
    slope = output * (1 - bent**2) + seen["output"] * turned
    # The forget gate's own weights and peephole multiply c = 0.
    turned_input = opened * sigmoid(-biases["input"]) * candidate
    cell_by_cell = forget + seen["input"] * turned_input
    cell_by_state = _scaled(turned_input, weights["input"])
    cell_by_state += _scaled(opened * (1 - candidate**2), weights["cell"])
    state_by_state = _scaled(slope, cell_by_state)
    state_by_state += _scaled(turned, weights["output"])
    state_by_cell = np.diag(slope * cell_by_cell)
    if projection is not None:
        state_by_state, state_by_cell = projection @ state_by_state, projection @ state_by_cell
    return np.block([[state_by_state, state_by_cell], [cell_by_state, np.diag(cell_by_cell)]])


def gru_jacobian(
    weights: Mapping[str, Floats],
    biases: Mapping[str, Floats],
    inner_bias: Floats | None,
    offset: Floats | float = 0.0,
) -> Floats:
    """dh'/dh at zero input and h = 0, by the chain rule.

    ``h' = σ(z) h + (1 - σ(z - β)) tanh(n)`` with ``n = b_n + σ(r) (W_n h + b_inner)``, or, where
    the reset gate acts before the matrix, ``n = b_n + W_n (σ(r) h)``.

    Args:
        weights: (H, H) W of the gates reset and update and of the candidate new, row = target;
            without that of ``new`` the candidate does not see the state.
        biases: (H,) b of the gates, summed over the tensors that hold it, and b_n of ``new``;
            without that of ``reset`` there is no such gate.
        inner_bias: (H,) b_inner, zeros where there is none; None where the reset gate acts before
            the matrix.
        offset: β.
    """
    update, shifted = sigmoid(biases["update"]), biases["update"] - offset
    closed = sigmoid(-shifted)
    reset = sigmoid(biases["reset"]) if "reset" in biases else np.ones_like(update)
    inner = np.zeros_like(update) if inner_bias is None else reset * inner_bias
    candidate = np.tanh(biases["new"] + inner)
    jacobian: Floats = np.diag(update) - _scaled(
        sigmoid(shifted) * closed * candidate, weights["update"]
    )
    if "new" in weights:
        slope = closed * (1 - candidate**2)
        if inner_bias is None:
            return jacobian + _scaled(slope, weights["new"] * reset)
        jacobian += _scaled(slope * reset, weights["new"])
        jacobian += _scaled(slope * inner * sigmoid(-biases["reset"]), weights["reset"])
    return jacobian


def _scaled(factor: Floats, matrix: Floats) -> Floats:
    """diag(factor) matrix."""
    return factor[:, None] * matrix


class OpenGate(NamedTuple):
    """A gate of H units: logarithms cut at `LARGEST_DECAY`, derivatives by the bias."""

    value: Floats
    log_value: Floats
    log_opposite: Floats  # log(1 - value)
    derivative: Floats
    log_derivative: Floats
    log_opposite_derivative: Floats


def open_gate(opening: Opening, bias: Floats) -> OpenGate:
    """The gate at a bias; where a hard one is shut or open, no bias moves it."""
    value, opposite, slope = opening(bias)
    if opening == LOGISTIC:
        return OpenGate(value, log_sigmoid(bias), log_sigmoid(-bias), slope, opposite, -value)
    smallest, still = np.exp(-LARGEST_DECAY), slope == 0
    return OpenGate(
        value,
        np.log(np.maximum(value, smallest)),
        np.log(np.maximum(opposite, smallest)),
        slope,
        slope / np.where(still, 1.0, value),
        -slope / np.where(still, 1.0, opposite),
    )


class Part(NamedTuple):
    """What one tensor holds of a gate: its role, the tensor, (H,) values and the stored type."""

    role: str
    tensor: str
    values: Floats
    dtype: str


@dataclass(frozen=True)
class GateBias:
    """The (H,) bias of one gate, summed over the tensors that hold it."""

    total: Floats
    parts: tuple[Part, ...] = ()

    def groups(
        self, gate: str, eigenvalue_derivative: Floats, log_gain_derivative: Floats | None = None
    ) -> tuple[ParameterGroup, ...]:
        """One parameter group per tensor, called after its role and, if not "", after the gate."""
        return tuple(
            one_to_one(
                f"{part.role}[{gate}]" if gate else part.role,
                *part[1:],
                eigenvalue_derivative,
                log_gain_derivative,
            )
            for part in self.parts
        )

    def split(self, inner: str) -> tuple[Floats, Floats]:
        """What stands outside and what inside the reset gate."""
        zero = np.zeros_like(self.total)
        inside = sum((part.values for part in self.parts if part.role == inner), zero)
        return sum((part.values for part in self.parts if part.role != inner), zero), inside


def with_peepholes(
    recurrence: Recurrence,
    biases: Mapping[str, GateBias],
    peepholes: Mapping[str, Part],
    opening: Opening,
) -> Recurrence:
    """An LSTM's recurrence with its peepholes' term in λ, its derivatives and what moves its gates.

    ``c' = σ(b_f + p_f c) c + σ(b_i + p_i c) tanh(b_g)`` at zero input and h = 0. The slope at c = 0
    is λ = σ(b_f) + p_i σ'(b_i) tanh(b_g): p_f multiplies c², and p_o acts on the output alone.
    """
    plain = recurrence.gate
    if isinstance(plain, GateDrive) and plain.state is not None and peepholes:
        seen = {gate: peephole.values for gate, peephole in peepholes.items()}
        drive = peephole_drive(plain, plain.state, seen, _OWN_STATE)
        recurrence = replace(recurrence, gate=drive)
    if "input" not in peepholes:
        return recurrence
    peephole = peepholes["input"]
    opened = open_gate(opening, biases["input"].total)
    slope = opened.derivative
    curvature = slope * (1 - 2 * opened.value) if opening.smooth else 0.0
    candidate = np.tanh(biases["cell"].total)
    bent = curvature * peephole.values * candidate
    groups = [
        replace(group, eigenvalue_derivative=group.eigenvalue_derivative + bent)
        if group.name.endswith("[input]")
        else group
        for group in recurrence.parameters
    ]
    groups += biases["cell"].groups("cell", slope * peephole.values * (1 - candidate**2))
    groups.append(one_to_one(*peephole, slope * candidate))
    added = peephole.values * slope * candidate
    # log(σ + added), as log σ + log1p(added / σ) where that keeps digits next to the unit circle.
    kept = np.exp(recurrence.log_eigenvalues.real)
    ratio = np.divide(added, kept, out=np.full_like(added, np.inf), where=kept > 0)
    precise = np.abs(ratio) < 0.5
    logs = recurrence.log_eigenvalues + np.log1p(np.where(precise, ratio, 0.0))
    return replace(
        recurrence,
        log_eigenvalues=np.where(precise, logs, log_of_eigenvalues(kept + added)),
        parameters=tuple(groups),
        stable_by_construction=False,
        assumptions=(*recurrence.assumptions, PEEPHOLES),
    )
