"""The sLSTM of xLSTM, Beck et al. 2024, arXiv 2405.04517.

What an sLSTM remembers through its recurrent kernel, head by head.

The kernel is block-diagonal: a unit sees the state of its own head alone. Without the stabiliser,
which cancels, a step from (h, c, n) at zero input is

    c' = σ(f) c + e^i tanh(z),  n' = σ(f) n + e^i,  h' = σ(o) c' / n'

with every gate ``R h + b``. It is smooth at zero state, the start of a sequence, where n' = e^i.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.cells.gated_layer import LARGEST_JACOBIAN
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, GateInput, HiddenState, RowNorms
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside
from memcurse_cli.families.reading import (
    log_sigmoid,
    one_to_one,
    read_real,
    read_vector,
    shown_shape,
    sigmoid,
)
from memcurse_cli.families.recurrence import Complexes, Floats, HiddenSpectra, Recurrence
from memcurse_cli.theory.gates.laws import Exponential, Keep, Write
from memcurse_cli.theory.linalg.eigendecomposition import eigenvalues


def slstm_spectra(
    weights: Mapping[str, Floats], biases: Mapping[str, Floats], device: str = "auto"
) -> HiddenSpectra:
    """The spectra of the gates' kernels and of one step of the whole state.

    Args:
        weights: (heads, units, units) R of the gates input, forget, cell and output, row = target.
        biases: (heads, units) b of each gate.
        device: where to decompose.
    """
    gates = {gate: _all_heads(weight, device) for gate, weight in weights.items()}
    heads, units, _ = weights["cell"].shape
    if 3 * units > LARGEST_JACOBIAN:
        reason = (
            f"a Jacobian of order {3 * units} for each head costs more than all gates, so those "
            f"above {LARGEST_JACOBIAN} are not taken"
        )
        return HiddenSpectra(gates, None, reason)
    blocks = [
        slstm_jacobian(
            {gate: weight[head] for gate, weight in weights.items()},
            {gate: bias[head] for gate, bias in biases.items()},
        )
        for head in range(heads)
    ]
    return HiddenSpectra(gates, _all_heads(np.stack(blocks), device))


def _all_heads(matrices: Floats, device: str) -> Complexes:
    return np.concatenate([eigenvalues(matrix, device) for matrix in matrices])


def slstm_jacobian(weights: Mapping[str, Floats], biases: Mapping[str, Floats]) -> Floats:
    """d(h', c', n')/d(h, c, n) of one head at zero input and zero state, by the chain rule.

    c and n are taken in units of e^{b_i}, which no eigenvalue depends on.

    Args:
        weights: (units, units) R of each gate, row = target.
        biases: (units,) b of each gate.

    Returns:
        (3 units, 3 units).
    """
    kept, shown = sigmoid(biases["forget"]), sigmoid(biases["output"])
    candidate = np.tanh(biases["cell"])
    written = (1 - candidate**2)[:, None] * weights["cell"]
    c_by_h = candidate[:, None] * weights["input"] + written
    h_by_h = shown[:, None] * written
    h_by_h += (shown * sigmoid(-biases["output"]) * candidate)[:, None] * weights["output"]
    none = np.zeros_like(written)
    forget = np.diag(kept)
    return np.block(
        [
            [h_by_h, np.diag(shown * kept), np.diag(-shown * candidate * kept)],
            [c_by_h, forget, none],
            [weights["input"], none, forget],
        ]
    )


GATES = ("input", "forget", "cell", "output")
BIAS, KERNEL = "_bias_", "_recurrent_kernel_"

_NOMINAL = "the gates stand at zero input and zero state, where only their biases are left"

# The layer gives what its modules igate and fgate put out to the other slot of the cell.
_PROJECTIONS = {
    "input": "fgate.weight",
    "forget": "igate.weight",
    "cell": "zgate.weight",
    "output": "ogate.weight",
}


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
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, (BIAS, KERNEL)).items()
            if len(names) == 2 and len(tensors[names[KERNEL]].shape) == 3
        ]

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
        gates = dict(zip(GATES, by_gate.reshape(len(GATES), -1), strict=True))
        forget, opened = gates["forget"], gates["input"]
        size, dtype = heads * units, store.tensors[tensor].dtype
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=(tensor,),
            log_eigenvalues=log_sigmoid(forget).astype(np.complex128),
            log_gain=opened.astype(np.complex128),
            parameters=(
                one_to_one(
                    f"{BIAS}[forget]", tensor, forget, dtype, sigmoid(forget) * sigmoid(-forget)
                ),
                one_to_one(f"{BIAS}[input]", tensor, opened, dtype, np.zeros(size), np.ones(size)),
            ),
            multiplicity=2,  # the cell and its normaliser
            input_dependent=True,
            stable_by_construction=True,
            assumptions=(_NOMINAL,),
            hidden_feedback=True,
            hidden=_spectra(store, kernel, by_gate, options.device) if options.spectra else None,
            gate=_drive(store, kernel, by_gate) if options.gates else None,
        )


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


def _spectra(store: TensorStore, kernel: str, biases: Floats, device: str) -> HiddenSpectra:
    """The spectra of the recurrent kernel, with biases [gate, head, unit]."""
    by_gate = _kernel(store, kernel, *biases.shape[1:])
    return slstm_spectra(
        dict(zip(GATES, by_gate, strict=True)), dict(zip(GATES, biases, strict=True)), device
    )


def _drive(store: TensorStore, kernel: str, biases: Floats) -> GateDrive | None:
    """What every gate sees of the input, head by head, and of the state of its own head."""
    _, heads, units = biases.shape
    hidden = np.sum(_kernel(store, kernel, heads, units) ** 2, axis=-1)
    inputs = {}
    for gate, bias, seen in zip(GATES, biases, hidden, strict=True):
        tensor = beside(store, kernel, _PROJECTIONS[gate], above=1)
        if tensor is None or store.tensors[tensor].shape[:2] != (heads, units):
            return None
        weight = read_real(store, tensor, (heads, units, None))
        inputs[gate] = GateInput(
            bias.ravel(), RowNorms(np.sum(weight**2, axis=-1).ravel(), seen.ravel())
        )
    return GateDrive(
        law=Keep(),
        gate=inputs["forget"],
        write=Write(Exponential()),
        write_gate=inputs["input"],
        state=HiddenState(inputs["cell"], output=inputs["output"], averaged=True),
        motions={f"{BIAS}[{gate}]": (gate, 1.0) for gate in ("forget", "input")},
        sees="what igate, fgate, zgate and ogate see",
    )
