"""The LSTM of Hochreiter & Schmidhuber with Gers's forget gate, in torch's layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Match, ReadOptions
from memcurse_cli.recurrences.layout import IFGO, CellFamily, Variant
from memcurse_cli.recurrences.peepholes import Peephole
from memcurse_cli.recurrences.reading import read_real
from memcurse_cli.recurrences.torch_cells import Lookalikes, beside
from memcurse_cli.recurrences.torch_names import (
    hidden_weights,
    split_hidden_weight,
    torch_layout,
    weight_rows,
)

PEEPHOLES = "weight_ph"
CELLS = Lookalikes(
    "lstm",
    "torch's LSTM",
    refused=("tau_gru", "intersection_rnn"),
    square=("intersection_rnn",),
)


def _matches(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
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


def _variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """Peepholes ``weight_ph`` (3H) with the rows i, f, o.

    Raises:
        TensorError: a tensor or a name that another cell has.
    """
    sentences = CELLS.choose(store, match, options).sentences
    if PEEPHOLES not in match.tensors:
        return Variant(assumptions=sentences)
    tensor = match.tensors[PEEPHOLES]
    size = weight_rows(store, match) // len(IFGO)
    values = np.split(read_real(store, tensor, (3 * size,)), 3)
    dtype = store.tensors[tensor].dtype
    peepholes = {
        gate: Peephole(f"{PEEPHOLES}[{gate}]", tensor, block, dtype)
        for gate, block in zip(("input", "forget", "output"), values, strict=True)
    }
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
    matches=_matches,
    variant=_variant,
    assumptions=(CELLS.assumption,),
)
