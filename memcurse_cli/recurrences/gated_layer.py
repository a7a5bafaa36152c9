"""The LSTM and the GRU from their gates' biases, whatever names and orders these were stored in."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.recurrences.family import Match
from memcurse_cli.recurrences.gate_drive import GateDrive, GateInput, HiddenState, RowNorms
from memcurse_cli.recurrences.gate_functions import GateFunction
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.recurrences.torch_names import WITHOUT_BIAS, GateBias
from memcurse_cli.theory.gate_laws import Keep, Mix, Write


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
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(match.tensors.values()),
        log_eigenvalues=kept.log_value.astype(np.complex128),
        log_gain=written.log_value.astype(np.complex128),
        parameters=(
            *forget.groups("forget", kept.derivative),
            *opened.groups("input", np.zeros(opened.total.size), written.log_derivative),
        ),
        input_dependent=True,
        stable_by_construction=not function.saturates,
        assumptions=assumptions if forget.parts else (*assumptions, WITHOUT_BIAS),
        hidden_feedback=True,
        hidden=hidden,
        gate=None if norms is None else _lstm_drive(biases, function, norms, projection),
    )


def gru_recurrence(
    match: Match,
    *,
    family: str,
    biases: Mapping[str, GateBias],
    function: GateFunction,
    hidden: HiddenSpectra | None = None,
    assumptions: tuple[str, ...] = (),
    norms: Mapping[str, RowNorms] | None = None,
) -> Recurrence:
    """``h[t+1] = σ(z) h[t] + (1 - σ(z)) tanh(n)``: λ = σ(b_z), coupled to γ = 1 - λ.

    Args:
        match: the layer.
        family: the name of its family.
        biases: that of the gate ``update``, and with norms all that are there.
        function: σ.
        hidden: the spectra of the hidden weights, where they were asked for.
        assumptions: what was assumed, one sentence each.
        norms: those of the weights of all gates, where they were asked for; one without a gate
            ``reset`` has its candidate see the state through the gate ``update`` (MGU).
    """
    update = biases["update"]
    kept = function(update.total)
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(match.tensors.values()),
        log_eigenvalues=kept.log_value.astype(np.complex128),
        log_gain=kept.log_opposite.astype(np.complex128),
        parameters=update.groups("update", kept.derivative, kept.log_opposite_derivative),
        input_dependent=True,
        stable_by_construction=not function.saturates,
        assumptions=assumptions if update.parts else (*assumptions, WITHOUT_BIAS),
        hidden_feedback=True,
        hidden=hidden,
        gate=None if norms is None else _gru_drive(biases, function, norms),
    )


def _lstm_drive(
    biases: Mapping[str, GateBias],
    function: GateFunction,
    norms: Mapping[str, RowNorms],
    projection: Floats | None,
) -> GateDrive:
    inputs = _inputs(biases, norms)
    return GateDrive(
        law=Keep(function.opening),
        gate=inputs["forget"],
        write=Write(function.opening),
        write_gate=inputs["input"],
        state=HiddenState(
            inputs["cell"],
            output=inputs["output"],
            opening=function.opening,
            projection=projection,
        ),
        motions=_motions(biases, "forget") | _motions(biases, "input"),
    )


def _gru_drive(
    biases: Mapping[str, GateBias], function: GateFunction, norms: Mapping[str, RowNorms]
) -> GateDrive:
    inputs = _inputs(biases, norms)
    return GateDrive(
        law=Mix(opening=function.opening),
        gate=inputs["update"],
        state=HiddenState(
            inputs["new"],
            reset=inputs.get("reset", inputs["update"]),
            opening=function.opening,
        ),
        motions=_motions(biases, "update"),
    )


def _inputs(biases: Mapping[str, GateBias], norms: Mapping[str, RowNorms]) -> dict[str, GateInput]:
    return {gate: GateInput(biases[gate].total, norm) for gate, norm in norms.items()}


def _motions(biases: Mapping[str, GateBias], gate: str) -> dict[str, tuple[str, float]]:
    """The groups of a gate's bias, all of which add to its pre-activation."""
    return {f"{role}[{gate}]": (gate, 1.0) for role, *_ in biases[gate].parts}
