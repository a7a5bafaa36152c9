"""The GRU of Cho et al. in torch's layout, and its mutations that are stored alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import NoDrive
from memcurse_cli.recurrences.layout import RZN, ZRN, CellFamily, Variant
from memcurse_cli.recurrences.torch_cells import Lookalikes
from memcurse_cli.recurrences.torch_names import hidden_weights, torch_layout

MUT2, MUT3 = "mut2", "mut3"
CELLS = Lookalikes(
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


def _matches(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Layers whose hidden weight is (3H, H)."""
    return [
        weight.match(family)
        for weight in hidden_weights(tensors)
        if weight.rows == 3 * weight.columns and not weight.projected
    ]


def _variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """Which of the cells it is.

    Raises:
        TensorError: a tensor or a name that another cell has.
    """
    choice = CELLS.choose(store, match, options)
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
    matches=_matches,
    variant=_variant,
    assumptions=(CELLS.assumption,),
)
