"""AllenNLP's LSTM cells: ELMo's with a projection, and the one with a highway to its output."""

from __future__ import annotations

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.families.cells.layout import IFGO, CellFamily, Layout, Variant
from memcurse_cli.families.family import Match, ReadOptions

# The last rows are those of a highway, which gates the output and not the cell.
HIGHWAY = (*IFGO, "highway")
ALTERED = (
    "its output passes a highway gate too, so that the Jacobian of the step is not that of an LSTM"
)


def _layout(inputs: tuple[str, ...], hidden: tuple[str, ...], projection: str = "") -> Layout:
    return Layout(
        {"input_linearity.weight": inputs},
        {"state_linearity.weight": hidden},
        {"input_linearity.bias": inputs, "state_linearity.bias": hidden},
        columns=False,
        projection=projection,
    )


PROJECTED = _layout(IFGO, IFGO, "state_projection.weight")
WITH_HIGHWAY = _layout((*HIGHWAY, "carried"), HIGHWAY)


def _variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    shapes = {role: store.tensors[name].shape for role, name in match.tensors.items()}
    if PROJECTED.fits(shapes):
        return Variant()
    return Variant(layout=WITH_HIGHWAY, altered=ALTERED)


# ELMo clips the cell at ±3, far from zero.
ALLENNLP_LSTM = CellFamily(
    name="allennlp_lstm",
    title="AllenNLP LSTM (ELMo's projection, highway)",
    recognised_by=(
        "state_linearity.weight (4H, P) beside input_linearity.weight (4H, inputs), with a "
        "state_projection.weight (P, H) or P = H; (5H, H) beside (6H, inputs)"
    ),
    equation="λ = σ(b_f), γ = σ(b_i), rows i, f, m, o",
    source=(
        "allennlp.modules.lstm_cell_with_projection and augmented_lstm; Peters et al. 2018, "
        "arXiv 1802.05365"
    ),
    layouts=(PROJECTED, WITH_HIGHWAY),
    variant=_variant,
)
