"""GateLoop of Katsch 2023, arXiv 2311.01927, whose transition turns and decays with the input.

The simplified GateLoop layer of lucidrains' gateloop-transformer: a real gate per channel.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memcurse_cli.errors import TensorError
from memcurse_cli.families.gate_inputs import JointDrive
from memcurse_cli.families.gate_weights import inner_products, read_rows
from memcurse_cli.families.recurrence import Floats, ParameterGroup, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Layout, Shapes
from memcurse_cli.theory.gates.laws import Root, Turn

_PROJECTION = "to_qkva.0.weight"

_WITHOUT_BIAS = "the gate has no bias: at zero input λ = σ(0) = 1/2, which no parameter moves"


def _channels(shapes: Shapes) -> int:
    """D of a projection (3 D, D), or 0."""
    shape = shapes[_PROJECTION]
    return shape[1] if len(shape) == 2 and shape[0] == 3 * shape[1] else 0


class SimpleGateLoop(LawFamily):
    """``h[t] = σ(W_a x) h[t-1] + W_kv x``, ``y = (W_q x) h``, one state per channel; γ = 1.

    The rows of one projection are W_q, W_kv and W_a. At zero input every λ is 1/2: what the layer
    remembers is in W_a alone, whose band `--gates` shows.
    """

    name = "gateloop_simple"
    title = "Simple GateLoop"
    recognised_by = "to_qkva.0.weight (3 D, D)"
    equation = "λ = σ(0) = 1/2, γ = 1"
    source = "gateloop-transformer, simplified_gate_loop.py; Katsch 2023, arXiv 2311.01927"
    layouts = (Layout((_PROJECTION,), fits=_channels),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        still = np.zeros(layer.shape(_PROJECTION)[1])
        rows = slice(2 * still.size, None)
        return layer.recurrence(
            Root(1.0),
            still,
            [],
            gates=lambda: layer.projected(still, _PROJECTION, rows=rows),
            assumptions=(_WITHOUT_BIAS,),
        )


_QKV, _WEIGHT, _BIAS = "to_qkv.weight", "to_a.0.weight", "to_a.0.bias"

ANGLE_AT_ZERO = (
    "E|dλ/db|² is infinite where a = W x + b can come near 0, since dλ/db grows as 1/|a|"
)
_AT_ZERO = (
    "the first components of to_a are the real parts of a head's transition and the second ones"
    " its imaginary parts, as gateloop-transformer interleaves them"
)


def _heads(shapes: Shapes) -> int:
    """The number of heads, or 0 where the shapes are not those of a layer."""
    qkv, weight, bias = (shapes[role] for role in (_QKV, _WEIGHT, _BIAS))
    if len(qkv) != 2 or len(weight) != 2 or bias != weight[:1] or weight[1] != qkv[1]:
        return 0
    heads = bias[0] // 2
    fits = heads and bias[0] == 2 * heads and qkv[0] and qkv[0] % (3 * heads) == 0
    return heads if fits else 0


class GateLoop(LawFamily):
    """``S[t] = λ S[t-1] + k vᵀ`` with ``λ = σ(|a|) e^{i arg a}``, a = W x + b complex; γ = 1.

    One λ per head. At zero input a is the bias, and no head can forget faster than by half. The
    derivative by both parts of b is, with r = |b| and φ = arg b,

        dλ/d Re b = e^{iφ} ( σ'(r) cos φ - i σ(r) sin φ / r )
        dλ/d Im b = e^{iφ} ( σ'(r) sin φ + i σ(r) cos φ / r )

    and grows without bound as b → 0, where the angle is undefined.
    """

    name = "gateloop"
    title = "GateLoop"
    recognised_by = "to_qkv.weight (3 D, dim) beside to_a.0.weight and to_a.0.bias (2 heads)"
    equation = "λ = σ(|b|) e^(i arg b), b = to_a.0.bias in pairs; γ = 1"
    source = "gateloop-transformer; Katsch 2023, arXiv 2311.01927"
    layouts = (Layout((_QKV, _WEIGHT, _BIAS), fits=_heads),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        heads, law, tensor = layer.shape(_BIAS)[0] // 2, Turn(), layer.names[_BIAS]
        parts = layer.real(_BIAS, (2 * heads,)).reshape(heads, 2)
        apart = np.hypot(parts[:, 0], parts[:, 1])
        if np.any(apart == 0):
            raise TensorError(
                f"head {int(np.argmin(apart))} has a bias of 0, where λ has no angle",
                where=tensor,
                remedy="inspect a checkpoint from after the first steps of training",
            )
        recurrence = layer.recurrence(
            law,
            parts,
            [],
            gates=lambda: _drive(layer, law, parts),
            tensors=(tensor,),
            multiplicity=(layer.shape(_QKV)[0] // (3 * heads)) ** 2,
            assumptions=(_AT_ZERO,),
        )
        motions = law(parts).nominal.motions
        moved = [motions[name].eigenvalue for name in (law.real, law.imaginary)]
        # Real and imaginary parts alternate in one tensor.
        group = ParameterGroup(
            name=_BIAS,
            tensor=tensor,
            values=parts.ravel(),
            dtype=layer.store.tensors[tensor].dtype,
            scalar=np.arange(2 * heads),
            eigenvalue=np.repeat(np.arange(heads), 2),
            eigenvalue_derivative=np.stack(moved, axis=1).ravel(),
        )
        return replace(recurrence, parameters=(group,))


def _drive(layer: Layer, law: Turn, parts: Floats) -> JointDrive | None:
    """The rows of both parts of a, which alternate as those (heads, 2) of its bias do."""
    rows = read_rows(layer.store, [layer.names[_WEIGHT]])
    if rows is None:
        return None
    return JointDrive(law, parts, inner_products(rows[0][::2], rows[0][1::2]), reason=ANGLE_AT_ZERO)
