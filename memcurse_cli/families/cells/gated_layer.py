"""A step of gated cells at zero input and zero state: gates, biases, peepholes, its Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from memcurse_cli.families.reading import sigmoid
from memcurse_cli.families.recurrence import Floats, HiddenSpectra
from memcurse_cli.families.selective.law import Slot
from memcurse_cli.theory.linalg import eigenvalues

LARGEST_JACOBIAN = 1024  # the largest order of one that is taken: that of an LSTM of 512 units
WITHOUT_BIAS = (
    "the layer has no bias: at zero input its gates stand at 1/2 and only the weights move them, "
    "so no parameter is listed"
)

# The imaginary step by which Jacobians are taken: squares of it are nothing beside any weight.
UNIT = 1e-100
Step = Callable[[Any], Any]
"""The next states (…, order) as a function of the states at zero input, by the dual functions."""


def dual_sigmoid(x: Any) -> Any:
    """σ(x), to first order in the imaginary part and exact in both tails."""
    value = sigmoid(x.real)
    return value + 1j * x.imag * value * sigmoid(-x.real)


def dual_tanh(x: Any) -> Any:
    """tanh(x), to first order in the imaginary part."""
    value = np.tanh(x.real)
    return value + 1j * x.imag * (1 - value**2)


def step_jacobian(step: Step, order: int) -> Floats:
    """(…, order) the derivatives of a step at zero, by complex steps, which lose no digits."""
    jacobian: Floats = step(np.eye(order) * 1j * UNIT).imag.T / UNIT
    return jacobian


def step_spectra(
    weights: Mapping[str, Floats],
    step: Step,
    order: int,
    device: str = "auto",
    reason: str | None = None,
) -> HiddenSpectra:
    """The eigenvalues of each gate's (H, H) matrix; of the step's Jacobian, but for a reason."""
    reasons = [] if reason is None else [reason]
    if not weights:
        reasons.append("the gates' hidden matrices are not square and have no eigenvalues")
    if reason is None and order > LARGEST_JACOBIAN:
        reasons.append(
            f"a Jacobian of order {order} costs more than all gates, so those above "
            f"{LARGEST_JACOBIAN} are not taken"
        )
    jacobian = None
    if reason is None and order <= LARGEST_JACOBIAN:
        jacobian = eigenvalues(step_jacobian(step, order), device)
    return HiddenSpectra(
        gates={gate: eigenvalues(matrix, device) for gate, matrix in weights.items()},
        jacobian=jacobian,
        reason="; ".join(reasons) or None,
    )


def lstm_step(
    weights: Mapping[str, Floats],
    biases: Mapping[str, Floats],
    projection: Floats | None,
    peepholes: Mapping[str, Floats],
) -> Step:
    """``c' = σ(f) c + σ(i) tanh(g)``, ``h' = R σ(o) tanh(c')`` of states [h, c].

    Every gate is ``W h + b``, plus ``p c`` or, for the output gate, ``p c'``: W is (H, P) with
    row = target, and R is (P, H), or None for the identity.
    """
    size = len(biases["forget"])
    p = dict.fromkeys(weights, 0.0) | dict(peepholes)

    def step(state: Any) -> Any:
        h, c = state[..., :-size], state[..., -size:]
        z = {gate: h @ matrix.T + biases[gate] for gate, matrix in weights.items()}
        kept = dual_sigmoid(z["forget"] + p["forget"] * c) * c
        c = kept + dual_sigmoid(z["input"] + p["input"] * c) * dual_tanh(z["cell"])
        h = dual_sigmoid(z["output"] + p["output"] * c) * dual_tanh(c)
        return np.concatenate([h if projection is None else h @ projection.T, c], axis=-1)

    return step


def gru_step(
    weights: Mapping[str, Floats], biases: Mapping[str, Floats], inner_bias: Floats | None
) -> Step:
    """``h' = σ(z) h + (1 - σ(z)) tanh(n)`` with ``n = b_n + σ(r) (W_n h + b_inner)``.

    Without b_inner the reset gate acts before the matrix: ``n = b_n + W_n (σ(r) h)``; without the
    gate ``reset`` there is none, and without W_n the candidate does not see the state.
    """

    def step(h: Any) -> Any:
        z = {gate: h @ matrix.T + biases[gate] for gate, matrix in weights.items()}
        reset = dual_sigmoid(z["reset"]) if "reset" in z else 1.0
        new = biases["new"]
        if "new" in weights and inner_bias is None:
            new = new + (reset * h) @ weights["new"].T
        elif "new" in weights:
            new = new + reset * (h @ weights["new"].T + inner_bias)
        return dual_sigmoid(z["update"]) * h + dual_sigmoid(-z["update"]) * dual_tanh(new)

    return step


class Part(NamedTuple):
    """What one tensor holds of a gate: its role, the tensor and (H,) values."""

    role: str
    tensor: str
    values: Floats


class GateBias(Struct, frozen=True):
    """The (H,) bias of one gate, summed over the tensors that hold it."""

    total: Floats
    parts: tuple[Part, ...] = ()

    def slots(self, gate: str, moves: str = "") -> tuple[Slot, ...]:
        """One slot per tensor, called after its role and, if not "", after the gate."""
        return tuple(
            Slot(
                f"{part.role}[{gate}]" if gate else part.role,
                part.values,
                moves or gate,
                tensor=part.tensor,
            )
            for part in self.parts
        )

    def split(self, inner: str) -> tuple[Floats, Floats]:
        """What stands outside and what inside the reset gate."""
        zero = np.zeros_like(self.total)
        inside = sum((part.values for part in self.parts if part.role == inner), zero)
        return sum((part.values for part in self.parts if part.role != inner), zero), inside
