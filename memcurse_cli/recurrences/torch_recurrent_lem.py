"""The long expressive memory in torchrecurrent's names, whose y takes in z as it was a step before.

``z' = (1-Δ) z + Δ tanh(W_z x + U_z y + b_z)``, ``y' = (1-Δ̄) y + Δ̄ tanh(W_y x + V z + b_y)``, rows
Δ̄, Δ, z, y of ``weight_ih`` and Δ̄, Δ, z of ``weight_hh``; V is ``weight_ch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.family import Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import (
    GateDrive,
    GateInput,
    HiddenState,
    RowNorms,
    squared_rows,
)
from memcurse_cli.recurrences.gated_cells import jacobian_beyond
from memcurse_cli.recurrences.lem import HIDDEN, INPUT, LEM, STEP, TRANSFORM
from memcurse_cli.recurrences.reading import read_real, sigmoid
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.recurrences.torch_recurrent_steps import Layer
from memcurse_cli.spectra.eigendecomposition import eigenvalues
from memcurse_cli.theory.mixing_laws import PartialMix

_ROWS = {"ih": ("step of y", "step of z", "z", "y"), "hh": ("step of y", "step of z", "z")}
_LINEARS = {"ih": INPUT, "hh": HIDDEN, "ch": TRANSFORM}


def read_lem(layer: Layer) -> Recurrence:
    """λ = 1 - dt σ(b) as in the authors' code, whose three linears have other names.

    Raises:
        TensorError: NaN or inf in what is read, or shapes that do not fit together.
        UsageError: dt is not in (0, 1].
    """
    roles = {
        f"{linear}.{part}": layer.match.tensors[f"{part}_{side}"]
        for side, linear in _LINEARS.items()
        for part in ("weight", "bias")
    }
    options = layer.options
    found = LEM().read(
        layer.store,
        Match(layer.match.layer, roles),
        ReadOptions(device=options.device, assume=options.assume),
    )
    groups = tuple(
        replace(group, name=f"{role}[steps]")
        for group, role in zip(found.parameters, ("bias_ih", "bias_hh"), strict=True)
    )
    found = replace(
        found,
        family=layer.family,
        tensors=tuple(layer.match.tensors.values()),
        parameters=groups,
        assumptions=(*layer.assumptions, *found.assumptions),
    )
    if not (options.spectra or options.gates):
        return found
    step = float(Assumed(options).choose(STEP))
    biases = {gate: layer.bias(gate, **_ROWS).total for gate in _ROWS["ih"]}
    tensor = layer.match.tensors["bias_ch"]
    biases["y"] = biases["y"] + read_real(layer.store, tensor, (layer.size,))
    weights = layer.weights("hh", _ROWS["hh"])
    weights["y"] = read_real(
        layer.store, layer.match.tensors["weight_ch"], (layer.size, layer.size)
    )
    return replace(
        found,
        hidden=_spectra(layer, step, biases, weights) if options.spectra else None,
        gate=_drive(layer, step, biases, weights) if options.gates else None,
    )


def _drive(
    layer: Layer, step: float, biases: Mapping[str, Floats], weights: Mapping[str, Floats]
) -> GateDrive:
    inputs = {gate: squared_rows(rows) for gate, rows in layer.weights("ih", _ROWS["ih"]).items()}

    def seen(*gates: str) -> GateInput:
        norms = RowNorms(
            np.concatenate([inputs[gate] for gate in gates]),
            np.concatenate([squared_rows(weights[gate]) for gate in gates]),
        )
        return GateInput(np.concatenate([biases[gate] for gate in gates]), norms)

    return GateDrive(
        law=PartialMix(step, "steps"),
        gate=seen("step of y", "step of z"),
        state=HiddenState(seen("y", "z"), cascade=layer.size),
        motions={f"bias_{side}[steps]": ("steps", 1.0) for side in ("ih", "hh")},
    )


def _spectra(
    layer: Layer, step: float, biases: Mapping[str, Floats], weights: Mapping[str, Floats]
) -> HiddenSpectra:
    """Of every matrix, and of one step of (y, z)."""
    device = layer.options.device
    gates = {gate: eigenvalues(weight, device) for gate, weight in weights.items()}
    beyond = jacobian_beyond(2 * layer.size)
    if beyond is not None:
        return HiddenSpectra(gates, None, beyond)
    slow, fast = biases["step of y"], biases["step of z"]
    y, z = np.tanh(biases["y"]), np.tanh(biases["z"])
    slow_step, fast_step = step * sigmoid(slow), step * sigmoid(fast)
    y_by_y = (
        np.diag(1 - slow_step) + (slow_step * sigmoid(-slow) * y)[:, None] * weights["step of y"]
    )
    y_by_z = (slow_step * (1 - y**2))[:, None] * weights["y"]
    z_by_y = (fast_step * (1 - z**2))[:, None] * weights["z"]
    z_by_y += (fast_step * sigmoid(-fast) * z)[:, None] * weights["step of z"]
    jacobian = np.block([[y_by_y, y_by_z], [z_by_y, np.diag(1 - fast_step)]])
    return HiddenSpectra(gates, eigenvalues(jacobian, device))
