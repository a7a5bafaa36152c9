"""GRUs behind a norm: SpeechBrain's light GRU, and that of Dreamer's world models.

At zero input a batch normalisation puts out ``b = β - s μ/√(v + ε)`` with its scale s, its bias β
and its running mean μ and variance v; a layer normalisation puts out β, and adds the normalised
value of a bias that stands before it. What a norm behind the hidden matrix does is not stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.cells.layout import (
    Cell,
    CellFamily,
    Variant,
    positive,
    shapes_of,
    stacked,
    without_jacobian,
)
from memcurse_cli.families.cells.torch import ACTIVATION
from memcurse_cli.families.family import Assumption, Layer, Match
from memcurse_cli.families.gate_inputs import GateInput, NoDrive, RowNorms
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.reading import misfit, sigmoid
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.theory.gates.moments import RELU

BATCH_EPSILON = Assumption(
    key="batch_norm_epsilon",
    default="1e-05",
    choices=(),
    meaning="ε beside the running variance of a light GRU's batch normalisation",
)
NZ = ("new", "update")
_SCALE, _BIAS, _STATE_BIAS = "norm.weight", "norm.bias", "layer_norm.bias"
_RUNNING = ("norm.running_mean", "norm.running_var")
LIGHT = stacked(
    NZ,
    *("w.weight", "u.weight", _BIAS, _STATE_BIAS),
    columns=False,
    resets=False,
    others=(_SCALE, *_RUNNING),
)
_RELU = (
    "the state that gates see is that of a ReLU candidate, as by default, without the normalisation"
    " of U h that SLiGRU has and does not store"
)
_STATE_NORMALISED = NoDrive("a layer normalisation stands between the hidden state and its gates")


def _light_matches(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules with both stacked linears and their normalisation."""
    found = []
    for match in LIGHT.find(tensors, family):
        vectors = match.tensors.keys() - LIGHT.matrices
        sizes = {tensors[match.tensors[role]].shape for role in vectors}
        if len(sizes) == 1 and {_SCALE, _BIAS} <= vectors and len(vectors & {*_RUNNING}) != 1:
            found.append(match)
    return found


def _light_variant(layer: Layer) -> Variant:
    """What the normalisation adds to the biases, and what it shows of the input."""
    scale = layer.real(_SCALE, layer.shape(_SCALE))
    share, width = np.zeros_like(scale), np.ones_like(scale)
    batch = _RUNNING[0] in layer.names
    if batch:
        epsilon = positive(layer.assumed, BATCH_EPSILON)
        mean, variance = (layer.real(role, layer.shape(role)) for role in _RUNNING)
        if np.any(variance < 0):
            below = layer.names[_RUNNING[1]]
            raise misfit("a running variance is below 0", below, "export the layer again")
        width = np.sqrt(variance + epsilon)
        share = -mean / width
    shown = dict(zip(NZ, np.split((scale / width) ** 2, len(NZ)), strict=True))

    def seen(cell: Cell) -> dict[str, GateInput]:
        """A layer normalisation puts out ``s_i w_i / √(mean_j w_j²)``, at any scale of x."""
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
        total, moved, own = cell.biases["update"].total, share[cell.size :], scale[cell.size :]
        kept = sigmoid(total)
        by_scale = kept * sigmoid(-total) * moved, -kept * moved
        group = layer.group(_SCALE, own, *by_scale, name=f"{_SCALE}[update]")
        return replace(found, parameters=(*found.parameters, group))

    normalised = _STATE_BIAS in layer.names
    return Variant(
        assumptions=(_RELU,) if layer.options.gates and not normalised else (),
        added=dict(zip(NZ, np.split(scale * share, len(NZ)), strict=True)),
        candidate=RELU,
        spectra=without_jacobian(ACTIVATION),
        seen=seen,
        undriven=_STATE_NORMALISED if normalised else None,
        finish=finish if batch else None,
    )


# h' = z h + (1-z) a(n), z = σ(N(W x)_z + U_z h)
LIGHT_GRU = CellFamily(
    name="light_gru",
    title="Light GRU (SpeechBrain)",
    recognised_by="w.weight (2H, inputs) and u.weight (2H, H) beside norm.weight and norm.bias",
    equation="λ = σ(b_z), γ = 1 - λ, b = β - s μ/√(v + ε) + layer_norm.bias, rows n, z",
    source="speechbrain.nnet.RNN.LiGRU and SLiGRU; Ravanelli et al. 2018, arXiv 1803.10225",
    layouts=(LIGHT,),
    matches=_light_matches,
    variant=_light_variant,
    assumptions=(BATCH_EPSILON,),
)


UPDATE_BIAS = Assumption(
    key="update_bias",
    default="-1.0",
    choices=(),
    meaning="what the GRU of Dreamer adds to the pre-activation of its update gate",
)
LAYER_EPSILON = Assumption(
    key="norm_epsilon",
    default="0.001",
    choices=(),
    meaning="ε of the layer normalisation in the GRU of Dreamer, where its linear has a bias",
)
RNZ = ("reset", "new", "update")
DREAMER = stacked(RNZ, "weight", "weight", "bias", columns=False, keeps=False)
# dreamerv3-torch, its later version, and SheepRL, which puts h before x.
_NAMES = (("_layer", "_norm"), ("GRU_linear", "GRU_norm"), ("linear", "layer_norm"))
_STATE_FIRST = "linear"
_RECURRENT = re.compile(r"\w*(?:rnn|gru|cell)\w*", re.IGNORECASE)
NORMALISED = (
    "a layer normalisation stands before the gates: at zero its slope is that of its ε, which is "
    "not stored"
)


def _dreamer_matches(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Cells with a linear of three gates of [x, h] and what stands for its bias."""
    found = []
    for linear, norm in _NAMES:
        roles = {
            f"{linear}.weight": "weight",
            f"{linear}.bias": "linear_bias",
            f"{norm}.weight": "scale",
            f"{norm}.bias": "bias",
        }
        for module, names in group_by_module(tensors, roles).items():
            held = {roles[role]: name for role, name in names.items()}
            above, last = split_name(module)
            if linear != "GRU_linear" and not _RECURRENT.fullmatch(last):
                continue
            # Without a normalisation the linear has the bias.
            if "scale" not in held and linear == "_layer" and "linear_bias" in held:
                held["bias"] = held.pop("linear_bias")
            shapes = shapes_of(tensors, held)
            vectors = {shapes[role] for role in shapes.keys() - {"weight"}}
            if "bias" in shapes and len(vectors) == 1 and DREAMER.fits(shapes):
                # The list that the linear stands in is no part of the cell's name.
                cell = above if linear == "GRU_linear" and last == "layers" else module
                found.append(Match(cell or family, held))
    return found


def _dreamer_variant(layer: Layer) -> Variant:
    """What is added to β."""
    names, rows = layer.names, layer.shape("bias")
    shift = float(layer.assumed.choose(UPDATE_BIAS))
    added: Floats | float = shift
    scale = None
    if "scale" in names and (layer.options.gates or "linear_bias" in names):
        scale = layer.real("scale", rows)
    if "linear_bias" in names and scale is not None:
        shown = layer.real("linear_bias", rows)
        centred = shown - shown.mean()
        epsilon = float(layer.assumed.choose(LAYER_EPSILON))
        normal = centred / np.sqrt(np.mean(centred**2) + epsilon)
        added = shift + _update(scale * normal)

    def seen(cell: Cell) -> dict[str, GateInput]:
        """Whatever the input and the state, the normalisation puts out a variance of 1."""
        if scale is None:
            return {}
        ((_, _, stored, _),) = cell.biases["update"].parts
        nothing = RowNorms(np.zeros(stored.size), np.zeros(stored.size))
        return {"update": GateInput(stored + shift, nothing, _update(scale) ** 2)}

    linear = split_name(split_name(names["weight"])[0])[1]
    return Variant(
        layout=replace(DREAMER, state_first=linear == _STATE_FIRST),
        added={"update": added},
        spectra=without_jacobian(NORMALISED),
        seen=seen,
    )


def _update(rows: Floats) -> Floats:
    return np.split(rows, len(RNZ))[-1]


# h' = (1-u) h + u tanh(σ(r) n), u = σ(LN(W [x, h])_u + update_bias)
LAYER_NORM_GRU = CellFamily(
    name="layer_norm_gru",
    title="Layer-normalised GRU (Dreamer)",
    recognised_by=(
        "GRU_linear.weight (3H, inputs + H) beside GRU_norm.bias (3H); or _layer and _norm, linear "
        "and layer_norm in a cell, gru or rnn"
    ),
    equation="λ = 1 - σ(b_u), γ = σ(b_u), b_u = β_u + update_bias, rows r, n, u",
    source=(
        "NM512/dreamerv3-torch, networks.py; SheepRL's LayerNormGRUCell; Hafner et al. 2020, "
        "arXiv 2010.02193"
    ),
    layouts=(DREAMER,),
    matches=_dreamer_matches,
    variant=_dreamer_variant,
    assumptions=(UPDATE_BIAS, LAYER_EPSILON),
)
