"""The simplified GateLoop layer of lucidrains' gateloop-transformer: a real gate per channel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_drive import GateDrive
from memcurse_cli.recurrences.projected_gates import projected_gate
from memcurse_cli.recurrences.reading import group_by_module
from memcurse_cli.recurrences.recurrence import Recurrence
from memcurse_cli.theory.gate_laws import Root

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
        drive = None
        if options.gates:
            gate = projected_gate(
                store, np.zeros(channels), tensor, rows=slice(2 * channels, 3 * channels)
            )
            drive = None if gate is None else GateDrive(Root(1.0), gate)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=(tensor,),
            log_eigenvalues=np.full(channels, np.log(0.5), dtype=np.complex128),
            log_gain=np.zeros(channels, dtype=np.complex128),
            parameters=(),
            input_dependent=True,
            stable_by_construction=True,
            assumptions=(_WITHOUT_BIAS,),
            gate=drive,
        )


def _channels(shape: tuple[int, ...]) -> int:
    """D of a projection (3 D, D), or 0."""
    return shape[1] if len(shape) == 2 and shape[0] == 3 * shape[1] else 0
