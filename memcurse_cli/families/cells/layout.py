"""Gated and Elman cells as libraries store them: which block of which tensor is which gate.

A library's cell is a `Layout`; `read_cell` takes it to the layer's `Recurrence`. What else a
library does differently, such as hard sigmoids or peepholes, is a `Variant`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.gated_layer import (
    GateBias,
    GateFunction,
    Sigmoid,
    coupled_recurrence,
    gru_spectra,
    lstm_recurrence,
    lstm_spectra,
)
from memcurse_cli.families.cells.peepholes import Peephole, with_peepholes
from memcurse_cli.families.dense.dense_layer import dense_recurrence
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import (
    GateInput,
    HiddenState,
    NoDrive,
    RowNorms,
    row_norms,
    squared_rows,
)
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_real, shown_shape
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.families.stacked import member_of
from memcurse_cli.theory.linalg.eigendecomposition import eigenvalues

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

    A cell with a gate ``forget`` is an LSTM, one with a gate ``update`` a GRU, one whose only block
    is called ``state`` an Elman network.

    Attributes:
        inputs: the blocks of the matrices that multiply x.
        hidden: of those that multiply the state; one that is named on both sides multiplies
            [x, h], so that the state meets the last of its columns or rows.
        biases: of the biases; all that are there are summed.
        columns: matrices multiply from the right, so that a gate's block is of columns.
        sides: what the halves of a bias are called that holds one for each side; else none.
        inner: the part of the candidate's bias that the reset gate multiplies; None where that
            gate acts before the matrix.
        keeps: an open update gate keeps the state; False where it writes.
        projection: the role of the matrix that the state is multiplied with, or "".
    """

    inputs: Blocks
    hidden: Blocks
    biases: Blocks = field(default_factory=dict)
    columns: bool = True
    sides: tuple[str, str] | tuple[()] = ()
    inner: str | None = None
    keeps: bool = True
    projection: str = ""

    @property
    def matrices(self) -> frozenset[str]:
        """The roles of what multiplies x and the state."""
        return frozenset((*self.inputs, *self.hidden))

    def fits(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether tensors of these shapes, by role, are those of such a cell."""
        roles = (*self.matrices, self.projection)
        found = {role: shapes[role] for role in roles if role in shapes}
        if not self.matrices <= found.keys() or any(len(shape) != 2 for shape in found.values()):
            return False
        if self.columns:
            found = {role: shape[::-1] for role, shape in found.items()}
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
        rows, columns = self._shape(role)
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
                matrix = matrix[:, -self._seen :] if hidden else matrix[:, : -self._seen]
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
        return None if self.inputs is None else row_norms(self.inputs, self.hidden)

    @cached_property
    def biases(self) -> dict[str, GateBias]:
        """The bias of every gate.

        Raises:
            TensorError: NaN or inf in one, or another shape.
        """
        sides = (*self.layout.hidden.values(), *self.layout.inputs.values())
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
        forget_bias: what is added to the stored bias of forgetting.
        peepholes: what its gates see of their own unit's cell, by gate.
        altered: why its step and its state are not those of the plain cell, a clause; or "".
        undriven: why what moves its gates has no figures, where its inputs are known; or None.
        activation: that of an Elman network: ``linear``, ``tanh`` or ``relu``.
        matrix: the dense matrix of an Elman network from the stored one, or None for itself.
    """

    function: GateFunction = field(default_factory=Sigmoid)
    assumptions: tuple[str, ...] = ()
    layout: Layout | None = None
    forget_bias: float = 0.0
    peepholes: Mapping[str, Peephole] = field(default_factory=dict)
    altered: str = ""
    undriven: NoDrive | None = None
    activation: str = "tanh"
    matrix: Callable[[Floats], Floats] | None = None


PLAIN = Variant()


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
    """One LSTM, GRU or Elman network.

    Raises:
        TensorError: NaN or inf in what is read, or shapes that do not fit together.
    """
    cell = Cell(store, match, layout)
    if "state" in cell.biases:
        return _dense(cell, store, match, options, family, variant)
    biases, norms = cell.biases, None
    if variant.forget_bias:
        forget = biases["forget"]
        biases["forget"] = GateBias(forget.total + variant.forget_bias, forget.parts)
    hidden = None
    if options.spectra:
        hidden = variant.function.spectra(lambda: _spectra(cell, options.device, variant))
    # How large a state is that is normalised or passes a highway is not the plain cell's to say.
    if options.gates and not variant.altered:
        norms = cell.norms
    if "forget" in biases:
        projection = None if norms is None else cell.projection
        plain = lstm_recurrence(
            match,
            family=family,
            biases=biases,
            function=variant.function,
            hidden=hidden,
            assumptions=variant.assumptions,
            norms=norms,
            projection=None if projection is None else squared_rows(projection),
        )
        return with_peepholes(plain, biases, variant.peepholes, variant.function)
    seen = {gate: GateInput(biases[gate].total, norm) for gate, norm in (norms or {}).items()}
    return coupled_recurrence(
        match,
        family=family,
        gate="update",
        bias=biases["update"],
        keeps=layout.keeps,
        function=variant.function,
        hidden_feedback=True,
        hidden=hidden,
        assumptions=variant.assumptions,
        inputs=variant.undriven if seen and variant.undriven else seen.get("update"),
        # A cell without a reset gate (MGU) resets by its update gate.
        state=HiddenState(
            seen["new"],
            reset=seen.get("reset", seen["update"]),
            opening=variant.function.opening,
        )
        if seen
        else None,
    )


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


def _spectra(cell: Cell, device: str, variant: Variant) -> HiddenSpectra:
    """The spectra of a cell's hidden weights and of its step."""
    weights = dict(cell.hidden)
    inputs = cell.inputs if variant.undriven is None else None
    totals = {gate: bias.total for gate, bias in cell.biases.items()}
    if variant.altered:
        own = (gate for gate in weights if gate in {*IFGO, *RZN})
        gates = {gate: eigenvalues(weights[gate], device) for gate in own}
        return HiddenSpectra(gates, None, variant.altered)
    if "forget" in totals:
        peepholes = {gate: peephole.values for gate, peephole in variant.peepholes.items()}
        return lstm_spectra(weights, totals, cell.projection, device, peepholes, inputs)
    inner, layout = None, cell.layout
    if layout.inner is not None:
        totals["new"], inner = cell.biases["new"].split(layout.inner)
    if "reset" not in totals:  # an MGU is a GRU whose two gates are one
        weights["reset"], totals["reset"] = weights["update"], totals["update"]
        inputs = None
    if layout.keeps:
        return gru_spectra(weights, totals, inner, device, inputs)
    # The update gate of the theory keeps.
    weights["update"], totals["update"] = -weights["update"], -totals["update"]
    inputs = None if inputs is None else {**inputs, "update": -inputs["update"]}
    found = gru_spectra(weights, totals, inner, device, inputs)
    return replace(found, gates={**found.gates, "update": -found.gates["update"]})
