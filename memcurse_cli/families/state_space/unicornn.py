"""UnICORNN of Rusch & Mishra 2021: independent undamped oscillators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import one_to_many, read_real, sigmoid
from memcurse_cli.families.recurrence import Recurrence

STEP = Assumption(
    key="dt",
    default="0.19",
    choices=(),
    meaning="the largest time step of an oscillator network",
    tensors=("dt",),
)
CONTROL = Assumption(
    key="stiffness",
    default="30.65",
    choices=(),
    meaning="α of UnICORNN, the stiffness that every oscillator has beside its own weight",
    tensors=("alpha",),
)
RECURRENT, TIME = "weight_hh", "c_"
_LINEARISED = "the tanh is taken with slope 1; where it is flatter the oscillation is slower"


class UnICORNN:
    """``z' = z - Δ (tanh(w y + V x) + α y)``, ``y' = y + Δ z'``, Δ = dt σ(c), tanh with slope 1.

    A unit's step on (y, z) has determinant 1 and trace 2 - s with ``s = Δ² (w + α)``, so that
    ``log λ = ± 2i arcsin(√s / 2)``: a pair on the unit circle for 0 < s < 4, and otherwise a pair
    λ, 1/λ of reals. dλ/ds = λ² / (1 - λ²), ds/dw = Δ² and ds/dc = 2 s (1 - σ(c)).
    """

    name = "unicornn"
    title = "UnICORNN (undamped oscillators)"
    recognised_by = "weight_hh (H) beside c_ (H)"
    equation = "log λ = ± 2i arcsin(√s / 2), s = (dt σ(c_))² (weight_hh + α)"
    source = "tk-rusch/unicornn; Rusch & Mishra 2021, arXiv 2103.05487"
    assumptions: tuple[Assumption, ...] = (STEP, CONTROL)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with both vectors, of one size."""
        matches = []
        for module, names in group_by_module(
            tensors, (RECURRENT, TIME, *STEP.roles, *CONTROL.roles)
        ).items():
            shapes = {tensors[names[role]].shape for role in (RECURRENT, TIME) if role in names}
            if names.keys() >= {RECURRENT, TIME} and len(shapes) == 1 and len(shapes.pop()) == 1:
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read both vectors.

        Raises:
            TensorError: NaN or inf, a unit without an oscillation, whose λ is a double 1 or -1, or
                a stored dt or α that is not one number.
        """
        weight, time = (
            read_real(store, match.tensors[role], (None,)) for role in (RECURRENT, TIME)
        )
        assumed = Assumed(options, store=store, match=match)
        step, stiffness = (float(assumed.choose(each)) for each in (STEP, CONTROL))
        squared = (step * sigmoid(time)) ** 2
        turn = squared * (weight + stiffness)
        if not np.all(turn * (4 - turn)):
            raise TensorError(
                "a unit does not oscillate: its two eigenvalues coincide",
                where=match.tensors[RECURRENT],
                remedy="give the values it was trained with: --assume dt=, --assume stiffness=",
            )
        logs = 2j * np.arcsin(np.sqrt(turn.astype(np.complex128)) / 2)
        log_eigenvalues = np.stack([logs, -logs], axis=1)
        eigenvalues = np.exp(log_eigenvalues)
        slope = eigenvalues**2 / (1 - eigenvalues**2)
        unit = np.arange(weight.size)[:, None]  # each scalar moves both eigenvalues of its unit
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(match.tensors.values()),
            log_eigenvalues=log_eigenvalues.ravel(),
            log_gain=np.zeros(eigenvalues.size, dtype=np.complex128),
            parameters=tuple(
                one_to_many(
                    role,
                    match.tensors[role],
                    values,
                    store.tensors[match.tensors[role]].dtype,
                    unit,
                    slope * inner[:, None],
                )
                for role, values, inner in (
                    (RECURRENT, weight, squared),
                    (TIME, time, 2 * turn * sigmoid(-time)),
                )
            ),
            assumptions=(*assumed.sentences, _LINEARISED),
            activation="tanh",
            unitary=bool(np.all((turn > 0) & (turn < 4))),
        )
