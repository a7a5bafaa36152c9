"""The LSTM and the GRU from their gates' biases, whatever names and orders these were stored in."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.recurrences.family import Match
from memcurse_cli.recurrences.gate_functions import GateFunction
from memcurse_cli.recurrences.recurrence import HiddenSpectra, Recurrence
from memcurse_cli.recurrences.torch_names import WITHOUT_BIAS, GateBias


def lstm_recurrence(
    match: Match,
    *,
    family: str,
    biases: Mapping[str, GateBias],
    function: GateFunction,
    hidden: HiddenSpectra | None = None,
    assumptions: tuple[str, ...] = (),
) -> Recurrence:
    """``c[t+1] = σ(f) c[t] + σ(i) tanh(g)``: the state is c, λ = σ(b_f) and γ = σ(b_i).

    Args:
        match: the layer.
        family: the name of its family.
        biases: those of the gates ``forget`` and ``input``; others are not needed.
        function: σ.
        hidden: the spectra of the hidden weights, where they were asked for.
        assumptions: what was assumed, one sentence each.
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
    )


def gru_recurrence(
    match: Match,
    *,
    family: str,
    biases: Mapping[str, GateBias],
    function: GateFunction,
    hidden: HiddenSpectra | None = None,
    assumptions: tuple[str, ...] = (),
) -> Recurrence:
    """``h[t+1] = σ(z) h[t] + (1 - σ(z)) tanh(n)``: λ = σ(b_z), coupled to γ = 1 - λ.

    Args:
        match: the layer.
        family: the name of its family.
        biases: that of the gate ``update``; others are not needed.
        function: σ.
        hidden: the spectra of the hidden weights, where they were asked for.
        assumptions: what was assumed, one sentence each.
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
    )
