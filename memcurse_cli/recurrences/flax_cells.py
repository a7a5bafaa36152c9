"""The recurrent cells of Flax, linen and nnx: LSTM, GRU, MGU and the simple cell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.dense_layer import dense_recurrence
from memcurse_cli.recurrences.dense_rnn import ACTIVATION
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import RowNorms, row_norms
from memcurse_cli.recurrences.gate_functions import Sigmoid
from memcurse_cli.recurrences.gated_cells import gru_spectra, lstm_spectra
from memcurse_cli.recurrences.gated_layer import gru_recurrence, lstm_recurrence
from memcurse_cli.recurrences.reading import group_by_module, read_real
from memcurse_cli.recurrences.recurrence import Floats, Recurrence
from memcurse_cli.recurrences.torch_names import GateBias

RESIDUAL = Assumption(
    key="residual",
    default="no",
    choices=("no", "yes"),
    meaning="whether a SimpleCell of Flax adds its state before the activation",
)
# Where each gate's columns stand in nnx's fused kernels.
FUSED_KERNEL, FUSED_INPUT = "dense_h.kernel", "dense_i.kernel"
FUSED_BIASES = ("dense_h.bias", "dense_i.bias")
_LAYER = re.compile(r"\[(\d+)\]$")


@dataclass(frozen=True)
class _Layout:
    """The names of a cell's gates.

    Attributes:
        gates: by gate, the linen modules of its input and of its hidden side.
        fused: the gates in the order of nnx's fused columns; none where it has no such cell.
        foreign: hidden modules that only other cells have.
    """

    gates: Mapping[str, tuple[str, str]]
    fused: tuple[str, ...]
    foreign: tuple[str, ...] = ()

    def roles(self) -> tuple[str, ...]:
        """Every name that a tensor of the cell, or of one that it is told from, may have."""
        modules = {name for pair in self.gates.values() for name in pair}
        # `if` is a keyword, so that nnx's attribute is called if_.
        modules |= {f"{name}_" for name in modules if name == "if"} | {*self.foreign}
        named = [f"{name}.{part}" for name in sorted(modules) for part in ("kernel", "bias")]
        return (*named, FUSED_KERNEL, FUSED_INPUT, *FUSED_BIASES)


LSTM = _Layout(
    {"input": ("ii", "hi"), "forget": ("if", "hf"), "cell": ("ig", "hg"), "output": ("io", "ho")},
    ("input", "forget", "cell", "output"),
)
GRU = _Layout(
    {"reset": ("ir", "hr"), "update": ("iz", "hz"), "new": ("in", "hn")},
    ("reset", "update", "new"),
)
MGU = _Layout({"update": ("if", "hf"), "new": ("in", "hn")}, (), ("hi", "hr", "hz"))
SIMPLE = _Layout({"state": ("i", "h")}, ("state",))


def _matches(tensors: Mapping[str, TensorSpec], layout: _Layout, family: str) -> list[Match]:
    found = []
    for module, named in group_by_module(tensors, layout.roles()).items():
        names = {role.replace("if_.", "if."): name for role, name in named.items()}
        if any(f"{name}.kernel" in names for name in layout.foreign):
            continue
        sides = [f"{side}.kernel" for pair in layout.gates.values() for side in pair]
        gates = len(layout.fused)
        if all(role in names for role in sides):
            shapes = [
                tensors[names[f"{hidden}.kernel"]].shape for _, hidden in layout.gates.values()
            ]
            columns = 1
        elif gates and {FUSED_KERNEL, FUSED_INPUT} <= names.keys():
            shapes, columns = [tensors[names[FUSED_KERNEL]].shape], gates
        else:
            continue
        (shape, *others) = shapes
        square = len(shape) in (2, 3) and shape[-1] == columns * shape[-2] > 0
        if not square or any(other != shape for other in others):
            continue
        name = module or family
        # nn.scan stacks the layers of a network along a leading axis.
        layers = [f"{name}[{i}]" for i in range(shape[0])] if len(shape) == 3 else [name]
        found += [Match(layer, names) for layer in layers]
    return found


class _Cell:
    """The tensors of one cell, of one layer where several are stacked."""

    def __init__(self, store: TensorStore, match: Match, layout: _Layout) -> None:
        self._store, self._match, self._layout = store, match, layout
        self._fused = not any(f"{h}.kernel" in match.tensors for _, h in layout.gates.values())
        first = FUSED_KERNEL if self._fused else f"{next(iter(layout.gates.values()))[1]}.kernel"
        shape = store.tensors[match.tensors[first]].shape
        self.size = shape[-2]
        index = _LAYER.search(match.layer)
        self._layers = shape[0] if len(shape) == 3 and index else None
        self._layer = int(index[1]) if index else 0

    def read(self, role: str, shape: tuple[int | None, ...]) -> Floats:
        """One tensor of the layer.

        Raises:
            TensorError: NaN or inf in it, or another shape.
        """
        tensor = self._match.tensors[role]
        if self._layers is None:
            return read_real(self._store, tensor, shape)
        layers = read_real(self._store, tensor, (self._layers, *shape))
        return np.asarray(layers[self._layer])

    def weights(self) -> dict[str, Floats]:
        """(H, H) of each gate, row = target; Flax multiplies from the right."""
        if self._fused:
            gates = self._layout.fused
            kernel = self.read(FUSED_KERNEL, (self.size, len(gates) * self.size))
            parts = np.split(kernel, len(gates), axis=1)
            return {gate: part.T for gate, part in zip(gates, parts, strict=True)}
        return {
            gate: self.read(f"{hidden}.kernel", (self.size, self.size)).T
            for gate, (_, hidden) in self._layout.gates.items()
        }

    def input_weights(self) -> dict[str, Floats]:
        """(H, inputs) of each gate, row = target."""
        if self._fused:
            gates = self._layout.fused
            kernel = self.read(FUSED_INPUT, (None, len(gates) * self.size))
            parts = np.split(kernel, len(gates), axis=1)
            return {gate: part.T for gate, part in zip(gates, parts, strict=True)}
        return {
            gate: self.read(f"{side}.kernel", (None, self.size)).T
            for gate, (side, _) in self._layout.gates.items()
        }

    def norms(self, options: ReadOptions) -> dict[str, RowNorms] | None:
        """Those of both sides of each gate, where they are asked for."""
        return row_norms(self.input_weights(), self.weights()) if options.gates else None

    def biases(self) -> dict[str, GateBias]:
        """The biases of every gate, summed over both sides."""
        found: dict[str, list[tuple[str, str, Floats, str]]] = {g: [] for g in self._layout.gates}
        if self._fused:
            gates = self._layout.fused
            for role in FUSED_BIASES:
                if role in self._match.tensors:
                    parts = np.split(self.read(role, (len(gates) * self.size,)), len(gates))
                    for gate, part in zip(gates, parts, strict=True):
                        found[gate].append(self._part(role, part))
        else:
            for gate, sides in self._layout.gates.items():
                for side in sides:
                    role = f"{side}.bias"
                    if role in self._match.tensors:
                        found[gate].append(self._part(role, self.read(role, (self.size,))))
        return {
            gate: GateBias(np.sum([np.zeros(self.size), *(p[2] for p in parts)], 0), tuple(parts))
            for gate, parts in found.items()
        }

    def inner_bias(self, role: str) -> Floats:
        """The bias of the candidate that the reset gate multiplies."""
        return self.read(role, (self.size,)) if role in self._match.tensors else np.zeros(self.size)

    def _part(self, role: str, values: Floats) -> tuple[str, str, Floats, str]:
        tensor = self._match.tensors[role]
        return role, tensor, values, self._store.tensors[tensor].dtype


class FlaxLSTM:
    """``c' = σ(f) c + σ(i) tanh(g)``: λ = σ(b_f), γ = σ(b_i); one bias, on the hidden side."""

    name = "flax_lstm"
    title = "Flax LSTM"
    recognised_by = "hi, hf, hg, ho beside ii, if, ig, io; or dense_h (H, 4H) beside dense_i"
    equation = "λ = σ(b_f), γ = σ(b_i), fused columns i, f, g, o"
    source = "flax.linen and flax.nnx LSTMCell and OptimizedLSTMCell; Gers et al. 2000"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cells of four gates."""
        return _matches(tensors, LSTM, self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the hidden kernels where their spectra are asked for.

        Raises:
            TensorError: NaN or inf in what is read, or another shape.
        """
        cell = _Cell(store, match, LSTM)
        biases = cell.biases()
        hidden = None
        if options.spectra:
            totals = {gate: bias.total for gate, bias in biases.items()}
            hidden = lstm_spectra(
                cell.weights(), totals, None, options.device, inputs=cell.input_weights()
            )
        return lstm_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            hidden=hidden,
            norms=cell.norms(options),
        )


class FlaxGRU:
    """``h' = σ(z) h + (1 - σ(z)) tanh(n)``: λ = σ(b_z), γ = 1 - λ.

    linen has the biases of r and z on the input side alone, and a second one of n inside the reset
    gate; nnx has all three on the input side.
    """

    name = "flax_gru"
    title = "Flax GRU"
    recognised_by = "hr, hz, hn beside ir, iz, in; or dense_h (H, 3H) beside dense_i"
    equation = "λ = σ(b_z), γ = 1 - λ, fused columns r, z, n"
    source = "flax.linen and flax.nnx GRUCell; Cho et al. 2014"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cells of three gates."""
        return _matches(tensors, GRU, self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the hidden kernels where their spectra are asked for.

        Raises:
            TensorError: NaN or inf in what is read, or another shape.
        """
        cell = _Cell(store, match, GRU)
        biases = cell.biases()
        hidden = None
        if options.spectra:
            totals = {gate: bias.total for gate, bias in biases.items()}
            inner = cell.inner_bias("hn.bias")
            totals["new"] = totals["new"] - inner
            hidden = gru_spectra(
                cell.weights(), totals, inner, options.device, cell.input_weights()
            )
        return gru_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            hidden=hidden,
            norms=cell.norms(options),
        )


class FlaxMGU:
    """``h' = σ(f) h + (1 - σ(f)) tanh(n)``: λ = σ(b_f), γ = 1 - λ; f is the reset gate as well."""

    name = "flax_mgu"
    title = "Flax MGU (minimal gated unit)"
    recognised_by = "hf, hn beside if, in, and no other gate"
    equation = "λ = σ(b_f), γ = 1 - λ"
    source = "flax.linen.MGUCell; Zhou et al. 2016, arXiv 1603.09420"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cells of one gate and a candidate."""
        return _matches(tensors, MGU, self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the hidden kernels where their spectra are asked for.

        Raises:
            TensorError: NaN or inf in what is read, or another shape.
        """
        cell = _Cell(store, match, MGU)
        biases = cell.biases()
        hidden = None
        if options.spectra:
            # A GRU whose two gates are one.
            inner = cell.inner_bias("hn.bias")
            weights = cell.weights()
            totals = {gate: bias.total for gate, bias in biases.items()}
            totals = totals | {"reset": totals["update"], "new": totals["new"] - inner}
            weights["reset"] = weights["update"]
            hidden = gru_spectra(weights, totals, inner, options.device)
        return gru_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            hidden=hidden,
            norms=cell.norms(options),
        )


class FlaxSimpleCell:
    """``h' = φ(h K_h + x K_i + b)``: A = K_hᵀ, B = K_iᵀ, and A = K_hᵀ + I with ``residual``.

    Linearised with slope 1; biases do not matter to the linear theory.
    """

    name = "flax_simple"
    title = "Flax SimpleCell (dense)"
    recognised_by = "h (H, H) beside i (inputs, H); or dense_h (H, H) beside dense_i"
    equation = "λ = eig(kernelᵀ), plus 1 where residual=yes"
    source = "flax.linen and flax.nnx SimpleCell; Elman 1990"
    assumptions: tuple[Assumption, ...] = (ACTIVATION, RESIDUAL)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cells without gates."""
        return _matches(tensors, SIMPLE, self.name)

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the kernels and decompose the hidden one.

        Raises:
            TensorError: NaN or inf, or kernels whose shapes do not fit together.
        """
        cell = _Cell(store, match, SIMPLE)
        assumed = Assumed(options)
        activation = assumed.choose(ACTIVATION)
        matrix = cell.weights()["state"]
        if assumed.choose(RESIDUAL) == "yes":
            matrix = matrix + np.eye(cell.size)
        role = "h.kernel" if "h.kernel" in match.tensors else FUSED_KERNEL
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=matrix,
            tensor=match.tensors[role],
            activation=activation,
            device=options.device,
            readin=cell.input_weights()["state"].astype(np.complex128),
            assumptions=tuple(assumed.sentences),
        )
