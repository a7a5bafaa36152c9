"""The LSTM and the cells of one update gate, from their gates' biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from memcurse_cli.recurrences.family import Match
from memcurse_cli.recurrences.gate_drive import (
    GateDrive,
    GateInput,
    HiddenState,
    NoDrive,
    RowNorms,
)
from memcurse_cli.recurrences.gate_functions import GateFunction, Sigmoid
from memcurse_cli.recurrences.reading import one_to_one
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra, ParameterGroup, Recurrence
from memcurse_cli.theory.gate_laws import Keep, Mix, Write

WITHOUT_BIAS = (
    "the layer has no bias: at zero input its gates stand at 1/2 and only the weights move them, "
    "so no parameter is listed"
)


@dataclass(frozen=True)
class GateBias:
    """The bias of one gate, summed over the tensors that hold it.

    Attributes:
        total: (H,) the sum: the gate's pre-activation at zero input and zero state.
        parts: (role, tensor, values, dtype) of each tensor's block of this gate.
    """

    total: Floats
    parts: tuple[tuple[str, str, Floats, str], ...] = ()

    def groups(
        self, gate: str, eigenvalue_derivative: Floats, log_gain_derivative: Floats | None = None
    ) -> tuple[ParameterGroup, ...]:
        """One parameter group per tensor, all with the derivatives of the sum."""
        return tuple(
            one_to_one(
                f"{role}[{gate}]", tensor, values, dtype, eigenvalue_derivative, log_gain_derivative
            )
            for role, tensor, values, dtype in self.parts
        )

    def split(self, inner: str) -> tuple[Floats, Floats]:
        """What stands outside and what inside the reset gate."""
        zero = np.zeros_like(self.total)
        outside, inside = zero, zero
        for role, _, values, _ in self.parts:
            if role == inner:
                inside = inside + values
            else:
                outside = outside + values
        return outside, inside


def lstm_recurrence(
    match: Match,
    *,
    family: str,
    biases: Mapping[str, GateBias],
    function: GateFunction,
    hidden: HiddenSpectra | None = None,
    assumptions: tuple[str, ...] = (),
    norms: Mapping[str, RowNorms] | None = None,
    projection: Floats | None = None,
) -> Recurrence:
    """``c[t+1] = σ(f) c[t] + σ(i) tanh(g)``: the state is c, λ = σ(b_f) and γ = σ(b_i).

    Args:
        match: the layer.
        family: the name of its family.
        biases: those of the gates ``forget`` and ``input``, and with norms all four.
        function: σ.
        hidden: the spectra of the hidden weights, where they were asked for.
        assumptions: what was assumed, one sentence each.
        norms: those of the weights of all four gates, where they were asked for.
        projection: (P,) squared norms of the rows of what projects the state, or None.
    """
    forget, opened = biases["forget"], biases["input"]
    kept, written = function(forget.total), function(opened.total)
    groups = {
        "forget": forget.groups("forget", kept.derivative),
        "input": opened.groups("input", np.zeros(opened.total.size), written.log_derivative),
    }
    drive = None
    if norms is not None:
        seen = {gate: GateInput(biases[gate].total, norm) for gate, norm in norms.items()}
        drive = GateDrive(
            law=Keep(function.opening),
            gate=seen["forget"],
            write=Write(function.opening),
            write_gate=seen["input"],
            state=HiddenState(
                seen["cell"],
                output=seen["output"],
                opening=function.opening,
                projection=projection,
            ),
            motions={group.name: (gate, 1.0) for gate in groups for group in groups[gate]},
        )
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(match.tensors.values()),
        log_eigenvalues=kept.log_value.astype(np.complex128),
        log_gain=written.log_value.astype(np.complex128),
        parameters=(*groups["forget"], *groups["input"]),
        input_dependent=True,
        stable_by_construction=not function.saturates,
        assumptions=assumptions if forget.parts else (*assumptions, WITHOUT_BIAS),
        hidden_feedback=True,
        hidden=hidden,
        gate=drive,
    )


def coupled_recurrence(
    match: Match,
    *,
    family: str,
    gate: str,
    bias: GateBias,
    keeps: bool,
    function: GateFunction | None = None,
    hidden_feedback: bool = False,
    hidden: HiddenSpectra | None = None,
    assumptions: tuple[str, ...] = (),
    inputs: GateInput | NoDrive | None = None,
    state: HiddenState | None = None,
) -> Recurrence:
    """``h[t+1] = λ h[t] + (1-λ) u`` with λ = σ(b), or 1 - σ(b), and γ = 1 - λ.

    dλ/db = ±σ'(b) and d log γ/db = ∓σ'(b) / (1-λ), the upper sign where the gate keeps the state.

    Args:
        match: the layer.
        family: the name of its family.
        gate: the gate's name, for the groups of its bias.
        bias: that of the gate.
        keeps: an open gate keeps the state (λ = σ(b)), not the candidate (λ = 1 - σ(b)).
        function: σ, the logistic sigmoid by default; a hard one keeps.
        hidden_feedback: a gate or the candidate sees the state through a dense matrix.
        hidden: the spectra of the hidden weights, where they were asked for.
        assumptions: what was assumed, one sentence each.
        inputs: what the gate sees, or why that is not known, where that was asked for.
        state: how large the state is that it sees, likewise.
    """
    function = function or Sigmoid()
    sign = 1.0 if keeps else -1.0
    kept = function(sign * bias.total)
    groups = bias.groups(gate, sign * kept.derivative, sign * kept.log_opposite_derivative)
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(match.tensors.values()),
        log_eigenvalues=kept.log_value.astype(np.complex128),
        log_gain=kept.log_opposite.astype(np.complex128),
        parameters=groups,
        input_dependent=True,
        stable_by_construction=not function.saturates,
        assumptions=assumptions if bias.parts else (*assumptions, WITHOUT_BIAS),
        hidden_feedback=hidden_feedback,
        hidden=hidden,
        gate=(
            GateDrive(
                law=Mix(keeps=keeps, opening=function.opening),
                gate=inputs,
                state=state,
                motions={group.name: ("update", 1.0) for group in groups},
            )
            if isinstance(inputs, GateInput)
            else inputs
        ),
    )
