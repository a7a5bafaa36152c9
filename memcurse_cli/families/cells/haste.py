"""The LSTM and the GRU of haste's PyTorch layers, under the names that Keras has."""

from __future__ import annotations

from collections.abc import Mapping

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.layout import IGFO, ZRN, CellFamily, Layout, Variant
from memcurse_cli.families.family import Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module

NORM = "gamma"
NORMALISED = (
    "a layer normalisation stands behind the hidden matrix: its slope at zero is not stored"
)
LSTM = Layout({"kernel": IGFO}, {"recurrent_kernel": IGFO}, {"bias": IGFO})
GRU = Layout(
    {"kernel": ZRN},
    {"recurrent_kernel": ZRN},
    {"bias": ZRN, "recurrent_bias": ZRN},
    inner="recurrent_bias",
)
_ROLES = (*GRU.matrices, *GRU.biases, NORM)


def _matches(layout: Layout, tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules with both kernels and all of the biases, and no other."""
    found = []
    for module, names in group_by_module(tensors, _ROLES).items():
        if names.keys() - {NORM} != layout.matrices | layout.biases.keys():
            continue
        # Nothing but the way that names are joined tells such an LSTM from one of Keras.
        if layout is LSTM and names["kernel"] != f"{module}.kernel":
            continue
        if layout.fits({role: tensors[name].shape for role, name in names.items()}):
            found.append(Match(module or family, names))
    return found


def _variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """A normalisation of what the kernels put out is zero at zero input and zero state."""
    return Variant(altered=NORMALISED if NORM in match.tensors else "")


HASTE_LSTM = CellFamily(
    name="haste_lstm",
    title="haste LSTM (PyTorch)",
    recognised_by="rnn.recurrent_kernel (H, 4H) beside rnn.kernel and rnn.bias (4H), with dots",
    equation="λ = σ(b_f), γ = σ(b_i), columns i, g, f, o",
    source="haste_pytorch.LSTM and LayerNormLSTM; Gers et al. 2000",
    layouts=(LSTM,),
    matches=lambda tensors, family: _matches(LSTM, tensors, family),
    variant=_variant,
)
HASTE_GRU = CellFamily(
    name="haste_gru",
    title="haste GRU (PyTorch)",
    recognised_by="recurrent_bias (3H) beside recurrent_kernel (H, 3H), kernel and bias (3H)",
    equation="λ = σ(b_z), γ = 1 - λ, b = bias + recurrent_bias, columns z, r, n",
    source="haste_pytorch.GRU and LayerNormGRU; Cho et al. 2014",
    layouts=(GRU,),
    matches=lambda tensors, family: _matches(GRU, tensors, family),
    variant=_variant,
)
