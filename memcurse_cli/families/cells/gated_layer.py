"""A step of gated cells at zero input and zero state: gates, biases, peepholes, its Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from memcurse_cli.families.recurrence import Floats, HiddenSpectra
from memcurse_cli.families.selective.law import Slot
from memcurse_cli.theory.duals import Dual, join, tanh, through
from memcurse_cli.theory.gates.laws import LOGISTIC, Opening
from memcurse_cli.theory.linalg import eigenvalues

LARGEST_JACOBIAN = 1024  # the largest order of one that is taken: that of an LSTM of 512 units
WITHOUT_BIAS = (
    "the layer has no bias: at zero input its gates stand at 1/2 and only the weights move them, "
    "so no parameter is listed"
)

Step = Callable[[Any], Any]
"""The next states (…, order) as a function of the states at zero input, or of their duals."""


def step_jacobian(step: Step, order: int) -> Floats:
    """(…, order) the derivatives of a step at zero."""
    moved: Floats = step(Dual(np.zeros(order), {"state": np.eye(order)})).tangents["state"]
    return moved.T


def step_spectra(
    weights: Mapping[str, Floats],
    step: Step,
    order: int,
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
        jacobian = eigenvalues(step_jacobian(step, order))
    return HiddenSpectra(
        gates={gate: eigenvalues(matrix) for gate, matrix in weights.items()},
        jacobian=jacobian,
        reason="; ".join(reasons) or None,
    )


def opened_by(opening: Opening) -> Callable[[Any], Any]:
    """A gate's function, of duals too."""
    return lambda x: through(x, lambda z: opening(z)[::2])


def lstm_step(
    weights: Mapping[str, Any],
    biases: Mapping[str, Any],
    projection: Any = None,
    peepholes: Mapping[str, Any] | None = None,
    opening: Opening = LOGISTIC,
) -> Step:
    """``c' = σ(f) c + σ(i) tanh(g)``, ``h' = R σ(o) tanh(c')`` of states [h, c].

    Every gate is ``W h + b``, plus ``p c`` or, for the output gate, ``p c'``: W is (H, P) with
    row = target, and R is (P, H), or None for the identity.
    """
    p = dict.fromkeys(weights, 0.0) | dict(peepholes or {})
    opened = opened_by(opening)

    def step(state: Any) -> Any:
        size = biases["forget"].shape[-1]
        h, c = state[..., :-size], state[..., -size:]
        z = {gate: h @ matrix.T + biases[gate] for gate, matrix in weights.items()}
        kept = opened(z["forget"] + p["forget"] * c) * c
        c = kept + opened(z["input"] + p["input"] * c) * tanh(z["cell"])
        h = opened(z["output"] + p["output"] * c) * tanh(c)
        return join([h if projection is None else h @ projection.T, c])

    return step


def gru_step(
    weights: Mapping[str, Any],
    biases: Mapping[str, Any],
    inner_bias: Any = None,
    *,
    gate: str = "update",
    keeps: bool = True,
    opening: Opening = LOGISTIC,
) -> Step:
    """``h' = σ(z) h + (1 - σ(z)) tanh(n)`` with ``n = b_n + σ(r) (W_n h + b_inner)``.

    Without b_inner the reset gate acts before the matrix: ``n = b_n + W_n (σ(r) h)``; without the
    gate ``reset`` there is none, and without W_n the candidate does not see the state. A ``gate``
    that does not keep writes: ``h' = (1 - σ(z)) h + σ(z) tanh(n)``.
    """
    opened = opened_by(opening)

    def step(h: Any) -> Any:
        z = {gate: h @ matrix.T + biases[gate] for gate, matrix in weights.items() if gate != "new"}
        reset = opened(z["reset"]) if "reset" in z else 1.0
        new = biases["new"]
        if "new" in weights and inner_bias is None:
            new = new + (reset * h) @ weights["new"].T
        elif "new" in weights:
            new = new + reset * (h @ weights["new"].T + inner_bias)
        mixed, rest = opened(z[gate]), opened(-z[gate])
        kept, written = (mixed, rest) if keeps else (rest, mixed)
        return kept * h + written * tanh(new)

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
        zero = np.zeros(self.total.shape)
        inside = sum((part.values for part in self.parts if part.role == inner), zero)
        return sum((part.values for part in self.parts if part.role != inner), zero), inside
