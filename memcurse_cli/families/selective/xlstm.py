"""The mLSTM and the sLSTM of xLSTM, Beck et al. 2024, arXiv 2405.04517: exponential gates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from memcurse_cli.families.cells.gated_layer import Step, step_spectra
from memcurse_cli.families.family import Assumption, Layout, Shapes
from memcurse_cli.families.gate_inputs import GateInput, HiddenState
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Slot
from memcurse_cli.theory.duals import exp, join, sigmoid, split, tanh
from memcurse_cli.theory.gates.laws import LOGISTIC, CappedLogistic, Exponential, Keep, Write

GATE_SOFT_CAP = Assumption(
    key="gate_soft_cap",
    default="15",
    meaning="c of the soft cap c tanh(b/c) on the gates of a large xLSTM; 0 for none",
    config_keys=("gate_soft_cap",),
)

_LARGE = ("igate_preact.bias", "fgate_preact.bias")
_FUSED = "ifgate_preact.bias"
_BLOCK = ("igate.bias", "fgate.bias", "fgate.weight", "outnorm.weight")
_SHAPES = ("k.weight", "v.weight", "qkv_opreact.weight", "out_proj.weight")


def _is_block(shapes: Shapes) -> bool:
    """Whether the gates see queries, keys and values, as wide as the norm each."""
    weight, norm = shapes["fgate.weight"], shapes["outnorm.weight"]
    return len(weight) == 2 and len(norm) == 1 and weight[1] == 3 * norm[0]


class MLSTM(LawFamily):
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
    layouts = (
        Layout(_LARGE, optional=_SHAPES),
        Layout((_FUSED,), optional=_SHAPES),
        Layout(_BLOCK, fits=_is_block),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        block = "fgate.bias" in layer.names
        rows = slice(None), slice(None)
        if _FUSED in layer.names:
            heads = math.prod(layer.shape(_FUSED)) // 2
            opened, forget = layer.vector(_FUSED, 2 * heads).reshape(2, heads)
            labels = f"{_FUSED}[input]", f"{_FUSED}[forget]"
            rows = slice(heads), slice(heads, None)
        else:
            labels = _BLOCK[:2] if block else _LARGE
            forget = layer.vector(labels[1])
            opened = layer.vector(labels[0], forget.size)
        cap = 0.0 if block else float(layer.choose(GATE_SOFT_CAP))
        capped = cap if 0 < cap < np.inf else None

        def through(bias: Floats, gate: int) -> GateInput | None:
            role = labels[gate].partition("[")[0]
            weight = f"{role.removesuffix('bias')}weight"
            return layer.gate_through(bias, role, [(weight,)], rows[gate])

        return layer.gated(
            Keep(LOGISTIC if capped is None else CappedLogistic(capped)),
            forget,
            [Slot(labels[1], forget, "forget"), Slot(labels[0], opened, "input")],
            gates=lambda: (through(forget, 1), through(opened, 0)),
            write=Write(Exponential(capped)),
            sees="the queries, keys and values" if block else "the layer's input",
            multiplicity=_multiplicity(layer, forget.size),
        )


def _multiplicity(layer: Layer, heads: int) -> int:
    """Key dimension × value dimension of a head, from the shapes of the projections."""
    if "outnorm.weight" in layer.names:
        return layer.rows_per(heads, "outnorm.weight") ** 2
    if layer.names.keys() >= set(_SHAPES[2:]):
        # Queries, keys, values and output gate in one projection, whose values out_proj reads.
        rows, values = layer.rows_per(1, _SHAPES[2]), sum(layer.shape(_SHAPES[3])[-1:])
        return max((rows // 2 - values) // heads * (values // heads), 1)
    return layer.rows_per(heads, _SHAPES[0]) * layer.rows_per(heads, _SHAPES[1])


GATES = ("input", "forget", "cell", "output")
BIAS, KERNEL = "_bias_", "_recurrent_kernel_"
# The layer gives what its modules igate and fgate put out to the other slot of the cell.
_PROJECTIONS = ("fgate.weight", "igate.weight", "zgate.weight", "ogate.weight")

_NOMINAL = "the gates stand at zero input and zero state, where only their biases are left"


class SLSTM(LawFamily):
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
    layouts = (Layout((BIAS, KERNEL), fits=lambda shapes: len(shapes[KERNEL]) == 3),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        heads, *inner = layer.shape(KERNEL)
        units = min(inner)
        if not heads or not units or max(inner) != len(GATES) * units:
            what = "is neither (heads, 4 units, units) nor (heads, units, 4 units)"
            raise layer.misshapen(KERNEL, what)
        bias = layer.vector(BIAS, len(GATES) * heads * units)
        by_gate = bias.reshape(len(GATES), heads, units)  # vanilla
        if inner[0] == units:  # cuda
            by_gate = bias.reshape(heads, len(GATES), units).swapaxes(0, 1)
        opened, forget, *_ = by_gate.reshape(len(GATES), -1)
        inputs = _inputs(layer, by_gate) if layer.options.gates else None
        state = None
        if inputs is not None:
            state = HiddenState(inputs["cell"], output=inputs["output"], averaged=True)
        return layer.gated(
            Keep(),
            forget,
            [Slot(f"{BIAS}[forget]", forget, "forget"), Slot(f"{BIAS}[input]", opened, "input")],
            gates=lambda: None if inputs is None else (inputs["forget"], inputs["input"]),
            write=Write(Exponential()),
            state=state,
            sees="what igate, fgate, zgate and ogate see",
            multiplicity=2,  # the cell and its normaliser
            assumptions=(_NOMINAL,),
            hidden_feedback=True,
            hidden=_spectra(layer, by_gate) if layer.options.spectra else None,
        )


def _kernel(layer: Layer, heads: int, units: int) -> Floats:
    """[gate, head, target, source] of either backend."""
    values = layer.real(KERNEL, layer.shape(KERNEL))
    if values.shape[1] == units:  # cuda: source first
        return values.reshape(heads, units, len(GATES), units).transpose(2, 0, 3, 1)
    return values.reshape(heads, len(GATES), units, units).swapaxes(0, 1)


def _inputs(layer: Layer, biases: Floats) -> dict[str, GateInput] | None:
    """What every gate sees of the input, head by head, and of the state of its own head."""
    _, heads, units = biases.shape
    hidden = np.sum(_kernel(layer, heads, units) ** 2, axis=-1)
    inputs = {}
    for gate, role, bias, seen in zip(GATES, _PROJECTIONS, biases, hidden, strict=True):
        tensor = layer.beside(KERNEL, role, above=1)
        if tensor is None or layer.shape(tensor)[:2] != (heads, units):
            return None
        weight = layer.real(tensor, (heads, units, None))
        shown = np.sum(weight**2, axis=-1)
        inputs[gate] = GateInput(bias.ravel(), shown.ravel(), seen.ravel())
    return inputs


def _spectra(layer: Layer, biases: Floats) -> HiddenSpectra:
    """The spectra of the gates' kernels, and of one step of the whole state, head by head."""
    _, heads, units = biases.shape
    weights = _kernel(layer, heads, units)
    found = [
        step_spectra(
            dict(zip(GATES, weights[:, head], strict=True)),
            _step(weights[:, head], biases[:, head]),
            3 * units,
        )
        for head in range(heads)
    ]
    gates = {gate: np.concatenate([each.gates[gate] for each in found]) for gate in GATES}
    jacobians = [each.jacobian for each in found if each.jacobian is not None]
    jacobian = np.concatenate(jacobians) if jacobians else None
    return HiddenSpectra(gates, jacobian, found[0].reason)


def _step(weights: Floats, biases: Floats) -> Step:
    """Of one head's [h, c, n], whose units see the state of their own head alone.

    Without the stabiliser, which cancels, a step at zero input is

        c' = σ(f) c + e^i tanh(z),  n' = σ(f) n + e^i,  h' = σ(o) c' / n'

    with every gate ``R h + b``. It is smooth at zero state, the start of a sequence, where n' is
    e^i. c and n are taken in units of e^{b_i}, which no eigenvalue depends on.
    """

    def step(state: Any) -> Any:
        h, c, n = split(state, 3)
        seen = [h @ weight.T for weight in weights]
        forget, cell, output = (seen[gate] + biases[gate] for gate in (1, 2, 3))
        kept, written = sigmoid(forget), exp(seen[0])
        c, n = kept * c + written * tanh(cell), kept * n + written
        return join([sigmoid(output) * c / n, c, n])

    return step
