"""The multi-headed moving average of lucidrains' mega-pytorch: rates that all channels share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.projections import stored_parts
from memcurse_cli.recurrences.reading import (
    group_by_module,
    log_sigmoid,
    one_to_many,
    read_real,
    sigmoid,
)
from memcurse_cli.recurrences.recurrence import (
    ProjectionGroup,
    Recurrence,
)

_RATE, _DAMPING = "alphas", "dampen_factors"
_BACKWARD = ("reverse_alphas", "reverse_dampen_factors")
_PROJECTIONS = ("expansion", "reduction")

_BOTH_DIRECTIONS = (
    "the second half of the heads runs backward in time; expansion and reduction are not read"
)


class MultiHeadedEMA:
    """``h[t] = λ h[t-1] + γ β x[t]``, ``y = Σ_heads η h``, one state per head and channel.

    ``λ = (1 - σ(alphas)) σ(dampen_factors)`` and ``γ = σ(alphas)`` are those of a head, and one
    scalar moves the λ of all channels. With α = alphas and δ = dampen_factors,

        dλ/dα = -λ σ(α),    dλ/dδ = λ σ(-δ),    d log γ/dα = σ(-α)
    """

    name = "multi_headed_ema"
    title = "Multi-headed EMA (mega-pytorch)"
    recognised_by = "alphas and dampen_factors (heads) beside expansion and reduction (heads, D)"
    equation = "λ = (1 - σ(alphas)) σ(dampen_factors), γ = σ(alphas)"
    source = "mega-pytorch, MultiHeadedEMA; Ma et al. 2023, arXiv 2209.10655"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with rates of every head and projections of every head and channel."""
        roles = (_RATE, _DAMPING, *_BACKWARD, *_PROJECTIONS)
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, roles).items()
            if _fits({role: tensors[name].shape for role, name in names.items()})
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the rates, and where time runs one way the projections.

        Raises:
            TensorError: NaN or inf in one of them.
        """
        names = match.tensors
        pairs = [(_RATE, _DAMPING), _BACKWARD][: 2 if _BACKWARD[0] in names else 1]
        (heads,) = store.tensors[names[_RATE]].shape
        rows, channels = store.tensors[names["expansion"]].shape
        head = np.repeat(np.arange(heads), channels)
        logs, gains, groups = [], [], []
        for direction, (rate, damping) in enumerate(pairs):
            alpha = read_real(store, names[rate], (heads,))
            delta = read_real(store, names[damping], (heads,))
            logs.append(log_sigmoid(-alpha) + log_sigmoid(delta))
            gains.append(log_sigmoid(alpha))
            eigenvalue = np.exp(logs[-1])
            for role, values, slope, log_gain_slope in (
                (rate, alpha, -eigenvalue * sigmoid(alpha), sigmoid(-alpha)[head]),
                (damping, delta, eigenvalue * sigmoid(-delta), None),
            ):
                dtype = store.tensors[names[role]].dtype
                moved = values, dtype, head, slope[head], log_gain_slope
                first = direction * head.size
                groups.append(one_to_many(role, names[role], *moved, first=first))
        readin = readout = None
        projections: tuple[ProjectionGroup, ...] = ()
        if len(pairs) == 1:
            expansion, reduction = (
                read_real(store, names[role], (rows, channels)) for role in _PROJECTIONS
            )
            readin = expansion.reshape(-1, 1).astype(np.complex128)
            readout = reduction.reshape(1, -1).astype(np.complex128)
            projections = (
                *stored_parts(store, names["expansion"], "B", readin.shape),
                *stored_parts(store, names["reduction"], "C", readout.shape),
            )
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(names.values()),
            log_eigenvalues=np.repeat(np.concatenate(logs), channels).astype(np.complex128),
            log_gain=np.repeat(np.concatenate(gains), channels).astype(np.complex128),
            parameters=tuple(groups),
            readin=readin,
            readout=readout,
            channel=np.tile(np.arange(channels), rows),
            stable_by_construction=True,
            assumptions=() if len(pairs) == 1 else (_BOTH_DIRECTIONS,),
            projections=projections,
        )


def _fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the shapes are (heads), and (heads, D) or twice as many rows with both directions."""
    if not shapes.keys() >= {_RATE, _DAMPING, *_PROJECTIONS}:
        return False
    both = [role in shapes for role in _BACKWARD]
    rates = {shapes[role] for role in (_RATE, _DAMPING, *_BACKWARD) if role in shapes}
    if both[0] != both[1] or len(rates) != 1 or len(shapes[_RATE]) != 1:
        return False
    rows = shapes[_RATE][0] * (1 + both[0])
    expansion, reduction = (shapes[role] for role in _PROJECTIONS)
    return len(expansion) == 2 and expansion == reduction and expansion[0] == rows > 0
