"""The recurrent layers of MLX, ``mlx.nn``: LSTM, GRU and RNN.

Rows are targets; before MLX 0.18 the matrices were stored transposed, which their shapes tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.layout import (
    IFGO,
    RZN,
    STATE,
    CellFamily,
    Layout,
    Variant,
    elman,
)
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Match, ReadOptions


def _both(rows: Layout) -> tuple[Layout, Layout]:
    """As MLX stores the matrices, and as it did before."""
    return rows, replace(rows, columns=True)


LSTMS = _both(Layout({"Wx": IFGO}, {"Wh": IFGO}, {"bias": IFGO}, columns=False))
GRUS = _both(
    Layout({"Wx": RZN}, {"Wh": RZN}, {"b": RZN, "bhn": ("new",)}, columns=False, inner="bhn")
)
RNNS = _both(Layout({"Wxh": STATE}, {"Whh": STATE}, {"bias": STATE}, columns=False))


def _matches(
    layouts: tuple[Layout, Layout], tensors: Mapping[str, TensorSpec], family: str
) -> list[Match]:
    now, before = (layout.find(tensors, family) for layout in layouts)
    return now + [match for match in before if match not in now]


def _layout(layouts: tuple[Layout, Layout], store: TensorStore, match: Match) -> Layout:
    shapes = {role: store.tensors[name].shape for role, name in match.tensors.items()}
    return next((layout for layout in layouts if layout.fits(shapes)), layouts[0])


def _rnn(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    return replace(elman(options), layout=_layout(RNNS, store, match))


MLX_LSTM = CellFamily(
    name="mlx_lstm",
    title="MLX LSTM",
    recognised_by="Wh (4H, H) beside Wx (4H, inputs)",
    equation="λ = σ(b_f), γ = σ(b_i), rows i, f, g, o",
    source="mlx.nn.LSTM; Gers et al. 2000",
    layouts=LSTMS,
    matches=lambda tensors, family: _matches(LSTMS, tensors, family),
    variant=lambda store, match, options: Variant(layout=_layout(LSTMS, store, match)),
)
# bhn stands inside the reset gate.
MLX_GRU = CellFamily(
    name="mlx_gru",
    title="MLX GRU",
    recognised_by="Wh (3H, H) beside Wx (3H, inputs)",
    equation="λ = σ(b_z), γ = 1 - λ, rows r, z, n",
    source="mlx.nn.GRU; Cho et al. 2014",
    layouts=GRUS,
    matches=lambda tensors, family: _matches(GRUS, tensors, family),
    variant=lambda store, match, options: Variant(layout=_layout(GRUS, store, match)),
)
MLX_RNN = CellFamily(
    name="mlx_rnn",
    title="MLX RNN (dense)",
    recognised_by="Whh (H, H) beside Wxh (H, inputs)",
    equation="λ = eig(Whh)",
    source="mlx.nn.RNN; Elman 1990",
    layouts=RNNS,
    matches=lambda tensors, family: _matches(RNNS, tensors, family),
    variant=_rnn,
    assumptions=(ACTIVATION,),
)
