"""Cells of one gate that keep by it, in an MGU's shapes: LiGRU, JANET and UGRNN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.recurrences.family import Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import GateDrive, GateInput, HiddenState, NoDrive
from memcurse_cli.recurrences.gated_cells import jacobian_beyond
from memcurse_cli.recurrences.gated_layer import GateBias, coupled_recurrence
from memcurse_cli.recurrences.reading import gain_scalar, log_sigmoid, sigmoid
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.recurrences.vectors import read_vector
from memcurse_cli.spectra.eigendecomposition import eigenvalues
from memcurse_cli.theory.candidates import RELU, TANH
from memcurse_cli.theory.mixing_laws import OffsetMix

LIGRU, JANET, UGRNN = "ligru", "janet", "ugrnn"
OFFSET = "beta"

_RELU = "the state that gates see is that of a ReLU candidate, as by default"
_UNKNOWN_CELL = "which cell it is, and so what its candidate sees of the state, is not stored"
_UNKNOWN_DRIVE = NoDrive(
    "which cell it is, and so how large the state is that its gate sees, is not stored: the "
    "layer's name or --assume cell tells"
)
_ACTIVATION = "the activation of its candidate is not stored"


def keeping_recurrence(
    store: TensorStore,
    match: Match,
    options: ReadOptions,
    *,
    family: str,
    cell: str | None,
    biases: Mapping[str, GateBias],
    weights: Mapping[str, Floats],
    inputs: Mapping[str, GateInput] | None,
    assumptions: tuple[str, ...],
) -> Recurrence:
    """``h[t+1] = σ(s) h[t] + (1 - σ(s - β)) f(W x + U h[t] + b)``: λ = σ(b_s), γ = σ(β - b_s).

    β is 0 for LiGRU and UGRNN, and JANET's where it is stored: one scalar that moves every gain,
    d log γ/dβ = 1 - γ = -d log γ/db_s. f is a ReLU in a LiGRU and otherwise a tanh.

    Args:
        store: the open checkpoint.
        match: the layer, with a role ``beta`` where there is one.
        options: what to read beside the biases.
        family: the name of the family that reads it.
        cell: ``ligru``, ``janet`` or ``ugrnn``; None where nothing tells.
        biases: those of ``gate`` and ``new``.
        weights: (H, H) of both, where their spectra are asked for.
        inputs: what both see, where that is asked for and is there.
        assumptions: what was assumed, one sentence each.

    Raises:
        TensorError: β is NaN or inf, or not one number.
    """
    relu = cell == LIGRU
    offset = None
    if cell == JANET and OFFSET in match.tensors:
        offset = read_vector(store, match.tensors[OFFSET], 1)
    gate: GateInput | NoDrive | None = None
    state = None
    if options.gates and cell is None:
        gate = _UNKNOWN_DRIVE
    elif inputs is not None:
        function = RELU if relu else TANH
        gate, state = (
            inputs["gate"],
            HiddenState(inputs["new"], function, convex=offset is None),
        )
    found = coupled_recurrence(
        match,
        family=family,
        gate="gate",
        bias=biases["gate"],
        keeps=True,
        hidden_feedback=True,
        hidden=_spectra(cell, biases, weights, offset, options.device) if weights else None,
        assumptions=(*assumptions, *((_RELU,) if relu and inputs is not None else ())),
        inputs=gate,
        state=state,
    )
    return found if offset is None else _offset(store, match, found, biases["gate"], offset)


def _offset(
    store: TensorStore, match: Match, found: Recurrence, bias: GateBias, offset: Floats
) -> Recurrence:
    """γ = σ(β - b) in the place of 1 - λ, with β as a group of its own."""
    shut = sigmoid(bias.total - offset)
    groups = [
        replace(group, log_gain_derivative=(-shut).astype(np.complex128))
        for group in found.parameters
    ]
    tensor = match.tensors[OFFSET]
    groups.append(gain_scalar(OFFSET, tensor, offset, store.tensors[tensor].dtype, shut))
    drive = found.gate
    if isinstance(drive, GateDrive):
        motions = {**drive.motions, OFFSET: (OFFSET, 1.0)}
        drive = replace(drive, law=OffsetMix(float(offset[0])), motions=motions)
    return replace(
        found,
        log_gain=log_sigmoid(offset - bias.total).astype(np.complex128),
        parameters=tuple(groups),
        gate=drive,
    )


def _spectra(
    cell: str | None,
    biases: Mapping[str, GateBias],
    weights: Mapping[str, Floats],
    offset: Floats | None,
    device: str,
) -> HiddenSpectra:
    """Of both matrices, and of one step with a tanh candidate c.

    ``diag(σ(s)) + diag(γ (1 - c²)) U_n - diag(σ'(s - β) c) U_s`` at h = 0.
    """
    gates = {gate: eigenvalues(weight, device) for gate, weight in weights.items()}
    bias, size = biases["gate"].total, biases["gate"].total.size
    if cell is None:
        return HiddenSpectra(gates, None, _UNKNOWN_CELL)
    if cell == LIGRU:
        return HiddenSpectra(gates, None, _ACTIVATION)
    beyond = jacobian_beyond(size)
    if beyond is not None:
        return HiddenSpectra(gates, None, beyond)
    shifted = bias if offset is None else bias - offset
    written = sigmoid(-shifted)
    candidate = np.tanh(biases["new"].total)
    jacobian = np.diag(sigmoid(bias)) + (written * (1 - candidate**2))[:, None] * weights["new"]
    jacobian -= (written * sigmoid(shifted) * candidate)[:, None] * weights["gate"]
    return HiddenSpectra(gates, eigenvalues(jacobian, device))
