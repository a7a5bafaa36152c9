"""The LSTM of Hochreiter & Schmidhuber with Gers's forget gate, in torch's layout.

The GRU of Cho et al. in torch's layout, and its mutations that are stored alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.gated_layer import read_peepholes
from memcurse_cli.families.cells.layout import IFGO, RZN, ZRN, CellFamily, Variant
from memcurse_cli.families.cells.torch_lookalikes import Lookalikes, beside
from memcurse_cli.families.cells.torch_names import (
    hidden_weights,
    split_hidden_weight,
    torch_layout,
)
from memcurse_cli.families.family import Match, ReadOptions
from memcurse_cli.families.gate_inputs import NoDrive

MUT2, MUT3 = "mut2", "mut3"
GRU_CELLS = Lookalikes(
    "gru",
    "torch's GRU",
    read=(MUT2, MUT3),
    refused=("original_lstm", "tgru", "tlstm"),
    square=("tgru", "tlstm"),
)
# Equinox has one bias, and beside it what the reset gate multiplies.
TORCH = replace(torch_layout(RZN), inner="bias_hh")
EQUINOX = replace(TORCH, biases={"bias": RZN, "bias_n": ("new",)}, inner="bias_n")
# h' = (1 - σ(z)) h + σ(z) tanh(n), n = W_n x + U_n (σ(r) ∘ h) + b_n (Jozefowicz et al. 2015).
# MUT3's z sees tanh(h) where MUT2's sees h, which have the same slope at h = 0.
MUTATION = replace(torch_layout(ZRN), keeps=False)
_BENT_STATE = NoDrive(
    "its update gate sees tanh(h), and how large that is does not follow from how large h is"
)


def _matches_gru(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Layers whose hidden weight is (3H, H)."""
    return [
        weight.match(family)
        for weight in hidden_weights(tensors)
        if weight.rows == 3 * weight.columns and not weight.projected
    ]


def _gru_variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """Which of the cells it is.

    Raises:
        TensorError: a tensor or a name that another cell has.
    """
    choice = GRU_CELLS.choose(store, match, options)
    layout = EQUINOX if "bias_n" in match.tensors else TORCH
    if choice.cell in (MUT2, MUT3):
        layout = MUTATION
    undriven = _BENT_STATE if choice.cell == MUT3 else None
    return Variant(assumptions=choice.sentences, layout=layout, undriven=undriven)


# A layer without biases has λ = 1/2 and no parameter group, since its weights do not act at zero
# input and zero state.
GRU = CellFamily(
    name="gru",
    title="GRU",
    recognised_by="weight_hh_l0, weight_hh or w_hh (3H, H)",
    equation="λ = σ(b_z), γ = 1 - λ, b = bias_ih + bias_hh, rows r, z, n",
    source="torch.nn.GRU; Cho et al. 2014; theory of Zucchet & Orvieto 2024, D.2",
    layouts=(TORCH,),
    matches=_matches_gru,
    variant=_gru_variant,
    assumptions=(GRU_CELLS.assumption,),
)


PEEPHOLES = "weight_ph"
LSTM_CELLS = Lookalikes(
    "lstm",
    "torch's LSTM",
    refused=("tau_gru", "intersection_rnn"),
    square=("intersection_rnn",),
)


def _matches_lstm(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Layers whose hidden weight is (4H, H), or (4H, P) beside a projection."""
    return [
        _with_peepholes(tensors, weight.match(family))
        for weight in hidden_weights(tensors)
        if weight.rows == 4 * weight.columns or (weight.projected and weight.rows % 4 == 0)
    ]


def _with_peepholes(tensors: Mapping[str, TensorSpec], match: Match) -> Match:
    """The layer with torchrecurrent's peepholes, where they stand beside its weights."""
    weight = match.tensors["weight_hh"]
    tensor = beside(tensors, weight).get(PEEPHOLES)
    if tensor is None or split_hidden_weight(weight)[2]:  # a layer of torch's has none
        return match
    return replace(match, tensors={**match.tensors, PEEPHOLES: tensor})


def _lstm_variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """Peepholes ``weight_ph`` (3H) with the rows i, f, o.

    Raises:
        TensorError: a tensor or a name that another cell has.
    """
    sentences = LSTM_CELLS.choose(store, match, options).sentences
    if PEEPHOLES not in match.tensors:
        return Variant(assumptions=sentences)
    size = store.tensors[match.tensors["weight_hh"]].shape[0] // len(IFGO)
    gates = ("input", "forget", "output")
    peepholes = read_peepholes(store, match, PEEPHOLES, gates, size)
    return Variant(assumptions=sentences, peepholes=peepholes)


# The state is c. A layer without biases has λ = 1/2 and no parameter group, since its weights do
# not act at zero input and zero state.
LSTM = CellFamily(
    name="lstm",
    title="LSTM",
    recognised_by="weight_hh_l0 or weight_hh (4H, H), or with a projection weight_hr_l0 (4H, P)",
    equation="λ = σ(b_f), b = bias_ih + bias_hh, rows i, f, g, o",
    source="torch.nn.LSTM, torchrecurrent; Gers et al. 2000; theory of Zucchet & Orvieto 2024, D.2",
    layouts=(torch_layout(IFGO),),
    matches=_matches_lstm,
    variant=_lstm_variant,
    assumptions=(LSTM_CELLS.assumption,),
)
