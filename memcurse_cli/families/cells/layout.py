"""Gated and Elman cells as libraries store them: which block of which tensor is which gate.

A library's cell is a `Layout`; `read_cell` takes it to the layer's `Recurrence`. What else a
library does differently, such as hard sigmoids, peepholes or a norm, is a `Variant`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.gated_layer import (
    GateBias,
    GateFunction,
    Peephole,
    Sigmoid,
    coupled_recurrence,
    gru_jacobian,
    lstm_jacobian,
    lstm_recurrence,
    step_spectra,
    with_peepholes,
)
from memcurse_cli.families.dense.dense_layer import ACTIVATION, dense_recurrence
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import (
    GateInput,
    HiddenState,
    NoDrive,
    RowNorms,
    squared_rows,
)
from memcurse_cli.families.layers import member_of
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_real, shown_shape
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.theory.gates.moments import TANH, Candidate
from memcurse_cli.theory.mean_field.network import GatedNetwork

# The usual orders of the gates.
IFGO = ("input", "forget", "cell", "output")
IGFO = ("input", "cell", "forget", "output")
RZN = ("reset", "update", "new")
ZRN = ("update", "reset", "new")
STATE = ("state",)

Blocks = Mapping[str, tuple[str, ...]]
"""The gates whose blocks a tensor holds, in their order, by the tensor's role."""


@dataclass(frozen=True)
class Layout:
    """Where a library keeps the gates of a cell of H units.

    A cell with a gate ``forget`` is an LSTM, one with a gate ``update`` or ``gate`` a GRU or a
    cell of one gate, one whose only block is called ``state`` an Elman network.

    Attributes:
        inputs: the blocks of the matrices that multiply x.
        hidden: of those that multiply the state; one that is named on both sides multiplies
            [x, h], so that the state meets the last of its columns or rows.
        biases: of the biases, which may have other gates; all that are there are summed.
        columns: matrices multiply from the right, so that a gate's block is of columns.
        sides: what the halves of a bias are called that holds one for each side; else none.
        inner: the part of the candidate's bias that the reset gate multiplies; None where that
            gate acts before the matrix.
        keeps: an open update gate keeps the state; False where it writes.
        resets: what the candidate sees of the state is reset, by the update gate where there is no
            other.
        state_first: a matrix of both sides multiplies [h, x].
        convolves: the matrices are kernels of convolutions, whose channels the gates are.
        projection: the role of the matrix that the state is multiplied with, or "".
    """

    inputs: Blocks
    hidden: Blocks
    biases: Blocks = field(default_factory=dict)
    columns: bool = True
    sides: tuple[str, str] | tuple[()] = ()
    inner: str | None = None
    keeps: bool = True
    resets: bool = True
    state_first: bool = False
    convolves: bool = False
    projection: str = ""

    @property
    def gate(self) -> str:
        """What the gate is called that keeps or writes the state of a GRU or its like."""
        return "gate" if any("gate" in gates for gates in self.inputs.values()) else "update"

    @property
    def gates_see_state(self) -> bool:
        """Whether that gate sees the state."""
        return any(self.gate in gates for gates in self.hidden.values())

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
        seen = found.get(self.projection, (size,))[0]
        return (
            size > 0
            and all(
                found[role][0] == size * len(gates)
                for side in (self.inputs, self.hidden)
                for role, gates in side.items()
            )
            and all(
                found[role][1] > seen if role in self.inputs else found[role][1] == seen
                for role in self.hidden
            )
            and found.get(self.projection, (seen, size)) == (seen, size)
            and all(
                shapes[role] == (size * len(gates),)
                for role, gates in self.biases.items()
                if role in shapes
            )
        )

    def find(self, tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
        """The modules that hold such a cell; one at the root bears its family's name."""
        found = []
        roles = (*self.matrices, *self.biases, self.projection)
        for module, names in group_by_module(tensors, filter(None, roles)).items():
            if self.fits({role: tensors[name].shape for role, name in names.items()}):
                found.append(Match(module or family, names))
        return found


class Cell:
    """The tensors of one cell, read when they are asked for; matrices have row = target.

    Args:
        store: the open checkpoint.
        match: the layer.
        layout: where its gates are.
    """

    def __init__(self, store: TensorStore, match: Match, layout: Layout) -> None:
        self._store, self._match, self.layout = store, match, layout
        role, gates = next(iter(layout.hidden.items()))
        rows, columns = self._shape(role)[:2]
        self.size = rows // len(gates)
        self._seen = self.size if role in layout.inputs else columns
        if role in layout.inputs and layout.projection in match.tensors:
            self._seen = self._shape(layout.projection)[0]

    def _shape(self, role: str) -> tuple[int, ...]:
        """That of a matrix, row = target."""
        shape = self._store.tensors[self._match.tensors[role]].shape
        return shape[::-1] if self.layout.columns else shape

    def _matrix(self, role: str, *shape: int | None) -> Floats:
        """A stored matrix of this shape, row = target."""
        turned = self.layout.columns
        tensor = self._match.tensors[role]
        stored = read_real(self._store, tensor, shape[::-1] if turned else shape)
        return stored.T if turned else stored

    def _side(self, blocks: Blocks, hidden: bool) -> dict[str, Floats]:
        other = self.layout.inputs if hidden else self.layout.hidden
        found: dict[str, Floats] = {}
        for role, gates in blocks.items():
            joint = role in other
            columns = self._seen if hidden and not joint else None
            matrix = self._matrix(role, len(gates) * self.size, columns)
            if joint:
                first, last = np.split(
                    matrix, [self._seen if self.layout.state_first else -self._seen], axis=1
                )
                matrix = first if hidden == self.layout.state_first else last
            found |= zip(gates, np.split(matrix, len(gates)), strict=True)
        return found

    @cached_property
    def hidden(self) -> dict[str, Floats]:
        """(H, P) of each gate: what multiplies the state, or its projection of P entries.

        Raises:
            TensorError: NaN or inf in them, or another shape.
        """
        return self._side(self.layout.hidden, hidden=True)

    @cached_property
    def inputs(self) -> dict[str, Floats] | None:
        """(H, inputs) of each gate; None where they are not in the file, or do not fit.

        Raises:
            TensorError: NaN or inf in them.
        """
        for role, gates in self.layout.inputs.items():
            if role not in self._match.tensors or (
                self._shape(role)[:1] != (len(gates) * self.size,)
            ):
                return None
        return self._side(self.layout.inputs, hidden=False)

    @cached_property
    def projection(self) -> Floats | None:
        """(P, H) what the state is multiplied with, or None for the identity.

        Raises:
            TensorError: NaN or inf in it, or another shape.
        """
        if self.layout.projection not in self._match.tensors:
            return None
        return self._matrix(self.layout.projection, self._seen, self.size)

    @cached_property
    def norms(self) -> dict[str, RowNorms] | None:
        """Those of both sides of each gate; None where the inputs' are not known."""
        if self.inputs is None:
            return None
        nothing = np.zeros(self.size)
        inputs, hidden = (
            {gate: squared_rows(weights) for gate, weights in side.items()}
            for side in (self.inputs, self.hidden)
        )
        return {
            gate: RowNorms(inputs.get(gate, nothing), hidden.get(gate, nothing))
            for gate in dict.fromkeys((*inputs, *hidden))
        }

    @cached_property
    def biases(self) -> dict[str, GateBias]:
        """The bias of every gate.

        Raises:
            TensorError: NaN or inf in one, or another shape.
        """
        layout = self.layout
        sides = (*layout.hidden.values(), *layout.inputs.values(), *layout.biases.values())
        parts: dict[str, list[tuple[str, str, Floats, str]]] = {
            gate: [] for blocks in sides for gate in blocks
        }
        for role, blocks in self.layout.biases.items():
            tensor = self._match.tensors.get(role)
            if tensor is None:
                continue
            dtype = self._store.tensors[tensor].dtype
            own = role.removesuffix(f"_{blocks[0]}")  # of one gate, which its group names anyway
            for side, row in self._bias_rows(own, tensor, len(blocks) * self.size):
                for gate, values in zip(blocks, np.split(row, len(blocks)), strict=True):
                    parts[gate].append((side, tensor, values, dtype))
        zero = np.zeros(self.size)
        return {
            gate: GateBias(np.sum([zero, *(part[2] for part in found)], axis=0), tuple(found))
            for gate, found in parts.items()
        }

    def _bias_rows(self, role: str, tensor: str, width: int) -> list[tuple[str, Floats]]:
        """A bias with its name, or both of its halves with theirs."""
        sides = self.layout.sides
        shapes: list[tuple[int, ...]] = [(width,)]
        if sides:
            shapes += [(2, width), (2 * width,)]
        shape = self._store.tensors[tensor].shape
        if shape not in shapes:
            raise TensorError(
                f"its shape {shown_shape(shape)} does not fit, "
                f"{' or '.join(map(shown_shape, shapes))} is needed",
                where=tensor,
                remedy="name the right family with --family, or export the layer again",
            )
        values = read_real(self._store, tensor, shape)
        if values.size == width:
            return [(role, values)]
        return list(zip(sides, values.reshape(2, width), strict=True))


@dataclass(frozen=True)
class Variant:
    """What a layer has beside, or other than, the plain cell of its layout.

    Attributes:
        function: what opens its gates.
        assumptions: what was assumed, one sentence each.
        layout: the layout where the tensors say another than the family's.
        added: what is added to the stored bias, by gate.
        peepholes: what its gates see of their own unit's cell, by gate.
        candidate: what a cell of one update gate takes in, as a function of its pre-activation.
        spectra: those of its hidden weights and its step, on a device; None for the plain cell's.
        seen: what its gates see, as far as that has figures; None for the plain cell's.
        undriven: why what moves its gates has no figures, or None.
        finish: the recurrence with what the plain cell's lacks, or None.
        activation: that of an Elman network: ``linear``, ``tanh`` or ``relu``.
        matrix: the dense matrix of an Elman network from the stored one, or None for itself.
    """

    function: GateFunction = field(default_factory=Sigmoid)
    assumptions: tuple[str, ...] = ()
    layout: Layout | None = None
    added: Mapping[str, Floats | float] = field(default_factory=dict)
    peepholes: Mapping[str, Peephole] = field(default_factory=dict)
    candidate: Candidate = TANH
    spectra: Callable[[Cell, str], HiddenSpectra] | None = None
    seen: Callable[[Cell], Mapping[str, GateInput]] | None = None
    undriven: NoDrive | None = None
    finish: Callable[[Recurrence, Cell], Recurrence] | None = None
    activation: str = "tanh"
    matrix: Callable[[Floats], Floats] | None = None


def without_jacobian(
    reason: str, gates: Collection[str] | None = None
) -> Callable[[Cell, str], HiddenSpectra]:
    """The spectra of all or some gates alone, with the reason."""

    def spectra(cell: Cell, device: str) -> HiddenSpectra:
        weights = {gate: cell.hidden[gate] for gate in gates or cell.hidden}
        return step_spectra(weights, lambda: np.eye(cell.size), cell.size, device, reason)

    return spectra


def elman(options: ReadOptions, sentences: Sequence[str] = (), **choice: Any) -> Variant:
    """An Elman network's activation, as the user or the file says it or by default.

    Args:
        options: what the user chose.
        sentences: what else was assumed.
        choice: as of `Assumed.choose`.
    """
    assumed = Assumed(options)
    activation = assumed.choose(ACTIVATION, **choice)
    return Variant(activation=activation, assumptions=(*assumed.sentences, *sentences))


PLAIN = Variant()
_CONVOLVED = "its hidden weights are kernels of a convolution, for which they are not taken"
_CHANNELS = (
    "λ is that of a channel by itself, from the gates' biases alone: what its recurrent kernel, a "
    "convolution, adds to the memory is not in it"
)


@dataclass(frozen=True, eq=False)
class CellFamily:
    """A library's cell: what it is recognised by, where its gates are, and what is odd about it.

    Attributes:
        name, title, recognised_by, equation, source, assumptions: as of `Family`.
        layouts: the first of which all matrices are there is the layer's.
        matches: the layers among the tensors, where the layout's shapes alone do not tell.
        variant: what a layer has beside the plain cell, or other than it.
    """

    name: str
    title: str
    recognised_by: str
    equation: str
    source: str
    layouts: tuple[Layout, ...]
    matches: Callable[[Mapping[str, TensorSpec], str], list[Match]] | None = None
    variant: Callable[[TensorStore, Match, ReadOptions], Variant] = lambda *_: PLAIN
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """The layers of this family among the tensors, by names and shapes alone."""
        if self.matches is not None:
            return self.matches(tensors, self.name)
        return [match for layout in self.layouts for match in layout.find(tensors, self.name)]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases of a gated cell, and the matrices where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read, shapes that do not fit together, or what the
                family knows not to be this cell.
        """
        variant = self.variant(store, match, options)
        layout = variant.layout or next(
            layout for layout in self.layouts if layout.hidden.keys() <= match.tensors.keys()
        )
        axes = dict.fromkeys(layout.hidden, 2)
        member = member_of(store, match, axes, others=())
        return read_cell(member, match, options, self.name, layout, variant)


def read_cell(
    store: TensorStore,
    match: Match,
    options: ReadOptions,
    family: str,
    layout: Layout,
    variant: Variant = PLAIN,
) -> Recurrence:
    """One LSTM, GRU, cell of one gate or Elman network.

    Raises:
        TensorError: NaN or inf in what is read, or shapes that do not fit together.
    """
    if layout.convolves:
        variant = replace(
            variant,
            assumptions=(*variant.assumptions, _CHANNELS),
            spectra=lambda cell, device: HiddenSpectra({}, None, _CONVOLVED),
            undriven=NoDrive(_CONVOLVED),
        )
    cell = Cell(store, match, layout)
    if "state" in cell.biases:
        return _dense(cell, store, match, options, family, variant)
    biases = cell.biases
    for gate, added in variant.added.items():
        biases[gate] = GateBias(biases[gate].total + added, biases[gate].parts)
    hidden = None
    if options.spectra:
        hidden = variant.function.spectra(lambda: _spectra(cell, options.device, variant))
    undriven = variant.undriven if options.gates else None
    seen = _seen(cell, variant) if options.gates and undriven is None else {}
    if "forget" in biases:
        projection = cell.projection if seen else None
        found = lstm_recurrence(
            match,
            family=family,
            biases=biases,
            function=variant.function,
            hidden=hidden,
            assumptions=variant.assumptions,
            seen=seen,
            undriven=undriven,
            projection=None if projection is None else squared_rows(projection),
        )
        found = with_peepholes(found, biases, variant.peepholes, variant.function)
    else:
        state = None
        if layout.gates_see_state and "new" in seen:
            reset = seen.get("reset", seen[layout.gate]) if layout.resets else None
            opening = variant.function.opening
            state = HiddenState(seen["new"], variant.candidate, reset=reset, opening=opening)
        found = coupled_recurrence(
            match,
            family=family,
            gate=layout.gate,
            bias=biases[layout.gate],
            keeps=layout.keeps,
            function=variant.function,
            hidden_feedback=True,
            hidden=hidden,
            assumptions=variant.assumptions,
            inputs=undriven or seen.get(layout.gate),
            state=state,
        )
    return found if variant.finish is None else variant.finish(found, cell)


def _dense(
    cell: Cell,
    store: TensorStore,
    match: Match,
    options: ReadOptions,
    family: str,
    variant: Variant,
) -> Recurrence:
    matrix, inputs = cell.hidden["state"], cell.inputs
    return dense_recurrence(
        store,
        match,
        family=family,
        matrix=matrix if variant.matrix is None else variant.matrix(matrix),
        tensor=match.tensors[next(iter(cell.layout.hidden))],
        activation=variant.activation,
        device=options.device,
        readin=None if inputs is None else inputs["state"].astype(np.complex128),
        bias=cell.biases["state"].total,
        assumptions=variant.assumptions,
    )


def _seen(cell: Cell, variant: Variant) -> Mapping[str, GateInput]:
    """What each gate sees; nothing where that is not known."""
    if variant.seen is not None:
        return variant.seen(cell)
    return {
        gate: GateInput(cell.biases[gate].total, norms)
        for gate, norms in (cell.norms or {}).items()
    }


def _spectra(cell: Cell, device: str, variant: Variant) -> HiddenSpectra:
    """The spectra of a cell's hidden weights and of its step."""
    if variant.spectra is not None:
        return variant.spectra(cell, device)
    inputs = cell.inputs if variant.undriven is None else None
    totals = {gate: bias.total for gate, bias in cell.biases.items()}
    if "forget" in totals:
        return _lstm_spectra(cell, totals, inputs, variant, device)
    layout, weights, inner = cell.layout, dict(cell.hidden), None
    if layout.inner is not None:
        totals["new"], inner = cell.biases["new"].split(layout.inner)
    # The update gate of the theory keeps, and an MGU is a GRU whose two gates are one.
    kept, sign = weights.pop(layout.gate), 1.0 if layout.keeps else -1.0
    if "reset" not in totals and layout.resets:
        weights["reset"], totals["reset"] = kept, totals[layout.gate]
    weights["update"], totals["update"] = sign * kept, sign * totals[layout.gate]
    found = step_spectra(
        cell.hidden, lambda: gru_jacobian(weights, totals, inner), cell.size, device
    )
    if inputs is None or "reset" not in inputs:
        return found
    inputs = {**inputs, "update": sign * inputs["update"]}
    return replace(found, network=GatedNetwork(weights, inputs, totals, inner))


def _lstm_spectra(
    cell: Cell,
    totals: Mapping[str, Floats],
    inputs: Mapping[str, Floats] | None,
    variant: Variant,
    device: str,
) -> HiddenSpectra:
    weights, projection = cell.hidden, cell.projection
    peepholes = {gate: peephole.values for gate, peephole in variant.peepholes.items()}
    found = step_spectra(
        weights if projection is None else {},
        lambda: lstm_jacobian(weights, totals, projection, peepholes),
        cell.size + (cell.size if projection is None else len(projection)),
        device,
    )
    if inputs is None or projection is not None or peepholes:
        return found
    return replace(found, network=GatedNetwork(weights, inputs, totals))
