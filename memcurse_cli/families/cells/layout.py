"""Gated and Elman cells as libraries store them: which block of which tensor is which gate.

A library's cell is a `Layout`, and what it does otherwise, as hard sigmoids or a norm, a `Variant`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families import family
from memcurse_cli.families.cells.gated_layer import (
    WITHOUT_BIAS,
    GateBias,
    Part,
    Step,
    gru_step,
    lstm_step,
    step_spectra,
)
from memcurse_cli.families.dense.dense_layer import ACTIVATION, dense_layer
from memcurse_cli.families.family import Assumption, Match
from memcurse_cli.families.gate_inputs import (
    GateInput,
    HiddenState,
    NoDrive,
    peephole_drive,
    squared_rows,
)
from memcurse_cli.families.reading import (
    as_initialised,
    group_by_module,
    misfit,
    shown_shape,
)
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Seen, Slot
from memcurse_cli.theory.duals import ACTIVATIONS
from memcurse_cli.theory.gates.laws import (
    LOGISTIC,
    GateLaw,
    GateValues,
    Keep,
    Mix,
    Motion,
    Opening,
    Write,
)
from memcurse_cli.theory.gates.moments import TANH, Candidate
from memcurse_cli.theory.mean_field import GatedNetwork
from memcurse_cli.theory.simulation import CellDynamics, Draw

# The usual orders of the gates.
IFGO = ("input", "forget", "cell", "output")
IGFO = ("input", "cell", "forget", "output")
RZN = ("reset", "update", "new")
ZRN = ("update", "reset", "new")
STATE = ("state",)

Blocks = Mapping[str, tuple[str, ...]]
"""The gates whose blocks a tensor holds, in their order, by the tensor's role."""


class Layout(Struct, frozen=True):
    """Where a library keeps the gates of a cell of H units.

    A cell with a gate ``forget`` is an LSTM, one with a gate ``update`` or ``gate`` a GRU or a
    cell of one gate, one whose only block is called ``state`` an Elman network.
    """

    inputs: Blocks  # of the matrices that multiply x
    # Of those that multiply the state; one that is named on both sides multiplies [x, h], or
    # [h, x], so that the state meets the last or the first of its columns or rows.
    hidden: Blocks
    biases: Blocks = {}  # which may have other gates; all are summed
    columns: bool = True  # matrices multiply from the right: a gate's block is of columns
    sides: tuple[str, str] | tuple[()] = ()  # what the halves of a bias for each side are called
    # The part of the candidate's bias that the reset gate multiplies; None where it acts before
    # the matrix.
    inner: str | None = None
    keeps: bool = True  # an open update gate keeps the state; else it writes
    # What the candidate sees of the state is reset, by the update gate where there is no other.
    resets: bool = True
    state_first: bool = False
    convolves: bool = False  # kernels of convolutions, whose channels the gates are
    projection: str = ""  # the role of the matrix that the state is multiplied with
    peepholes: Blocks = {}  # by which gates see their own unit's cell
    # How it is found: other roles that belong to it where they are there, those of them that are
    # as long as a bias, sets of roles of each of which one has to be there, as all biases of a
    # whole cell, names beside which it is another cell, what its module is called, roles by
    # the names of the tensors where these differ, and whether a leading axis may stack layers.
    others: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    required: tuple[Collection[str], ...] = ()
    whole: bool = False
    strangers: tuple[str, ...] = ()
    module: re.Pattern[str] | None = None
    names: Mapping[str, str] | None = None
    stacks: bool = False
    told: bool = False  # by its names: a bias of another shape is refused, not passed over

    @property
    def gate(self) -> str:
        """What the gate is called that keeps or writes the state of a GRU or its like."""
        return "gate" if any("gate" in gates for gates in self.inputs.values()) else "update"

    @property
    def matrices(self) -> frozenset[str]:
        """The roles of what multiplies x and the state."""
        return frozenset((*self.inputs, *self.hidden))

    def fits(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether tensors of these shapes, by role, are those of such a cell."""
        roles = (*self.matrices, self.projection)
        found = {role: shapes[role] for role in roles if role in shapes}
        ranks = (3, 4, 5) if self.convolves else (2,)
        if not self.matrices <= found.keys() or any(
            len(shape) not in ranks for shape in found.values()
        ):
            return False
        if self.columns:
            found = {role: shape[::-1] for role, shape in found.items()}
        if len({shape[2:] for shape in found.values()}) != 1:
            return False
        role, gates = next(iter(self.hidden.items()))
        size = found[role][0] // len(gates)
        vectors = {**self.biases, **dict.fromkeys(self.vectors, gates)}
        seen = found.get(self.projection, (size,))[0]
        rows = (*self.inputs.items(), *self.hidden.items())
        return (
            size > 0
            and all(found[role][0] == size * len(gates) for role, gates in rows)
            and all(
                found[role][1] > seen if role in self.inputs else found[role][1] == seen
                for role in self.hidden
            )
            and found.get(self.projection, (seen, size)) == (seen, size)
            and all(
                shapes[role] == (size * len(gates),)
                for role, gates in vectors.items()
                if role in shapes
            )
        )

    def find(self, tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
        """The modules that hold such a cell; one at the root bears its family's name."""
        own = (*self.matrices, *self.biases, *self.peepholes, *self.others, *self.vectors)
        roles = self.names or {role: role for role in (*own, self.projection) if role}
        required = (*self.required, *((role,) for role in self.biases if self.whole))
        found = []
        for module, held in group_by_module(tensors, (*roles, *self.strangers)).items():
            names = {roles[name]: tensor for name, tensor in held.items() if name in roles}
            shapes = shapes_of(tensors, names)
            if self.stacks and {len(shapes.get(role, ())) for role in self.hidden} == {3}:
                shapes = {role: shape[1:] for role, shape in shapes.items()}
            if self.told:
                shapes = {role: shapes[role] for role in shapes.keys() - self.biases.keys()}
            if (
                held.keys().isdisjoint(self.strangers)
                and all(names.keys() & {*alternatives} for alternatives in required)
                and (self.module is None or self.module.fullmatch(module))
                and self.fits(shapes)
            ):
                found.append(Match(module or family, names))
        return found


def stacked(gates: tuple[str, ...], inputs: str, hidden: str, *biases: str, **how: Any) -> Layout:
    """All gates in one tensor of each side, and in each bias."""
    return Layout({inputs: gates}, {hidden: gates}, dict.fromkeys(biases, gates), **how)


def called(word: str) -> re.Pattern[str]:
    """A module with this word in its name, where those of the tensors say little."""
    return re.compile(rf"(?:.*[./,])?\w*{word}\w*", re.IGNORECASE)


def shapes_of(
    tensors: Mapping[str, TensorSpec], names: Mapping[str, str]
) -> dict[str, tuple[int, ...]]:
    """The shape of each role's tensor."""
    return {role: tensors[name].shape for role, name in names.items()}


class Cell:
    """The tensors of one cell, read when they are asked for; matrices have row = target."""

    def __init__(self, layer: Layer, layout: Layout, draw: Draw = lambda _, values: values) -> None:
        self.layer, self.layout, self._draw = layer, layout, draw
        role, gates = next(iter(layout.hidden.items()))
        rows, columns = self._shape(role)[:2]
        self.size = rows // len(gates)
        self.seen_units = self.size if role in layout.inputs else columns
        if role in layout.inputs and layout.projection in layer.names:
            self.seen_units = self._shape(layout.projection)[0]

    def _shape(self, role: str) -> tuple[int, ...]:
        """That of a matrix, row = target."""
        shape = self.layer.shape(role)
        return shape[::-1] if self.layout.columns else shape

    def _matrix(self, role: str, *shape: int | None) -> Floats:
        """A stored matrix of this shape, row = target."""
        if self.layout.columns:
            return self.layer.real(role, shape[::-1]).T
        return self.layer.real(role, shape)

    def _side(self, blocks: Blocks, hidden: bool) -> dict[str, Floats]:
        other = self.layout.inputs if hidden else self.layout.hidden
        found: dict[str, Floats] = {}
        for role, gates in blocks.items():
            joint = role in other
            columns = self.seen_units if hidden and not joint else None
            matrix = self._matrix(role, len(gates) * self.size, columns)
            if joint:
                first, last = np.split(
                    matrix,
                    [self.seen_units if self.layout.state_first else -self.seen_units],
                    axis=1,
                )
                matrix = first if hidden == self.layout.state_first else last
            found |= zip(gates, np.split(matrix, len(gates)), strict=True)
            for gate in gates:
                found[gate] = self._draw(self.layer.names[role], found[gate])
        return found

    @cached_property
    def hidden(self) -> dict[str, Floats]:
        """(H, P) of each gate: what multiplies the state, or its projection of P entries."""
        return self._side(self.layout.hidden, hidden=True)

    @cached_property
    def inputs(self) -> dict[str, Floats] | None:
        """(H, inputs) of each gate; None where they are not in the file, or do not fit."""
        return None if self.width is None else self._side(self.layout.inputs, hidden=False)

    @property
    def width(self) -> int | None:
        """How many inputs there are; None as of `inputs`."""
        for role, gates in self.layout.inputs.items():
            if role not in self.layer.names or (self._shape(role)[:1] != (len(gates) * self.size,)):
                return None
        if not self.layout.inputs:
            return None
        joint = next(iter(self.layout.inputs))
        return self._shape(joint)[1] - self.seen_units * (joint in self.layout.hidden)

    @cached_property
    def projection(self) -> Floats | None:
        """(P, H) what the state is multiplied with, or None for the identity."""
        if self.layout.projection not in self.layer.names:
            return None
        matrix = self._matrix(self.layout.projection, self.seen_units, self.size)
        return cast(Floats, self._draw(self.layer.names[self.layout.projection], matrix))

    def seen(self) -> dict[str, GateInput]:
        """What each gate of a plain cell sees; nothing where the inputs' weights are not known."""
        if self.inputs is None:
            return {}
        inputs, hidden = (
            {gate: squared_rows(weights) for gate, weights in side.items()}
            for side in (self.inputs, self.hidden)
        )
        return {
            gate: GateInput(self.biases[gate].total, inputs.get(gate, 0.0), hidden.get(gate, 0.0))
            for gate in dict.fromkeys((*inputs, *hidden))
        }

    @cached_property
    def biases(self) -> dict[str, GateBias]:
        """The bias of every gate."""
        layout = self.layout
        sides = (*layout.hidden.values(), *layout.inputs.values(), *layout.biases.values())
        parts: dict[str, list[Part]] = {gate: [] for blocks in sides for gate in blocks}
        for role, blocks in layout.biases.items():
            if role not in self.layer.names:
                continue
            own = role.removesuffix(f"_{blocks[0]}")  # of one gate, which its group names anyway
            for side, row in self._bias_rows(role, own, len(blocks) * self.size):
                for gate, values in zip(blocks, np.split(row, len(blocks)), strict=True):
                    tensor = self.layer.names[role]
                    parts[gate].append(Part(side, tensor, self._draw(tensor, values)))
        zero = np.zeros(self.size)
        return {
            gate: GateBias(sum((part.values for part in found), zero), tuple(found))
            for gate, found in parts.items()
        }

    def _bias_rows(self, role: str, name: str, width: int) -> list[tuple[str, Floats]]:
        """A bias with its name, or both of its halves with theirs."""
        sides, shape = self.layout.sides, self.layer.shape(role)
        shapes: list[tuple[int, ...]] = [(width,), *([(2, width), (2 * width,)] if sides else [])]
        if shape not in shapes:
            needed = " or ".join(map(shown_shape, shapes))
            what = f"its shape {shown_shape(shape)} does not fit, {needed} is needed"
            raise misfit(what, self.layer.names[role])
        values = self.layer.real(role, shape)
        if values.size == width:
            return [(name, values)]
        return list(zip(sides, values.reshape(2, width), strict=True))

    @cached_property
    def peepholes(self) -> dict[str, Part]:
        """Those of each gate that has one."""
        found = {}
        for role, gates in self.layout.peepholes.items():
            if role in self.layer.names:
                values = self.layer.real(role, (len(gates) * self.size,))
                for gate, own in zip(gates, np.split(values, len(gates)), strict=True):
                    name = role if len(gates) == 1 else f"{role}[{gate}]"
                    tensor = self.layer.names[role]
                    found[gate] = Part(name, tensor, self._draw(tensor, own))
        return found


class Gated(NamedTuple):
    """How the gates of a cell make λ and γ, for `Layer.gated`."""

    law: GateLaw
    at: Floats  # (n,) the pre-activation of λ at zero input and zero state
    slots: tuple[Slot, ...]
    seen: Seen = None  # what drives it beside the biases
    write: Write | None = None
    state: HiddenState | None = None
    nominal: GateLaw | None = None


class Variant(Struct, frozen=True):
    """What a layer has beside, or other than, the plain cell of its layout."""

    opening: Opening = LOGISTIC  # what opens its gates
    assumptions: tuple[str, ...] = ()  # one sentence each, beside what the layer was asked
    layout: Layout | None = None  # where the tensors say another than the family's
    added: Mapping[str, Floats | float] = {}  # to the bias, by gate
    candidate: Candidate = TANH  # what a cell of one update gate takes in
    # The spectra of its hidden weights and its step, if not the plain cell's; what its gates see,
    # as far as that has figures, and why not.
    spectra: Callable[[Cell], HiddenSpectra] | None = None
    seen: Callable[[Cell], Mapping[str, GateInput]] = Cell.seen
    undriven: NoDrive | None = None
    # λ and γ from what its gates see, where they are not those of an LSTM or of `mix`.
    recur: Callable[[Cell, Variant, Mapping[str, GateInput]], Gated] | None = None
    activation: str = "tanh"  # of an Elman network: ``linear``, ``tanh`` or ``relu``
    matrix: Callable[[Floats], Floats] = np.asarray  # its dense matrix from the stored one


def without_jacobian(
    reason: str, gates: Collection[str] | None = None
) -> Callable[[Cell], HiddenSpectra]:
    """The spectra of all or some gates alone, with the reason."""

    def spectra(cell: Cell) -> HiddenSpectra:
        weights = {gate: cell.hidden[gate] for gate in gates or cell.hidden}
        return step_spectra(weights, lambda state: state, cell.size, reason)

    return spectra


def elman(layer: family.Layer, sentences: tuple[str, ...] = (), **choice: Any) -> Variant:
    """An Elman network's activation, as of `Assumed.choose`, beside what else was assumed."""
    return Variant(activation=layer.choose(ACTIVATION, **choice), assumptions=sentences)


def stepped(step: Callable[[Cell, dict[str, Any], Any], Any]) -> Callable[..., HiddenSpectra]:
    """The spectra of a step of the state, given what each gate sees of it beside its bias."""

    def spectra(cell: Cell) -> HiddenSpectra:
        def whole(h: Any) -> Any:
            z: dict[str, Any] = {gate: bias.total for gate, bias in cell.biases.items()}
            for gate, weights in cell.hidden.items():
                z[gate] = z[gate] + h @ weights.T
            return step(cell, z, h)

        return step_spectra(cell.hidden, whole, cell.size)

    return spectra


PLAIN = Variant()
SATURATED = 0.95  # of a tanh
PEEPHOLES = (
    "λ is the slope at c = 0, to which of the peepholes only the input gate's adds: "
    "λ = σ(b_f) + p_i σ'(b_i) tanh(b_g)"
)
_OWN_STATE = (
    "peepholes let its gates see their own unit's state, which stays from step to step, where the"
    " theory has gates drawn anew; the band is that of its forget gate, drawn"
)
_HARD = "the gates are hard sigmoids, for which they are not taken"
_CONVOLVED = "its hidden weights are kernels of a convolution, for which they are not taken"
_CHANNELS = (
    "λ is that of a channel by itself, from the gates' biases alone: what its recurrent kernel, a "
    "convolution, adds to the memory is not in it"
)


@dataclass(eq=False)
class CellFamily(LawFamily):
    """A library's cell: what it is recognised by, where its gates are, and what is odd about it."""

    name: str
    title: str
    recognised_by: str
    equation: str
    source: str
    layouts: tuple[Layout, ...]  # the first that fits is the layer's
    # Where the layouts alone do not find it.
    matches: Callable[[Mapping[str, TensorSpec], str], list[Match]] | None = None
    variant: Callable[[Layer], Variant] = lambda _: PLAIN
    assumptions: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        self.axes = {role: 2 for each in self.layouts if each.stacks for role in each.hidden}

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """As `Family.find`."""
        return self.matches(tensors, self.name) if self.matches else super().find(tensors)

    def _recurrence(self, layer: Layer) -> Recurrence:
        shapes = shapes_of(layer.store.tensors, layer.names)
        named = [layout for layout in self.layouts if layout.hidden.keys() <= shapes.keys()]
        layout = next((one for one in named if one.fits(shapes)), named[0])
        variant = self.variant(layer)
        return read_cell(Cell(layer, variant.layout or layout), variant)


def read_cell(cell: Cell, variant: Variant = PLAIN) -> Recurrence:
    """One LSTM, GRU, cell of one gate or Elman network, whose errors are those of `Family.read`.

    The biases of a gated cell are read, and the matrices where what they do is asked for.
    """
    layer, layout, options = cell.layer, cell.layout, cell.layer.options
    if layout.convolves:
        variant = replace(
            variant,
            assumptions=(*variant.assumptions, _CHANNELS),
            spectra=lambda cell: HiddenSpectra({}, None, _CONVOLVED),
            undriven=NoDrive(_CONVOLVED),
        )
    biases = cell.biases
    if "state" in biases:
        inputs = cell.inputs
        return dense_layer(
            layer,
            next(iter(layout.hidden)),
            variant.matrix(cell.hidden["state"]),
            activation=variant.activation,
            readin=None if inputs is None else inputs["state"],
            bias=biases["state"].total,
            also=variant.assumptions,
            dynamics=dynamics_of(cell, variant) if options.simulate else None,
        )
    for gate, added in variant.added.items():
        biases[gate] = GateBias(biases[gate].total + added, biases[gate].parts)
    undriven = variant.undriven if options.gates else None
    seen = variant.seen(cell) if options.gates and undriven is None else {}
    recur = variant.recur or (_lstm if "forget" in biases else mix)
    law, at, slots, drive, write, state, nominal = recur(cell, variant, seen)
    peeped = () if nominal is None else (PEEPHOLES,)
    return layer.gated(
        law,
        at,
        slots,
        gates=lambda: undriven or drive,
        nominal=nominal,
        write=write,
        state=state,
        tensors=tuple(layer.names.values()),
        assumptions=(*variant.assumptions, *(() if slots else (WITHOUT_BIAS,)), *peeped),
        stable=variant.opening.smooth and nominal is None,
        hidden_feedback=True,
        hidden=_spectra(cell, variant) if options.spectra else None,
        dynamics=dynamics_of(cell, variant) if options.simulate else None,
    )


class _Peeped(GateLaw, frozen=True):
    """The slope of ``c' = σ(b_f + p_f c) c + σ(b_i + p_i c) tanh(b_g)`` at c = 0, γ = 1.

    λ = σ(b_f) + p_i σ'(b_i) tanh(b_g): p_f multiplies c², and p_o acts on the output alone.
    """

    opening: Opening
    entered: Floats  # (n,) b_i
    candidate: Floats  # (n,) b_g
    peephole: Floats  # (n,) p_i

    def __call__(self, z: Floats) -> GateValues:
        """dλ/db_i = p_i σ''(b_i) tanh(b_g), and the others likewise."""
        kept, written = self.opening(z), self.opening(self.entered)
        candidate = np.tanh(self.candidate)
        curvature = written.slope * (1 - 2 * written.value) if self.opening.smooth else 0.0
        added = written.slope * self.peephole * candidate
        slopes = {
            "forget": kept.slope,
            "input": curvature * self.peephole * candidate,
            "cell": written.slope * self.peephole * (1 - candidate**2),
            "peephole": written.slope * candidate,
        }
        motions = {name: Motion(slope, np.zeros_like(z)) for name, slope in slopes.items()}
        return GateValues(kept.value + added, kept.complement - added, np.ones_like(z), motions)


def _lstm(cell: Cell, variant: Variant, seen: Mapping[str, GateInput]) -> Gated:
    """``c' = σ(f) c + σ(i) tanh(g)``: the state is c, λ = σ(b_f) and γ = σ(b_i)."""
    biases, opening = cell.biases, variant.opening
    slots = (*biases["forget"].slots("forget"), *biases["input"].slots("input"))
    drive: Seen = None
    state = nominal = None
    peepholes = {gate: part.values for gate, part in cell.peepholes.items()}
    if seen:
        projected = None if cell.projection is None else squared_rows(cell.projection)
        drive = seen["forget"], seen["input"]
        if peepholes:
            drive = peephole_drive(seen, opening, projected, peepholes, _OWN_STATE)
        state = HiddenState(
            seen["cell"], output=seen["output"], opening=opening, projection=projected
        )
    if "input" in peepholes:
        role, tensor, peephole = cell.peepholes["input"]
        slots += (*biases["cell"].slots("cell"), Slot(role, peephole, "peephole", tensor=tensor))
        nominal = _Peeped(opening, biases["input"].total, biases["cell"].total, peephole)
    write = Write(opening)
    return Gated(Keep(opening), biases["forget"].total, slots, drive, write, state, nominal)


def mix(cell: Cell, variant: Variant, seen: Mapping[str, GateInput]) -> Gated:
    """``h' = λ h + (1-λ) u`` with λ = σ(b), or 1 - σ(b), and γ = 1 - λ."""
    layout, gate, opening = cell.layout, cell.layout.gate, variant.opening
    state = None
    if "new" in seen and any(gate in gates for gates in layout.hidden.values()):
        reset = seen.get("reset", seen[gate]) if layout.resets else None
        state = HiddenState(seen["new"], variant.candidate, reset=reset, opening=opening)
    law, bias = Mix(layout.keeps, opening), cell.biases[gate]
    return Gated(law, bias.total, bias.slots(gate, law.parameter), seen.get(gate), state=state)


def _spectra(cell: Cell, variant: Variant) -> HiddenSpectra:
    """The spectra of a cell's hidden weights and of its step."""
    if not variant.opening.smooth:
        return HiddenSpectra({}, None, _HARD)
    if variant.spectra is not None:
        return variant.spectra(cell)
    found = step_spectra(
        cell.hidden if cell.projection is None else {},
        step_of(cell, variant),
        cell.size + cell.seen_units * ("forget" in cell.biases),
    )
    inputs = cell.inputs if variant.undriven is None else None
    if inputs is None or cell.projection is not None or cell.peepholes:
        return found
    layout, weights, inner = cell.layout, dict(cell.hidden), None
    totals = {gate: bias.total for gate, bias in cell.biases.items()}
    if "forget" not in totals:
        if "reset" not in inputs:
            return found
        if layout.inner is not None:
            totals["new"], inner = cell.biases["new"].split(layout.inner)
        if not layout.keeps:  # the update gate of the theory keeps
            sides = (weights, inputs := dict(inputs), totals)
            for side in sides:
                side["update"] = -side["update"]
    return replace(found, network=GatedNetwork(weights, inputs, totals, inner))


def step_of(cell: Cell, variant: Variant, driven: Mapping[str, Any] | None = None) -> Step:
    """One step of a plain cell, given what its gates see of the input, or at zero input."""
    layout, totals = cell.layout, {gate: bias.total for gate, bias in cell.biases.items()}
    inner = None
    if "new" in totals and layout.inner is not None:
        totals["new"], inner = cell.biases["new"].split(layout.inner)
    for gate, seen in (driven or {}).items():
        totals[gate] = totals[gate] + seen
    if "forget" in totals:
        peepholes = {gate: part.values for gate, part in cell.peepholes.items()}
        return lstm_step(cell.hidden, totals, cell.projection, peepholes, variant.opening)
    if "state" in totals:
        bent, weights = ACTIVATIONS[variant.activation], cell.hidden["state"]
        return lambda h: bent(h @ weights.T + totals["state"])
    gates = dict(cell.hidden)
    if "reset" not in totals and layout.resets:  # an MGU is a GRU whose two gates are one
        gates["reset"], totals["reset"] = gates[layout.gate], totals[layout.gate]
    return gru_step(
        gates, totals, inner, gate=layout.gate, keeps=layout.keeps, opening=variant.opening
    )


def dynamics_of(cell: Cell, variant: Variant) -> CellDynamics | None:
    """How a plain cell is run; None for one that is not, or whose inputs' weights are not known."""
    plain = variant.spectra is None and variant.recur is None and variant.matrix is np.asarray
    plain = plain and variant.undriven is None and variant.candidate is TANH
    layout, width, size = cell.layout, cell.width, cell.size
    if layout.convolves or not plain or width is None:
        return None
    gates = {gate for blocks in layout.hidden.values() for gate in blocks}

    def begin(draw: Draw) -> Callable[[Any, Any], Any]:
        drawn = Cell(cell.layer, layout, draw)
        for gate, added in variant.added.items():
            bias = drawn.biases[gate]
            drawn.biases[gate] = GateBias(bias.total + added, bias.parts)
        inputs = drawn.inputs
        assert inputs is not None
        step_of(drawn, variant)  # reads every tensor while the file is open

        def step(state: Any, x: Any) -> Any:
            driven = {gate: x @ weights.T for gate, weights in inputs.items()}
            return step_of(drawn, variant, driven)(state)

        return step

    shown, bent = size, None if variant.activation != "tanh" else (slice(None), SATURATED)
    if "forget" in gates:
        shown, bent = cell.seen_units, (slice(-size, None), math.atanh(SATURATED))
    return CellDynamics(
        order=shown + size * ("forget" in gates),
        shown=slice(shown),
        width=width,
        tensors={tensor: role for role, tensor in cell.layer.names.items()},
        begin=begin,
        weights=len(gates) * size * (width + shown),
        bent=bent,
        plain=_plain(cell, variant, gates),
        untouched=lambda: as_initialised(
            cell.hidden.values(),
            (cell.inputs or {}).values(),
            [part.values for bias in cell.biases.values() for part in bias.parts],
        ),
    )


def _plain(cell: Cell, variant: Variant, gates: Collection[str]) -> str:
    """As of `CellDynamics`: sigmoids open its gates, and nothing projects or peeps."""
    if not variant.opening.smooth or variant.added or cell.projection is not None:
        return ""
    if gates == {"state"}:
        return "tanh" if variant.activation == "tanh" else ""
    cells = {frozenset(IFGO): "LSTM", frozenset(RZN): "GRU"}
    return "" if cell.peepholes else cells.get(frozenset(gates), "")
