"""FastGRNN of Kusupati et al. 2018, arXiv 1901.02358: one matrix for the gate and the candidate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.gated_layer import GateBias, step_spectra
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import (
    GateDrive,
    GateInput,
    HiddenState,
    NoDrive,
    RowNorms,
    squared_rows,
)
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import (
    gain_scalar,
    log_of_eigenvalues,
    log_sigmoid,
    read_real,
    read_vector,
    sigmoid,
)
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.theory.gates.laws import FlooredMix, Written

SCALE, FLOOR = "zeta", "nu"
_GATE, _UPDATE = "bias_gate", "bias_update"
_REQUIRED = (_GATE, _UPDATE, SCALE, FLOOR)
_INPUT, _HIDDEN = ("W", "W1", "W2"), ("U", "U1", "U2")  # each whole, or of two factors
_FUNCTIONS = (
    "the gate is taken as a sigmoid and the candidate as a tanh, as by default: EdgeML stores"
    " neither"
)
_UNLAWFUL = NoDrive("a tanh opens its gate, which no law of gates has")


class FastGRNN:
    """``h' = z h + (σ(ζ)(1-z) + σ(ν)) tanh(u + b_h)``, ``z = σ(u + b_z)``, ``u = W x + U h``.

    At zero input and zero state λ = σ(b_z) and γ = σ(ζ)(1-λ) + σ(ν).
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
        gate = read_vector(store, names[_GATE])

        def matrices() -> tuple[Floats | None, Floats | None]:
            inputs, hidden = (_matrix(store, names, at, gate.size) for at in (_INPUT, _HIDDEN))
            return inputs, hidden

        return fast_grnn_recurrence(
            store,
            match,
            options,
            family=self.name,
            gate=GateBias(gate, ((_GATE, names[_GATE], gate, store.tensors[names[_GATE]].dtype),)),
            block="",
            update=lambda: read_vector(store, names[_UPDATE], gate.size),
            matrices=matrices,
            assumptions=(_FUNCTIONS,),
        )


def _fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the shapes are (1, H), scalars, and (H, H) or two factors of it."""
    if not shapes.keys() >= set(_REQUIRED):
        return False
    bias = shapes[_GATE]
    if len(bias) != 2 or bias[0] != 1 or shapes[_UPDATE] != bias or bias[1] < 1:
        return False
    if shapes[SCALE] != (1, 1) or shapes[FLOOR] != (1, 1):
        return False
    if "U" in shapes:
        return shapes["U"] == (bias[1], bias[1])
    inner, outer = (shapes.get(role, ()) for role in _HIDDEN[1:])
    return len(inner) == len(outer) == 2 and outer == (bias[1], inner[0]) and inner[1] == bias[1]


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


def fast_grnn_recurrence(
    store: TensorStore,
    match: Match,
    options: ReadOptions,
    *,
    family: str,
    gate: GateBias,
    block: str,
    update: Callable[[], Floats],
    matrices: Callable[[], tuple[Floats | None, Floats | None]],
    bent: bool = False,
    assumptions: tuple[str, ...] = (),
) -> Recurrence:
    """λ = a(b_z) and γ = σ(ζ)(1-λ) + σ(ν), where a is σ or a tanh.

    One ζ and one ν move the gain of every unit: d log γ/db_z = -σ(ζ) a'(b_z) / γ,
    d log γ/dζ = σ'(ζ) (1-λ) / γ and d log γ/dν = σ'(ν) / γ.

    Args:
        store: the open checkpoint.
        match: the layer, with the roles ``zeta`` and ``nu``.
        options: what to read beside the bias of the gate.
        family: the name of the family.
        gate: b_z.
        block: what the gate's block of a bias is called, or "" where a bias is the gate's alone.
        update: reads (H,) b_h, the candidate's bias.
        matrices: reads W and U, None for what is not there.
        bent: a tanh opens the gate, so that λ is negative where b_z is.
        assumptions: what was assumed, one sentence each.

    Raises:
        TensorError: NaN or inf in what is read.
    """
    bias = gate.total
    scale, floor = (read_vector(store, match.tensors[role], 1) for role in (SCALE, FLOOR))
    # 1 - tanh(b) = 2σ(-2b), without cancellation.
    stretch = 2.0 if bent else 1.0
    lost = stretch * sigmoid(-stretch * bias)
    kept: Floats = np.tanh(bias) if bent else sigmoid(bias)
    slope = lost * stretch * sigmoid(stretch * bias)
    opened = sigmoid(scale)
    log_lost = np.log(stretch) + log_sigmoid(-stretch * bias)
    log_gain = np.logaddexp(log_sigmoid(scale) + log_lost, log_sigmoid(floor))
    gain = np.exp(log_gain)
    groups = gate.groups(block, slope, -opened * slope / gain)
    scalars = tuple(
        gain_scalar(role, match.tensors[role], value, store.tensors[match.tensors[role]].dtype, by)
        for role, value, by in (
            (SCALE, scale, opened * sigmoid(-scale) * lost / gain),
            (FLOOR, floor, sigmoid(floor) * sigmoid(-floor) / gain),
        )
    )

    def spectra() -> HiddenSpectra:
        """Of U, and of one step: ``diag(λ) + diag(γ (1-c²) - σ(ζ) a' c) U``, c = tanh(b_h)."""
        _, hidden = matrices()
        assert hidden is not None  # a layer without it is not found
        candidate = np.tanh(update())
        shown = gain * (1 - candidate**2) - opened * slope * candidate
        weights = {"shared": hidden}
        return step_spectra(
            weights, lambda: np.diag(kept) + shown[:, None] * hidden, bias.size, options.device
        )

    def drive() -> GateDrive | NoDrive | None:
        """What W and U show to the gate and, with another bias, to the candidate."""
        if bent:
            return _UNLAWFUL
        inputs, hidden = matrices()
        if inputs is None or hidden is None:
            return None
        norms = RowNorms(squared_rows(inputs), squared_rows(hidden))
        law = FlooredMix(float(scale[0]), float(floor[0]), "gate", SCALE, FLOOR)
        candidate = update()
        return GateDrive(
            law=law,
            gate=GateInput(bias, norms),
            state=HiddenState(
                GateInput(candidate, norms), convex=False, written=Written(law, candidate - bias)
            ),
            motions={group.name: ("gate", 1.0) for group in groups}
            | {role: (role, 1.0) for role in (SCALE, FLOOR)},
        )

    log_kept = log_of_eigenvalues(kept) if bent else log_sigmoid(bias).astype(np.complex128)
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(match.tensors.values()),
        log_eigenvalues=log_kept,
        log_gain=log_gain.astype(np.complex128),
        parameters=(*groups, *scalars),
        input_dependent=True,
        stable_by_construction=True,
        assumptions=assumptions,
        hidden_feedback=True,
        hidden=spectra() if options.spectra else None,
        gate=drive() if options.gates else None,
    )
