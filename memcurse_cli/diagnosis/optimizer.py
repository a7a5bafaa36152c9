"""What Adam has made of the learning rate, by its state, and the rates to give to groups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from memcurse_cli.checkpoints.optimizer import AdamState
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.diagnosis.hessian import LARGEST_BLOCK, dense_layer_hessian, layer_hessian, taken
from memcurse_cli.diagnosis.operating_point import linearised_at_work
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.errors import CheckpointError
from memcurse_cli.families.reading import split_name
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.schema.layer import (
    AdamGroup,
    GroupRate,
    LearningRates,
    RelativeSharpness,
    StepQuantiles,
)
from memcurse_cli.schema.report import LayerReport, step_effects
from memcurse_cli.theory.diagonality import diagonality_scores
from memcurse_cli.theory.linalg import Array, Floats
from memcurse_cli.theory.sensitivity import compensation, effective_steps, group_sensitivity

BETA2, EPSILON = 0.999, 1e-8  # every library's default, where the state does not say


class _Group(NamedTuple):
    """A parameter group with what it was read from and its figures, one per scalar."""

    group: AdamGroup  # what the report says of it so far
    values: Floats | None = None  # the stored values; None of a whole tensor
    sensitivity: Floats | None = None  # κ
    curvature: Floats | None = None  # the diagonal of the Hessian


def summarise_adam(
    recurrence: Recurrence,
    state: AdamState,
    store: TensorStore,
    source: TensorStore,
    settings: Settings,
    *,
    curvature: bool,
) -> tuple[AdamGroup, ...]:
    """Adam's effective steps on a layer's recurrent groups, then on its other tensors.

    Of the weights in ``store`` and the state in ``source``, which may be the same file; with
    ``curvature`` where the report has taken the layer's Hessian, so that its diagonal is there.
    """
    if state.reason is not None:
        return ()
    groups = list(_groups(recurrence, settings, curvature=curvature))
    named = {one.group.tensor for one in groups}
    for name in recurrence.tensors:
        # An optimiser may have a weight that modules share under another name.
        slot = state.slots.get(store.aliases.get(name, name))
        if name not in named and slot is not None:
            inside = name.removeprefix(recurrence.name).strip("./")
            short = inside if inside != name else split_name(name)[1]
            size = math.prod(slot.second_moment.spec.shape)
            groups.append(_Group(AdamGroup(short, name, False, size)))
    return tuple(
        replace(one.group, **_steps(one, state, store, source, settings)) for one in groups
    )


def _groups(recurrence: Recurrence, settings: Settings, *, curvature: bool) -> Iterator[_Group]:
    working, _, withheld = linearised_at_work(recurrence, settings)
    dynamics = working.dense
    if dynamics is not None:  # every entry of the matrix as a scalar of its own
        from memcurse_cli.diagnosis.dense import dense_system
        from memcurse_cli.theory.dense.sensitivity import dense_sensitivity

        system = dense_system(working, dynamics, settings)
        assert recurrence.dense is not None
        name = dynamics.tensor.rpartition(".")[2]
        yield _Group(
            AdamGroup(name, dynamics.tensor, True, dynamics.matrix.size),
            recurrence.dense.matrix,
            dense_sensitivity(system).per_entry if withheld is None else None,
            dense_layer_hessian(working, dynamics, settings).diagonal if curvature else None,
        )
        return
    known, groups = withheld is None, recurrence.parameters
    moment = settings.moments_of(recurrence.log_eigenvalues) if known else None
    order = sum(group.size for group in groups)
    diagonal: Floats | None = None  # of the Hessian at a perfect fit, unless it is too large
    if curvature and known and (recurrence.channel is not None or order <= LARGEST_BLOCK):
        diagonal = np.zeros(order)
        for blocks in layer_hessian(recurrence, settings).blocks():
            diagonal[blocks.scalars] = np.einsum("kii->ki", blocks.hessians)
    start = 0
    for group in groups:
        kappa = None
        if moment is not None:
            kappa = group_sensitivity(moment, recurrence.log_gain, group).relative_sensitivity
        own = None if diagonal is None else diagonal[start : start + group.size]
        yield _Group(
            AdamGroup(group.name, group.tensor, True, group.size), group.values, kappa, own
        )
        start += group.size


def _steps(
    found: _Group, state: AdamState, store: TensorStore, source: TensorStore, settings: Settings
) -> dict[str, Any]:
    """The fields of a group's effective steps, and of how these follow its figures."""
    tensor = found.group.tensor
    held = store.aliases.get(tensor, tensor)
    slot = state.slots.get(held)
    if slot is None:
        return {"reason": state.refused.get(held, "Adam has no state for it")}
    try:
        moment: Array = source.load(slot.second_moment, tensor)
        if found.values is not None:  # the weight was read with its layer
            moment = align(found.values, store.read(tensor), moment)
        elif np.iscomplexobj(moment):
            moment = np.stack([moment.real, moment.imag])
    except CheckpointError as error:
        return {"reason": f"its state cannot be read: {error.what}"}
    if moment is None:
        return {"reason": "its scalars are not elements of the tensor in their order"}
    moment = moment.reshape(-1)
    rate = settings.learning_rate if slot.learning_rate is None else slot.learning_rate
    fields: dict[str, Any] = {"learning_rate": rate, "step": slot.step}
    if not np.isfinite(moment).all() or np.any(moment < 0):
        return fields | {"reason": "its state is not finite and positive"}
    beta2 = BETA2 if slot.beta2 is None else slot.beta2
    epsilon = EPSILON if slot.epsilon is None else slot.epsilon
    steps, seen = effective_steps(moment, rate, slot.step, beta2, epsilon), moment > 0
    fields["without_gradient"] = int(np.count_nonzero(~seen))
    if not seen.any():
        return fields | {"reason": "no gradient has reached it"}
    levels = np.quantile(steps[seen], [0, 0.1, 0.5, 0.9, 1]).tolist()
    fields["effective_step"] = StepQuantiles(*levels)
    for prefix, figures in (("", found.sensitivity), ("hessian_", found.curvature)):
        if figures is not None:
            followed = compensation(steps[seen], figures.reshape(-1)[seen])
            named = {} if followed is None else followed._asdict()
            fields |= {prefix + name: value for name, value in named.items()}
    return fields


def align(values: Floats, weight: Array, moment: Array) -> Floats | None:
    """The elements of a state that belong to a group's scalars, in the group's order.

    A group may be a whole tensor, its transpose, a part of a complex one, or a run of its elements.
    The values tell which: None where none fits, or several do with different states.
    """
    wanted = values.reshape(-1)
    found: list[Floats] = []
    for weights, moments_of in _views(weight, moment):
        flat = weights.reshape(-1)
        for start in range(0, flat.size - wanted.size + 1, max(wanted.size, 1)):
            place = slice(start, start + wanted.size)
            if np.array_equal(flat[place], wanted):
                found.append(moments_of.reshape(-1)[place].astype(np.float64))
    if not found or any(not np.array_equal(found[0], other) for other in found[1:]):
        return None
    return found[0]


def _views(weight: Array, moment: Array) -> Iterator[tuple[Array, Array]]:
    """A tensor and its state as they may stand in a layer: parts, and transposes."""
    if weight.shape != moment.shape:
        return
    if np.iscomplexobj(weight):
        # torch takes the two parts for two parameters; optax has one |g|² for both.
        parts = (moment.real, moment.imag) if np.iscomplexobj(moment) else (moment, moment)
        pairs = list(zip((weight.real, weight.imag), parts, strict=True))
    else:
        pairs = [(weight, moment)]
        if weight.ndim > 1 and weight.shape[-1] == 2:  # a complex tensor as torch.view_as_real
            pairs += [(weight[..., part], moment[..., part]) for part in (0, 1)]
    for one, its_moment in pairs:
        yield one, its_moment
        if one.ndim == 2 and min(one.shape) > 1:
            yield one.T, its_moment.T


def learning_rates(recurrence: Recurrence, layer: LayerReport, settings: Settings) -> LearningRates:
    """The rate to give to each recurrent group: the usable one, where the network's is larger."""
    rest, groups, usable = settings.learning_rate, [], layer.usable_rate
    for group, effect in step_effects(layer):
        rate = None if usable is None or usable.rate is None else min(usable.rate, rest)
        if effect == 0:  # no step on it changes the state
            rate = rest
        at_limit = None  # the rate at which the step effect, which grows with it, is at the limit
        if effect and math.isfinite(effect):
            at_limit = group.learning_rate * (settings.step_limit / effect)
        share = None if rate is None else rate / rest
        groups.append(GroupRate(group.name, group.tensor, at_limit, rate, share))
    sharpness: RelativeSharpness | None = None
    reason: str | None = "a dense matrix is not split from its B and C here"
    if recurrence.dense is None:
        sharpness, reason = taken(_sharpness, recurrence, settings)
    return LearningRates(rest, settings.step_limit, tuple(groups), sharpness, reason)


def _sharpness(recurrence: Recurrence, settings: Settings) -> RelativeSharpness:
    """The Hessian over the recurrent parameters against that over B, C and D; errors as `taken`."""
    if not recurrence.projections:
        raise ArithmeticError("it is not known how B, C and D are stored")
    order = sum(group.size for group in (*recurrence.parameters, *recurrence.projections))
    if recurrence.channel is None and order > LARGEST_BLOCK:
        large = f"the order of its Hessian, {order}, is beyond the {LARGEST_BLOCK} that are formed"
        raise ArithmeticError(large)
    without = replace(recurrence, parameters=())
    hessians = (
        layer_hessian(recurrence, settings),
        layer_hessian(without, settings, recurrence.projections),
    )
    recurrent, rest = (
        diagonality_scores(found.hessians for found in hessian.blocks()) for hessian in hessians
    )
    if recurrent is None or rest is None:
        raise ArithmeticError("one of the two is zero: no parameter changes the output")
    ratios = rest.sharpness / recurrent.sharpness, math.sqrt(rest.trace / recurrent.trace)
    return RelativeSharpness(recurrent.sharpness, rest.sharpness, *ratios)
