"""The mLSTM and the sLSTM of xLSTM, Beck et al. 2024, arXiv 2405.04517: exponential gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.assumptions import Assumed
from memcurse_cli.families.cells.gated_layer import LARGEST_JACOBIAN
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, GateInput, HiddenState, RowNorms
from memcurse_cli.families.gate_weights import projected_gate
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside
from memcurse_cli.families.reading import (
    element_count,
    read_real,
    read_vector,
    rows_per,
    shown_shape,
    sigmoid,
)
from memcurse_cli.families.recurrence import Complexes, Floats, HiddenSpectra, Recurrence
from memcurse_cli.families.selective.law import Seen, Slot, law_recurrence, layers_with
from memcurse_cli.theory.gates.laws import LOGISTIC, CappedLogistic, Exponential, Keep, Write
from memcurse_cli.theory.linalg import eigenvalues

GATE_SOFT_CAP = Assumption(
    key="gate_soft_cap",
    default="15",
    choices=(),
    meaning="c of the soft cap c tanh(b/c) on the gates of a large xLSTM; 0 for none",
    config_keys=("gate_soft_cap",),
)

_LARGE = ("igate_preact.bias", "fgate_preact.bias")
_FUSED = "ifgate_preact.bias"
_BLOCK = ("igate.bias", "fgate.bias", "fgate.weight", "outnorm.weight")
_SHAPES = ("k.weight", "v.weight", "qkv_opreact.weight", "out_proj.weight")


class MLSTM:
    """``C[t] = σ(f) C[t-1] + e^i v kᵀ``: λ = σ(b_f) and γ = e^{b_i}, one of each per head.

    The large model (transformers' xlstm and NX-AI's xlstm_large) passes both pre-activations
    through ``c tanh(b/c)``; the block stack does not. The state is carried divided by e^m for its
    range, which cancels against the normaliser. Gates stand at zero input.
    """

    name = "mlstm"
    title = "mLSTM (xLSTM)"
    recognised_by = (
        "igate_preact.bias and fgate_preact.bias, or ifgate_preact.bias; or igate.bias, fgate.bias"
        " (heads) beside fgate.weight (heads, 3 D) and outnorm.weight (D)"
    )
    equation = "λ = σ(cap b_f), γ = e^(cap b_i); cap b = 15 tanh(b/15), or b in block stacks"
    source = "transformers and xlstm; Beck et al. 2024, arXiv 2405.04517"
    assumptions = (GATE_SOFT_CAP,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with both gates' biases under the names of the large model or the block stack."""
        matches = []
        roles = (*_LARGE, _FUSED, *_BLOCK, *_SHAPES)
        for module, names in group_by_module(tensors, roles).items():
            if names.keys() >= set(_BLOCK):
                weight, norm = (tensors[names[role]].shape for role in _BLOCK[2:])
                if len(weight) != 2 or len(norm) != 1 or weight[1] != 3 * norm[0]:
                    continue
            elif not (names.keys() >= set(_LARGE) or _FUSED in names):
                continue
            matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases of the input and the forget gate.

        Raises:
            TensorError: NaN or inf, or biases of different sizes.
        """
        names, assumed = match.tensors, Assumed(options, store.config)
        if _FUSED in names:
            tensors = names[_FUSED], names[_FUSED]
            heads = element_count(store.tensors[tensors[0]]) // 2
            both = read_vector(store, tensors[0], 2 * heads)
            opened, forget = both[:heads], both[heads:]
            labels = f"{_FUSED}[input]", f"{_FUSED}[forget]"
            rows: tuple[slice | None, slice | None] = slice(heads), slice(heads, None)
        else:
            labels = _LARGE if _LARGE[0] in names else _BLOCK[:2]
            tensors = names[labels[0]], names[labels[1]]
            forget = read_vector(store, tensors[1])
            opened = read_vector(store, tensors[0], forget.size)
            rows = None, None
        block = "fgate.bias" in names
        cap: float | None = None if block else float(assumed.choose(GATE_SOFT_CAP))
        cap = cap if cap is not None and 0 < cap < np.inf else None

        def gates() -> Seen:
            opens, forgets = (
                projected_gate(
                    store,
                    bias,
                    beside(store, tensor, f"{label.split('bias')[0]}weight", above=1),
                    rows=part,
                )
                for bias, tensor, label, part in zip(
                    (opened, forget), tensors, labels, rows, strict=True
                )
            )
            return forgets, opens

        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Keep(LOGISTIC if cap is None else CappedLogistic(cap)),
            at=forget,
            slots=[
                Slot(labels[1], tensors[1], forget, "forget"),
                Slot(labels[0], tensors[0], opened, "input"),
            ],
            gates=gates,
            write=Write(Exponential(cap)),
            write_at=opened,
            sees="the queries, keys and values" if block else "the layer's input",
            multiplicity=_multiplicity(store, names, forget.size),
            assumptions=assumed.sentences,
        )


def _multiplicity(store: TensorStore, names: Mapping[str, str], heads: int) -> int:
    """Key dimension × value dimension of a head, from the shapes of the projections."""
    if "outnorm.weight" in names:
        return rows_per(store, names["outnorm.weight"], heads) ** 2
    if "qkv_opreact.weight" in names and "out_proj.weight" in names:
        # Queries, keys, values and output gate in one projection, whose values out_proj reads.
        rows = rows_per(store, names["qkv_opreact.weight"], 1)
        values = store.tensors[names["out_proj.weight"]].shape[-1:]
        return max((rows // 2 - sum(values)) // heads * (sum(values) // heads), 1)
    keys, values_of_head = (rows_per(store, names.get(role), heads) for role in _SHAPES[:2])
    return keys * values_of_head


GATES = ("input", "forget", "cell", "output")
BIAS, KERNEL = "_bias_", "_recurrent_kernel_"
# The layer gives what its modules igate and fgate put out to the other slot of the cell.
_PROJECTIONS = ("fgate.weight", "igate.weight", "zgate.weight", "ogate.weight")

_NOMINAL = "the gates stand at zero input and zero state, where only their biases are left"


class SLSTM:
    """``c[t] = σ(f) c[t-1] + e^i tanh(z)``, and the same for the normaliser n: λ = σ(b_f).

    γ = e^{b_i}. The bias holds the gates i, f, z, o as [gate, head, unit] in the ``vanilla``
    backend and as [head, gate, unit] in the ``cuda`` one, told apart by the recurrent kernel:
    (heads, 4 units, units) or (heads, units, 4 units). The input projections of the layer are
    named the other way round (``igate`` feeds f and ``fgate`` feeds i), which matters only away
    from zero input; the bias is in the order of the cell.
    """

    name = "slstm"
    title = "sLSTM (xLSTM)"
    recognised_by = "_bias_ beside _recurrent_kernel_"
    equation = "λ = σ(b_f), γ = e^b_i, gates in the order i, f, z, o"
    source = "xlstm; Beck et al. 2024, arXiv 2405.04517"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the cell's bias and its recurrent kernel of three dimensions."""
        return layers_with(
            tensors, self.name, (BIAS, KERNEL), fits=lambda shapes: len(shapes[KERNEL]) == 3
        )

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias, and the kernel and the projections where what they do is asked for.

        Raises:
            TensorError: NaN or inf, or shapes that fit neither backend.
        """
        tensor, kernel = match.tensors[BIAS], match.tensors[KERNEL]
        heads, *inner = store.tensors[kernel].shape
        units = min(inner)
        if not heads or not units or max(inner) != len(GATES) * units:
            raise TensorError(
                f"its shape {shown_shape(store.tensors[kernel].shape)} is neither (heads, 4 units,"
                " units) nor (heads, units, 4 units)",
                where=kernel,
                remedy="name the right family with --family, or export the layer again",
            )
        bias = read_vector(store, tensor, len(GATES) * heads * units)
        by_gate = (
            bias.reshape(heads, len(GATES), units).swapaxes(0, 1)  # cuda
            if inner[0] == units
            else bias.reshape(len(GATES), heads, units)  # vanilla
        )
        opened, forget, *_ = by_gate.reshape(len(GATES), -1)
        inputs = _inputs(store, kernel, by_gate) if options.gates else None
        recurrence = law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Keep(),
            at=forget,
            slots=[
                Slot(f"{BIAS}[forget]", tensor, forget, "forget"),
                Slot(f"{BIAS}[input]", tensor, opened, "input"),
            ],
            gates=lambda: None if inputs is None else (inputs["forget"], inputs["input"]),
            write=Write(Exponential()),
            write_at=opened,
            sees="what igate, fgate, zgate and ogate see",
            multiplicity=2,  # the cell and its normaliser
            assumptions=(_NOMINAL,),
        )
        gate = recurrence.gate
        if inputs is not None and isinstance(gate, GateDrive):
            state = HiddenState(inputs["cell"], output=inputs["output"], averaged=True)
            gate = replace(gate, state=state)
        hidden = _spectra(store, kernel, by_gate, options.device) if options.spectra else None
        return replace(recurrence, hidden_feedback=True, hidden=hidden, gate=gate)


def _kernel(store: TensorStore, kernel: str, heads: int, units: int) -> Floats:
    """[gate, head, target, source] of either backend."""
    shape = store.tensors[kernel].shape
    values = read_real(store, kernel, shape)
    by_gate: Floats = (
        values.reshape(heads, units, len(GATES), units).transpose(2, 0, 3, 1)  # cuda: source first
        if shape[1] == units
        else values.reshape(heads, len(GATES), units, units).swapaxes(0, 1)  # vanilla: target first
    )
    return by_gate


def _inputs(store: TensorStore, kernel: str, biases: Floats) -> dict[str, GateInput] | None:
    """What every gate sees of the input, head by head, and of the state of its own head."""
    _, heads, units = biases.shape
    hidden = np.sum(_kernel(store, kernel, heads, units) ** 2, axis=-1)
    inputs = {}
    for gate, role, bias, seen in zip(GATES, _PROJECTIONS, biases, hidden, strict=True):
        tensor = beside(store, kernel, role, above=1)
        if tensor is None or store.tensors[tensor].shape[:2] != (heads, units):
            return None
        weight = read_real(store, tensor, (heads, units, None))
        norms = RowNorms(np.sum(weight**2, axis=-1).ravel(), seen.ravel())
        inputs[gate] = GateInput(bias.ravel(), norms)
    return inputs


def _spectra(store: TensorStore, kernel: str, biases: Floats, device: str) -> HiddenSpectra:
    """The spectra of the gates' kernels and of one step of the whole state.

    Args:
        store: the open checkpoint.
        kernel: the tensor of the recurrent kernel.
        biases: (gates, heads, units) b.
        device: where to decompose.
    """
    _, heads, units = biases.shape
    weights = _kernel(store, kernel, heads, units)

    def all_heads(matrices: Floats) -> Complexes:
        return np.concatenate([eigenvalues(matrix, device) for matrix in matrices])

    gates = {gate: all_heads(weight) for gate, weight in zip(GATES, weights, strict=True)}
    if 3 * units > LARGEST_JACOBIAN:
        reason = (
            f"a Jacobian of order {3 * units} for each head costs more than all gates, so those "
            f"above {LARGEST_JACOBIAN} are not taken"
        )
        return HiddenSpectra(gates, None, reason)
    blocks = [slstm_jacobian(weights[:, head], biases[:, head]) for head in range(heads)]
    return HiddenSpectra(gates, all_heads(np.stack(blocks)))


def slstm_jacobian(weights: Floats, biases: Floats) -> Floats:
    """d(h', c', n')/d(h, c, n) of one head at zero input and zero state, by the chain rule.

    The kernel is block-diagonal: a unit sees the state of its own head alone. Without the
    stabiliser, which cancels, a step from (h, c, n) at zero input is

        c' = σ(f) c + e^i tanh(z),  n' = σ(f) n + e^i,  h' = σ(o) c' / n'

    with every gate ``R h + b``. It is smooth at zero state, the start of a sequence, where n' is
    e^i. c and n are taken in units of e^{b_i}, which no eigenvalue depends on.

    Args:
        weights: (gates, units, units) R of the gates input, forget, cell and output, row = target.
        biases: (gates, units) b of each gate.

    Returns:
        (3 units, 3 units).
    """
    kept, shown = sigmoid(biases[1]), sigmoid(biases[3])
    candidate = np.tanh(biases[2])
    written = (1 - candidate**2)[:, None] * weights[2]
    c_by_h = candidate[:, None] * weights[0] + written
    h_by_h = shown[:, None] * written
    h_by_h += (shown * sigmoid(-biases[3]) * candidate)[:, None] * weights[3]
    none, forget = np.zeros_like(written), np.diag(kept)
    return np.block(
        [
            [h_by_h, np.diag(shown * kept), np.diag(-shown * candidate * kept)],
            [c_by_h, forget, none],
            [weights[0], none, forget],
        ]
    )
