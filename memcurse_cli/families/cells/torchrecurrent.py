"""Cells of torchrecurrent whose shapes are none of torch's: RAN, CFN, MUT1, LightRU and others.

Each is a layout and, at zero input and zero state, what its step has other than an LSTM's or that
of a cell of one gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.gated_layer import dual_sigmoid, dual_tanh, step_spectra
from memcurse_cli.families.cells.layout import PLAIN, Cell, Layout, Variant, read_cell, shapes_of
from memcurse_cli.families.cells.papers import (
    FLOOR,
    SCALE,
    STEP,
    fast_grnn_recurrence,
    lem_layout,
    read_lem,
)
from memcurse_cli.families.cells.torch import (
    KEY,
    MEANING,
    beside,
    hidden_weights,
    named_cell,
    split_hidden_weight,
    title_of,
)
from memcurse_cli.families.family import Assumption, Layer, LayoutFamily, Match
from memcurse_cli.families.gate_inputs import NoDrive
from memcurse_cli.families.reading import sigmoid
from memcurse_cli.families.recurrence import HiddenSpectra, Recurrence

GATE_FUNCTION = Assumption(
    key="gate_activation",
    default="tanh",
    choices=("tanh", "sigmoid"),
    meaning="what opens the gate of a FastGRNN of torchrecurrent",
)

Rows = tuple[str, ...]


def _layout(inputs: Rows, hidden: Rows, biases: Rows = (), keeps: bool = True) -> Layout:
    """Biases have the rows of their weights unless they have others."""
    rows = {"bias_ih": biases or inputs, "bias_hh": biases or hidden}
    sides = {"weight_ih": inputs}, {"weight_hh": hidden}
    return Layout(*sides, rows, columns=False, keeps=keeps, resets=False)


def _spectra(step: Callable[[Cell, dict[str, Any], Any], Any]) -> Callable[..., HiddenSpectra]:
    """Those of a step of the state, given what each gate sees of it beside its bias."""

    def spectra(cell: Cell, device: str) -> HiddenSpectra:
        def whole(h: Any) -> Any:
            z: dict[str, Any] = {gate: bias.total for gate, bias in cell.biases.items()}
            for gate, weights in cell.hidden.items():
                z[gate] = z[gate] + h @ weights.T
            return step(cell, z, h)

        return step_spectra(cell.hidden, whole, cell.size, device)

    return spectra


def _ran_step(_: Cell, z: dict[str, Any], c: Any) -> Any:
    """``c' = σ(f) c + σ(i) W x``, ``h = tanh(c)``."""
    return dual_sigmoid(z["forget"]) * c


def _cfn_step(_: Cell, z: dict[str, Any], h: Any) -> Any:
    """``h' = σ(f) tanh(h) + σ(i) tanh(W x + b)``."""
    return dual_sigmoid(z["forget"]) * dual_tanh(h) + dual_sigmoid(z["input"]) * dual_tanh(z["new"])


def _mut1_step(cell: Cell, z: dict[str, Any], h: Any) -> Any:
    """``h' = (1-z) h + z tanh(U (r ∘ h) + tanh(W x + b_x) + b)``, z = σ(W_z x + b_z) alone."""
    outer, inner = cell.biases["new"].split("bias_ih")
    reset = (dual_sigmoid(z["reset"]) * h) @ cell.hidden["new"].T
    candidate = dual_tanh(reset + np.tanh(inner) + outer)
    return dual_sigmoid(-z["update"]) * h + dual_sigmoid(z["update"]) * candidate


def _star_step(_: Cell, z: dict[str, Any], h: Any) -> Any:
    """``h' = tanh((1-k) h + k c)``, c = tanh(W x + b_x)."""
    k = z["gate"]
    return dual_tanh(dual_sigmoid(-k) * h + dual_sigmoid(k) * dual_tanh(z["new"]))


def _finish_star(found: Recurrence, cell: Cell) -> Recurrence:
    """λ = (1-k) s, γ = k s, s = sech²(k c) of the tanh around the new state.

    With T = tanh(k c): dλ/db_k = -k (1-k) s (1 + 2T (1-k) c), d log γ/db_k = (1-k) (1 - 2T k c),
    and both logarithms have the slope -2T k (1 - c²) by b_x.
    """
    gate, new = cell.biases["gate"], cell.biases["new"]
    opened, shut, candidate = sigmoid(gate.total), sigmoid(-gate.total), np.tanh(new.total)
    bent, log_slope = np.tanh(opened * candidate), -2 * np.log(np.cosh(opened * candidate))
    slope = np.exp(log_slope)
    by_new = -2 * bent * opened * (1 - candidate**2)
    groups = (
        *gate.groups(
            "gate",
            -opened * shut * slope * (1 + 2 * bent * shut * candidate),
            shut * (1 - 2 * bent * opened * candidate),
        ),
        *new.groups("new", shut * slope * by_new, by_new),
    )
    return replace(
        found,
        log_eigenvalues=found.log_eigenvalues + log_slope,
        log_gain=found.log_gain + log_slope,
        parameters=groups,
    )


def _read_minimal_rnn(layer: Layer, layout: Layout) -> Recurrence:
    """``h' = u h + (1-u) z``, z = tanh(W x + b_x), u = σ(U h + V z + b): λ = σ(V tanh(b_x) + b).

    V = ``weight_mm``: every b_x moves every λ, and every row of V its own.
    """
    latent = Cell(layer, layout).biases["latent"]
    shown, size = np.tanh(latent.total), latent.total.size
    mixed = layer.real("weight_mm", (size, size))

    def spectra(cell: Cell, device: str) -> HiddenSpectra:
        weights, total = cell.hidden["update"], cell.biases["update"].total

        def step(h: Any) -> Any:
            z = h @ weights.T + total
            return dual_sigmoid(z) * h + dual_sigmoid(-z) * shown

        return step_spectra({"state": weights}, step, size, device)

    def finish(found: Recurrence, cell: Cell) -> Recurrence:
        total = cell.biases["update"].total
        unit, source = np.indices((size, size))  # of every entry of V
        slope, by_gain = (sigmoid(total) * sigmoid(-total))[unit], -sigmoid(total)[unit]
        by_latent, by_entry = mixed * (1 - shown**2)[source], shown[source]
        ((role, _, values, _),) = latent.parts
        by_bias, by_mixed = ((slope * by, by_gain * by) for by in (by_latent, by_entry))
        groups = (
            layer.group(role, values, *by_bias, scalar=source, eigenvalue=unit),
            layer.group("weight_mm", mixed, *by_mixed, eigenvalue=unit),
        )
        return replace(found, parameters=(*found.parameters, *groups))

    variant = Variant(
        added={"update": mixed @ shown},
        spectra=spectra,
        undriven=NoDrive("its gate sees the input through a tanh, and so has no Gaussian drive"),
        finish=finish,
    )
    return read_cell(layer, layout, variant)


def _read_fast_grnn(layer: Layer, layout: Layout) -> Recurrence:
    """The library's default for what opens the gate is a tanh; that of the paper is σ."""
    bent = layer.assumed.choose(GATE_FUNCTION) == "tanh"
    cell = Cell(layer, layout)
    return fast_grnn_recurrence(
        layer,
        gate=cell.biases["gate"],
        block="gate",
        update=lambda: cell.biases["new"].total,
        matrices=lambda: ((cell.inputs or {}).get("shared"), cell.hidden["shared"]),
        bent=bent,
    )


_RAN_DRIVE = NoDrive(
    "its gates see the tanh of a state that takes in W x without a bound, which no law of gates has"
)
_CFN_DRIVE = NoDrive("its state comes back through a tanh, which no law of gates has")
_STAR_DRIVE = NoDrive("a tanh stands around its new state, which no law of gates has")


@dataclass(frozen=True)
class _Own:
    """One of the cells: its rows, what it has other than the plain cell, or what reads it."""

    layout: Layout
    variant: Variant = PLAIN
    read: Callable[[Layer, Layout], Recurrence] | None = None
    # What else stands in the module, with its rank: H, (H, H), or one number of any rank.
    beside: Mapping[str, int] = field(default_factory=dict)


_CFN, _MUT1 = ("forget", "input", "new"), ("update", "reset", "new")
_TWO, _GATED = ("input", "forget"), ("new", "gate")
_CELLS = {
    "ran": _Own(
        _layout(("new", *_TWO), _TWO, _TWO),
        Variant(spectra=_spectra(_ran_step), undriven=_RAN_DRIVE),
    ),
    "cfn": _Own(_layout(_CFN, _CFN[:2]), Variant(spectra=_spectra(_cfn_step), undriven=_CFN_DRIVE)),
    "mut1": _Own(_layout(_MUT1, _MUT1[1:], keeps=False), Variant(spectra=_spectra(_mut1_step))),
    # h' = (1-f) h + f tanh(W x + b_x), whose gate f alone sees the state.
    "light_ru": _Own(_layout(_GATED, _GATED[1:], keeps=False)),
    "star": _Own(
        _layout(_GATED, _GATED[1:], keeps=False),
        Variant(spectra=_spectra(_star_step), undriven=_STAR_DRIVE, finish=_finish_star),
    ),
    "minimal_rnn": _Own(
        _layout(("latent",), ("update",)), read=_read_minimal_rnn, beside={"weight_mm": 2}
    ),
    "fast_grnn": _Own(
        _layout(("shared",), ("shared",), ("gate", "new")),
        read=_read_fast_grnn,
        beside={SCALE: 0, FLOOR: 0},
    ),
    "lem": _Own(
        lem_layout("weight_{}", "bias_{}", ("ih", "hh", "ch"), states=("z", "y")),
        read=partial(read_lem, delayed=True),
    ),
}
# Cells that are stored as those of the library that are read, and are not.
_REFUSED = {"cfn": ("nbr",), "light_ru": ("antisymmetric_rnn",)}
CELL = Assumption(KEY, "by_name", ("by_name", *_CELLS), MEANING)


class TorchRecurrent(LayoutFamily):
    """``h[t+1] = λ h[t] + γ u`` with gates at zero input and zero state, one step for each cell.

    torchrecurrent stores weights and biases of all its cells under the same names; their shapes
    tell some apart, and the name of the layer or of the file the others.
    """

    name = "torch_recurrent"
    title = "RAN, CFN, LightRU, STAR, MUT1, MinimalRNN, FastGRNN, LEM (torchrecurrent)"
    recognised_by = (
        "weight_ih, weight_hh, bias_ih and bias_hh of (3H, 2H), (2H, H) or (4H, 3H) rows, or "
        "weight_mm, or zeta and nu, beside them"
    )
    equation = "λ = σ(b_f), γ = σ(b_i); or λ = 1 - σ(b), γ = σ(b); each cell's own on its page"
    source = "torchrecurrent; each cell's paper on the page"
    assumptions = (CELL, STEP, GATE_FUNCTION)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with both weights and both biases, of the rows of one kind of cell."""
        matches = []
        for match in hidden_weights(tensors, self.name):
            weight = match.tensors["weight_hh"]
            if split_hidden_weight(weight)[2]:  # weight_hh_l0 is torch's own
                continue
            names = {**match.tensors, **beside(tensors, weight)}
            if _stored_alike(shapes_of(tensors, names)):
                matches.append(replace(match, tensors=names))
        return matches

    def _recurrence(self, layer: Layer) -> Recurrence:
        cell = _CELLS[_told(layer)]
        if cell.read is not None:
            return cell.read(layer, cell.layout)
        return read_cell(layer, cell.layout, cell.variant)


def _stored_alike(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The cells that are read whose tensors these are, and no more than these."""
    return [
        name
        for name, cell in _CELLS.items()
        if shapes.keys() == {*cell.layout.matrices, *cell.layout.biases, *cell.beside}
        and cell.layout.fits(shapes)
        and all(
            shapes[role] == shapes["weight_hh"][1:] * rank if rank else prod(shapes[role]) == 1
            for role, rank in cell.beside.items()
        )
    ]


def _told(layer: Layer) -> str:
    """The cell that the user, the name or its shapes alone tell."""
    read = _stored_alike(shapes_of(layer.store.tensors, layer.names))
    given = layer.options.assume.get(KEY, "")
    if given in read:
        layer.assumed.sentences.append(f"{KEY}={given} (as given): {MEANING}")
        return given
    cells: tuple[str, ...] = (*read, *_REFUSED.get(read[0], ()))
    if len(cells) == 1:
        return cells[0]
    weight = layer.names["weight_hh"]
    named = named_cell(split_hidden_weight(weight)[0], layer.store.path, cells)
    if named in read:
        layer.assumed.sentences.append(f"{KEY}={named} (by its name): {MEANING}")
        return named
    alike = " and ".join(title_of(cell) for cell in cells)
    what = f"its shapes are those of torchrecurrent's {alike}, and no name tells which it is"
    if named is not None:
        what = f"its name says {title_of(named)}, a cell of torchrecurrent's that is not read"
    choices = " or ".join(f"{KEY}={cell}" for cell in read)
    raise TensorError(what, where=weight, remedy=f"give --assume {choices} if that is what it is")
