"""The minimal gated unit of Zhou et al. 2016 and its kin in torch's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.cells.gated_layer import coupled_recurrence, gru_spectra
from memcurse_cli.families.cells.layout import Cell, Layout
from memcurse_cli.families.cells.torch_lookalikes import (
    JANET,
    KEY,
    LIGRU,
    OFFSET,
    UGRNN,
    Choice,
    Lookalikes,
    beside,
    keeping_recurrence,
    named_cell,
)
from memcurse_cli.families.cells.torch_names import hidden_weights, torch_layout
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateInput, HiddenState
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.recurrence import HiddenSpectra, Recurrence

GATE_KEEPS = Assumption(
    key="gate_keeps",
    default="no",
    choices=("no", "yes"),
    meaning="whether an open gate keeps the state (λ = σ(b)) or writes it (λ = 1 - σ(b))",
)
GATES = ("gate", "new")
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
# Cells of the same shapes whose gate is defined the other way round.
KEEPING = (LIGRU, JANET, UGRNN)
CELLS = Lookalikes("mgu", "an MGU", read=KEEPING, refused=("sgu", "miru"))
_ROWS = {UGRNN: ("new", "gate")}  # as torchrecurrent stacks them


class MGU:
    """``h[t+1] = (1-f) h[t] + f tanh(W x + U (f ∘ h[t]) + b)``: λ = 1 - σ(b_f), γ = σ(b_f).

    Its torch ports stack f and the candidate in a weight (2H, H), or have linears W_f, U_f, W_h,
    U_h. LiGRU, JANET and UGRNN stack alike and keep by their gate: λ = σ(b). UGRNN has the
    candidate's rows first; JANET has γ = σ(β - b) where a scalar ``beta`` is beside its weights.
    """

    name = "mgu"
    title = "MGU (minimal gated unit) and other cells of one gate"
    recognised_by = "weight_hh (2H, H); or U_f.weight, W_f.weight, U_h.weight and no other gate"
    equation = "λ = 1 - σ(b_f), γ = σ(b_f), b = bias_ih + bias_hh, rows f, h; or λ = σ(b_f)"
    source = "torchrecurrent; Zhou et al. 2016, arXiv 1603.09420"
    assumptions: tuple[Assumption, ...] = (GATE_KEEPS, CELLS.assumption)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Hidden weights (2H, H), and modules with the linears of one gate and a candidate."""
        matches = [
            _with_offset(tensors, weight.match(self.name))
            for weight in hidden_weights(tensors)
            if weight.rows == 2 * weight.columns and not weight.projected
        ]
        roles = (*LINEARS.matrices, *LINEARS.biases, *_STRANGERS)
        for module, names in group_by_module(tensors, roles).items():
            if not LINEARS.matrices <= names.keys() or names.keys() & set(_STRANGERS):
                continue
            shapes = [tensors[names[role]].shape for role in LINEARS.hidden]
            if len(set(shapes)) == 1 and len(shapes[0]) == 2 and shapes[0][0] == shapes[0][1]:
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the weights where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read, shapes that do not fit together, or a tensor or
                a name that another cell has.
        """
        cell, assumptions = _cell(store, match, options)
        linears = "U_f.weight" in match.tensors
        layout = LINEARS if linears else torch_layout(_ROWS.get(cell or "", GATES))
        held = Cell(store, match, layout)
        norms = held.norms if options.gates else None
        inputs = {
            gate: GateInput(held.biases[gate].total, norm) for gate, norm in (norms or {}).items()
        }
        if cell != CELLS.own:
            return keeping_recurrence(
                store,
                match,
                options,
                family=self.name,
                cell=cell,
                biases=held.biases,
                weights=held.hidden if options.spectra else {},
                inputs=inputs or None,
                assumptions=assumptions,
            )
        return coupled_recurrence(
            match,
            family=self.name,
            gate="gate",
            bias=held.biases["gate"],
            keeps=False,
            hidden_feedback=True,
            hidden=_spectra(held, options.device) if options.spectra else None,
            assumptions=assumptions,
            inputs=inputs.get("gate"),
            state=HiddenState(inputs["new"], reset=inputs["gate"]) if inputs else None,
        )


def _with_offset(tensors: Mapping[str, TensorSpec], match: Match) -> Match:
    """The layer with the scalar that a JANET has beside its weights."""
    tensor = beside(tensors, match.tensors["weight_hh"]).get(OFFSET)
    if tensor is None or prod(tensors[tensor].shape) != 1:
        return match
    return replace(match, tensors={**match.tensors, OFFSET: tensor})


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
        choice = Choice(
            JANET, (f"{KEY}={JANET} (by its scalar {OFFSET}): {CELLS.meaning}",), told=True
        )
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


def _spectra(held: Cell, device: str) -> HiddenSpectra:
    # A GRU whose update gate is 1 - f and whose reset gate is f.
    weights = {
        "reset": held.hidden["gate"],
        "update": -held.hidden["gate"],
        "new": held.hidden["new"],
    }
    gate, new = held.biases["gate"].total, held.biases["new"].total
    found = gru_spectra(weights, {"reset": gate, "update": -gate, "new": new}, None, device)
    named = {"gate": found.gates["reset"], "new": found.gates["new"]}
    return HiddenSpectra(named, found.jacobian, found.reason)
