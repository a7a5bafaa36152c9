"""The long expressive memory of Rusch et al. 2022: two states with time steps that gates choose."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.cells.gated_layer import GateBias, jacobian_beyond
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import (
    GateDrive,
    GateInput,
    HiddenState,
    RowNorms,
    squared_rows,
)
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import log_of_eigenvalues, read_real, sigmoid
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.theory.gates.laws import PartialMix
from memcurse_cli.theory.linalg.eigendecomposition import eigenvalues

STEP = Assumption(
    key="dt",
    default="1",
    choices=(),
    meaning="the largest time step of a network that is an ordinary differential equation",
    tensors=("dt",),
)
INPUT, HIDDEN, TRANSFORM = "inp2hid", "hid2hid", "transform_z"
LAYERS = (INPUT, HIDDEN, TRANSFORM)
BLOCKS = 4


class LEM:
    """``z' = (1-Δ) z + Δ tanh(·)``, ``y' = (1-Δ̄) y + Δ̄ tanh(·)`` with ``Δ = dt σ(b)``: λ = 1 - Δ.

    The eigenvalues of y stand before those of z. ``inp2hid`` has the rows Δ̄, Δ, (z), (y), and
    ``hid2hid`` the rows Δ̄, Δ, (y). γ = Δ = 1 - λ: d log γ/db = 1 - σ(b), dλ/db = -Δ (1 - σ(b)).
    """

    name = "lem"
    title = "LEM (long expressive memory)"
    recognised_by = (
        "hid2hid.weight (3H, H) beside inp2hid.weight (4H, inputs) and transform_z.weight"
    )
    equation = "λ = 1 - dt σ(b), γ = dt σ(b), b = inp2hid.bias + hid2hid.bias, first 2H rows"
    source = "tk-rusch/LEM; Rusch et al. 2022, arXiv 2110.04744"
    assumptions: tuple[Assumption, ...] = (STEP,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the three linears, of shapes that fit together."""
        linears = (f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias"))
        roles = (*linears, *STEP.roles)
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            weights = [f"{layer}.weight" for layer in LAYERS]
            if not names.keys() >= set(weights):
                continue
            inputs, hidden, transform = (tensors[names[weight]].shape for weight in weights)
            size = transform[0] if len(transform) == 2 else 0
            if (
                transform == (size, size)
                and hidden == (3 * size, size)
                and inputs[:1] == (4 * size,)
            ):
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the weights where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read, or shapes that do not fit together.
            UsageError: the user's dt is not in (0, 1].
        """
        size = store.tensors[match.tensors[f"{TRANSFORM}.weight"]].shape[0]
        assumed = Assumed(options, store=store, match=match)
        step = assumed.fraction(STEP)
        bias = _bias(store, match, (INPUT, HIDDEN), slice(0, 2 * size), size)
        opened, closed = step * sigmoid(bias.total), sigmoid(-bias.total)
        # 1 - dt σ(b) = σ(-b) + (1-dt) σ(b), without cancellation.
        kept = closed + (1 - step) * sigmoid(bias.total)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(match.tensors.values()),
            log_eigenvalues=np.where(
                opened < 0.5, np.log1p(-np.minimum(opened, 0.5)), log_of_eigenvalues(kept)
            ),
            log_gain=np.log(opened).astype(np.complex128),
            parameters=bias.groups("steps", -opened * closed, closed),
            input_dependent=True,
            stable_by_construction=True,
            assumptions=tuple(assumed.sentences),
            hidden_feedback=True,
            hidden=_spectra(store, match, step, size, options.device) if options.spectra else None,
            gate=_drive(store, match, bias, step, size) if options.gates else None,
        )


def _drive(store: TensorStore, match: Match, bias: GateBias, step: float, size: int) -> GateDrive:
    """Both steps see x and y; what z takes in sees them too, and what y takes in sees x and z."""
    inputs, hidden, transform = (
        squared_rows(read_real(store, match.tensors[f"{layer}.weight"], (rows * size, None)))
        for layer, rows in ((INPUT, BLOCKS), (HIDDEN, BLOCKS - 1), (TRANSFORM, 1))
    )
    into_y, into_z = (
        _bias(store, match, (INPUT,), _block(own, size), size).total
        + _bias(store, match, (other,), _block(held, size), size).total
        for own, other, held in ((2, TRANSFORM, 0), (3, HIDDEN, 2))
    )
    seen = RowNorms(inputs[2 * size :], np.concatenate([transform, hidden[2 * size :]]))
    return GateDrive(
        law=PartialMix(step, "steps"),
        gate=GateInput(bias.total, RowNorms(inputs[: 2 * size], hidden[: 2 * size])),
        state=HiddenState(GateInput(np.concatenate([into_y, into_z]), seen), cascade=size),
        motions={f"{role}[steps]": ("steps", 1.0) for role, *_ in bias.parts},
    )


def _block(index: int, size: int) -> slice:
    return slice(index * size, (index + 1) * size)


def _bias(
    store: TensorStore, match: Match, layers: tuple[str, ...], rows: slice, size: int
) -> GateBias:
    """Some rows of the biases of some linears, summed; a linear may have none."""
    blocks = {INPUT: BLOCKS, HIDDEN: BLOCKS - 1, TRANSFORM: 1}
    parts = []
    for layer in layers:
        tensor = match.tensors.get(f"{layer}.bias")
        if tensor is not None:
            values = read_real(store, tensor, (blocks[layer] * size,))[rows]
            parts.append((f"{layer}.bias", tensor, values, store.tensors[tensor].dtype))
    zero = np.zeros(rows.stop - rows.start)
    return GateBias(np.sum([zero, *(part[2] for part in parts)], axis=0), tuple(parts))


def _spectra(
    store: TensorStore, match: Match, step: float, size: int, device: str
) -> HiddenSpectra:
    hidden = read_real(store, match.tensors[f"{HIDDEN}.weight"], (3 * size, size))
    slow, fast, into_z = np.split(hidden, 3)
    into_y = read_real(store, match.tensors[f"{TRANSFORM}.weight"], (size, size))
    named = {"step of y": slow, "step of z": fast, "z": into_z, "y": into_y}
    gates = {gate: eigenvalues(weight, device) for gate, weight in named.items()}
    beyond = jacobian_beyond(2 * size)
    if beyond is not None:
        return HiddenSpectra(gates, None, beyond)

    def total(block: int, second: str, held: int) -> Floats:
        own = _bias(store, match, (INPUT,), _block(block, size), size).total
        other: Floats = _bias(store, match, (second,), _block(held, size), size).total
        return own + other

    slow_bias, fast_bias = total(0, HIDDEN, 0), total(1, HIDDEN, 1)
    written_z = np.tanh(total(3, HIDDEN, 2))
    slow_step, fast_step = step * sigmoid(slow_bias), step * sigmoid(fast_bias)
    written_y = np.tanh(into_y @ (fast_step * written_z) + total(2, TRANSFORM, 0))
    z_by_z = np.diag(1 - fast_step)
    z_by_y = (fast_step * (1 - written_z**2))[:, None] * into_z
    z_by_y += (fast_step * sigmoid(-fast_bias) * written_z)[:, None] * fast
    shown = (slow_step * (1 - written_y**2))[:, None] * into_y
    y_by_y = np.diag(1 - slow_step) + shown @ z_by_y
    y_by_y += (slow_step * sigmoid(-slow_bias) * written_y)[:, None] * slow
    jacobian = np.block([[y_by_y, shown @ z_by_z], [z_by_y, z_by_z]])
    return HiddenSpectra(gates, eigenvalues(jacobian, device))
