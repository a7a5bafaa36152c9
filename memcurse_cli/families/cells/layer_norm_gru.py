"""The GRU of Dreamer's world models: one linear of [x, h], normalised as a whole."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.cells.gated_layer import GateBias, coupled_recurrence
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateInput, RowNorms
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.reading import read_real
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.theory.linalg.eigendecomposition import eigenvalues

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
# dreamerv3-torch, its later version, and SheepRL, which puts h before x.
_NAMES = (("_layer", "_norm"), ("GRU_linear", "GRU_norm"), ("linear", "layer_norm"))
_STATE_FIRST = "linear"
_RECURRENT = re.compile(r"\w*(?:rnn|gru|cell)\w*", re.IGNORECASE)

NORMALISED = (
    "a layer normalisation stands before the gates: at zero its slope is that of its ε, which is "
    "not stored"
)


class LayerNormGRU:
    """``h' = (1-u) h + u tanh(σ(r) n)``, ``u = σ(LN(W [x, h])_u + update_bias)``: λ = 1 - σ(b_u).

    At zero input and zero state the normalisation puts out its bias β, so that
    ``b_u = β_u + update_bias``; without a normalisation β is the linear's own bias. Where the
    linear has a bias as well, its normalised value adds to β.
    """

    name = "layer_norm_gru"
    title = "Layer-normalised GRU (Dreamer)"
    recognised_by = (
        "GRU_linear.weight (3H, inputs + H) beside GRU_norm.bias (3H); or _layer and _norm, linear "
        "and layer_norm in a cell, gru or rnn"
    )
    equation = "λ = 1 - σ(b_u), γ = σ(b_u), b_u = β_u + update_bias, rows r, n, u"
    source = (
        "NM512/dreamerv3-torch, networks.py; SheepRL's LayerNormGRUCell; Hafner et al. 2020, "
        "arXiv 2010.02193"
    )
    assumptions: tuple[Assumption, ...] = (UPDATE_BIAS, EPSILON)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
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
                if linear != "GRU_linear" and not _RECURRENT.fullmatch(split_name(module)[1]):
                    continue
                # Without a normalisation the linear has the bias.
                if "scale" not in held and linear == "_layer" and "linear_bias" in held:
                    held["bias"] = held.pop("linear_bias")
                if _fits({role: tensors[name].shape for role, name in held.items()}):
                    found.append(Match(_layer(module, linear) or self.name, held))
        return found

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read β, and the weight and the scale where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read.
        """
        tensor = match.tensors["bias"]
        rows = store.tensors[tensor].shape[0]
        values = _update(read_real(store, tensor, (rows,)))
        assumed = Assumed(options)
        total = values + float(assumed.choose(UPDATE_BIAS))
        needs_scale = options.gates or "linear_bias" in match.tensors
        scales = None
        if "scale" in match.tensors and needs_scale:
            scales = read_real(store, match.tensors["scale"], (rows,))
        if "linear_bias" in match.tensors and scales is not None:
            shown = read_real(store, match.tensors["linear_bias"], (rows,))
            epsilon = float(assumed.choose(EPSILON))
            total = total + _update(scales * _normalised(shown, epsilon))
        inputs = None
        if options.gates and scales is not None:
            # Whatever the input and the state, the normalisation puts out a variance of 1.
            nothing = RowNorms(np.zeros(values.size), np.zeros(values.size))
            centre = values + float(options.choose(UPDATE_BIAS)[0])
            inputs = GateInput(centre, nothing, _update(scales) ** 2)
        role = split_name(tensor)[1]
        part = (role, tensor, values, store.tensors[tensor].dtype)
        return coupled_recurrence(
            match,
            family=self.name,
            gate="update",
            bias=GateBias(total, (part,)),
            keeps=False,
            hidden_feedback=True,
            hidden=_spectra(store, match, options.device) if options.spectra else None,
            assumptions=tuple(assumed.sentences),
            inputs=inputs,
        )


def _fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    weight, bias = shapes.get("weight", ()), shapes.get("bias", ())
    if len(weight) != 2 or bias != weight[:1] or shapes.get("scale", bias) != bias:
        return False
    if shapes.get("linear_bias", bias) != bias:
        return False
    return weight[0] > 0 and weight[0] % len(GATES) == 0 and weight[1] > weight[0] // len(GATES)


def _update(rows: Floats) -> Floats:
    """Those of the update gate."""
    return np.split(rows, len(GATES))[GATES.index("update")]


def _normalised(rows: Floats, epsilon: float) -> Floats:
    centred = rows - rows.mean()
    normal: Floats = centred / np.sqrt(np.mean(centred**2) + epsilon)
    return normal


def _layer(module: str, linear: str) -> str:
    """The cell's name, without the list that its linear stands in."""
    above, last = split_name(module)
    return above if linear == "GRU_linear" and last == "layers" else module


def _spectra(store: TensorStore, match: Match, device: str) -> HiddenSpectra:
    tensor = match.tensors["weight"]
    weight = read_real(store, tensor, store.tensors[tensor].shape)
    size = weight.shape[0] // len(GATES)
    state_first = split_name(split_name(tensor)[0])[1] == _STATE_FIRST
    hidden = weight[:, :size] if state_first else weight[:, -size:]
    blocks = zip(GATES, np.split(hidden, len(GATES)), strict=True)
    return HiddenSpectra(
        {gate: eigenvalues(part, device) for gate, part in blocks}, None, NORMALISED
    )
