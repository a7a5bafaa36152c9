"""The long expressive memory of Rusch et al. 2022: two states with time steps that gates choose."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.gated_layer import GateBias, step_spectra
from memcurse_cli.families.cells.layout import Cell, Layout
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, GateInput, HiddenState, RowNorms
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import log_of_eigenvalues, sigmoid
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.theory.gates.laws import Mix

STEP = Assumption(
    key="dt",
    default="1",
    choices=(),
    meaning="the largest time step of a network that is an ordinary differential equation",
    tensors=("dt",),
)


def lem_layout(
    weight: str, bias: str, linears: tuple[str, str, str], states: tuple[str, str]
) -> Layout:
    """Where the rows of the linears of x, of y and of z are.

    Args:
        weight: the name of a linear's weight, with ``{}`` for that of the linear.
        bias: of its bias.
        linears: what multiplies x, y and z.
        states: what the last two blocks of rows of the first lead into.
    """
    steps = ("step of y", "step of z")
    sides = dict(zip(linears, ((*steps, *states), (*steps, "z"), ("y",)), strict=True))
    of_x, *of_state = linears
    return Layout(
        {weight.format(of_x): sides[of_x]},
        {weight.format(linear): sides[linear] for linear in of_state},
        {bias.format(linear): rows for linear, rows in sides.items()},
        columns=False,
    )


LINEARS = lem_layout(
    "{}.weight", "{}.bias", ("inp2hid", "hid2hid", "transform_z"), states=("y", "z")
)


class LEM:
    """``z' = (1-Δ) z + Δ tanh(·)``, ``y' = (1-Δ̄) y + Δ̄ tanh(·)`` with ``Δ = dt σ(b)``: λ = 1 - Δ.

    The eigenvalues of y stand before those of z.
    """

    name = "lem"
    title = "LEM (long expressive memory)"
    recognised_by = (
        "hid2hid.weight (3H, H) beside inp2hid.weight (4H, inputs) and transform_z.weight"
    )
    equation = "λ = 1 - dt σ(b), γ = dt σ(b), b = inp2hid.bias + hid2hid.bias, first 2H rows"
    source = "tk-rusch/LEM; Rusch et al. 2022, arXiv 2110.04744"
    assumptions: tuple[Assumption, ...] = (STEP,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the three linears, of shapes that fit together."""
        roles = (*LINEARS.matrices, *LINEARS.biases, *STEP.roles)
        return [
            Match(module or self.name, names)
            for module, names in group_by_module(tensors, roles).items()
            if LINEARS.fits({role: tensors[name].shape for role, name in names.items()})
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the biases, and the weights where what they do is asked for.

        Raises:
            TensorError: NaN or inf in what is read, or shapes that do not fit together.
            UsageError: the user's dt is not in (0, 1].
        """
        return read_lem(store, match, options, self.name, LINEARS)


def read_lem(
    store: TensorStore,
    match: Match,
    options: ReadOptions,
    family: str,
    layout: Layout,
    *,
    delayed: bool = False,
    assumptions: tuple[str, ...] = (),
) -> Recurrence:
    """λ = 1 - Δ and γ = Δ of both states: d log γ/db = 1 - σ(b), dλ/db = -Δ (1 - σ(b)).

    Args:
        store: the open checkpoint.
        match: the layer.
        options: what to read beside the biases.
        family: the name of the family.
        layout: where the rows are.
        delayed: y takes in z as it was a step before.
        assumptions: what was assumed of the layer already.

    Raises:
        TensorError: NaN or inf in what is read, or shapes that do not fit together.
        UsageError: the user's dt is not in (0, 1].
    """
    assumed = Assumed(options, store=store, match=match)
    step = assumed.fraction(STEP)
    cell = Cell(store, match, layout)
    slow, fast = (cell.biases[f"step of {state}"] for state in "yz")
    parts = zip(slow.parts, fast.parts, strict=True)
    bias = GateBias(
        np.concatenate([slow.total, fast.total]),
        tuple(
            (role, at, np.concatenate([y, z]), dtype) for (role, at, y, dtype), (*_, z, _) in parts
        ),
    )
    opened, closed = step * sigmoid(bias.total), sigmoid(-bias.total)
    # 1 - dt σ(b) = σ(-b) + (1-dt) σ(b), without cancellation.
    kept = closed + (1 - step) * sigmoid(bias.total)
    groups = bias.groups("steps", -opened * closed, closed)
    hidden = None
    if options.spectra:
        hidden = step_spectra(
            cell.hidden, lambda: _jacobian(cell, step, delayed), 2 * cell.size, options.device
        )
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(match.tensors.values()),
        log_eigenvalues=np.where(
            opened < 0.5, np.log1p(-np.minimum(opened, 0.5)), log_of_eigenvalues(kept)
        ),
        log_gain=np.log(opened).astype(np.complex128),
        parameters=groups,
        input_dependent=True,
        stable_by_construction=True,
        assumptions=(*assumptions, *assumed.sentences),
        hidden_feedback=True,
        hidden=hidden,
        gate=_drive(cell, bias.total, step, [group.name for group in groups])
        if options.gates
        else None,
    )


def _drive(cell: Cell, bias: Floats, step: float, groups: list[str]) -> GateDrive | None:
    """Both steps see x and y; what z takes in sees them too, and what y takes in sees x and z."""
    norms = cell.norms
    if norms is None:
        return None

    def both(first: str, second: str) -> RowNorms:
        pair = norms[first], norms[second]
        return RowNorms(
            np.concatenate([one.inputs for one in pair]),
            np.concatenate([one.hidden for one in pair]),
        )

    taken = np.concatenate([cell.biases["y"].total, cell.biases["z"].total])
    return GateDrive(
        law=Mix(keeps=False, parameter="steps", largest=step),
        gate=GateInput(bias, both("step of y", "step of z")),
        state=HiddenState(GateInput(taken, both("y", "z")), cascade=cell.size),
        motions=dict.fromkeys(groups, ("steps", 1.0)),
    )


def _jacobian(cell: Cell, step: float, delayed: bool) -> Floats:
    """Of one step of (y, z) at zero input and zero state."""
    weights = cell.hidden
    totals = {gate: bias.total for gate, bias in cell.biases.items()}
    slow, fast = totals["step of y"], totals["step of z"]
    slow_step, fast_step = step * sigmoid(slow), step * sigmoid(fast)
    z = np.tanh(totals["z"])
    seen = totals["y"] if delayed else totals["y"] + weights["y"] @ (fast_step * z)
    y = np.tanh(seen)
    z_by_z = np.diag(1 - fast_step)
    z_by_y = (fast_step * (1 - z**2))[:, None] * weights["z"]
    z_by_y += (fast_step * sigmoid(-fast) * z)[:, None] * weights["step of z"]
    shown = (slow_step * (1 - y**2))[:, None] * weights["y"]
    y_by_y = np.diag(1 - slow_step)
    y_by_y += (slow_step * sigmoid(-slow) * y)[:, None] * weights["step of y"]
    if delayed:
        return np.block([[y_by_y, shown], [z_by_y, z_by_z]])
    return np.block([[y_by_y + shown @ z_by_y, shown @ z_by_z], [z_by_y, z_by_z]])
