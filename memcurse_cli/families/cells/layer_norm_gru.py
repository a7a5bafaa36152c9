"""The GRU of Dreamer's world models: one linear of [x, h], normalised as a whole.

At zero input and zero state the normalisation puts out its bias β, so that
``b_u = β_u + update_bias``; without a normalisation β is the linear's own bias. Where the linear
has a bias as well, its normalised value adds to β.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.cells.layout import Cell, CellFamily, Layout, Variant, without_jacobian
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateInput, RowNorms
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.reading import read_real
from memcurse_cli.families.recurrence import Floats

UPDATE_BIAS = Assumption(
    key="update_bias",
    default="-1.0",
    choices=(),
    meaning="what the GRU of Dreamer adds to the pre-activation of its update gate",
)
EPSILON = Assumption(
    key="norm_epsilon",
    default="0.001",
    choices=(),
    meaning="ε of the layer normalisation in the GRU of Dreamer, where its linear has a bias",
)
GATES = ("reset", "new", "update")
LAYOUT = Layout({"weight": GATES}, {"weight": GATES}, {"bias": GATES}, columns=False, keeps=False)
# dreamerv3-torch, its later version, and SheepRL, which puts h before x.
_NAMES = (("_layer", "_norm"), ("GRU_linear", "GRU_norm"), ("linear", "layer_norm"))
_STATE_FIRST = "linear"
_RECURRENT = re.compile(r"\w*(?:rnn|gru|cell)\w*", re.IGNORECASE)
NORMALISED = (
    "a layer normalisation stands before the gates: at zero its slope is that of its ε, which is "
    "not stored"
)


def _matches(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
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
            shapes = {role: tensors[name].shape for role, name in held.items()}
            vectors = {shapes[role] for role in shapes.keys() - {"weight"}}
            if "bias" in shapes and len(vectors) == 1 and LAYOUT.fits(shapes):
                # The list that the linear stands in is no part of the cell's name.
                cell = above if linear == "GRU_linear" and last == "layers" else module
                found.append(Match(cell or family, held))
    return found


def _variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """What is added to β.

    Raises:
        TensorError: NaN or inf in what is read.
    """
    names, assumed = match.tensors, Assumed(options)
    rows = store.tensors[names["bias"]].shape
    shift = float(assumed.choose(UPDATE_BIAS))
    added: Floats | float = shift
    scale = None
    if "scale" in names and (options.gates or "linear_bias" in names):
        scale = read_real(store, names["scale"], rows)
    if "linear_bias" in names and scale is not None:
        shown = read_real(store, names["linear_bias"], rows)
        centred = shown - shown.mean()
        normal = centred / np.sqrt(np.mean(centred**2) + float(assumed.choose(EPSILON)))
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
        assumptions=tuple(assumed.sentences),
        layout=replace(LAYOUT, state_first=linear == _STATE_FIRST),
        added={"update": added},
        spectra=without_jacobian(NORMALISED),
        seen=seen,
    )


def _update(rows: Floats) -> Floats:
    return np.split(rows, len(GATES))[GATES.index("update")]


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
    layouts=(LAYOUT,),
    matches=_matches,
    variant=_variant,
    assumptions=(UPDATE_BIAS, EPSILON),
)
