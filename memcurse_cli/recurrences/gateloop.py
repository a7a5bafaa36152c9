"""GateLoop of Katsch 2023, arXiv 2311.01927, whose transition turns and decays with the input."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.projected_gates import two_gates
from memcurse_cli.recurrences.reading import group_by_module, log_sigmoid, read_real, sigmoid
from memcurse_cli.recurrences.recurrence import Floats, ParameterGroup, Recurrence
from memcurse_cli.recurrences.turning_drive import TurningDrive

_QKV, _WEIGHT, _BIAS = "to_qkv.weight", "to_a.0.weight", "to_a.0.bias"

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
        bias = parts[:, 0] + 1j * parts[:, 1]
        radius = np.abs(bias)
        if np.any(radius == 0):
            raise TensorError(
                f"head {int(np.argmin(radius))} has a bias of 0, where λ has no angle",
                where=tensor,
                remedy="inspect a checkpoint from after the first steps of training",
            )
        phase = bias / radius
        outward = sigmoid(radius) * sigmoid(-radius)
        around = 1j * sigmoid(radius) / radius
        moved = np.stack(
            (
                phase * (outward * phase.real - around * phase.imag),
                phase * (outward * phase.imag + around * phase.real),
            ),
            axis=1,
        )
        head_size = store.tensors[match.tensors[_QKV]].shape[0] // (3 * heads)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=(tensor,),
            log_eigenvalues=log_sigmoid(radius) + 1j * np.angle(bias),
            log_gain=np.zeros(heads, dtype=np.complex128),
            parameters=(
                ParameterGroup(
                    name=_BIAS,
                    tensor=tensor,
                    values=parts.ravel(),
                    dtype=store.tensors[tensor].dtype,
                    scalar=np.arange(2 * heads),
                    eigenvalue=np.repeat(np.arange(heads), 2),
                    eigenvalue_derivative=moved.ravel(),
                ),
            ),
            multiplicity=head_size**2,
            input_dependent=True,
            stable_by_construction=True,
            assumptions=(_AT_ZERO,),
            gate=_drive(store, match, parts) if options.gates else None,
        )


def _drive(store: TensorStore, match: Match, parts: Floats) -> TurningDrive | None:
    """The rows of both parts of a, which alternate as those (heads, 2) of its bias do."""
    weight = match.tensors[_WEIGHT]
    found = two_gates(
        store,
        (parts[:, 0], parts[:, 1]),
        (weight, weight),
        (slice(0, None, 2), slice(1, None, 2)),
    )
    return None if found is None else TurningDrive(*found)


def _heads(tensors: Mapping[str, TensorSpec], names: Mapping[str, str]) -> int:
    """The number of heads, or 0 where the shapes are not those of a layer."""
    qkv, weight, bias = (tensors[names[role]].shape for role in (_QKV, _WEIGHT, _BIAS))
    if len(qkv) != 2 or len(weight) != 2 or bias != weight[:1] or weight[1] != qkv[1]:
        return 0
    heads = bias[0] // 2
    fits = heads and bias[0] == 2 * heads and qkv[0] and qkv[0] % (3 * heads) == 0
    return heads if fits else 0
