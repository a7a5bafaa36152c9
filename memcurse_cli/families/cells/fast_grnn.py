"""FastGRNN of Kusupati et al. 2018, arXiv 1901.02358: one matrix for the gate and the candidate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import (
    GateDrive,
    GateInput,
    HiddenState,
    RowNorms,
    squared_rows,
)
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import (
    gain_scalar,
    log_sigmoid,
    one_to_one,
    read_real,
    read_vector,
    sigmoid,
)
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.theory.gates.laws import FlooredMix, Written
from memcurse_cli.theory.linalg.eigendecomposition import eigenvalues

_GATE, _UPDATE, _SCALE, _FLOOR = "bias_gate", "bias_update", "zeta", "nu"
_REQUIRED = (_GATE, _UPDATE, _SCALE, _FLOOR)
_INPUT, _HIDDEN = ("W", "W1", "W2"), ("U", "U1", "U2")  # each whole, or of two factors

_FUNCTIONS = (
    "the gate is taken as a sigmoid and the candidate as a tanh, as by default: EdgeML stores"
    " neither"
)


class FastGRNN:
    """``h' = z h + (σ(ζ)(1-z) + σ(ν)) tanh(u + b_h)``, ``z = σ(u + b_z)``, ``u = W x + U h``.

    At zero input and zero state λ = σ(b_z) and γ = σ(ζ)(1-λ) + σ(ν). One ζ and one ν move the gain
    of every unit:

        d log γ/db_z = -σ(ζ) λ (1-λ) / γ,  d log γ/dζ = σ'(ζ) (1-λ) / γ,  d log γ/dν = σ'(ν) / γ
    """

    name = "fast_grnn"
    title = "FastGRNN (EdgeML)"
    recognised_by = "bias_gate and bias_update (1, H) beside zeta and nu (1, 1), and U or U1 and U2"
    equation = "λ = σ(bias_gate), γ = σ(zeta) (1 - λ) + σ(nu)"
    source = "edgeml_pytorch FastGRNNCell; Kusupati et al. 2018, arXiv 1901.02358"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cells with one gate, its two scalars and a hidden matrix, whole or of low rank."""
        roles = (*_REQUIRED, *_INPUT, *_HIDDEN)
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, roles).items()
            if _fits({role: tensors[name].shape for role, name in names.items()})
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the gate's bias and the scalars, and W and U where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read.
        """
        names = match.tensors
        bias = read_vector(store, names[_GATE])
        scale, floor = read_vector(store, names[_SCALE], 1), read_vector(store, names[_FLOOR], 1)
        kept, lost = sigmoid(bias), sigmoid(-bias)
        log_gain = np.logaddexp(log_sigmoid(scale) + log_sigmoid(-bias), log_sigmoid(floor))
        gain = np.exp(log_gain)
        opened = sigmoid(scale)
        by_scale = opened * sigmoid(-scale) * lost / gain
        by_floor = sigmoid(floor) * sigmoid(-floor) / gain
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names.values()),
            log_eigenvalues=log_sigmoid(bias).astype(np.complex128),
            log_gain=log_gain.astype(np.complex128),
            parameters=(
                one_to_one(
                    _GATE,
                    names[_GATE],
                    bias,
                    store.tensors[names[_GATE]].dtype,
                    kept * lost,
                    -opened * kept * lost / gain,
                ),
                gain_scalar(
                    _SCALE, names[_SCALE], scale, store.tensors[names[_SCALE]].dtype, by_scale
                ),
                gain_scalar(
                    _FLOOR, names[_FLOOR], floor, store.tensors[names[_FLOOR]].dtype, by_floor
                ),
            ),
            input_dependent=True,
            stable_by_construction=True,
            assumptions=(_FUNCTIONS,),
            hidden_feedback=True,
            hidden=_spectra(store, names, kept, opened, gain, options.device)
            if options.spectra
            else None,
            gate=_drive(store, names, bias, (scale, floor)) if options.gates else None,
        )


def _fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the shapes are (1, H), scalars, and (H, H) or two factors of it."""
    if not shapes.keys() >= set(_REQUIRED):
        return False
    bias = shapes[_GATE]
    if len(bias) != 2 or bias[0] != 1 or shapes[_UPDATE] != bias or bias[1] < 1:
        return False
    if shapes[_SCALE] != (1, 1) or shapes[_FLOOR] != (1, 1):
        return False
    if "U" in shapes:
        return shapes["U"] == (bias[1], bias[1])
    inner, outer = (shapes.get(role, ()) for role in _HIDDEN[1:])
    return (
        len(inner) == len(outer) == 2
        and (outer[0], outer[1]) == (bias[1], inner[0])
        and (inner[1] == bias[1])
    )


def shared_drive(
    law: FlooredMix,
    norms: RowNorms,
    gate: Floats,
    update: Floats,
    motions: Mapping[str, tuple[str, float | Floats]],
) -> GateDrive:
    """What W and U show to the gate and, with another bias, to the candidate.

    Args:
        law: λ and γ.
        norms: those of the rows of W and U.
        gate: (H,) the gate's bias.
        update: (H,) the candidate's.
        motions: as those of `GateDrive`.
    """
    return GateDrive(
        law=law,
        gate=GateInput(gate, norms),
        state=HiddenState(
            GateInput(update, norms), convex=False, written=Written(law, update - gate)
        ),
        motions=motions,
    )


def _drive(
    store: TensorStore, names: Mapping[str, str], bias: Floats, scalars: tuple[Floats, Floats]
) -> GateDrive | None:
    """Where W and U are there, whole or in factors."""
    inputs, hidden = (_matrix(store, names, roles, bias.size) for roles in (_INPUT, _HIDDEN))
    if inputs is None or hidden is None:
        return None
    scale, floor = (float(value[0]) for value in scalars)
    return shared_drive(
        FlooredMix(scale, floor, _GATE, _SCALE, _FLOOR),
        RowNorms(squared_rows(inputs), squared_rows(hidden)),
        bias,
        read_vector(store, names[_UPDATE], bias.size),
        {role: (role, 1.0) for role in (_GATE, _SCALE, _FLOOR)},
    )


def _matrix(
    store: TensorStore, names: Mapping[str, str], roles: tuple[str, str, str], size: int
) -> Floats | None:
    """(H, sources), whole or the product of its factors; None where it is not there."""
    whole, inner, outer = roles
    if whole in names:
        return read_real(store, names[whole], (size, None))
    if inner not in names or outer not in names:
        return None
    below = read_real(store, names[inner], (None, None))
    product: Floats = read_real(store, names[outer], (size, len(below))) @ below
    return product


def _spectra(
    store: TensorStore,
    names: Mapping[str, str],
    kept: Floats,
    opened: Floats,
    gain: Floats,
    device: str,
) -> HiddenSpectra:
    """Of U, and of one step: ``diag(z) + diag(γ (1-c²) - σ(ζ) z (1-z) c) U``, c = tanh(b_h)."""
    matrix = _matrix(store, names, _HIDDEN, kept.size)
    assert matrix is not None  # a layer without it is not found
    candidate = np.tanh(read_vector(store, names[_UPDATE], kept.size))
    slope = gain * (1 - candidate**2) - opened * kept * (1 - kept) * candidate
    jacobian = np.diag(kept) + slope[:, None] * matrix
    return HiddenSpectra({"shared": eigenvalues(matrix, device)}, eigenvalues(jacobian, device))
