"""Mamba-3 of Lahoti et al. 2026, arXiv 2603.15569, at its nominal input."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.assumptions import Assumed, setting
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import (
    GateInput,
    NoDrive,
    RowNorms,
    Trapezoid,
    TwoGateDrive,
    squared_rows,
)
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    one_to_one,
    read_finite,
    read_real,
    require_shape,
    shown_shape,
)
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.state_space.discretization import apply_transform
from memcurse_cli.theory.gates.laws import HeavyTail, Rate, RatedStep, Softplus
from memcurse_cli.theory.gates.trapezoid_moments import BIAS

# -A as a function of its projection.
_RATES: dict[str, Rate] = {"heavy_tail": HeavyTail(), "softplus": Softplus()}
_SMALLEST_RATE = 1e-4
"""mamba_ssm's A_floor, where the configuration has none."""

RATE_FUNCTION = Assumption(
    key="rate_function",
    default="heavy_tail",
    choices=tuple(_RATES),
    meaning="the map from Mamba-3's projection to -A: 1 at zero, or log 2 with softplus",
)

_REQUIRED = ("dt_bias", "B_bias", "C_bias", "in_proj.weight", "out_proj.weight")

_NOMINAL = (
    "the trapezoid puts half of an input's gain on its own step, the rest on the next; λ does not"
    " turn at a zero input, where the rotation of B and C stands still"
)

_UNFIT = NoDrive(
    "the rows of in_proj are not those of z, x, B, C, step, rate, trapezoid and angles for the"
    " shapes of its other tensors"
)


class Mamba3:
    """``λ = exp(-a Δ)``, ``γ = Δ = softplus(dt_bias)``, one per head; the input projects to A.

    ``h[t] = λ h[t-1] + Δ/2 (λ B[t-1] x[t-1] + B[t] x[t])`` at a trapezoid weight of σ(0) = 1/2, so
    that k ≥ 1 steps after an input its state is ``Δ λᵏ``: mamba_ssm/modules/mamba3.py and its
    reference step. a is 1 in version 2.3.2, and log 2 where A is a softplus.
    """

    name = "mamba3"
    title = "Mamba-3"
    recognised_by = "dt_bias (heads) beside B_bias and C_bias (heads, rank, state), without A_log"
    equation = "λ = exp(-a Δ), γ = Δ = softplus(dt_bias), a = 1 or log 2"
    source = "mamba_ssm 2.3.2; Lahoti et al. 2026, arXiv 2603.15569"
    assumptions = (RATE_FUNCTION,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with biases of the step, of B and of C, and no rate."""
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, (*_REQUIRED, "A_log")).items()
            if names.keys() == set(_REQUIRED)
            and len(tensors[names["dt_bias"]].shape) == 1
            and len(tensors[names["B_bias"]].shape) == 3
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read dt_bias.

        Raises:
            TensorError: NaN or inf, or shapes that do not make a mixer.
        """
        assumed = Assumed(options, store.config)
        function = _RATES[assumed.choose(RATE_FUNCTION)]
        rate = float(np.exp(function.log(np.zeros(()))))
        tensor = match.tensors["dt_bias"]
        bias = read_real(store, tensor, (None,))
        step = apply_transform(bias, "softplus")
        decay = rate * step.value
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=(tensor,),
            log_eigenvalues=-np.minimum(decay, LARGEST_DECAY).astype(np.complex128),
            log_gain=step.log,
            parameters=(
                one_to_one(
                    "dt_bias",
                    tensor,
                    bias,
                    store.tensors[tensor].dtype,
                    -np.exp(-decay) * rate * step.slope,
                    step.log_slope,
                ),
            ),
            multiplicity=_multiplicity(store, match.tensors, bias.size),
            input_dependent=True,
            stable_by_construction=True,
            assumptions=(*assumed.sentences, _NOMINAL),
            gate=_drive(store, match.tensors, bias, function) if options.gates else None,
        )


def _drive(
    store: TensorStore, names: Mapping[str, str], bias: Floats, function: Rate
) -> TwoGateDrive | NoDrive:
    """The rows of the step, the rate, the trapezoid and the angles, in the library's order."""
    tensor = names["in_proj.weight"]
    start = _first_step_row(store, names, bias.size)
    if start is None or start + 3 * bias.size >= store.tensors[tensor].shape[0]:
        return _UNFIT
    rows = read_finite(store, tensor)[start:]
    if np.iscomplexobj(rows):
        return _UNFIT
    heads = bias.size
    step, rate, weight = rows[: 3 * heads].reshape(3, heads, -1)
    angles = rows[3 * heads :]
    law = RatedStep(function, float(np.log(_floor(store))))
    still = np.zeros_like(bias)

    def shared(first: Floats, second: Floats) -> Floats:
        return np.asarray(np.einsum("ij,ij->i", first, second))

    return TwoGateDrive(
        law,
        _gate(bias, step),
        _gate(still, rate),
        shared(step, rate),
        trapezoid=Trapezoid(
            law,
            _gate(still, weight),
            shared(weight, step),
            shared(weight, rate),
            squared_rows(angles),
            _alignment(angles, step) + _alignment(angles, rate),
            2 * len(angles) / store.tensors[names["B_bias"]].shape[2],
        ),
        motions={"dt_bias": (BIAS, 1.0)},
        sees="what in_proj sees, the mixer's input",
    )


def _alignment(angles: Floats, rows: Floats) -> Floats:
    """(n,) the squared cosine between a row and one of the angles, mean over these."""
    both = squared_rows(rows)[:, None] * squared_rows(angles)
    cosines = (rows @ angles.T) ** 2 / np.where(both > 0, both, 1.0)
    return np.asarray(cosines.mean(axis=1))


def _gate(bias: Floats, rows: Floats) -> GateInput:
    return GateInput(bias, RowNorms(squared_rows(rows), np.zeros_like(bias)))


def _floor(store: TensorStore) -> float:
    """The smallest rate."""
    floor = setting(store.config, "ssm_cfg.A_floor")
    given = isinstance(floor, float) and 0 < floor < 0.5  # below a at zero
    return floor if given else _SMALLEST_RATE


def _first_step_row(store: TensorStore, names: Mapping[str, str], heads: int) -> int | None:
    """Rows z, x (inner each), B, C (groups × rank × state each), step, rate, trapezoid, angles.

    The angles are a half or a quarter of the state, so that what is left of the rows tells the
    number of groups. None where nothing fits.
    """
    shape = store.tensors[names["in_proj.weight"]].shape
    if len(shape) != 2:
        return None
    inner = store.tensors[names["out_proj.weight"]].shape[1]
    _, rank, state = store.tensors[names["B_bias"]].shape
    both = 2 * rank * state  # B and C of one group
    groups, angles = divmod(shape[0] - 2 * inner - 3 * heads, both) if both else (0, 0)
    if groups < 1 or heads % groups or angles not in (state // 4, state // 2) or not angles:
        return None
    return 2 * inner + groups * both


def _multiplicity(store: TensorStore, names: Mapping[str, str], heads: int) -> int:
    """Head dimension × state.

    Raises:
        TensorError: the heads of the biases and of the output projection do not agree.
    """
    require_shape(store, names["B_bias"], (heads, None, None))
    require_shape(store, names["out_proj.weight"], (None, None))
    shape = store.tensors[names["out_proj.weight"]].shape
    if shape[1] < 1 or shape[1] % heads:
        raise TensorError(
            f"its shape {shown_shape(shape)} does not fit {heads} heads",
            where=names["out_proj.weight"],
            remedy="name the right family with --family, or export the layer again",
        )
    return shape[1] // heads * store.tensors[names["B_bias"]].shape[2]
