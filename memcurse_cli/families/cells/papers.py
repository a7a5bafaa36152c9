"""Cells of single papers: FastGRNN, LEM, the multiplicative LSTM, and those of torchrecurrent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.gated_layer import GateBias, Part, step_spectra
from memcurse_cli.families.cells.layout import (
    PLAIN,
    Cell,
    CellFamily,
    Gated,
    Layout,
    Variant,
    mix,
    read_cell,
    shapes_of,
    stepped,
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
from memcurse_cli.families.family import Assumption, Match, Shapes
from memcurse_cli.families.family import Layout as TensorLayout
from memcurse_cli.families.gate_inputs import GateInput, HiddenState, NoDrive, squared_rows
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Slot
from memcurse_cli.theory.duals import Dual, join, sigmoid, split, tanh
from memcurse_cli.theory.gates.laws import (
    LOGISTIC,
    TANH,
    FlooredMix,
    GateLaw,
    GateValues,
    Mix,
    Motion,
    Written,
)

SCALE, FLOOR = "zeta", "nu"
_GATE, _UPDATE = "bias_gate", "bias_update"
_REQUIRED = (_GATE, _UPDATE, SCALE, FLOOR)
_INPUT, _HIDDEN = ("W", "W1", "W2"), ("U", "U1", "U2")  # each whole, or of two factors
_FUNCTIONS = (
    "the gate is taken as a sigmoid and the candidate as a tanh, as by default: EdgeML stores"
    " neither"
)
_UNLAWFUL = NoDrive("a tanh opens its gate, which no law of gates has")


def _fits(shapes: Shapes) -> bool:
    """Whether the shapes are (1, H), scalars, and (H, H) or two factors of it."""
    size = shapes[_GATE][-1:]
    if size < (1,) or any(shapes[role] != (1, *size) for role in (_GATE, _UPDATE)):
        return False
    if any(shapes[role] != (1, 1) for role in (SCALE, FLOOR)):
        return False
    if "U" in shapes:
        return shapes["U"] == size * 2
    inner, outer = (shapes.get(role, ()) for role in _HIDDEN[1:])
    return len(inner) == 2 and inner[1:] == size and outer == (*size, inner[0])


class _EdgeCell(Cell):
    """Biases are rows here, and each matrix is whole or of two factors."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer, Layout({}, {_GATE: ("gate",)}))  # which has its width

    @cached_property
    def biases(self) -> dict[str, GateBias]:
        gate, new = (self.layer.vector(role, self.size) for role in (_GATE, _UPDATE))
        return {
            "gate": GateBias(gate, (Part(_GATE, self.layer.names[_GATE], gate),)),
            "new": GateBias(new),
            "shared": GateBias(np.zeros(self.size)),
        }

    @cached_property
    def hidden(self) -> dict[str, Floats]:
        return self._whole(*_HIDDEN)

    @cached_property
    def inputs(self) -> dict[str, Floats] | None:
        return self._whole(*_INPUT) or None

    def _whole(self, whole: str, inner: str, outer: str) -> dict[str, Floats]:
        """(H, sources), whole or the product of its factors; nothing where it is not there."""
        layer = self.layer
        if whole in layer.names:
            return {"shared": layer.real(whole, (self.size, None))}
        if not {inner, outer} <= layer.names.keys():
            return {}
        below = layer.real(inner, (None, None))
        return {"shared": layer.real(outer, (self.size, len(below))) @ below}


class FastGRNN(LawFamily):
    """``h' = z h + (σ(ζ)(1-z) + σ(ν)) tanh(u + b_h)``, ``z = σ(u + b_z)``, ``u = W x + U h``."""

    name = "fast_grnn"
    title = "FastGRNN (EdgeML)"
    recognised_by = "bias_gate and bias_update (1, H) beside zeta and nu (1, 1), and U or U1 and U2"
    equation = "λ = σ(bias_gate), γ = σ(zeta) (1 - λ) + σ(nu)"
    source = "edgeml_pytorch FastGRNNCell; Kusupati et al. 2018, arXiv 1901.02358"
    layouts = (TensorLayout(_REQUIRED, optional=_INPUT + _HIDDEN, fits=_fits),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        layer.sentences.append(_FUNCTIONS)
        return read_cell(_EdgeCell(layer), _fast_grnn(layer, block=""))


def _fast_grnn(layer: Layer, *, block: str = "gate", bent: bool = False) -> Variant:
    """λ = a(b_z) and γ = σ(ζ)(1-λ) + σ(ν), where a is σ, or a tanh if the gate is ``bent``.

    One ζ and one ν move every gain. ``block`` is what the gate's block of a bias is called, or "".
    """
    scale, floor = (layer.vector(role, 1) for role in (SCALE, FLOOR))
    opening = TANH if bent else LOGISTIC
    law = FlooredMix(float(scale[0]), float(floor[0]), opening)
    opened = sigmoid(scale)

    def recur(cell: Cell, _: Variant, seen: Mapping[str, GateInput]) -> Gated:
        gate, candidate = cell.biases["gate"], cell.biases["new"].total
        every = np.zeros(cell.size, dtype=np.intp)
        own = (Slot(SCALE, scale, SCALE, scalar=every), Slot(FLOOR, floor, FLOOR, scalar=every))
        plain = Gated(law, gate.total, (*gate.slots(block, "gate"), *own))
        if not seen:
            return plain
        shared = seen["shared"]
        state = HiddenState(
            replace(shared, bias=candidate),
            convex=False,
            written=Written(law, candidate - gate.total),
        )
        return plain._replace(seen=replace(shared, bias=gate.total), state=state)

    def step(cell: Cell, z: dict[str, Any], h: Any) -> Any:
        gate, new = (z["shared"] + z[part] for part in ("gate", "new"))
        kept = tanh(gate) if bent else sigmoid(gate)
        return kept * h + (opened * (1 - kept) + sigmoid(floor)) * tanh(new)

    return Variant(recur=recur, spectra=stepped(step), undriven=_UNLAWFUL if bent else None)


STEP = Assumption(
    key="dt",
    default="1",
    meaning="the largest time step of a network that is an ordinary differential equation",
    tensors=("dt",),
)


_SEES_Y = ("step of y", "step of z", "z")


def _lem_layout(
    weight: str, bias: str, linears: tuple[str, str, str], states: tuple[str, str]
) -> Layout:
    """The linears of x, whose last rows lead into ``states``, of y and of z, for ``{}``."""
    sides = dict(zip(linears, ((*_SEES_Y[:2], *states), _SEES_Y, ("y",)), strict=True))
    of_x, *of_state = linears
    return Layout(
        {weight.format(of_x): sides[of_x]},
        {weight.format(linear): sides[linear] for linear in of_state},
        {bias.format(linear): rows for linear, rows in sides.items()},
        columns=False,
        others=STEP.roles,
    )


LINEARS = _lem_layout(
    "{}.weight", "{}.bias", ("inp2hid", "hid2hid", "transform_z"), states=("y", "z")
)


def _lem(layer: Layer, *, delayed: bool = False) -> Variant:
    """λ = 1 - Δ and γ = Δ of both states: d log γ/db = 1 - σ(b), dλ/db = -Δ (1 - σ(b)).

    The eigenvalues of y stand before those of z. ``delayed``: y takes in z as it was a step before.
    """
    step = layer.positive(STEP, most=1)

    def recur(cell: Cell, _: Variant, seen: Mapping[str, GateInput]) -> Gated:
        slow, fast = (cell.biases[f"step of {state}"] for state in "yz")
        bias = GateBias(
            np.concatenate([slow.total, fast.total]),
            tuple(
                of_y._replace(values=np.concatenate([of_y.values, of_z.values]))
                for of_y, of_z in zip(slow.parts, fast.parts, strict=True)
            ),
        )
        law, slots = Mix(keeps=False, parameter="steps", largest=step), bias.slots("steps")
        if not seen:
            return Gated(law, bias.total, slots)
        # Both steps see x and y; what z takes in sees them too, and y takes in x and z.
        gate = _both(seen["step of y"], seen["step of z"])
        state = HiddenState(_both(seen["y"], seen["z"]), cascade=cell.size)
        return Gated(law, bias.total, slots, gate, state=state)

    def spectra(cell: Cell) -> HiddenSpectra:
        def whole(state: Any) -> Any:
            y, z = split(state, 2)
            slow, fast, into_z = (
                y @ cell.hidden[gate].T + cell.biases[gate].total for gate in _SEES_Y
            )
            after = z + step * sigmoid(fast) * (tanh(into_z) - z)
            into_y = (z if delayed else after) @ cell.hidden["y"].T + cell.biases["y"].total
            return join([y + step * sigmoid(slow) * (tanh(into_y) - y), after])

        return step_spectra(cell.hidden, whole, 2 * cell.size)

    return Variant(recur=recur, spectra=spectra)


def _both(first: GateInput, second: GateInput) -> GateInput:
    """What the gates of both states see, those of y before those of z."""
    fields = zip(*((each.bias, each.inputs, each.hidden) for each in (first, second)), strict=True)
    bias, inputs, hidden = map(np.concatenate, fields)
    return GateInput(bias, inputs, hidden)


# z' = (1-Δ) z + Δ tanh(·), y' = (1-Δ̄) y + Δ̄ tanh(·), Δ = dt σ(b)
LEM = CellFamily(
    name="lem",
    title="LEM (long expressive memory)",
    recognised_by=(
        "hid2hid.weight (3H, H) beside inp2hid.weight (4H, inputs) and transform_z.weight"
    ),
    equation="λ = 1 - dt σ(b), γ = dt σ(b), b = inp2hid.bias + hid2hid.bias, first 2H rows",
    source="tk-rusch/LEM; Rusch et al. 2022, arXiv 2110.04744",
    layouts=(LINEARS,),
    variant=_lem,
    assumptions=(STEP,),
)


_IFOG = ("input", "forget", "output", "cell")
WEIGHTS = ("wx", "wh", "wmx", "wmh")
# wmh, mlstm_wmh:0, wmh.weight, and wmh.weight_v or .original1 where its norm is apart.
_MULTIPLIED = re.compile(
    r"(?P<before>(?:.*[./,_])?)wmh"
    r"(?P<after>|:0|\.weight|\.weight_v|\.parametrizations\.weight\.original1)"
)


def _multiplicative_lstms(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    """Modules with the four matrices under one naming, and the bias of the gates."""
    matches = []
    for name, spec in tensors.items():
        parts = _MULTIPLIED.fullmatch(name) if "wmh" in name else None
        if parts is None or len(spec.shape) != 2 or spec.shape[0] != spec.shape[1]:
            continue
        before, after = parts["before"], parts["after"]
        roles = {weight: f"{before}{weight}{after}" for weight in WEIGHTS}
        bias = "wh.bias" if after.startswith(".") else "b"
        roles[bias] = f"{before}{bias}{'' if after.startswith('.') else after}"
        held = all(role in tensors for role in roles.values())
        if held and tensors[roles[bias]].shape == (4 * spec.shape[0],):
            matches.append(Match(before.rstrip("./,_") or family, roles))
    return matches


def _spectra(cell: Cell) -> HiddenSpectra:
    """At zero input m is zero, whatever the state: the Jacobian has σ(b_f) and 0 alone."""
    kept = sigmoid(cell.biases["forget"].total)
    return HiddenSpectra({}, np.concatenate([kept, np.zeros_like(kept)]).astype(np.complex128))


def _seen(cell: Cell) -> dict[str, GateInput]:
    """What the gates see of x and of ``m = (W_mx x) ∘ (W_mh h)``; nothing where one is unfit."""
    tensor = cell.layer.names["wmh"]
    if ".weight" in tensor and not tensor.endswith(".weight"):  # its norm is apart
        return {}
    wx, wh, wmx, wmh = (_weight(cell.layer, role) for role in WEIGHTS)
    units = len(wmh)
    if len(wx) != 4 * units or wh.shape != (4 * units, units) or len(wmx) != units:
        return {}
    inputs = np.split(squared_rows(wx), len(_IFOG))
    products = np.split(np.square(wh) @ (squared_rows(wmx) * squared_rows(wmh)), len(_IFOG))
    return {
        gate: GateInput(cell.biases[gate].total, own, products=both)
        for gate, own, both in zip(_IFOG, inputs, products, strict=True)
    }


def _weight(layer: Layer, role: str) -> Floats:
    """(outputs, inputs), with the length of its rows where TensorFlow's names keep it apart."""
    tensor = layer.names[role]
    weight: Floats = layer.finite(role)
    if ".weight" in tensor:
        return weight
    weight = weight.T
    before, after = tensor.rsplit(role, 1)
    length = f"{before}g{role[1:]}{after}"
    if length in layer.store.tensors:
        rows = np.sqrt(np.maximum(squared_rows(weight), np.finfo(np.float64).tiny))
        weight = weight * (layer.real(length, (len(weight),)) / rows)[:, None]
    return weight


MULTIPLICATIVE_LSTM = CellFamily(
    name="multiplicative_lstm",
    title="Multiplicative LSTM (sentiment neuron, UniRep)",
    recognised_by="wmx, wmh, wx, wh and b; or wmh.weight, wx.weight beside wh.bias (4H)",
    equation="λ = σ(b_f), γ = σ(b_i), rows i, f, o, u",
    source=(
        "openai/generating-reviews-discovering-sentiment; tape's UniRep; Krause et al. 2017, "
        "arXiv 1609.07959"
    ),
    layouts=(Layout({"wx": _IFOG}, {"wmh": ("state of m",)}, {"b": _IFOG, "wh.bias": _IFOG}),),
    matches=_multiplicative_lstms,
    variant=lambda _: Variant(spectra=_spectra, seen=_seen),
)


# Cells of torchrecurrent whose shapes are none of torch's.
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


def _cfn_step(_: Cell, z: dict[str, Any], h: Any) -> Any:
    """``h' = σ(f) tanh(h) + σ(i) tanh(W x + b)``."""
    return sigmoid(z["forget"]) * tanh(h) + sigmoid(z["input"]) * tanh(z["new"])


def _mut1_step(cell: Cell, z: dict[str, Any], h: Any) -> Any:
    """``h' = (1-z) h + z tanh(U (r ∘ h) + tanh(W x + b_x) + b)``, z = σ(W_z x + b_z) alone."""
    outer, inner = cell.biases["new"].split("bias_ih")
    reset = (sigmoid(z["reset"]) * h) @ cell.hidden["new"].T
    candidate = tanh(reset + np.tanh(inner) + outer)
    return sigmoid(-z["update"]) * h + sigmoid(z["update"]) * candidate


def _star_step(_: Cell, z: dict[str, Any], h: Any) -> Any:
    """``h' = tanh((1-k) h + k c)``, c = tanh(W x + b_x)."""
    k = z["gate"]
    return tanh(sigmoid(-k) * h + sigmoid(k) * tanh(z["new"]))


class _Star(GateLaw, frozen=True):
    """λ = (1-k) s, γ = k s, s = 1 - T², T = tanh(k c) around the new state, c = tanh(b_x)."""

    new: Floats  # (n,) b_x

    def __call__(self, z: Floats) -> GateValues:
        """1 - λ = k + (1-k) T², without cancellation."""
        gate, new = (Dual(at, {of: np.ones_like(z)}) for of, at in (("gate", z), ("new", self.new)))
        opened, shut = sigmoid(gate), sigmoid(-gate)
        bent = tanh(opened * tanh(new))
        slope = 1 - bent * bent
        kept, gain = shut * slope, opened * slope
        motions = {of: Motion(kept.tangents[of], gain.tangents[of]) for of in kept.tangents}
        return GateValues(kept.value, (opened + shut * bent * bent).value, gain.value, motions)


def _star(cell: Cell, _: Variant, __: Mapping[str, GateInput]) -> Gated:
    gate, new = cell.biases["gate"], cell.biases["new"]
    slots = (*gate.slots("gate"), *new.slots("new"))
    return Gated(_Star(new.total), gate.total, slots)


_MINIMAL = _layout(("latent",), ("update",))


def _minimal_rnn(layer: Layer) -> Variant:
    """``h' = u h + (1-u) z``, z = tanh(W x + b_x), u = σ(U h + V z + b): λ = σ(V tanh(b_x) + b).

    V = ``weight_mm``: every b_x moves every λ, and every row of V its own.
    """
    latent = Cell(layer, _MINIMAL).biases["latent"]
    shown, size = np.tanh(latent.total), latent.total.size
    mixed = layer.real("weight_mm", (size, size))

    def spectra(cell: Cell) -> HiddenSpectra:
        weights, total = cell.hidden["update"], cell.biases["update"].total

        def step(h: Any) -> Any:
            z = h @ weights.T + total
            return sigmoid(z) * h + sigmoid(-z) * shown

        return step_spectra({"state": weights}, step, size)

    def recur(cell: Cell, variant: Variant, seen: Mapping[str, GateInput]) -> Gated:
        plain = mix(cell, variant, seen)
        unit, source = np.indices((size, size))  # of every entry of V
        by_latent = mixed * (1 - shown**2)[source]
        ((role, _, values),) = latent.parts
        slots = (
            Slot(role, values, "update", by_latent, source, unit),
            Slot("weight_mm", mixed, "update", shown[source], eigenvalue=unit),
        )
        return plain._replace(slots=(*plain.slots, *slots))

    return Variant(
        added={"update": mixed @ shown},
        spectra=spectra,
        undriven=NoDrive("its gate sees the input through a tanh, and so has no Gaussian drive"),
        recur=recur,
    )


_RAN = NoDrive(
    "its gates see the tanh of a state that takes in W x without a bound, which no law of gates has"
)
_CFN_DRIVE = NoDrive("its state comes back through a tanh, which no law of gates has")
_STAR_DRIVE = NoDrive("a tanh stands around its new state, which no law of gates has")


class _Own(Struct, frozen=True):
    """One of the cells: its rows, and what it has other than the plain cell."""

    layout: Layout
    variant: Variant | Callable[[Layer], Variant] = PLAIN
    # What else stands in the module, with its rank: H, (H, H), or one number of any rank.
    beside: Mapping[str, int] = {}


_CFN, _MUT1 = ("forget", "input", "new"), ("update", "reset", "new")
_TWO, _GATED = ("input", "forget"), ("new", "gate")
_CELLS = {
    # c' = σ(f) c + σ(i) W x, h = tanh(c).
    "ran": _Own(
        _layout(("new", *_TWO), _TWO, _TWO),
        Variant(spectra=stepped(lambda _, z, c: sigmoid(z["forget"]) * c), undriven=_RAN),
    ),
    "cfn": _Own(_layout(_CFN, _CFN[:2]), Variant(spectra=stepped(_cfn_step), undriven=_CFN_DRIVE)),
    "mut1": _Own(_layout(_MUT1, _MUT1[1:], keeps=False), Variant(spectra=stepped(_mut1_step))),
    # h' = (1-f) h + f tanh(W x + b_x), whose gate f alone sees the state.
    "light_ru": _Own(_layout(_GATED, _GATED[1:], keeps=False)),
    "star": _Own(
        _layout(_GATED, _GATED[1:], keeps=False),
        Variant(spectra=stepped(_star_step), undriven=_STAR_DRIVE, recur=_star),
    ),
    "minimal_rnn": _Own(_MINIMAL, _minimal_rnn, beside={"weight_mm": 2}),
    "fast_grnn": _Own(
        _layout(("shared",), ("shared",), ("gate", "new")),
        lambda layer: _fast_grnn(layer, bent=layer.choose(GATE_FUNCTION) == "tanh"),
        beside={SCALE: 0, FLOOR: 0},
    ),
    "lem": _Own(
        _lem_layout("weight_{}", "bias_{}", ("ih", "hh", "ch"), states=("z", "y")),
        partial(_lem, delayed=True),
    ),
}
# Cells that are stored as those of the library that are read, and are not.
_REFUSED = {"cfn": ("nbr",), "light_ru": ("antisymmetric_rnn",)}


def _matches(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
    matches = []
    for match in hidden_weights(tensors, family):
        weight = match.tensors["weight_hh"]
        if split_hidden_weight(weight)[2]:  # weight_hh_l0 is torch's own
            continue
        names = {**match.tensors, **beside(tensors, weight)}
        if _stored_alike(shapes_of(tensors, names)):
            matches.append(replace(match, tensors=names))
    return matches


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
    """The cell that the user tells, its shapes alone, or the name of the layer or of the file."""
    read = _stored_alike(shapes_of(layer.store.tensors, layer.names))
    cells: tuple[str, ...] = (*read, *_REFUSED.get(read[0], ()))
    weight = layer.names["weight_hh"]
    named, origin = layer.options.assume.get(KEY), "as given"
    if named not in read:
        if len(cells) == 1:
            return cells[0]
        named = named_cell(split_hidden_weight(weight)[0], layer.store.path, cells)
        origin = "by its name"
    if named in read:
        layer.sentences.append(f"{KEY}={named} ({origin}): {MEANING}")
        return named
    alike = " and ".join(title_of(cell) for cell in cells)
    what = f"its shapes are those of torchrecurrent's {alike}, and no name tells which it is"
    if named is not None:
        what = f"its name says {title_of(named)}, a cell of torchrecurrent's that is not read"
    choices = " or ".join(f"{KEY}={cell}" for cell in read)
    raise TensorError(what, where=weight, remedy=f"give --assume {choices} if that is what it is")


def _variant(layer: Layer) -> Variant:
    own = _CELLS[_told(layer)]
    variant = own.variant if isinstance(own.variant, Variant) else own.variant(layer)
    return replace(variant, layout=own.layout)


TORCH_RECURRENT = CellFamily(
    name="torch_recurrent",
    title="RAN, CFN, LightRU, STAR, MUT1, MinimalRNN, FastGRNN, LEM (torchrecurrent)",
    recognised_by=(
        "weight_ih, weight_hh, bias_ih and bias_hh of (3H, 2H), (2H, H) or (4H, 3H) rows, or "
        "weight_mm, or zeta and nu, beside them"
    ),
    equation="λ = σ(b_f), γ = σ(b_i); or λ = 1 - σ(b), γ = σ(b); each cell's own on its page",
    source="torchrecurrent; each cell's paper on the page",
    layouts=tuple(cell.layout for cell in _CELLS.values()),
    matches=_matches,
    variant=_variant,
    assumptions=(Assumption(KEY, "by_name", ("by_name", *_CELLS), MEANING), STEP, GATE_FUNCTION),
)
