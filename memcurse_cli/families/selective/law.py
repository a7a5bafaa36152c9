"""A layer that one law of its gates describes: λ, γ, what moves them and how gates move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Match, ReadOptions
from memcurse_cli.families.gate_inputs import (
    Drive,
    GateDrive,
    GateInput,
    JointDrive,
    NoDrive,
    low_rank_gate,
    projected_gate,
)
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside
from memcurse_cli.families.reading import LARGEST_DECAY, log_sigmoid, require_finite, sigmoid
from memcurse_cli.families.recurrence import (
    Floats,
    Integers,
    ParameterGroup,
    RankOneCorrection,
    Recurrence,
)
from memcurse_cli.theory.gates.laws import (
    Exponential,
    GateLaw,
    JointLaw,
    JointValues,
    Write,
    soft_cap,
)

Seen = GateInput | JointDrive | NoDrive | tuple[GateInput | None, GateInput | None] | None
"""The pre-activation of λ, or with it that of a write gate; all of a joint law; why there is none;
None where weights are not in the checkpoint."""


Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each role's tensor."""


def layers_with(
    tensors: Mapping[str, TensorSpec],
    default: str,
    required: Sequence[str | tuple[str, ...]],
    *,
    optional: Sequence[str] = (),
    without: Sequence[str] = (),
    fits: Callable[[Shapes], bool] | None = None,
) -> list[Match]:
    """Every module that holds all of some tensors.

    Args:
        tensors: every tensor's name, shape and type.
        default: the name of a layer whose tensors have no module.
        required: the roles that it must have, or several of which it must have one.
        optional: those that are kept beside them.
        without: those of another family, which it must not have.
        fits: what the shapes must fulfil.
    """
    choices = [(each,) if isinstance(each, str) else each for each in required]
    roles = [role for choice in choices for role in choice]
    matches = []
    for module, names in group_by_module(tensors, (*roles, *optional, *without)).items():
        found = names.keys()
        if any(found.isdisjoint(choice) for choice in choices) or found & set(without):
            continue
        if fits is None or fits({role: tensors[name].shape for role, name in names.items()}):
            matches.append(Match(module or default, names))
    return matches


def gate_through(
    store: TensorStore, bias: Floats, role: str, tensor: str, layers: Sequence[tuple[str, ...]]
) -> GateInput | None:
    """The pre-activation behind the first of some projections that is there and fits.

    Args:
        store: the open checkpoint.
        bias: (n,) the pre-activation at zero input.
        role: what a tensor of their module is called in it.
        tensor: its whole name.
        layers: the names of each, one of a plain projection, the outer and the inner one of a
            projection of low rank.

    Raises:
        TensorError: NaN or inf in the weights.
    """
    for layer in layers:
        names = [beside(store, tensor, name, above=role.count(".")) for name in layer]
        gate = None
        if names[0] is not None and len(names) == 1:
            gate = projected_gate(store, bias, names[0])
        elif names[0] is not None and names[-1] is not None:
            gate = low_rank_gate(store, bias, names[0], names[-1])
        if gate is not None:
            return gate
    return None


@dataclass(frozen=True)
class Slot:
    """A stored tensor, or a part of one, and the parameter of a law that it moves.

    Attributes:
        name: the name of its group.
        tensor: the tensor's name.
        values: (size,) its scalars.
        moves: the parameter of the law, or of the write gate.
        scale: what one unit of a scalar adds to that parameter, alike for all or of each entry.
        scalar: (entries,) which scalar moves something; by default each of them has one entry.
        eigenvalue: (entries,) which eigenvalue it moves; by default each of them in turn.
        keeps_stable: as of `ParameterGroup`.
    """

    name: str
    tensor: str
    values: Floats
    moves: str
    scale: float | Floats = 1.0
    scalar: Integers | None = None
    eigenvalue: Integers | None = None
    keeps_stable: bool = False


def law_recurrence(
    store: TensorStore,
    match: Match,
    options: ReadOptions,
    *,
    family: str,
    law: GateLaw | JointLaw,
    at: Floats,
    slots: Sequence[Slot],
    gates: Callable[[], Seen] | None = None,
    nominal: GateLaw | None = None,
    write: Write | None = None,
    write_at: Floats | None = None,
    sees: str = "the layer's input",
    tensors: Sequence[str] | None = None,
    multiplicity: int = 1,
    assumptions: Sequence[str] = (),
    rank_one: RankOneCorrection | None = None,
    input_dependent: bool = True,
    stable: bool = True,
) -> Recurrence:
    """The layer at its nominal gates; with ``--gates`` the same law is what moves.

    log λ comes from 1 - λ where λ > 1/2, so that decays keep their digits down to 1e-300.

    Args:
        store: the open checkpoint.
        match: the layer.
        options: what to read beside its parameters.
        family: the name of its family.
        law: λ, γ and what moves them, as functions of a pre-activation.
        at: (n,) the pre-activation at zero input; (n, gates) where the law takes several.
        slots: what is stored.
        gates: what the gates see, asked for where that is to be read.
        nominal: the law at zero input, where that is another.
        write: a further factor of γ, logistic or exponential.
        write_at: (n,) its pre-activation at zero input; 0 where no bias is stored.
        sees: what the gates' weights multiply.
        tensors: the names of the layer's tensors, where the slots are not all of them.
        multiplicity: how many scalar states each eigenvalue drives.
        assumptions: what was assumed, one sentence each.
        rank_one: what the transition has beside λ.
        input_dependent: whether the gates move at all.
        stable: whether no value of what is stored gives |λ| ≥ 1.

    Raises:
        TensorError: λ overflows.
    """
    with np.errstate(divide="ignore", over="ignore"):
        values = (nominal or law)(at)
        still = values.nominal if isinstance(values, JointValues) else values
        lost = np.asarray(still.complement)
        log = np.where(lost < 0.5, np.log1p(-np.minimum(lost, 0.5)), np.log(still.eigenvalue))
    if slots:
        require_finite(np.asarray(still.eigenvalue), slots[0].tensor, "λ")
    gain = np.maximum(still.gain, np.finfo(np.float64).tiny)
    log_gain, write_slope = np.log(gain), np.zeros(len(at))
    if write is not None:
        factor, write_slope = _log_factor(
            write, np.zeros(len(at)) if write_at is None else write_at
        )
        log_gain = log_gain + factor
    seen = gates() if gates is not None and options.gates else None
    gate, write_gate = seen if isinstance(seen, tuple) else (seen, None)
    drive: Drive | None = gate if isinstance(gate, NoDrive | JointDrive) else None
    if (
        isinstance(law, GateLaw)
        and isinstance(gate, GateInput)
        and (write is None) == (write_gate is None)
    ):
        drive = GateDrive(
            law,
            gate,
            nominal=nominal,
            write=write,
            write_gate=write_gate,
            motions={slot.name: (slot.moves, slot.scale) for slot in slots},
            sees=sees,
        )

    def group(slot: Slot) -> ParameterGroup:
        each = np.arange(len(at)) if slot.eigenvalue is None else slot.eigenvalue
        if write is not None and slot.moves == write.parameter:
            of_eigenvalue, of_gain = np.zeros(len(at)), write_slope
        else:
            motion = still.motions[slot.moves]
            of_eigenvalue, of_gain = np.asarray(motion.eigenvalue), np.asarray(motion.gain) / gain
        moved = slot.scale * of_gain[each]
        return ParameterGroup(
            name=slot.name,
            tensor=slot.tensor,
            values=slot.values,
            dtype=store.tensors[slot.tensor].dtype,
            scalar=np.arange(slot.values.size) if slot.scalar is None else slot.scalar,
            eigenvalue=each,
            eigenvalue_derivative=(slot.scale * of_eigenvalue[each]).astype(np.complex128),
            log_gain_derivative=moved.astype(np.complex128) if np.any(moved) else None,
            keeps_stable=slot.keeps_stable,
        )

    names = tuple(dict.fromkeys(slot.tensor for slot in slots)) if tensors is None else tensors
    return Recurrence(
        name=match.layer,
        family=family,
        tensors=tuple(names),
        log_eigenvalues=np.maximum(log, -LARGEST_DECAY).astype(np.complex128),
        log_gain=log_gain.astype(np.complex128),
        parameters=tuple(map(group, slots)),
        multiplicity=multiplicity,
        input_dependent=input_dependent,
        stable_by_construction=stable,
        assumptions=tuple(assumptions),
        rank_one=rank_one,
        gate=drive,
    )


def _log_factor(write: Write, at: Floats) -> tuple[Floats, Floats]:
    """log of the factor and its slope by the pre-activation, where the factor may overflow."""
    if not isinstance(write.opening, Exponential):
        return np.log(write.factor) + log_sigmoid(at), sigmoid(-at)
    cap = write.opening.cap
    return (at, np.ones_like(at)) if cap is None else soft_cap(at, cap)
