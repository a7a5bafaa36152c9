"""The simple recurrent unit of Lei et al. 2018 and SRU++, as the library sru stores them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import (
    GateDrive,
    GateInput,
    NoDrive,
    RowNorms,
    mixing_drive,
    squared_rows,
)
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_finite, read_real
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence
from memcurse_cli.theory.gates.laws import Mix

NORM = ("layer_norm.weight", "layer_norm.bias")
ROLES = ("bias", "weight_c", "weight", "weight_proj", "scale_x", *NORM)
# Before version 2 the cell's state did not enter the gates, and only this list told a layer.
_LISTED = re.compile(r"(?:.*[./,])?rnn_lst[./,]\d+")

_NOMINAL = "weight_c multiplies the cell's state in the gates, which stands at zero"
_NORMALISED = "what the layer normalisation puts out at zero input is taken as zero"

_OWN_STATE = (
    "weight_c lets its gate see its own unit's state, which stays from step to step, where the"
    " theory has gates drawn anew; the band is that of the gate, drawn"
)
_ATTENDED = NoDrive("its gate sees an attention over the sequence, not a projection of the input")
_UNFIT = NoDrive("its weight is not three or four matrices of the size of its bias")


class SRU:
    """``c[t+1] = f c[t] + (1-f) W x``, ``f = σ(W_f x + v_f c[t] + b_f)``: λ = σ(b_f), γ = 1 - λ.

    ``bias`` holds b_f, then the b_r of the highway ``h = r c + (1-r) x``; both directions of a
    bidirectional layer stand in each half. v_f, the first half of ``weight_c``, multiplies the
    state, and so does not move λ at c = 0. SRU++ changes how W x is made and nothing else.
    """

    name = "sru"
    title = "SRU and SRU++ (simple recurrent unit)"
    recognised_by = "weight_c (2n) beside bias (2n); or rnn_lst.0.weight (inputs, 3n or 4n)"
    equation = "λ = σ(b_f), γ = 1 - λ, b_f the first half of bias"
    source = "sru 2.7 and 3.0; Lei et al. 2018, arXiv 1709.02755; Lei 2021, arXiv 2102.12459"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a weight_c of the bias's size, and old ones in a list ``rnn_lst``."""
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, ROLES).items()
            if "bias" in names
            and _is_layer(module, {r: tensors[n].shape for r, n in names.items()})
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias, and what the gate sees where its band is asked for.

        Raises:
            TensorError: NaN or inf in what is read.
        """
        tensor = match.tensors["bias"]
        values = read_real(store, tensor, (None,))
        forget = values[: values.size // 2]
        sentences = [_NOMINAL] if "weight_c" in match.tensors else []
        if "layer_norm.weight" in match.tensors:
            sentences.append(_NORMALISED)
        recurrence = law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Mix(parameter="forget"),
            at=forget,
            slots=[Slot("bias[forget]", tensor, forget, "forget")],
            gates=lambda: _gate(store, match.tensors, forget),
            tensors=tuple(match.tensors.values()),
            assumptions=sentences,
        )
        return _seeing_its_state(store, match.tensors, recurrence)


def _gate(store: TensorStore, names: Mapping[str, str], bias: Floats) -> GateInput | NoDrive:
    """``z = W_f x + b_f``, with W_f the second of the matrices that ``weight`` holds by unit."""
    if "weight" not in names:
        return _ATTENDED
    weights = _weights(store, names, bias.size)
    return _UNFIT if weights is None else _behind_norm(store, names, bias, weights[:, :, 1])


def _seeing_its_state(
    store: TensorStore, names: Mapping[str, str], recurrence: Recurrence
) -> Recurrence:
    """With v_f c in the gate, and W x, of the first of the matrices, in c."""
    drive = recurrence.gate
    if not isinstance(drive, GateDrive) or "weight_c" not in names:
        return recurrence
    size = drive.gate.bias.size
    own, weights = read_finite(store, names["weight_c"])[:size], _weights(store, names, size)
    if weights is None or not np.any(own):
        return recurrence
    scaled = _scale(store, names, len(weights))[:, None, None] * weights
    shared: Floats = np.einsum("ij,ij->j", scaled[:, :, 0], scaled[:, :, 1])
    taken = _behind_norm(store, names, np.zeros(size), weights[:, :, 0])
    return replace(recurrence, gate=mixing_drive(drive.gate, taken, shared, own, _OWN_STATE))


def _weights(store: TensorStore, names: Mapping[str, str], size: int) -> Floats | None:
    """(inputs, n, 3 or 4), or None where the shapes are others."""
    weight: Floats = read_finite(store, names["weight"])
    if weight.ndim != 2 or weight.shape[1] not in (3 * size, 4 * size):
        return None
    if "weight_proj" in names:
        weight = read_finite(store, names["weight_proj"]) @ weight
    return weight.reshape(len(weight), size, -1)


def _scale(store: TensorStore, names: Mapping[str, str], inputs: int) -> Floats:
    """The scale of the normalisation of the input; one of another size stands behind the cell."""
    if NORM[0] not in names or store.tensors[names[NORM[0]]].shape != (inputs,):
        return np.ones(inputs)
    return read_real(store, names[NORM[0]], (inputs,))


def _behind_norm(
    store: TensorStore, names: Mapping[str, str], bias: Floats, weight: Floats
) -> GateInput:
    """What (inputs, n) weights show of the input, or of what its normalisation puts out.

    Of that every component has the RMS of its scale and the mean of its bias.
    """
    nothing, inputs = np.zeros(bias.size), len(weight)
    seen = squared_rows((_scale(store, names, inputs)[:, None] * weight).T)
    if NORM[0] not in names or store.tensors[names[NORM[0]]].shape != (inputs,):
        return GateInput(bias, RowNorms(seen, nothing))
    shift = None
    if NORM[1] in names:
        shift = read_real(store, names[NORM[1]], (inputs,)) @ weight
    return GateInput(bias, RowNorms(nothing, nothing), seen, shift=shift)


def _is_layer(module: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    bias = shapes.get("bias", ())
    if len(bias) != 1 or bias[0] % 2 or not bias[0]:
        return False
    if "weight_c" in shapes:
        return shapes["weight_c"] == bias
    weight = shapes.get("weight", ())
    listed = _LISTED.fullmatch(module) is not None
    return listed and len(weight) == 2 and weight[1] in (3 * bias[0] // 2, 2 * bias[0])
