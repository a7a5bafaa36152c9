"""The multiplicative LSTM of Krause et al. 2017: OpenAI's sentiment neuron, UniRep, and ports.

``c' = σ(f) c + σ(i) tanh(u)``, gates from x and ``m = (W_mx x) ∘ (W_mh h)``. At zero input m is
zero, whatever the state, so that no hidden weight adds to the memory there. It is no relation of
xLSTM's mLSTM, which has a matrix for a state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.layout import Cell, CellFamily, Layout, Variant
from memcurse_cli.families.family import Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateInput, RowNorms, squared_rows
from memcurse_cli.families.reading import read_finite, read_real, sigmoid
from memcurse_cli.families.recurrence import Floats, HiddenSpectra

GATES = ("input", "forget", "output", "cell")
WEIGHTS = ("wx", "wh", "wmx", "wmh")
# wmh, mlstm_wmh:0, wmh.weight, and wmh.weight_v or .original1 where its norm is apart.
_MULTIPLIED = re.compile(
    r"(?P<before>(?:.*[./,_])?)wmh"
    r"(?P<after>|:0|\.weight|\.weight_v|\.parametrizations\.weight\.original1)"
)


def _layout(bias: str) -> Layout:
    return Layout({"wx": GATES}, {"wmh": ("state of m",)}, {bias: GATES})


def _matches(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules with the four matrices under one naming, and the bias of the gates."""
    matches = []
    for name, spec in tensors.items():
        parts = _MULTIPLIED.fullmatch(name) if "wmh" in name else None
        if parts is None or len(spec.shape) != 2 or spec.shape[0] != spec.shape[1]:
            continue
        before, after = parts["before"], parts["after"]
        bias = "wh.bias" if after.startswith(".") else "b"
        roles = {weight: f"{before}{weight}{after}" for weight in WEIGHTS}
        roles[bias] = f"{before}wh.bias" if bias == "wh.bias" else f"{before}b{after}"
        held = all(role in tensors for role in roles.values())
        if held and tensors[roles[bias]].shape == (4 * spec.shape[0],):
            matches.append(Match(before.rstrip("./,_") or family, roles))
    return matches


def _variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    return Variant(
        layout=_layout("wh.bias" if "wh.bias" in match.tensors else "b"),
        spectra=_spectra,
        seen=lambda cell: _seen(store, match.tensors, cell),
    )


def _spectra(cell: Cell, device: str) -> HiddenSpectra:
    """The eigenvalues σ(b_f) and 0 of one step."""
    kept = sigmoid(cell.biases["forget"].total)
    return HiddenSpectra({}, np.concatenate([kept, np.zeros_like(kept)]).astype(np.complex128))


def _seen(store: TensorStore, names: Mapping[str, str], cell: Cell) -> dict[str, GateInput]:
    """What the gates see of x, and of ``m = (W_mx x) ∘ (W_mh h)``, of independent entries.

    Nothing where a weight is not whole in one tensor, and where their shapes do not fit.
    """
    weights = {role: _weight(store, names[role], role) for role in WEIGHTS}
    if any(weight is None for weight in weights.values()):
        return {}
    wx, wh, wmx, wmh = (weight for weight in weights.values() if weight is not None)
    units = len(wmh)
    if len(wx) != 4 * units or wh.shape != (4 * units, units) or len(wmx) != units:
        return {}
    product = squared_rows(wmx) * squared_rows(wmh)
    inputs = np.split(squared_rows(wx), len(GATES))
    products = np.split(np.square(wh) @ product, len(GATES))
    return {
        gate: GateInput(cell.biases[gate].total, RowNorms(own, np.zeros(units), both))
        for gate, own, both in zip(GATES, inputs, products, strict=True)
    }


def _weight(store: TensorStore, tensor: str, role: str) -> Floats | None:
    """(outputs, inputs), with the length of its rows where TensorFlow's names keep it apart."""
    if ".weight" in tensor:
        if not tensor.endswith(".weight"):
            return None
        stored: Floats = read_finite(store, tensor)
        return stored
    weight: Floats = read_finite(store, tensor).T
    start = tensor.rindex(role)
    length = f"{tensor[:start]}g{role[1:]}{tensor[start + len(role) :]}"
    if length in store.tensors:
        rows = np.sqrt(np.maximum(squared_rows(weight), np.finfo(np.float64).tiny))
        weight = weight * (read_real(store, length, (len(weight),)) / rows)[:, None]
    return weight


MULTIPLICATIVE_LSTM = CellFamily(
    name="multiplicative_lstm",
    title="Multiplicative LSTM (sentiment neuron, UniRep)",
    recognised_by="wmx, wmh, wx, wh and b; or wmh.weight, wx.weight beside wh.bias (4H)",
    equation="λ = σ(b_f), γ = σ(b_i), rows i, f, o, u",
    source=(
        "openai/generating-reviews-discovering-sentiment; tape's UniRep; Krause et al. 2017, "
        "arXiv 1609.07959"
    ),
    layouts=(_layout("b"),),
    matches=_matches,
    variant=_variant,
)
