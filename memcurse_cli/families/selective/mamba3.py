"""Mamba-3 of Lahoti et al. 2026, arXiv 2603.15569, at its nominal input."""

from __future__ import annotations

import numpy as np

from memcurse_cli.families.family import Assumption, Layout, setting
from memcurse_cli.families.gate_inputs import JointDrive, NoDrive, inner_products, squared_rows
from memcurse_cli.families.reading import read_finite, require_shape
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import LawFamily, Layer, Slot
from memcurse_cli.theory.gates.laws import TrapezoidStep

RATE_FUNCTION = Assumption(
    key="rate_function",
    default="heavy_tail",
    choices=("heavy_tail", "softplus"),
    meaning="the map from Mamba-3's projection to -A: 1 at zero, or log 2 with softplus",
)

_NOMINAL = (
    "the trapezoid puts half of an input's gain on its own step, the rest on the next; λ does not"
    " turn at a zero input, where the rotation of B and C stands still"
)

LARGEST_ALIGNMENT = 0.05
"""Squared correlation of angles and steps, beyond which κ can be off by more than 7 %."""
ALIGNED = "a state turns by angles that are correlated with the steps, which the sums leave out"
KINDS = 4
"""States that turn by angles of about the same size are taken as of one of so many kinds."""
_UNFIT = NoDrive(
    "the rows of in_proj are not those of z, x, B, C, step, rate, trapezoid and angles for the"
    " shapes of its other tensors"
)


class Mamba3(LawFamily):
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
    layouts = (
        Layout(
            ("dt_bias", "B_bias", "C_bias", "in_proj.weight", "out_proj.weight"),
            without=("A_log",),
            fits=lambda shapes: len(shapes["dt_bias"]) == 1 and len(shapes["B_bias"]) == 3,
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        softplus = layer.assumed.choose(RATE_FUNCTION) == "softplus"
        floor = setting(layer.store.config, "ssm_cfg.A_floor")
        # mamba_ssm's default, where the configuration has none below a at zero.
        known = isinstance(floor, float) and 0 < floor < 0.5
        law = TrapezoidStep(softplus, floor if known else 1e-4)
        bias = layer.real("dt_bias", (None,))
        at = np.zeros((bias.size, 4))
        at[:, 0] = bias
        return layer.gated(
            law,
            at,
            [Slot("dt_bias", bias, law.bias)],
            gates=lambda: _drive(layer, law, at),
            multiplicity=_multiplicity(layer, bias.size),
            assumptions=(_NOMINAL,),
        )


def _drive(layer: Layer, law: TrapezoidStep, at: Floats) -> JointDrive | NoDrive:
    """The rows of the step, the rate, the trapezoid and the angles, in the library's order.

    The states of a head are of several kinds, which turn by angles of about the same size, taken as
    independent of all else.
    """
    heads, start = len(at), _first_step_row(layer, len(at))
    if start is None or start + 3 * heads >= layer.shape("in_proj.weight")[0]:
        return _UNFIT
    rows = read_finite(layer.store, layer.names["in_proj.weight"])[start:]
    if np.iscomplexobj(rows):
        return _UNFIT
    (step, rate, weight), angles = rows[: 3 * heads].reshape(3, heads, -1), rows[3 * heads :]
    groups = np.array_split(np.sort(squared_rows(angles)), min(len(angles), KINDS))
    turning = 2 * len(angles) / layer.shape("B_bias")[2]
    kinds = [(float(np.mean(group)), turning * group.size / len(angles)) for group in groups]
    if turning < 1:
        kinds.append((0.0, 1 - turning))
    gram = np.zeros((heads, len(kinds), 4, 4))
    gram[:, :, :3, :3] = inner_products(step, rate, weight)[:, None]
    gram[:, :, 3, 3] = [angle for angle, _ in kinds]
    aligned = float(np.max(alignment(angles, step) + alignment(angles, rate), initial=0.0))
    fits = aligned <= LARGEST_ALIGNMENT
    return JointDrive(
        law,
        np.repeat(at, len(kinds), axis=0),
        gram.reshape(-1, 4, 4),
        motions={"dt_bias": (law.bias, 1.0)} if fits else {},
        kinds=tuple(share for _, share in kinds),
        reason=None if fits else ALIGNED,
        # The size of a state that a white drive leaves does not depend on how it turns.
        white_alone=not fits,
        sees="what in_proj sees, the mixer's input",
    )


def alignment(angles: Floats, rows: Floats) -> Floats:
    """(n,) the squared cosine between a row and one of the angles, mean over these."""
    both = squared_rows(rows)[:, None] * squared_rows(angles)
    cosines = (rows @ angles.T) ** 2 / np.where(both > 0, both, 1.0)
    return np.asarray(cosines.mean(axis=1))


def _first_step_row(layer: Layer, heads: int) -> int | None:
    """Rows z, x (inner each), B, C (groups × rank × state each), step, rate, trapezoid, angles.

    The angles are a half or a quarter of the state, so that what is left of the rows tells the
    number of groups. None where nothing fits.
    """
    shape, (_, inner) = layer.shape("in_proj.weight"), layer.shape("out_proj.weight")
    if len(shape) != 2:
        return None
    _, rank, state = layer.shape("B_bias")
    both = 2 * rank * state  # B and C of one group
    groups, angles = divmod(shape[0] - 2 * inner - 3 * heads, both) if both else (0, 0)
    if groups < 1 or heads % groups or angles not in (state // 4, state // 2) or not angles:
        return None
    return 2 * inner + groups * both


def _multiplicity(layer: Layer, heads: int) -> int:
    """Head dimension × state."""
    require_shape(layer.store, layer.names["B_bias"], (heads, None, None))
    require_shape(layer.store, layer.names["out_proj.weight"], (None, None))
    shape = layer.shape("out_proj.weight")
    if shape[1] < 1 or shape[1] % heads:
        raise layer.misshapen("out_proj.weight", f"does not fit {heads} heads")
    return shape[1] // heads * layer.shape("B_bias")[2]
