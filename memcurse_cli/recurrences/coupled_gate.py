"""A layer whose one gate mixes the old state with a candidate, whatever names it was stored in."""

from __future__ import annotations

import numpy as np

from memcurse_cli.recurrences.family import Match
from memcurse_cli.recurrences.gate_drive import GateDrive, GateInput, HiddenState, NoDrive
from memcurse_cli.recurrences.reading import log_sigmoid, sigmoid
from memcurse_cli.recurrences.recurrence import HiddenSpectra, Recurrence
from memcurse_cli.recurrences.torch_names import WITHOUT_BIAS, GateBias
from memcurse_cli.theory.gate_laws import Mix


def coupled_recurrence(
    match: Match,
    *,
    family: str,
    gate: str,
    bias: GateBias,
    keeps: bool,
    hidden_feedback: bool = False,
    hidden: HiddenSpectra | None = None,
    assumptions: tuple[str, ...] = (),
    inputs: GateInput | NoDrive | None = None,
    state: HiddenState | None = None,
) -> Recurrence:
    """``h[t+1] = λ h[t] + (1-λ) u`` with λ = σ(b), or 1 - σ(b), and γ = 1 - λ.

    dλ/db = ±λ(1-λ) and d log γ/db = ∓λ, the upper sign where the gate keeps the state.

    Args:
        match: the layer.
        family: the name of its family.
        gate: the gate's name, for the groups of its bias.
        bias: that of the gate.
        keeps: an open gate keeps the state (λ = σ(b)), not the candidate (λ = 1 - σ(b)).
        hidden_feedback: a gate or the candidate sees the state through a dense matrix.
        hidden: the spectra of the hidden weights, where they were asked for.
        assumptions: what was assumed, one sentence each.
        inputs: what the gate sees, or why that is not known, where that was asked for.
        state: how large the state is that it sees, likewise.
    """
    sign = 1.0 if keeps else -1.0
    kept = sigmoid(sign * bias.total)
    groups = bias.groups(gate, sign * kept * sigmoid(-sign * bias.total), -sign * kept)
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(match.tensors.values()),
        log_eigenvalues=log_sigmoid(sign * bias.total).astype(np.complex128),
        log_gain=log_sigmoid(-sign * bias.total).astype(np.complex128),
        parameters=groups,
        input_dependent=True,
        stable_by_construction=True,
        assumptions=assumptions if bias.parts else (*assumptions, WITHOUT_BIAS),
        hidden_feedback=hidden_feedback,
        hidden=hidden,
        gate=(
            GateDrive(
                law=Mix(keeps=keeps),
                gate=inputs,
                state=state,
                motions={group.name: ("update", 1.0) for group in groups},
            )
            if isinstance(inputs, GateInput)
            else inputs
        ),
    )
