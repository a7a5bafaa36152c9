"""FastGRNN in torchrecurrent's names, whose gate is by default opened by a tanh."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.family import Assumption
from memcurse_cli.recurrences.fast_grnn import shared_drive
from memcurse_cli.recurrences.gate_drive import GateDrive, NoDrive, RowNorms, squared_rows
from memcurse_cli.recurrences.gated_layer import GateBias
from memcurse_cli.recurrences.reading import gain_scalar, log_of_eigenvalues, log_sigmoid, sigmoid
from memcurse_cli.recurrences.recurrence import Floats, ParameterGroup, Recurrence
from memcurse_cli.recurrences.torch_recurrent_steps import Layer
from memcurse_cli.recurrences.vectors import read_vector
from memcurse_cli.theory.mixing_laws import FlooredMix

GATE_FUNCTION = Assumption(
    key="gate_activation",
    default="tanh",
    choices=("tanh", "sigmoid"),
    meaning="what opens the gate of a FastGRNN of torchrecurrent",
)
SCALE, FLOOR = "zeta", "nu"
_ROWS = ("gate", "new")
_UNLAWFUL = NoDrive("a tanh opens its gate, which no law of gates has")


def read_fast_grnn(layer: Layer) -> Recurrence:
    """``h' = g h + (σ(ζ)(1-g) + σ(ν)) tanh(u + b_h)``, ``g = a(u + b_g)``, ``u = W x + U h``.

    λ = a(b_g) and γ = σ(ζ)(1-λ) + σ(ν). The library's default for a is a tanh, which makes λ
    negative where b_g is; that of the paper is σ.

    Raises:
        TensorError: NaN or inf in what is read, or shapes that do not fit together.
    """
    assumed = Assumed(layer.options)
    bent = assumed.choose(GATE_FUNCTION) == "tanh"
    gate, new = (layer.bias(one, ih=_ROWS, hh=_ROWS) for one in _ROWS)
    scale, floor = (read_vector(layer.store, layer.match.tensors[at], 1) for at in (SCALE, FLOOR))
    # 1 - tanh(b) = 2σ(-2b), without cancellation.
    stretch = 2.0 if bent else 1.0
    lost = stretch * sigmoid(-stretch * gate.total)
    kept: Floats = np.tanh(gate.total) if bent else sigmoid(gate.total)
    slope = lost * stretch * sigmoid(stretch * gate.total)
    opened = sigmoid(scale)
    log_lost = np.log(stretch) + log_sigmoid(-stretch * gate.total)
    log_gain = np.logaddexp(log_sigmoid(scale) + log_lost, log_sigmoid(floor))
    gain = np.exp(log_gain)

    def jacobian(weights: Mapping[str, Floats]) -> Floats:
        candidate = np.tanh(new.total)
        shown = gain * (1 - candidate**2) - opened * slope * candidate
        turned: Floats = shown[:, None] * weights["shared"]
        return turned + np.diag(kept)

    return Recurrence(
        name=layer.match.layer,
        family=layer.family,
        tensors=tuple(layer.match.tensors.values()),
        log_eigenvalues=log_of_eigenvalues(kept)
        if bent
        else log_sigmoid(gate.total).astype(np.complex128),
        log_gain=log_gain.astype(np.complex128),
        parameters=(
            *gate.groups("gate", slope, -opened * slope / gain),
            _scalar(layer, SCALE, scale, opened * sigmoid(-scale) * lost / gain),
            _scalar(layer, FLOOR, floor, sigmoid(floor) * sigmoid(-floor) / gain),
        ),
        input_dependent=True,
        stable_by_construction=True,
        assumptions=(*layer.assumptions, *assumed.sentences),
        hidden_feedback=True,
        hidden=layer.spectra(("shared",), jacobian),
        gate=_drive(layer, gate, new, scale, floor) if not bent else layer.undriven(_UNLAWFUL),
    )


def _scalar(layer: Layer, role: str, value: Floats, log_gain_slope: Floats) -> ParameterGroup:
    tensor = layer.match.tensors[role]
    return gain_scalar(role, tensor, value, layer.store.tensors[tensor].dtype, log_gain_slope)


def _drive(
    layer: Layer, gate: GateBias, new: GateBias, scale: Floats, floor: Floats
) -> GateDrive | None:
    """What W and U show to the gate and, with another bias, to the candidate."""
    if not layer.options.gates:
        return None
    inputs, hidden = (
        squared_rows(layer.weights(side, ("shared",))["shared"]) for side in ("ih", "hh")
    )
    return shared_drive(
        FlooredMix(float(scale[0]), float(floor[0]), "gate", SCALE, FLOOR),
        RowNorms(inputs, hidden),
        gate.total,
        new.total,
        {f"{role}[gate]": ("gate", 1.0) for role, *_ in gate.parts}
        | {role: (role, 1.0) for role in (SCALE, FLOOR)},
    )
