"""The minimal gated unit of Zhou et al. 2016 in torch's names, and the cells that are stored alike.

LiGRU, JANET and UGRNN keep by their one gate where an MGU writes by it, and reset nothing:

    h' = σ(s) h + (1 - σ(s - β)) f(W x + U h + b),  λ = σ(b_s), γ = σ(β - b_s)

β is 0 in a LiGRU and a UGRNN, and JANET's where it is stored. f is a ReLU in a LiGRU, else a tanh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.gated_layer import gru_jacobian, step_spectra
from memcurse_cli.families.cells.layout import Cell, CellFamily, Layout, Variant, without_jacobian
from memcurse_cli.families.cells.torch_lookalikes import KEY, Choice, Lookalikes, beside, named_cell
from memcurse_cli.families.cells.torch_names import hidden_weights, torch_layout
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, NoDrive
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import gain_scalar, log_sigmoid, read_vector, sigmoid
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.theory.gates.laws import OffsetMix
from memcurse_cli.theory.gates.moments import RELU

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
)
# Beside any of these there are more gates.
_STRANGERS = tuple(f"{letter}_{gate}.weight" for letter in "WU" for gate in "iorzc")

ACTIVATION = "the activation of its candidate is not stored"
_RELU = "the state that gates see is that of a ReLU candidate, as by default"
_UNKNOWN_CELL = "which cell it is, and so what its candidate sees of the state, is not stored"
_UNKNOWN_DRIVE = NoDrive(
    "which cell it is, and so how large the state is that its gate sees, is not stored: the "
    "layer's name or --assume cell tells"
)


def _matches(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Hidden weights (2H, H), and modules with the linears of one gate and a candidate."""
    matches = []
    for weight in hidden_weights(tensors):
        if weight.rows == 2 * weight.columns and not weight.projected:
            offset = beside(tensors, weight.tensors["weight_hh"]).get(OFFSET)
            one = offset is not None and prod(tensors[offset].shape) == 1
            added = {OFFSET: offset} if offset is not None and one else {}
            matches.append(replace(weight.match(family), tensors={**weight.tensors, **added}))
    roles = (*LINEARS.matrices, *LINEARS.biases, *_STRANGERS)
    for module, names in group_by_module(tensors, roles).items():
        if not LINEARS.matrices <= names.keys() or names.keys() & set(_STRANGERS):
            continue
        shapes = [tensors[names[role]].shape for role in LINEARS.hidden]
        if len(set(shapes)) == 1 and len(shapes[0]) == 2 and shapes[0][0] == shapes[0][1]:
            matches.append(Match(module or family, names))
    return matches


def _cell(
    store: TensorStore, match: Match, options: ReadOptions
) -> tuple[str | None, tuple[str, ...]]:
    """``mgu``, one of `KEEPING`, or None for one that keeps by its gate, and what that assumes."""
    if "U_f.weight" in match.tensors:
        named = named_cell(match.tensors["U_f.weight"], store.path, (CELLS.own, *KEEPING))
        choice = Choice(named or CELLS.own, told=named is not None)
    else:
        choice = CELLS.choose(store, match, options)
    if OFFSET in match.tensors and not choice.told:
        sentence = f"{KEY}={JANET} (by its scalar {OFFSET}): {CELLS.meaning}"
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


def _variant(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """Which of the cells it is.

    Raises:
        TensorError: a tensor or a name that another cell has, or a β that is not one number.
    """
    name, assumptions = _cell(store, match, options)
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
        return step_spectra(
            cell.hidden, lambda: gru_jacobian(weights, biases, None, offset), cell.size, device
        )

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
                gain_scalar(OFFSET, tensor, offset, dtype, shut),
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
    matches=_matches,
    variant=_variant,
    assumptions=(GATE_KEEPS, CELLS.assumption),
)
