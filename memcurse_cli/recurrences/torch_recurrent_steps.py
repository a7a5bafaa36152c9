"""One step of each of torchrecurrent's cells at zero input and state: λ, γ and what moves them.

Where a tanh stands around the new state, its slope at the state that the biases alone lead to is a
factor of λ and of γ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.recurrences.family import Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import (
    GateInput,
    HiddenState,
    NoDrive,
    RowNorms,
    squared_rows,
)
from memcurse_cli.recurrences.gate_functions import Sigmoid
from memcurse_cli.recurrences.gated_cells import jacobian_beyond
from memcurse_cli.recurrences.gated_layer import GateBias, coupled_recurrence, lstm_recurrence
from memcurse_cli.recurrences.reading import read_real, sigmoid
from memcurse_cli.recurrences.recurrence import Floats, HiddenSpectra, ParameterGroup, Recurrence
from memcurse_cli.spectra.eigendecomposition import eigenvalues

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
