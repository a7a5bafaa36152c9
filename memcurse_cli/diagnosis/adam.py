"""What Adam has made of the learning rate, from the state that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.optimizer.adam import AdamSlot, AdamState
from memcurse_cli.diagnosis.gates.operating_point import linearised_at_work
from memcurse_cli.diagnosis.hessian.scores import LARGEST_BLOCK, dense_layer_hessian, layer_hessian
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.errors import CheckpointError
from memcurse_cli.families.module_names import split_name
from memcurse_cli.families.recurrence import DenseDynamics, Recurrence
from memcurse_cli.schema.optimizer import AdamGroup, OptimizerSummary, StepQuantiles
from memcurse_cli.theory.dense.sensitivity import dense_sensitivity
from memcurse_cli.theory.sensitivity import compensation, effective_steps, group_sensitivity

Floats = NDArray[np.float64]

BETA2, EPSILON = 0.999, 1e-8
"""What every library's Adam takes by default, where the state does not say."""


@dataclass(frozen=True)
class _Group:
    """A parameter group with its sensitivities, one per scalar.

    Attributes:
        group: what the report says of it so far.
        values: the stored values.
        sensitivity: κ, or None.
        curvature: the diagonal of the Hessian, or None.
    """

    group: AdamGroup
    values: Floats
    sensitivity: Floats | None
    curvature: Floats | None = None


def summarise_optimizer(state: AdamState, path: str) -> OptimizerSummary:
    """What was found of the optimizer, in the file of this path."""
    return OptimizerSummary(
        library=state.library,
        path=path,
        weights=len(state.slots),
        refused=len(state.refused),
        reason=state.reason,
    )


def summarise_adam(
    recurrence: Recurrence,
    state: AdamState,
    store: LazyStore,
    source: LazyStore,
    settings: Settings,
    *,
    curvature: bool,
) -> tuple[AdamGroup, ...]:
    """Adam's effective steps on a layer's recurrent groups, then on its other tensors.

    Args:
        recurrence: the layer.
        state: Adam's state by the names of the weights.
        store: the file of the weights.
        source: the file of the state, which may be the same.
        settings: what the sensitivities are taken under.
        curvature: whether the report has taken the layer's Hessian, so that its diagonal is there.
    """
    if state.reason is not None:
        return ()
    groups = list(_groups(recurrence, settings, curvature=curvature))
    recurrent = [_recurrent(one, state, store, source, settings) for one in groups]
    named = {one.group.tensor for one in groups}
    others = [
        _other(name, recurrence.name, state.slots[_held(name, store)], source, settings)
        for name in recurrence.tensors
        if name not in named and _held(name, store) in state.slots
    ]
    return (*recurrent, *others)


def _held(name: str, store: LazyStore) -> str:
    """The name under which an optimiser has a weight that modules share."""
    return store.aliases.get(name, name)


def _groups(recurrence: Recurrence, settings: Settings, *, curvature: bool) -> Iterator[_Group]:
    working, _, withheld = linearised_at_work(recurrence, settings)
    if withheld is not None:
        for group in recurrence.parameters:
            known = AdamGroup(group.name, group.tensor, True, group.size)
            yield _Group(known, group.values, None, None)
    if working.dense is not None:
        whole = _dense_group(
            working, working.dense, settings, curvature=curvature, known=withheld is None
        )
        assert recurrence.dense is not None
        yield replace(whole, values=recurrence.dense.matrix)
    if withheld is not None or working.dense is not None:
        return
    moment = settings.moments_of(recurrence.log_eigenvalues)
    curvatures = _curvatures(recurrence, settings) if curvature else None
    for group in recurrence.parameters:
        kappa = group_sensitivity(moment, recurrence.log_gain, group).relative_sensitivity
        yield _Group(
            AdamGroup(group.name, group.tensor, True, group.size),
            group.values,
            kappa,
            None if curvatures is None else next(curvatures),
        )


def _dense_group(
    recurrence: Recurrence,
    dynamics: DenseDynamics,
    settings: Settings,
    *,
    curvature: bool,
    known: bool,
) -> _Group:
    """Every entry of the matrix as a scalar of its own."""
    per_entry = None
    if known:
        per_entry = dense_sensitivity(
            dynamics.matrix,
            recurrence.eigenbasis,
            None if recurrence.readin is None else recurrence.readin.real,
            settings.autocorrelation,
            settings.horizon,
            settings.state_readout,
        ).per_entry
    name = dynamics.tensor.rpartition(".")[2]
    return _Group(
        AdamGroup(name, dynamics.tensor, True, dynamics.matrix.size),
        dynamics.matrix,
        per_entry,
        dense_layer_hessian(recurrence, dynamics, settings).diagonal if curvature else None,
    )


def _curvatures(recurrence: Recurrence, settings: Settings) -> Iterator[Floats] | None:
    """The diagonal of the Hessian at a perfect fit, group by group; None of one too large."""
    order = sum(group.size for group in recurrence.parameters)
    if recurrence.channel is None and order > LARGEST_BLOCK:
        return None
    diagonal = np.zeros(order)
    for blocks in layer_hessian(recurrence, settings).blocks():
        diagonal[blocks.scalars] = np.einsum("kii->ki", blocks.hessians)
    ends = np.cumsum([group.size for group in recurrence.parameters])
    return iter(np.split(diagonal, ends[:-1]))


def _recurrent(
    found: _Group, state: AdamState, store: LazyStore, source: LazyStore, settings: Settings
) -> AdamGroup:
    group = found.group
    held = _held(group.tensor, store)
    slot = state.slots.get(held)
    if slot is None:
        return replace(group, reason=state.refused.get(held, "Adam has no state for it"))
    try:
        moment = source.load(slot.second_moment, group.tensor)
        # The weight was read, and counted, with its layer.
        aligned = align(found.values, store.entries[group.tensor].load(), moment)
    except CheckpointError as error:
        return replace(group, reason=f"its state cannot be read: {error.what}")
    if aligned is None:
        return replace(group, reason="its scalars are not elements of the tensor in their order")
    group, steps = _described(group, aligned, slot, settings)
    if group.effective_step is None:
        return group
    seen = aligned > 0
    changes: dict[str, float | None] = {}
    for prefix, figures in (("", found.sensitivity), ("hessian_", found.curvature)):
        if figures is None:
            continue
        followed = compensation(steps[seen], figures.reshape(-1)[seen])
        if followed is not None:
            changes[f"{prefix}correlation"] = followed.correlation
            changes[f"{prefix}spread_before"] = followed.spread_before
            changes[f"{prefix}spread_after"] = followed.spread_after
    return replace(group, **changes)  # type: ignore[arg-type]  # names of float fields alone


def _other(
    name: str, layer: str, slot: AdamSlot, source: LazyStore, settings: Settings
) -> AdamGroup:
    size = int(np.prod(slot.second_moment.spec.shape))
    inside = name.removeprefix(layer).strip("./")
    short = inside if inside != name else split_name(name)[1]
    group = AdamGroup(short, name, False, size)
    try:
        moment = source.load(slot.second_moment, name)
    except CheckpointError as error:
        return replace(group, reason=f"its state cannot be read: {error.what}")
    parts = [moment.real, moment.imag] if np.iscomplexobj(moment) else [moment]
    return _described(group, np.stack(parts), slot, settings)[0]


def _described(
    group: AdamGroup, moment: Floats, slot: AdamSlot, settings: Settings
) -> tuple[AdamGroup, Floats]:
    """The group with its effective steps, and these, one per scalar."""
    rate = settings.learning_rate if slot.learning_rate is None else slot.learning_rate
    group = replace(group, learning_rate=rate, step=slot.step)
    if not np.isfinite(moment).all() or np.any(moment < 0):
        return replace(group, reason="its state is not finite and positive"), np.array([])
    steps = effective_steps(
        moment.reshape(-1),
        rate,
        slot.step,
        BETA2 if slot.beta2 is None else slot.beta2,
        EPSILON if slot.epsilon is None else slot.epsilon,
    )
    seen = steps[moment.reshape(-1) > 0]
    group = replace(group, without_gradient=steps.size - seen.size)
    if seen.size == 0:
        return replace(group, reason="no gradient has reached it"), steps
    levels = np.quantile(seen, [0, 0.1, 0.5, 0.9, 1]).tolist()
    return replace(group, effective_step=StepQuantiles(*levels)), steps


def align(values: Floats, weight: NDArray[Any], moment: NDArray[Any]) -> Floats | None:
    """The elements of a state that belong to a group's scalars, in the group's order.

    A group may be a whole tensor, its transpose, a part of a complex one, or a run of its
    elements (the bias of one gate). Which one is told by the values themselves: None where none
    fits, or where several do with different states.
    """
    wanted = values.reshape(-1)
    found: list[Floats] = []
    for weights, moments_of in _views(weight, moment):
        flat = weights.reshape(-1)
        starts = range(0, flat.size - wanted.size + 1, max(wanted.size, 1))
        for start in starts:
            place = slice(start, start + wanted.size)
            if np.array_equal(flat[place], wanted):
                found.append(moments_of.reshape(-1)[place].astype(np.float64))
    if not found or any(not np.array_equal(found[0], other) for other in found[1:]):
        return None
    return found[0]


def _views(
    weight: NDArray[Any], moment: NDArray[Any]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """A tensor and its state as they may stand in a layer: parts, and transposes."""
    if weight.shape != moment.shape:
        return
    if np.iscomplexobj(weight):
        # torch takes the two parts for two parameters; optax has one |g|² for both.
        both = np.iscomplexobj(moment)
        pairs = [
            (weight.real, moment.real if both else moment),
            (weight.imag, moment.imag if both else moment),
        ]
    else:
        pairs = [(weight, moment)]
        if weight.ndim > 1 and weight.shape[-1] == 2:  # a complex tensor as torch.view_as_real
            pairs += [(weight[..., part], moment[..., part]) for part in (0, 1)]
    for one, its_moment in pairs:
        yield one, its_moment
        if one.ndim == 2 and min(one.shape) > 1:
            yield one.T, its_moment.T
