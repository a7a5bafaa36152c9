"""The light GRU of Ravanelli et al. 2018, arXiv 1803.10225, as SpeechBrain stores it.

At zero input a batch normalisation puts out ``b = β - s μ/√(v + ε)`` with its scale s, its bias β
and its running mean μ and variance v; a layer normalisation puts out β. SLiGRU normalises U h as
well, and its ``layer_norm.bias`` adds to b where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.cells.layout import Cell, CellFamily, Layout, Variant, without_jacobian
from memcurse_cli.families.cells.mgu import ACTIVATION
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateInput, NoDrive, RowNorms
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import one_to_one, read_real, sigmoid
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.theory.gates.fixed_point import RELU

EPSILON = Assumption(
    key="batch_norm_epsilon",
    default="1e-05",
    choices=(),
    meaning="ε beside the running variance of a light GRU's batch normalisation",
)
GATES = ("new", "update")
_SCALE, _STATE_BIAS = "norm.weight", "layer_norm.bias"
LAYOUT = Layout(
    {"w.weight": GATES},
    {"u.weight": GATES},
    {"norm.bias": GATES, _STATE_BIAS: GATES},
    columns=False,
    resets=False,
)
_RUNNING = ("norm.running_mean", "norm.running_var")
_RELU = (
    "the state that gates see is that of a ReLU candidate, as by default, without the normalisation"
    " of U h that SLiGRU has and does not store"
)
_NORMALISED = NoDrive("a layer normalisation stands between the hidden state and its gates")


def _matches(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules with both stacked linears and their normalisation."""
    roles = (*LAYOUT.matrices, *LAYOUT.biases, _SCALE, *_RUNNING)
    found = []
    for module, names in group_by_module(tensors, roles).items():
        shapes = {role: tensors[name].shape for role, name in names.items()}
        vectors = {shapes[role] for role in shapes.keys() - LAYOUT.matrices}
        whole = {"norm.bias", _SCALE} <= shapes.keys() and len(vectors) == 1
        if whole and (_RUNNING[0] in shapes) == (_RUNNING[1] in shapes) and LAYOUT.fits(shapes):
            found.append(Match(module or family, names))
    return found


def _variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """What the normalisation adds to the biases, and what it shows of the input.

    Raises:
        TensorError: NaN or inf in the normalisation, or a running variance below 0.
        UsageError: ε is not positive.
    """
    names, assumed = match.tensors, Assumed(options)
    rows = store.tensors[names[_SCALE]].shape
    scale = read_real(store, names[_SCALE], rows)
    share, width = np.zeros(rows), np.ones(rows)
    batch = _RUNNING[0] in names
    if batch:
        share, width = _running(store, names, float(assumed.choose(EPSILON)))
    shown = dict(zip(GATES, np.split((scale / width) ** 2, len(GATES)), strict=True))

    def seen(cell: Cell) -> dict[str, GateInput]:
        """A layer normalisation puts out ``s_i w_i / √(mean_j w_j²)``, at any scale of the input.

        So it does not matter there how large the input is.
        """
        norms = cell.norms or {}
        mean = max(float(np.mean([norm.inputs for norm in norms.values()])), np.finfo(float).tiny)
        found = {}
        for gate, norm in norms.items():
            inputs, fixed = shown[gate] * norm.inputs, None
            if not batch:
                inputs, fixed = np.zeros_like(inputs), inputs / mean
            bias = cell.biases[gate].total
            found[gate] = GateInput(bias, RowNorms(inputs, norm.hidden), fixed)
        return found

    def finish(found: Recurrence, cell: Cell) -> Recurrence:
        total, moved = cell.biases["update"].total, share[cell.size :]
        kept = sigmoid(total)
        tensor = names[_SCALE]
        group = one_to_one(
            f"{_SCALE}[update]",
            tensor,
            scale[cell.size :],
            store.tensors[tensor].dtype,
            kept * sigmoid(-total) * moved,
            -kept * moved,
        )
        return replace(found, parameters=(*found.parameters, group))

    driven = options.gates and _STATE_BIAS not in names
    return Variant(
        assumptions=(*assumed.sentences, *((_RELU,) if driven else ())),
        added=dict(zip(GATES, np.split(scale * share, len(GATES)), strict=True)),
        candidate=RELU,
        spectra=without_jacobian(ACTIVATION),
        seen=seen,
        undriven=_NORMALISED if _STATE_BIAS in names else None,
        finish=finish if batch else None,
    )


def _running(store: TensorStore, names: Mapping[str, str], epsilon: float) -> tuple[Floats, Floats]:
    """-μ/√(v + ε), and √(v + ε)."""
    if not 0 < epsilon < np.inf:
        raise UsageError(
            f"{epsilon:g} is not a value of {EPSILON.key}",
            where="--assume",
            remedy="give a positive number",
        )
    mean, variance = (
        read_real(store, names[role], store.tensors[names[role]].shape) for role in _RUNNING
    )
    if np.any(variance < 0):
        raise TensorError(
            "a running variance is below 0",
            where=names[_RUNNING[1]],
            remedy="export the layer again",
        )
    width: Floats = np.sqrt(variance + epsilon)
    return -mean / width, width


# h' = z h + (1-z) a(n), z = σ(N(W x)_z + U_z h)
LIGHT_GRU = CellFamily(
    name="light_gru",
    title="Light GRU (SpeechBrain)",
    recognised_by="w.weight (2H, inputs) and u.weight (2H, H) beside norm.weight and norm.bias",
    equation="λ = σ(b_z), γ = 1 - λ, b = β - s μ/√(v + ε) + layer_norm.bias, rows n, z",
    source="speechbrain.nnet.RNN.LiGRU and SLiGRU; Ravanelli et al. 2018, arXiv 1803.10225",
    layouts=(LAYOUT,),
    matches=_matches,
    variant=_variant,
    assumptions=(EPSILON,),
)
