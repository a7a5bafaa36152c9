"""A layer that one law of its gates describes: λ, γ, what moves them and how gates move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.families.family import Match, ReadOptions
from memcurse_cli.families.gate_inputs import Drive, GateDrive, GateInput, JointDrive, NoDrive
from memcurse_cli.families.reading import LARGEST_DECAY
from memcurse_cli.families.recurrence import (
    Floats,
    Integers,
    ParameterGroup,
    RankOneCorrection,
    Recurrence,
)
from memcurse_cli.theory.gates.laws import GateLaw, JointLaw, JointValues, Write

Seen = GateInput | JointDrive | NoDrive | tuple[GateInput | None, GateInput | None] | None
"""The pre-activation of λ, or with it that of a write gate; all of a joint law; why there is none;
None where weights are not in the checkpoint."""


@dataclass(frozen=True)
class Slot:
    """A stored tensor, or a part of one, and the parameter of a law that it moves.

    Attributes:
        name: the name of its group.
        tensor: the tensor's name.
        values: (size,) its scalars.
        moves: the law's parameter.
        scale: what one unit of a scalar adds to that parameter, alike for all or of each entry.
        scalar: (entries,) which scalar moves something; by default each of them has one entry.
        eigenvalue: (entries,) which eigenvalue it moves; by default each of them in turn.
    """

    name: str
    tensor: str
    values: Floats
    moves: str
    scale: float | Floats = 1.0
    scalar: Integers | None = None
    eigenvalue: Integers | None = None


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
    write: Write | None = None,
    sees: str = "the layer's input",
    tensors: Sequence[str] | None = None,
    multiplicity: int = 1,
    assumptions: Sequence[str] = (),
    rank_one: RankOneCorrection | None = None,
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
        write: a further factor of γ, at rest at zero input.
        sees: what the gates' weights multiply.
        tensors: the names of the layer's tensors, where the slots are not all of them.
        multiplicity: how many scalar states each eigenvalue drives.
        assumptions: what was assumed, one sentence each.
        rank_one: what the transition has beside λ.
    """
    values = law(at)
    nominal = values.nominal if isinstance(values, JointValues) else values
    with np.errstate(divide="ignore"):
        lost = np.asarray(nominal.complement)
        log = np.where(lost < 0.5, np.log1p(-np.minimum(lost, 0.5)), np.log(nominal.eigenvalue))
    gain = np.maximum(nominal.gain, np.finfo(np.float64).tiny)
    log_gain = np.log(gain)
    if write is not None:
        log_gain = log_gain + np.log(write(np.zeros_like(log_gain)).value)
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
            write=write,
            write_gate=write_gate,
            motions={slot.name: (slot.moves, slot.scale) for slot in slots},
            sees=sees,
        )

    def group(slot: Slot) -> ParameterGroup:
        each = np.arange(len(at)) if slot.eigenvalue is None else slot.eigenvalue
        motion = nominal.motions[slot.moves]
        moved = slot.scale * (np.asarray(motion.gain) / gain)[each]
        return ParameterGroup(
            name=slot.name,
            tensor=slot.tensor,
            values=slot.values,
            dtype=store.tensors[slot.tensor].dtype,
            scalar=np.arange(slot.values.size) if slot.scalar is None else slot.scalar,
            eigenvalue=each,
            eigenvalue_derivative=(slot.scale * np.asarray(motion.eigenvalue)[each]).astype(
                np.complex128
            ),
            log_gain_derivative=moved.astype(np.complex128) if np.any(moved) else None,
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
        input_dependent=True,
        stable_by_construction=True,
        assumptions=tuple(assumptions),
        rank_one=rank_one,
        gate=drive,
    )
