"""Cells of torchrecurrent whose shapes are none of torch's: RAN, CFN, MUT1, LightRU and others.

One step of each of torchrecurrent's cells at zero input and state: λ, γ and what moves them.

Where a tanh stands around the new state, its slope at the state that the biases alone lead to is a
factor of λ and of γ.

FastGRNN in torchrecurrent's names, whose gate is by default opened by a tanh.

The long expressive memory in torchrecurrent's names, whose y takes in z as it was a step before.

``z' = (1-Δ) z + Δ tanh(W_z x + U_z y + b_z)``, ``y' = (1-Δ̄) y + Δ̄ tanh(W_y x + V z + b_y)``, rows
Δ̄, Δ, z, y of ``weight_ih`` and Δ̄, Δ, z of ``weight_hh``; V is ``weight_ch``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.cells.fast_grnn import shared_drive
from memcurse_cli.families.cells.gated_layer import (
    GateBias,
    Sigmoid,
    coupled_recurrence,
    jacobian_beyond,
    lstm_recurrence,
)
from memcurse_cli.families.cells.lem import HIDDEN, INPUT, LEM, STEP, TRANSFORM
from memcurse_cli.families.cells.torch_lookalikes import KEY, beside, named_cell, title_of
from memcurse_cli.families.cells.torch_names import hidden_weights, split_hidden_weight
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import (
    GateDrive,
    GateInput,
    HiddenState,
    NoDrive,
    RowNorms,
    squared_rows,
)
from memcurse_cli.families.reading import (
    gain_scalar,
    log_of_eigenvalues,
    log_sigmoid,
    read_real,
    read_vector,
    sigmoid,
)
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, ParameterGroup, Recurrence
from memcurse_cli.theory.gates.laws import FlooredMix, PartialMix
from memcurse_cli.theory.linalg.eigendecomposition import eigenvalues

_RAN_DRIVE = NoDrive(
    "its gates see the tanh of a state that takes in W x without a bound, which no law of gates has"
)
_CFN_DRIVE = NoDrive("its state comes back through a tanh, which no law of gates has")
_STAR_DRIVE = NoDrive("a tanh stands around its new state, which no law of gates has")
_MINIMAL_DRIVE = NoDrive("its gate sees the input through a tanh, and so has no Gaussian drive")


@dataclass(frozen=True)
class Layer:
    """A cell to be read.

    Attributes:
        store: the open checkpoint.
        match: its tensors.
        options: what to read beside the biases.
        family: the name of the family.
        assumptions: what was assumed, one sentence each.
    """

    store: TensorStore
    match: Match
    options: ReadOptions
    family: str
    assumptions: tuple[str, ...]

    @property
    def size(self) -> int:
        """H."""
        return self.store.tensors[self.match.tensors["weight_hh"]].shape[1]

    def bias(self, gate: str, **rows: tuple[str, ...]) -> GateBias:
        """The bias of a gate, of which ``bias_ih`` and ``bias_hh`` have the rows ``ih``, ``hh``."""
        parts = []
        for side, gates in rows.items():
            if gate in gates:
                role, at = f"bias_{side}", gates.index(gate)
                tensor = self.match.tensors[role]
                values = read_real(self.store, tensor, (len(gates) * self.size,))
                block = values[at * self.size : (at + 1) * self.size]
                parts.append((role, tensor, block, self.store.tensors[tensor].dtype))
        return GateBias(np.sum([part[2] for part in parts], axis=0), tuple(parts))

    def weights(self, side: str, rows: tuple[str, ...]) -> dict[str, Floats]:
        """(H, ·) of every gate, of which ``weight_ih`` or ``weight_hh`` has these rows."""
        columns = self.size if side == "hh" else None
        weight = read_real(
            self.store, self.match.tensors[f"weight_{side}"], (len(rows) * self.size, columns)
        )
        return dict(zip(rows, np.split(weight, len(rows)), strict=True))

    def spectra(
        self, rows: tuple[str, ...], jacobian: Callable[[Mapping[str, Floats]], Floats]
    ) -> HiddenSpectra | None:
        """Of the hidden weights, and of one step by them; None where they are not asked for."""
        if not self.options.spectra:
            return None
        weights = self.weights("hh", rows)
        gates = {gate: eigenvalues(weight, self.options.device) for gate, weight in weights.items()}
        beyond = jacobian_beyond(self.size)
        if beyond is not None:
            return HiddenSpectra(gates, None, beyond)
        return HiddenSpectra(gates, eigenvalues(jacobian(weights), self.options.device))

    def undriven(self, reason: NoDrive) -> NoDrive | None:
        """Why there are no figures, where they are asked for."""
        return reason if self.options.gates else None


def read_ran(layer: Layer) -> Recurrence:
    """``c' = σ(f) c + σ(i) W x``, ``h = tanh(c)``: at zero input no hidden weight acts on c."""
    rows = ("input", "forget")
    biases = {gate: layer.bias(gate, ih=rows, hh=rows) for gate in rows}
    kept = sigmoid(biases["forget"].total)
    return _two_gates(layer, biases, layer.spectra(rows, lambda _: np.diag(kept)), _RAN_DRIVE)


def read_cfn(layer: Layer) -> Recurrence:
    """``h' = σ(f) tanh(h) + σ(i) tanh(W x + b)``, with slope 1 of tanh(h) at h = 0."""
    inputs, hidden = ("forget", "input", "new"), ("forget", "input")
    biases = {gate: layer.bias(gate, ih=inputs, hh=hidden) for gate in inputs}
    kept, opened = sigmoid(biases["forget"].total), sigmoid(biases["input"].total)
    slope = opened * sigmoid(-biases["input"].total) * np.tanh(biases["new"].total)

    def jacobian(weights: Mapping[str, Floats]) -> Floats:
        return np.diag(kept) + slope[:, None] * weights["input"]

    return _two_gates(layer, biases, layer.spectra(hidden, jacobian), _CFN_DRIVE)


def _two_gates(
    layer: Layer, biases: Mapping[str, GateBias], hidden: HiddenSpectra | None, reason: NoDrive
) -> Recurrence:
    """λ = σ(b_f) and γ = σ(b_i), as an LSTM's."""
    found = lstm_recurrence(
        layer.match,
        family=layer.family,
        biases=biases,
        function=Sigmoid(),
        hidden=hidden,
        assumptions=layer.assumptions,
    )
    return replace(found, gate=layer.undriven(reason))


def read_mut1(layer: Layer) -> Recurrence:
    """``h' = (1-z) h + z tanh(U (r ∘ h) + tanh(W x + b_x) + b)``, z = σ(W_z x + b_z) alone."""
    inputs, hidden = ("update", "reset", "new"), ("reset", "new")
    update = layer.bias("update", ih=inputs)
    opened = sigmoid(update.total)
    reset = sigmoid(layer.bias("reset", ih=inputs, hh=hidden).total)
    inner, outer = layer.bias("new", ih=inputs).total, layer.bias("new", hh=hidden).total
    candidate = np.tanh(np.tanh(inner) + outer)

    def jacobian(weights: Mapping[str, Floats]) -> Floats:
        shown: Floats = (opened * (1 - candidate**2))[:, None] * weights["new"] * reset
        return shown + np.diag(sigmoid(-update.total))

    seen = None
    if layer.options.gates:
        norms = squared_rows(layer.weights("ih", inputs)["update"])
        seen = GateInput(update.total, RowNorms(norms, np.zeros_like(norms)))
    return _writing(layer, "update", update, layer.spectra(hidden, jacobian), seen, None)


def read_light_ru(layer: Layer) -> Recurrence:
    """``h' = (1-f) h + f tanh(W x + b_x)``, whose gate f alone sees the state."""
    gate, new, candidate, opened = _gate_and_new(layer)

    def jacobian(weights: Mapping[str, Floats]) -> Floats:
        turned = (opened * sigmoid(-gate.total) * candidate)[:, None] * weights["gate"]
        return np.diag(sigmoid(-gate.total)) + turned

    seen = state = None
    if layer.options.gates:
        inputs = {gate: squared_rows(rows) for gate, rows in _input_rows(layer).items()}
        hidden = squared_rows(layer.weights("hh", ("gate",))["gate"])
        seen = GateInput(gate.total, RowNorms(inputs["gate"], hidden))
        state = HiddenState(GateInput(new.total, RowNorms(inputs["new"], np.zeros_like(hidden))))
    return _writing(layer, "gate", gate, layer.spectra(("gate",), jacobian), seen, state)


def _writing(
    layer: Layer,
    name: str,
    gate: GateBias,
    hidden: HiddenSpectra | None,
    seen: GateInput | NoDrive | None,
    state: HiddenState | None,
) -> Recurrence:
    return coupled_recurrence(
        layer.match,
        family=layer.family,
        gate=name,
        bias=gate,
        keeps=False,
        hidden_feedback=True,
        hidden=hidden,
        assumptions=layer.assumptions,
        inputs=seen,
        state=state,
    )


def _input_rows(layer: Layer) -> dict[str, Floats]:
    return layer.weights("ih", ("new", "gate"))


def _gate_and_new(layer: Layer) -> tuple[GateBias, GateBias, Floats, Floats]:
    """Both biases of a LightRU or a STAR, the candidate and how far the gate is open."""
    gate = layer.bias("gate", ih=("new", "gate"), hh=("gate",))
    new = layer.bias("new", ih=("new", "gate"))
    return gate, new, np.tanh(new.total), sigmoid(gate.total)


def read_star(layer: Layer) -> Recurrence:
    """``h' = tanh((1-k) h + k c)``, c = tanh(W x + b_x): λ = (1-k) s, γ = k s, s = sech²(k c).

    With T = tanh(k c): dλ/db_k = -k (1-k) s (1 + 2T (1-k) c), d log γ/db_k = (1-k) (1 - 2T k c),
    and both logarithms have the slope -2T k (1 - c²) by b_x.
    """
    gate, new, candidate, opened = _gate_and_new(layer)
    shut = sigmoid(-gate.total)
    plain = _writing(layer, "gate", gate, None, layer.undriven(_STAR_DRIVE), None)
    bent = np.tanh(opened * candidate)
    log_slope = -2 * np.log(np.cosh(opened * candidate))
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

    def jacobian(weights: Mapping[str, Floats]) -> Floats:
        turned: Floats = (slope * opened * shut * candidate)[:, None] * weights["gate"]
        return turned + np.diag(slope * shut)

    return replace(
        plain,
        log_eigenvalues=plain.log_eigenvalues + log_slope,
        log_gain=plain.log_gain + log_slope,
        parameters=groups,
        hidden=layer.spectra(("gate",), jacobian),
    )


def read_minimal_rnn(layer: Layer) -> Recurrence:
    """``h' = u h + (1-u) z``, z = tanh(W x + b_x), u = σ(U h + V z + b): λ = σ(V tanh(b_x) + b).

    V = ``weight_mm``: every b_x moves every λ, and every row of V its own.
    """
    size, rows = layer.size, ("state",)
    own, latent = layer.bias("state", hh=rows), layer.bias("state", ih=rows)
    tensor = layer.match.tensors["weight_mm"]
    mixed = read_real(layer.store, tensor, (size, size))
    shown = np.tanh(latent.total)
    total = mixed @ shown + own.total
    kept, lost = sigmoid(total), sigmoid(-total)
    found = coupled_recurrence(
        layer.match,
        family=layer.family,
        gate="update",
        bias=GateBias(total, own.parts),
        keeps=True,
        hidden_feedback=True,
        hidden=layer.spectra(
            rows,
            lambda weights: np.diag(kept) - (kept * lost * shown)[:, None] * weights["state"],
        ),
        assumptions=layer.assumptions,
        inputs=layer.undriven(_MINIMAL_DRIVE),
    )
    unit = np.repeat(np.arange(size), size)  # of every entry of V, row by row
    source = np.tile(np.arange(size), size)
    role, held, values, dtype = latent.parts[0]
    by_latent = mixed.ravel() * (1 - shown**2)[source]
    by_weight = shown[source]

    def group(
        name: str, at: tuple[str, str], values: Floats, scalar: np.ndarray, moved: Floats
    ) -> ParameterGroup:
        return ParameterGroup(
            name=name,
            tensor=at[0],
            values=values,
            dtype=at[1],
            scalar=scalar,
            eigenvalue=unit,
            eigenvalue_derivative=((kept * lost)[unit] * moved).astype(np.complex128),
            log_gain_derivative=(-kept[unit] * moved).astype(np.complex128),
        )

    entries = np.arange(size * size)
    weight = (tensor, layer.store.tensors[tensor].dtype)
    return replace(
        found,
        parameters=(
            *found.parameters,
            group(role, (held, dtype), values, source, by_latent),
            group("weight_mm", weight, mixed.ravel(), entries, by_weight),
        ),
    )


GATE_FUNCTION = Assumption(
    key="gate_activation",
    default="tanh",
    choices=("tanh", "sigmoid"),
    meaning="what opens the gate of a FastGRNN of torchrecurrent",
)
SCALE, FLOOR = "zeta", "nu"
_FAST_ROWS = ("gate", "new")
_UNLAWFUL = NoDrive("a tanh opens its gate, which no law of gates has")


def read_fast_grnn(layer: Layer) -> Recurrence:
    """``h' = g h + (σ(ζ)(1-g) + σ(ν)) tanh(u + b_h)``, ``g = a(u + b_g)``, ``u = W x + U h``.

    λ = a(b_g) and γ = σ(ζ)(1-λ) + σ(ν). The library's default for a is a tanh, which makes λ
    negative where b_g is; that of the paper is σ.

    Raises:
        TensorError: NaN or inf in what is read, or shapes that do not fit together.
    """
    assumed = Assumed(layer.options)
    bent = assumed.choose(GATE_FUNCTION) == "tanh"
    gate, new = (layer.bias(one, ih=_FAST_ROWS, hh=_FAST_ROWS) for one in _FAST_ROWS)
    scale, floor = (read_vector(layer.store, layer.match.tensors[at], 1) for at in (SCALE, FLOOR))
    # 1 - tanh(b) = 2σ(-2b), without cancellation.
    stretch = 2.0 if bent else 1.0
    lost = stretch * sigmoid(-stretch * gate.total)
    kept: Floats = np.tanh(gate.total) if bent else sigmoid(gate.total)
    slope = lost * stretch * sigmoid(stretch * gate.total)
    opened = sigmoid(scale)
    log_lost = np.log(stretch) + log_sigmoid(-stretch * gate.total)
    log_gain = np.logaddexp(log_sigmoid(scale) + log_lost, log_sigmoid(floor))
    gain = np.exp(log_gain)

    def jacobian(weights: Mapping[str, Floats]) -> Floats:
        candidate = np.tanh(new.total)
        shown = gain * (1 - candidate**2) - opened * slope * candidate
        turned: Floats = shown[:, None] * weights["shared"]
        return turned + np.diag(kept)

    return Recurrence(
        name=layer.match.layer,
        family=layer.family,
        tensors=tuple(layer.match.tensors.values()),
        log_eigenvalues=log_of_eigenvalues(kept)
        if bent
        else log_sigmoid(gate.total).astype(np.complex128),
        log_gain=log_gain.astype(np.complex128),
        parameters=(
            *gate.groups("gate", slope, -opened * slope / gain),
            _scalar(layer, SCALE, scale, opened * sigmoid(-scale) * lost / gain),
            _scalar(layer, FLOOR, floor, sigmoid(floor) * sigmoid(-floor) / gain),
        ),
        input_dependent=True,
        stable_by_construction=True,
        assumptions=(*layer.assumptions, *assumed.sentences),
        hidden_feedback=True,
        hidden=layer.spectra(("shared",), jacobian),
        gate=_fast_drive(layer, gate, new, scale, floor) if not bent else layer.undriven(_UNLAWFUL),
    )


def _scalar(layer: Layer, role: str, value: Floats, log_gain_slope: Floats) -> ParameterGroup:
    tensor = layer.match.tensors[role]
    return gain_scalar(role, tensor, value, layer.store.tensors[tensor].dtype, log_gain_slope)


def _fast_drive(
    layer: Layer, gate: GateBias, new: GateBias, scale: Floats, floor: Floats
) -> GateDrive | None:
    """What W and U show to the gate and, with another bias, to the candidate."""
    if not layer.options.gates:
        return None
    inputs, hidden = (
        squared_rows(layer.weights(side, ("shared",))["shared"]) for side in ("ih", "hh")
    )
    return shared_drive(
        FlooredMix(float(scale[0]), float(floor[0]), "gate", SCALE, FLOOR),
        RowNorms(inputs, hidden),
        gate.total,
        new.total,
        {f"{role}[gate]": ("gate", 1.0) for role, *_ in gate.parts}
        | {role: (role, 1.0) for role in (SCALE, FLOOR)},
    )


_LEM_ROWS = {"ih": ("step of y", "step of z", "z", "y"), "hh": ("step of y", "step of z", "z")}
_LINEARS = {"ih": INPUT, "hh": HIDDEN, "ch": TRANSFORM}


def read_lem(layer: Layer) -> Recurrence:
    """λ = 1 - dt σ(b) as in the authors' code, whose three linears have other names.

    Raises:
        TensorError: NaN or inf in what is read, or shapes that do not fit together.
        UsageError: dt is not in (0, 1].
    """
    roles = {
        f"{linear}.{part}": layer.match.tensors[f"{part}_{side}"]
        for side, linear in _LINEARS.items()
        for part in ("weight", "bias")
    }
    options = layer.options
    found = LEM().read(
        layer.store,
        Match(layer.match.layer, roles),
        ReadOptions(device=options.device, assume=options.assume),
    )
    groups = tuple(
        replace(group, name=f"{role}[steps]")
        for group, role in zip(found.parameters, ("bias_ih", "bias_hh"), strict=True)
    )
    found = replace(
        found,
        family=layer.family,
        tensors=tuple(layer.match.tensors.values()),
        parameters=groups,
        assumptions=(*layer.assumptions, *found.assumptions),
    )
    if not (options.spectra or options.gates):
        return found
    step = float(Assumed(options).choose(STEP))
    biases = {gate: layer.bias(gate, **_LEM_ROWS).total for gate in _LEM_ROWS["ih"]}
    tensor = layer.match.tensors["bias_ch"]
    biases["y"] = biases["y"] + read_real(layer.store, tensor, (layer.size,))
    weights = layer.weights("hh", _LEM_ROWS["hh"])
    weights["y"] = read_real(
        layer.store, layer.match.tensors["weight_ch"], (layer.size, layer.size)
    )
    return replace(
        found,
        hidden=_spectra(layer, step, biases, weights) if options.spectra else None,
        gate=_lem_drive(layer, step, biases, weights) if options.gates else None,
    )


def _lem_drive(
    layer: Layer, step: float, biases: Mapping[str, Floats], weights: Mapping[str, Floats]
) -> GateDrive:
    inputs = {
        gate: squared_rows(rows) for gate, rows in layer.weights("ih", _LEM_ROWS["ih"]).items()
    }

    def seen(*gates: str) -> GateInput:
        norms = RowNorms(
            np.concatenate([inputs[gate] for gate in gates]),
            np.concatenate([squared_rows(weights[gate]) for gate in gates]),
        )
        return GateInput(np.concatenate([biases[gate] for gate in gates]), norms)

    return GateDrive(
        law=PartialMix(step, "steps"),
        gate=seen("step of y", "step of z"),
        state=HiddenState(seen("y", "z"), cascade=layer.size),
        motions={f"bias_{side}[steps]": ("steps", 1.0) for side in ("ih", "hh")},
    )


def _spectra(
    layer: Layer, step: float, biases: Mapping[str, Floats], weights: Mapping[str, Floats]
) -> HiddenSpectra:
    """Of every matrix, and of one step of (y, z)."""
    device = layer.options.device
    gates = {gate: eigenvalues(weight, device) for gate, weight in weights.items()}
    beyond = jacobian_beyond(2 * layer.size)
    if beyond is not None:
        return HiddenSpectra(gates, None, beyond)
    slow, fast = biases["step of y"], biases["step of z"]
    y, z = np.tanh(biases["y"]), np.tanh(biases["z"])
    slow_step, fast_step = step * sigmoid(slow), step * sigmoid(fast)
    y_by_y = (
        np.diag(1 - slow_step) + (slow_step * sigmoid(-slow) * y)[:, None] * weights["step of y"]
    )
    y_by_z = (slow_step * (1 - y**2))[:, None] * weights["y"]
    z_by_y = (fast_step * (1 - z**2))[:, None] * weights["z"]
    z_by_y += (fast_step * sigmoid(-fast) * z)[:, None] * weights["step of z"]
    jacobian = np.block([[y_by_y, y_by_z], [z_by_y, np.diag(1 - fast_step)]])
    return HiddenSpectra(gates, eigenvalues(jacobian, device))


READERS = {
    "ran": read_ran,
    "cfn": read_cfn,
    "mut1": read_mut1,
    "light_ru": read_light_ru,
    "star": read_star,
    "minimal_rnn": read_minimal_rnn,
    "fast_grnn": read_fast_grnn,
    "lem": read_lem,
}
_ROLES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
CELL = Assumption(
    key=KEY,
    default="by_name",
    choices=("by_name", *READERS),
    meaning="which of the cells that are stored alike it is",
)


@dataclass(frozen=True)
class _Kind:
    """Cells that are stored alike.

    Attributes:
        blocks: the rows of `_ROLES` in units of H.
        beside: what else stands in the module, with its rank: H, (H, H), or one number of any rank.
        read: the keys of those that are read.
        refused: of those that are not.
    """

    blocks: tuple[int, ...]
    read: tuple[str, ...]
    refused: tuple[str, ...] = ()
    beside: tuple[tuple[str, int], ...] = ()


_KINDS = (
    _Kind((3, 2, 2, 2), ("ran",)),
    _Kind((3, 2, 3, 2), ("cfn", "mut1"), ("nbr",)),
    _Kind((2, 1, 2, 1), ("light_ru", "star"), ("antisymmetric_rnn",)),
    _Kind((1, 1, 1, 1), ("minimal_rnn",), beside=(("weight_mm", 2),)),
    _Kind((1, 1, 2, 2), ("fast_grnn",), beside=((SCALE, 0), (FLOOR, 0))),
    _Kind((4, 3, 4, 3), ("lem",), beside=(("weight_ch", 2), ("bias_ch", 1))),
)


class TorchRecurrent:
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
    assumptions: tuple[Assumption, ...] = (CELL, STEP, GATE_FUNCTION)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with both weights and both biases, of the rows of one kind of cell."""
        matches = []
        for weight in hidden_weights(tensors):
            names = dict(weight.tensors)
            if split_hidden_weight(names["weight_hh"])[2]:  # weight_hh_l0 is torch's own
                continue
            names |= beside(tensors, names["weight_hh"])
            if _kind({role: tensors[name].shape for role, name in names.items()}) is not None:
                matches.append(Match(weight.layer or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the weights that act at zero input or are asked for.

        Raises:
            TensorError: NaN or inf in what is read, or a cell that is not read, or not told.
        """
        kind = _kind({role: store.tensors[name].shape for role, name in match.tensors.items()})
        assert kind is not None  # a layer of no kind is not found
        cell, assumptions = _cell(kind, store, match, options)
        return READERS[cell](Layer(store, match, options, self.name, assumptions))


def _kind(shapes: Mapping[str, tuple[int, ...]]) -> _Kind | None:
    """The kind whose tensors are there, and no more than these."""
    if not shapes.keys() >= set(_ROLES) or len(shapes["weight_hh"]) != 2:
        return None
    size = shapes["weight_hh"][1]
    for kind in _KINDS:
        own = dict(kind.beside)
        expected = {role: (rows * size,) for role, rows in zip(_ROLES, kind.blocks, strict=True)}
        if (
            size > 0
            and all(shapes[role][:1] == rows for role, rows in expected.items())
            and shapes.keys() == {*_ROLES, *own}
            and all(
                shapes[role] == (size,) * rank if rank else prod(shapes[role]) == 1
                for role, rank in own.items()
            )
        ):
            return kind
    return None


def _cell(
    kind: _Kind, store: TensorStore, match: Match, options: ReadOptions
) -> tuple[str, tuple[str, ...]]:
    """The cell that the user, the name or its shapes alone tell, and what that assumes."""
    given = options.assume.get(KEY)
    if given in kind.read:
        return given, (f"{KEY}={given} (as given): {CELL.meaning}",)
    cells = (*kind.read, *kind.refused)
    if len(cells) == 1:
        return cells[0], ()
    weight = match.tensors["weight_hh"]
    named = named_cell(split_hidden_weight(weight)[0], store.path, cells)
    if named in kind.read:
        return named, (f"{KEY}={named} (by its name): {CELL.meaning}",)
    alike = " and ".join(title_of(cell) for cell in cells)
    what = f"its shapes are those of torchrecurrent's {alike}, and no name tells which it is"
    if named is not None:
        what = f"its name says {title_of(named)}, a cell of torchrecurrent's that is not read"
    choices = " or ".join(f"{KEY}={cell}" for cell in kind.read)
    raise TensorError(what, where=weight, remedy=f"give --assume {choices} if that is what it is")
