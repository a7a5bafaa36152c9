"""Cells of libraries under names of their own: AllenNLP, haste, RAFT and RVM, and MLX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.layout import (
    IFGO,
    IGFO,
    PLAIN,
    RZN,
    STATE,
    ZRN,
    Cell,
    CellFamily,
    Layout,
    Variant,
    elman,
    read_cell,
    shapes_of,
    without_jacobian,
)
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Layer, Match, ReadOptions
from memcurse_cli.families.recurrence import Floats, ParameterGroup, Recurrence

# The last rows are those of a highway, which gates the output and not the cell.
HIGHWAY = (*IFGO, "highway")
ALTERED = (
    "its output passes a highway gate too, so that the Jacobian of the step is not that of an LSTM"
)


def _allennlp(inputs: tuple[str, ...], hidden: tuple[str, ...], projection: str = "") -> Layout:
    return Layout(
        {"input_linearity.weight": inputs},
        {"state_linearity.weight": hidden},
        {"input_linearity.bias": inputs, "state_linearity.bias": hidden},
        columns=False,
        projection=projection,
    )


PROJECTED = _allennlp(IFGO, IFGO, "state_projection.weight")
WITH_HIGHWAY = _allennlp((*HIGHWAY, "carried"), HIGHWAY)


def _highway(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    if PROJECTED.fits(shapes_of(store.tensors, match.tensors)):
        return PLAIN
    return Variant(
        layout=WITH_HIGHWAY, spectra=without_jacobian(ALTERED, IFGO), seen=lambda cell: {}
    )


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
    variant=_highway,
)

NORM = "gamma"
NORMALISED = (
    "a layer normalisation stands behind the hidden matrix: its slope at zero is not stored"
)
HASTE_IGFO = Layout(
    {"kernel": IGFO},
    {"recurrent_kernel": IGFO},
    {"bias": IGFO},
    whole=True,
    others=(NORM,),
    strangers=("recurrent_bias",),
)
HASTE_ZRN = Layout(
    {"kernel": ZRN},
    {"recurrent_kernel": ZRN},
    {"bias": ZRN, "recurrent_bias": ZRN},
    inner="recurrent_bias",
    whole=True,
    others=(NORM,),
)


def _haste_lstms(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Nothing but the way that names are joined tells such an LSTM from one of Keras."""
    found = HASTE_IGFO.find(tensors, family)
    return [match for match in found if match.tensors["kernel"].endswith(".kernel")]


def _normalised(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """A normalisation of what the kernels put out is zero at zero input and zero state."""
    if NORM not in match.tensors:
        return PLAIN
    return Variant(spectra=without_jacobian(NORMALISED), seen=lambda cell: {})


HASTE_LSTM = CellFamily(
    name="haste_lstm",
    title="haste LSTM (PyTorch)",
    recognised_by="rnn.recurrent_kernel (H, 4H) beside rnn.kernel and rnn.bias (4H), with dots",
    equation="λ = σ(b_f), γ = σ(b_i), columns i, g, f, o",
    source="haste_pytorch.LSTM and LayerNormLSTM; Gers et al. 2000",
    layouts=(HASTE_IGFO,),
    matches=_haste_lstms,
    variant=_normalised,
)
HASTE_GRU = CellFamily(
    name="haste_gru",
    title="haste GRU (PyTorch)",
    recognised_by="recurrent_bias (3H) beside recurrent_kernel (H, 3H), kernel and bias (3H)",
    equation="λ = σ(b_z), γ = 1 - λ, b = bias + recurrent_bias, columns z, r, n",
    source="haste_pytorch.GRU and LayerNormGRU; Cho et al. 2014",
    layouts=(HASTE_ZRN,),
    variant=_normalised,
)


def _raft(half: str) -> Layout:
    """A convolution of [h, x] for each gate."""
    gates = {f"conv{letter}{half}": (gate,) for letter, gate in zip("zrq", ZRN, strict=True)}
    kernels = {f"{module}.weight": gate for module, gate in gates.items()}
    biases = {f"{module}.bias": gate for module, gate in gates.items()}
    return Layout(
        kernels, kernels, biases, columns=False, keeps=False, state_first=True, convolves=True
    )


RAFT, HORIZONTAL, VERTICAL = map(_raft, ("", "1", "2"))
_RVM = {"ih.0.weight": RZN[:2], "hh.0.weight": RZN[2:]}
RVM = Layout(
    _RVM,
    _RVM,
    {"ih.0.bias": RZN[:2], "hh.0.bias": RZN[2:]},
    columns=False,
    keeps=False,
    convolves=True,
)


def _convolutions(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules with the kernels of a step, of both halves where it has two."""
    found = RAFT.find(tensors, family) + RVM.find(tensors, family)
    second = {match.layer: match.tensors for match in VERTICAL.find(tensors, family)}
    for match in HORIZONTAL.find(tensors, family):
        if match.layer in second:
            both = {**match.tensors, **second[match.layer]}
            shapes = {tensors[both[f"convz{half}.weight"]].shape[:2] for half in "12"}
            found += [replace(match, tensors=both)] if len(shapes) == 1 else []
    return found


def _halves(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """A step of two halves decays by the product of both."""
    if not VERTICAL.matrices <= match.tensors.keys():
        return PLAIN

    def finish(first: Recurrence, cell: Cell) -> Recurrence:
        second = read_cell(Layer(first.family, store, match, ReadOptions()), VERTICAL)
        # γ = 1 - λ₁ λ₂ = λ₂ γ₁ + γ₂, without cancellation.
        log_gain: Floats = np.logaddexp(
            (second.log_eigenvalues + first.log_gain).real, second.log_gain.real
        )

        def whole(group: ParameterGroup, other: Recurrence) -> ParameterGroup:
            by = group.eigenvalue_derivative * np.exp(other.log_eigenvalues)
            return replace(
                group, eigenvalue_derivative=by, log_gain_derivative=-by / np.exp(log_gain)
            )

        return replace(
            first,
            log_eigenvalues=first.log_eigenvalues + second.log_eigenvalues,
            log_gain=log_gain.astype(np.complex128),
            parameters=(
                *(whole(group, second) for group in first.parameters),
                *(whole(group, first) for group in second.parameters),
            ),
        )

    return Variant(finish=finish)


# h' = (1 - z) h + z tanh(q), whose candidate sees r ∘ h.
CONV_GRU = CellFamily(
    name="conv_gru",
    title="ConvGRU (RAFT, RVM)",
    recognised_by=(
        "convz.weight, convr.weight, convq.weight (H, H + inputs, k, k), or convz1 to convq2; or "
        "ih.0.weight (2H, 2H, k, k) beside hh.0.weight"
    ),
    equation="λ = 1 - σ(b_z), γ = σ(b_z); λ = λ₁ λ₂ of both halves of a SepConvGRU",
    source=(
        "princeton-vl/RAFT, core/update.py; PeterL1n/RobustVideoMatting, model/decoder.py; Ballas "
        "et al. 2016, arXiv 1511.06432"
    ),
    layouts=(RAFT, HORIZONTAL, RVM),
    matches=_convolutions,
    variant=_halves,
)


def _both(rows: Layout) -> tuple[Layout, Layout]:
    """Rows are targets; before 0.18 MLX stored the matrices transposed, as their shapes tell."""
    return rows, replace(rows, columns=True)


LSTMS = _both(Layout({"Wx": IFGO}, {"Wh": IFGO}, {"bias": IFGO}, columns=False))
GRUS = _both(
    Layout({"Wx": RZN}, {"Wh": RZN}, {"b": RZN, "bhn": ("new",)}, columns=False, inner="bhn")
)
RNNS = _both(Layout({"Wxh": STATE}, {"Whh": STATE}, {"bias": STATE}, columns=False))

MLX_LSTM = CellFamily(
    name="mlx_lstm",
    title="MLX LSTM",
    recognised_by="Wh (4H, H) beside Wx (4H, inputs)",
    equation="λ = σ(b_f), γ = σ(b_i), rows i, f, g, o",
    source="mlx.nn.LSTM; Gers et al. 2000",
    layouts=LSTMS,
)
# bhn stands inside the reset gate.
MLX_GRU = CellFamily(
    name="mlx_gru",
    title="MLX GRU",
    recognised_by="Wh (3H, H) beside Wx (3H, inputs)",
    equation="λ = σ(b_z), γ = 1 - λ, rows r, z, n",
    source="mlx.nn.GRU; Cho et al. 2014",
    layouts=GRUS,
)
MLX_RNN = CellFamily(
    name="mlx_rnn",
    title="MLX RNN (dense)",
    recognised_by="Whh (H, H) beside Wxh (H, inputs)",
    equation="λ = eig(Whh)",
    source="mlx.nn.RNN; Elman 1990",
    layouts=RNNS,
    variant=lambda store, match, options: elman(options),
    assumptions=(ACTIVATION,),
)
