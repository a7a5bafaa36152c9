"""GateLoop of Katsch 2023, arXiv 2311.01927, whose transition turns and decays with the input.

The simplified GateLoop layer of lucidrains' gateloop-transformer: a real gate per channel.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import JointDrive, inner_products, projected_gate, read_rows
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import read_real
from memcurse_cli.families.recurrence import Floats, ParameterGroup, Recurrence
from memcurse_cli.families.selective.law import law_recurrence
from memcurse_cli.theory.gates.laws import Root, Turn

_PROJECTION = "to_qkva.0.weight"

_WITHOUT_BIAS = "the gate has no bias: at zero input λ = σ(0) = 1/2, which no parameter moves"


class SimpleGateLoop:
    """``h[t] = σ(W_a x) h[t-1] + W_kv x``, ``y = (W_q x) h``, one state per channel; γ = 1.

    The rows of one projection are W_q, W_kv and W_a. At zero input every λ is 1/2: what the layer
    remembers is in W_a alone, whose band `--gates` shows.
    """

    name = "gateloop_simple"
    title = "Simple GateLoop"
    recognised_by = "to_qkva.0.weight (3 D, D)"
    equation = "λ = σ(0) = 1/2, γ = 1"
    source = "gateloop-transformer, simplified_gate_loop.py; Katsch 2023, arXiv 2311.01927"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the joint projection."""
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, (_PROJECTION,)).items()
            if _channels(tensors[names[_PROJECTION]].shape)
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Count the channels; W_a is read where its band is asked for.

        Raises:
            TensorError: NaN or inf in the projection.
        """
        tensor = match.tensors[_PROJECTION]
        channels = _channels(store.tensors[tensor].shape)
        still = np.zeros(channels)
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=Root(1.0),
            at=still,
            slots=[],
            gates=lambda: projected_gate(store, still, tensor, rows=slice(2 * channels, None)),
            tensors=(tensor,),
            assumptions=(_WITHOUT_BIAS,),
        )


def _channels(shape: tuple[int, ...]) -> int:
    """D of a projection (3 D, D), or 0."""
    return shape[1] if len(shape) == 2 and shape[0] == 3 * shape[1] else 0


_QKV, _WEIGHT, _BIAS = "to_qkv.weight", "to_a.0.weight", "to_a.0.bias"

ANGLE_AT_ZERO = (
    "E|dλ/db|² is infinite where a = W x + b can come near 0, since dλ/db grows as 1/|a|"
)
_AT_ZERO = (
    "the first components of to_a are the real parts of a head's transition and the second ones"
    " its imaginary parts, as gateloop-transformer interleaves them"
)


class GateLoop:
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
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a complex transition of every head."""
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, (_QKV, _WEIGHT, _BIAS)).items()
            if len(names) == 3 and _heads(tensors, names)
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias of the transition.

        Raises:
            TensorError: NaN or inf, or a bias of 0, where λ has no angle.
        """
        tensor = match.tensors[_BIAS]
        heads = _heads(store.tensors, match.tensors)
        parts = read_real(store, tensor, (2 * heads,)).reshape(heads, 2)
        law = Turn()
        still = law(parts)
        eigenvalue = np.exp(still.log_eigenvalue)
        apart = np.hypot(parts[:, 0], parts[:, 1])
        if np.any(apart == 0):
            raise TensorError(
                f"head {int(np.argmin(apart))} has a bias of 0, where λ has no angle",
                where=tensor,
                remedy="inspect a checkpoint from after the first steps of training",
            )
        moved = [eigenvalue * still.motions[name].eigenvalue for name in (law.real, law.imaginary)]
        head_size = store.tensors[match.tensors[_QKV]].shape[0] // (3 * heads)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=(tensor,),
            log_eigenvalues=still.log_eigenvalue,
            log_gain=np.zeros(heads, dtype=np.complex128),
            parameters=(
                ParameterGroup(
                    name=_BIAS,
                    tensor=tensor,
                    values=parts.ravel(),
                    dtype=store.tensors[tensor].dtype,
                    scalar=np.arange(2 * heads),
                    eigenvalue=np.repeat(np.arange(heads), 2),
                    eigenvalue_derivative=np.stack(moved, axis=1).ravel(),
                ),
            ),
            multiplicity=head_size**2,
            input_dependent=True,
            stable_by_construction=True,
            assumptions=(_AT_ZERO,),
            gate=_drive(store, match, law, parts) if options.gates else None,
        )


def _drive(store: TensorStore, match: Match, law: Turn, parts: Floats) -> JointDrive | None:
    """The rows of both parts of a, which alternate as those (heads, 2) of its bias do."""
    rows = read_rows(store, [match.tensors[_WEIGHT]])
    if rows is None:
        return None
    return JointDrive(law, parts, inner_products(rows[0][::2], rows[0][1::2]), reason=ANGLE_AT_ZERO)


def _heads(tensors: Mapping[str, TensorSpec], names: Mapping[str, str]) -> int:
    """The number of heads, or 0 where the shapes are not those of a layer."""
    qkv, weight, bias = (tensors[names[role]].shape for role in (_QKV, _WEIGHT, _BIAS))
    if len(qkv) != 2 or len(weight) != 2 or bias != weight[:1] or weight[1] != qkv[1]:
        return 0
    heads = bias[0] // 2
    fits = heads and bias[0] == 2 * heads and qkv[0] and qkv[0] % (3 * heads) == 0
    return heads if fits else 0
