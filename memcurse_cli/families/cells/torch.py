"""Cells in torch's names: the LSTM, the GRU and its mutations, the MGU and others of one gate.

The state of an LSTM is c. A layer without biases has λ = 1/2 and no parameter group, since its
weights do not act at zero input and zero state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.gated_layer import gru_step, step_spectra
from memcurse_cli.families.cells.layout import (
    IFGO,
    RZN,
    ZRN,
    Cell,
    CellFamily,
    Layout,
    Variant,
    without_jacobian,
)
from memcurse_cli.families.cells.torch_names import (
    KEY,
    MEANING,
    Choice,
    Lookalikes,
    beside,
    hidden_weights,
    named_cell,
    split_hidden_weight,
    torch_layout,
)
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, NoDrive
from memcurse_cli.families.reading import log_sigmoid, parameter_group, read_vector, sigmoid
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.theory.gates.laws import OffsetMix
from memcurse_cli.theory.gates.moments import RELU

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


def _gru_variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """Which of the cells it is."""
    choice = GRU_CELLS.choose(store, match, options)
    layout = EQUINOX if "bias_n" in match.tensors else TORCH
    if choice.cell in (MUT2, MUT3):
        layout = MUTATION
    undriven = _BENT_STATE if choice.cell == MUT3 else None
    return Variant(assumptions=choice.sentences, layout=layout, undriven=undriven)


GRU = CellFamily(
    name="gru",
    title="GRU",
    recognised_by="weight_hh_l0, weight_hh or w_hh (3H, H)",
    equation="λ = σ(b_z), γ = 1 - λ, b = bias_ih + bias_hh, rows r, z, n",
    source="torch.nn.GRU; Cho et al. 2014; theory of Zucchet & Orvieto 2024, D.2",
    layouts=(TORCH,),
    matches=lambda tensors, family: hidden_weights(tensors, family, gates=3),
    variant=_gru_variant,
    assumptions=(GRU_CELLS.assumption,),
)

PEEPHOLES = "weight_ph"  # of torchrecurrent, rows i, f, o
LSTM_CELLS = Lookalikes(
    "lstm", "torch's LSTM", refused=("tau_gru", "intersection_rnn"), square=("intersection_rnn",)
)


def _matches_lstm(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Layers whose hidden weight is (4H, H), or (4H, P) beside a projection."""
    found = []
    for match in hidden_weights(tensors, family, gates=4):
        weight = match.tensors["weight_hh"]
        tensor = beside(tensors, weight).get(PEEPHOLES)
        if tensor is not None and not split_hidden_weight(weight)[2]:  # a layer of torch's has none
            match = replace(match, tensors={**match.tensors, PEEPHOLES: tensor})
        found.append(match)
    return found


LSTM = CellFamily(
    name="lstm",
    title="LSTM",
    recognised_by="weight_hh_l0 or weight_hh (4H, H), or with a projection weight_hr_l0 (4H, P)",
    equation="λ = σ(b_f), b = bias_ih + bias_hh, rows i, f, g, o",
    source="torch.nn.LSTM, torchrecurrent; Gers et al. 2000; theory of Zucchet & Orvieto 2024, D.2",
    layouts=(replace(torch_layout(IFGO), peepholes={PEEPHOLES: ("input", "forget", "output")}),),
    matches=_matches_lstm,
    variant=lambda store, match, options: Variant(
        assumptions=LSTM_CELLS.choose(store, match, options).sentences
    ),
    assumptions=(LSTM_CELLS.assumption,),
)

# LiGRU, JANET and UGRNN keep by their one gate where an MGU writes by it, and reset nothing:
#     h' = σ(s) h + (1 - σ(s - β)) f(W x + U h + b),  λ = σ(b_s), γ = σ(β - b_s)
# β is 0 but in a JANET that stores it. f is a ReLU in a LiGRU, else a tanh.
GATE_KEEPS = Assumption(
    key="gate_keeps",
    default="no",
    choices=("no", "yes"),
    meaning="whether an open gate keeps the state (λ = σ(b)) or writes it (λ = 1 - σ(b))",
)
LIGRU, JANET, UGRNN = KEEPING = ("ligru", "janet", "ugrnn")
OFFSET = "beta"
CELLS = Lookalikes("mgu", "an MGU", read=KEEPING, refused=("sgu", "miru"))

ROWS = torch_layout(("gate", "new"))
LINEARS = Layout(
    {"W_f.weight": ("gate",), "W_h.weight": ("new",)},
    {"U_f.weight": ("gate",), "U_h.weight": ("new",)},
    {
        f"{side}_{letter}.bias": (gate,)
        for letter, gate in (("f", "gate"), ("h", "new"))
        for side in "WU"
    },
    columns=False,
    strangers=tuple(f"{letter}_{gate}.weight" for letter in "WU" for gate in "iorzc"),
    told=True,
)
ACTIVATION = "the activation of its candidate is not stored"
_RELU = "the state that gates see is that of a ReLU candidate, as by default"
_UNKNOWN_CELL = "which cell it is, and so what its candidate sees of the state, is not stored"
_UNKNOWN_DRIVE = NoDrive(
    "which cell it is, and so how large the state is that its gate sees, is not stored: the "
    "layer's name or --assume cell tells"
)


def _matches_mgu(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Hidden weights (2H, H), and modules with the linears of one gate and a candidate."""
    matches = []
    for match in hidden_weights(tensors, family, gates=2):
        offset = beside(tensors, match.tensors["weight_hh"]).get(OFFSET)
        if offset is not None and prod(tensors[offset].shape) == 1:
            match = replace(match, tensors={**match.tensors, OFFSET: offset})
        matches.append(match)
    return matches + LINEARS.find(tensors, family)


def _mgu_cell(
    store: TensorStore, match: Match, options: ReadOptions
) -> tuple[str | None, tuple[str, ...]]:
    """``mgu``, one of `KEEPING`, or None for one that keeps by its gate, and what that assumes."""
    if "U_f.weight" in match.tensors:
        named = named_cell(match.tensors["U_f.weight"], store.path, (CELLS.own, *KEEPING))
        choice = Choice(named or CELLS.own, told=named is not None)
    else:
        choice = CELLS.choose(store, match, options)
    if OFFSET in match.tensors and not choice.told:
        sentence = f"{KEY}={JANET} (by its scalar {OFFSET}): {MEANING}"
        choice = Choice(JANET, (sentence,), told=True)
    elif OFFSET in match.tensors and choice.cell != JANET and not choice.given:
        raise CELLS.stranger(match, OFFSET, match.tensors[OFFSET])
    rows = match.tensors.get("weight_ih")
    if rows is not None and not choice.given:
        weight = match.tensors["weight_hh"]
        if store.tensors[rows].shape[:1] != store.tensors[weight].shape[:1]:
            raise CELLS.misfit(store, weight, rows)
    assumed = Assumed(options)
    keeps = assumed.choose(
        GATE_KEEPS,
        default="yes" if choice.cell in KEEPING else "no",
        silent=choice.told and choice.cell == CELLS.own,
    )
    if (keeps == "yes") != (choice.cell in KEEPING):  # the user says other than the name
        return (None if keeps == "yes" else CELLS.own), tuple(assumed.sentences)
    return choice.cell, (*assumed.sentences, *choice.sentences)


def _mgu_variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """Which of the cells it is."""
    name, assumptions = _mgu_cell(store, match, options)
    layout = LINEARS if "U_f.weight" in match.tensors else ROWS
    if name == CELLS.own:
        return Variant(assumptions=assumptions, layout=replace(layout, keeps=False))
    if name == UGRNN and layout is ROWS:
        layout = torch_layout(("new", "gate"))  # as torchrecurrent stacks them
    plain = Variant(assumptions=assumptions, layout=replace(layout, resets=False))
    if name is None:
        reason = without_jacobian(_UNKNOWN_CELL)
        return replace(plain, spectra=reason, undriven=_UNKNOWN_DRIVE)
    if name == LIGRU:
        driven = options.gates and ("weight_ih" in match.tensors or layout is LINEARS)
        return replace(
            plain,
            assumptions=(*assumptions, *((_RELU,) if driven else ())),
            candidate=RELU,
            spectra=without_jacobian(ACTIVATION),
        )
    if name == JANET and OFFSET in match.tensors:
        tensor = match.tensors[OFFSET]
        return _offset(plain, read_vector(store, tensor, 1), tensor, store.tensors[tensor].dtype)
    return plain


def _offset(plain: Variant, offset: Floats, tensor: str, dtype: str) -> Variant:
    """JANET's β, a scalar that moves every gain: d log γ/dβ = 1 - γ = -d log γ/db_s."""

    def spectra(cell: Cell, device: str) -> HiddenSpectra:
        biases = {"update": cell.biases["gate"].total, "new": cell.biases["new"].total}
        weights = {"update": cell.hidden["gate"], "new": cell.hidden["new"]}
        step = gru_step(weights, biases, None, offset)
        return step_spectra(cell.hidden, step, cell.size, device)

    def finish(found: Recurrence, cell: Cell) -> Recurrence:
        bias = cell.biases["gate"].total
        shut = sigmoid(bias - offset)
        by_bias = (-shut).astype(np.complex128)
        drive = found.gate
        if isinstance(drive, GateDrive) and drive.state is not None:
            drive = replace(
                drive,
                law=OffsetMix(float(offset[0])),
                state=replace(drive.state, convex=False),
                motions={**drive.motions, OFFSET: (OFFSET, 1.0)},
            )
        return replace(
            found,
            log_gain=log_sigmoid(offset - bias).astype(np.complex128),
            parameters=(
                *(replace(group, log_gain_derivative=by_bias) for group in found.parameters),
                parameter_group(OFFSET, tensor, offset, dtype, 0.0, shut, scalar=0),
            ),
            gate=drive,
        )

    return replace(plain, spectra=spectra, finish=finish)


# h' = (1-f) h + f tanh(W x + U (f ∘ h) + b). Its torch ports stack f and the candidate in a weight
# (2H, H), or have linears W_f, U_f, W_h, U_h.
MGU = CellFamily(
    name="mgu",
    title="MGU (minimal gated unit) and other cells of one gate",
    recognised_by="weight_hh (2H, H); or U_f.weight, W_f.weight, U_h.weight and no other gate",
    equation="λ = 1 - σ(b_f), γ = σ(b_f), b = bias_ih + bias_hh, rows f, h; or λ = σ(b_f)",
    source="torchrecurrent; Zhou et al. 2016, arXiv 1603.09420",
    layouts=(ROWS, LINEARS),
    matches=_matches_mgu,
    variant=_mgu_variant,
    assumptions=(GATE_KEEPS, CELLS.assumption),
)
