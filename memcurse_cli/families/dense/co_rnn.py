"""The coupled oscillators of Rusch & Mishra 2021, coRNN."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.dense.dense_layer import dense_recurrence
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.reading import read_real
from memcurse_cli.families.recurrence import Floats, Recurrence

STEP = Assumption(
    key="dt",
    default="0.042",
    choices=(),
    meaning="the time step of a coRNN",
    tensors=("dt",),
)
FREQUENCY = Assumption(
    key="gamma",
    default="2.7",
    choices=(),
    meaning="γ of a coRNN, the squared frequency that every oscillator has beside W",
    tensors=("gamma",),
)
DAMPING = Assumption(
    key="epsilon",
    default="4.7",
    choices=(),
    meaning="ε of a coRNN, the damping that every oscillator has beside W",
    tensors=("epsilon",),
)
JOINT, HIDDEN, READOUT = "i2h.weight", "h2h.weight", "readout.weight"
_CONSTANTS = (*STEP.roles, *FREQUENCY.roles, *DAMPING.roles)
_BOUND = (
    "sensitivities are those of every entry of the step's 2n × 2n matrix, times dt: an upper bound "
    "for the n × 2n entries that are stored"
)


class CoRNN:
    """``z' = z + dt (tanh(W_x x + W_z z + W_y y + b) - γ y - ε z)``, ``y' = y + dt z'``.

    The implicit-explicit step on (y, z), the tanh with slope 1, is A = A₀ + P W with
    ``P = dt (dt, 1)`` in blocks. In the orthonormal coordinates u = (dt y + z) / √(1+dt²) and
    v = (dt z - y) / √(1+dt²), which change no eigenvalue and no norm, W moves the rows of u alone,
    by ``dt √(1+dt²)``.
    """

    name = "co_rnn"
    title = "coRNN (coupled oscillators)"
    recognised_by = (
        "cell.i2h.weight (n, inputs + 2n) beside readout.weight; or i2h.weight beside h2h.weight "
        "(n, 2n)"
    )
    equation = "λ = eig(z' = z + dt (W_z z + W_y y - γ y - ε z), y' = y + dt z')"
    source = "tk-rusch/coRNN; Rusch & Mishra 2021, arXiv 2010.00951"
    assumptions: tuple[Assumption, ...] = (STEP, FREQUENCY, DAMPING)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Cells whose one linear sees the input and both states, and those that split it in two."""
        matches = []
        for module, names in group_by_module(tensors, (JOINT, HIDDEN, *_CONSTANTS)).items():
            if JOINT not in names:
                continue
            shapes = [tensors[names[role]].shape for role in (JOINT, HIDDEN) if role in names]
            if any(len(shape) != 2 or not shape[0] for shape in shapes):
                continue
            size, columns = tensors[names[JOINT]].shape
            if HIDDEN in names:
                fits = tensors[names[HIDDEN]].shape == (size, 2 * size)
            else:
                above, last = split_name(module)
                readout = tensors.get(f"{above}.{READOUT}" if above else READOUT)
                seen = readout is not None and readout.shape[1:] == (size,)
                fits = last == "cell" and seen and columns > 2 * size
            if fits:
                matches.append(Match(module or self.name, names))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the weights and decompose the step.

        Raises:
            TensorError: NaN or inf in a weight, or a stored dt, γ or ε that is not one number.
        """
        assumed = Assumed(options, store=store, match=match)
        step, frequency, damping = (
            float(assumed.choose(each)) for each in (STEP, FREQUENCY, DAMPING)
        )
        joint = read_real(store, match.tensors[JOINT], (None, None))
        size = joint.shape[0]
        role = HIDDEN if HIDDEN in match.tensors else JOINT
        states = read_real(store, match.tensors[HIDDEN], (size, None)) if role == HIDDEN else joint
        # The columns are x, z, y, or z, y of the states alone.
        by_velocity, by_position = states[:, -2 * size : -size], states[:, -size:]
        inputs = joint if role == HIDDEN else joint[:, : -2 * size]
        scale = step * math.hypot(1, step)
        readin = np.zeros((2 * size, inputs.shape[1]), dtype=np.complex128)
        readin[:size] = scale * inputs
        matrix = _step(by_position, by_velocity, step, frequency, damping)
        rotation = _rotation(size, step)
        return dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=rotation @ matrix @ rotation.T,
            tensor=match.tensors[role],
            activation="tanh",
            device=options.device,
            readin=readin,
            scale=scale,
            assumptions=(*assumed.sentences, _BOUND),
        )


def _step(
    by_position: Floats, by_velocity: Floats, step: float, frequency: float, damping: float
) -> Floats:
    """(2n, 2n) of (y, z): z' from y and z, and y' = y + dt z'."""
    one = np.eye(by_position.shape[0])
    pushed = step * (by_position - frequency * one)
    kept = (1 - step * damping) * one + step * by_velocity
    return np.block([[one + step * pushed, step * kept], [pushed, kept]])


def _rotation(size: int, step: float) -> Floats:
    """(2n, 2n) from (y, z) to (u, v)."""
    one = np.eye(size) / math.hypot(1, step)
    return np.block([[step * one, one], [-one, step * one]])
