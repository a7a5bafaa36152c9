"""Which type the state can be kept in from one step to the next: of a layer, and of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from memcurse_cli.diagnosis.findings import finding_of
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.families.family import setting
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.schema.figures import quantiles
from memcurse_cli.schema.layer import StateStorage, StoredState
from memcurse_cli.schema.report import (
    Finding,
    LayerReport,
    StateType,
    finite,
    state_types,
    unit_of,
)
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.gates.moments import GatedMoments
from memcurse_cli.theory.linalg import Floats
from memcurse_cli.theory.moments import moments, one_minus_exp
from memcurse_cli.theory.rounding import Dtype
from memcurse_cli.theory.stored_state import (
    HeldStates,
    largest_of_blocks,
    overflow_step,
    roundings,
    roundings_under,
    stored,
)
from memcurse_cli.wording import count, percent

# From the smallest to the largest, of one size the one of the larger range first.
STATE_TYPES: tuple[Dtype, ...] = (
    "float8_e5m2", "float8_e4m3fn", "int8", "bfloat16", "float16", "float32",
)  # fmt: skip
# What a config.json calls the type of the state: Nemotron-H and vLLM, Qwen3.5 and SGLang.
CONFIGURED = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
_NAMES: Mapping[str, Dtype] = {
    **{name: name for name in STATE_TYPES},
    "half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32",
    "float": "float32", "fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn",
    "float8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
}  # fmt: skip

FED_BACK = "its hidden weights carry errors on, which only running it shows (--simulate)"
MIXED = "rounding errors mix in its matrix, which only running it shows (--simulate)"
EMPTY = "it holds no state"


def store_state(recurrence: Recurrence, settings: Settings) -> StateStorage | str:
    """A layer's state in every type with its gates at zero input, or why not, as a clause."""
    if recurrence.dense is not None:
        return MIXED
    if recurrence.hidden_feedback or recurrence.dynamics is not None:
        return FED_BACK
    logs, under, horizon = recurrence.log_eigenvalues, settings.autocorrelation, settings.horizon
    if not logs.size:
        return EMPTY
    decay = -2 * logs.real
    driven = np.exp(2 * recurrence.log_gain.real) * settings.input_scale**2
    if recurrence.readin is not None:
        driven = driven * np.sum(np.abs(recurrence.readin) ** 2, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        of_unit_gain = np.asarray(moments(logs, under, horizon).second_moment)
        left_behind = np.abs(one_minus_exp(logs))
        movement = left_behind**2 + under.variance / of_unit_gain
        held = driven * of_unit_gain
    states = HeldStates(
        roundings_under(logs, under, horizon),
        movement,
        left_behind,
        largest_of_blocks(_finite(held), recurrence.multiplicity),
    )

    largest = np.unique([np.argmax(_finite(held)), np.argmax(logs.real)])

    def overflow(dtype: Dtype, drive: Autocorrelation) -> int | None:
        if drive.is_white:
            return overflow_step(decay, driven * drive.variance, dtype)
        return overflow_step(
            decay[largest],
            driven[largest],
            dtype,
            lambda steps: np.asarray(moments(logs[largest], drive, steps).second_moment),
        )

    beyond = 0 if horizon is None else int(np.count_nonzero(logs.real > -1 / horizon))
    constant = Autocorrelation((under.variance,), (1.0,))
    return StateStorage(
        tuple(_stored(states, one, settings, overflow(one, under)) for one in STATE_TYPES),
        beyond,
        _growth(recurrence, settings),
        overflow("float16", constant) if beyond else None,
    )


def moving_storage(
    moving: GatedMoments, log_moduli: Floats, recurrence: Recurrence, settings: Settings
) -> tuple[StoredState, ...]:
    """A layer's state in every type with gates that are drawn anew at every step.

    E|λ|² stands in the place of |λ|², which a white drive makes exact. (n,) log|λ| are those of
    gates that stay at the slow end of their band. None where hidden weights carry errors on.
    """
    if recurrence.hidden_feedback:
        return ()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        forgotten = moving.squared_complement
        decay = -np.log1p(-np.minimum(forgotten, 1.0))
        kept = 1.0 if settings.horizon is None else -np.expm1(-decay * settings.horizon)
        taken = np.maximum(forgotten, 0.0) / kept  # E γ² / E|h|²
        if settings.horizon is not None:
            taken = np.where(forgotten == 0, 1 / settings.horizon, taken)
        held = _finite(moving.second_moment)
        states = HeldStates(
            roundings(decay, settings.horizon),
            moving.left_behind**2 + taken,
            moving.left_behind,
            largest_of_blocks(held * kept, recurrence.multiplicity),
        )
        driven = np.maximum(forgotten, 0.0) * held
    slow = states._replace(roundings=roundings(-2 * log_moduli, settings.horizon))
    return tuple(
        replace(
            _stored(states, one, settings, overflow_step(decay, driven, one)),
            held_open=float(stored(slow, one).errors.max()),
        )
        for one in STATE_TYPES
    )


def _finite(values: Floats) -> Floats:
    """What a float can hold, in the place of what grows without bound."""
    return np.nan_to_num(values, nan=0.0, posinf=1e300)


def _stored(
    states: HeldStates, dtype: Dtype, settings: Settings, overflow: int | None
) -> StoredState:
    figures = stored(states, dtype)
    return StoredState(
        dtype,
        quantiles(figures.errors),
        quantiles(figures.stochastic),
        int(np.count_nonzero(figures.errors > settings.state_error)),
        figures.frozen,
        figures.stopped,
        overflow,
        errors=tuple(figures.errors.tolist()) if settings.values else None,
    )


def _growth(recurrence: Recurrence, settings: Settings) -> float | None:
    """From half the horizon on, where E|h|² of the longest memory doubles it is 1."""
    horizon = settings.horizon
    if horizon is None or horizon < 2:
        return None
    longest = recurrence.log_eigenvalues[[np.argmax(recurrence.log_eigenvalues.real)]]
    half, whole = (
        float(moments(longest, settings.autocorrelation, steps).second_moment[0])
        for steps in (horizon // 2, horizon)
    )
    return finite(np.log(whole / half) / np.log(horizon / (horizon // 2))) if half > 0 else None


def state_type(
    layers: Sequence[LayerReport], settings: Settings, config: Mapping[str, Any]
) -> StateType | None:
    """The smallest type that keeps the state of every layer with input-dependent decay.

    None where no such layer is known.
    """
    served = [types for layer in layers if layer.input_dependent and (types := state_types(layer))]
    if not served:
        return None
    losses = {same[0].dtype: _loss(same, settings) for same in zip(*served, strict=True)}
    smallest = next((one for one, loss in losses.items() if loss <= settings.state_error), None)
    asked = (str(setting(config, key)).removeprefix("torch.").lower() for key in CONFIGURED)
    configured = next((_NAMES[name] for name in asked if name in _NAMES), None)
    return StateType(
        smallest,
        None if smallest is None else losses[smallest],
        configured,
        None if configured is None else losses[configured],
    )


def _loss(types: Sequence[StoredState], settings: Settings) -> float:
    """The largest error of any layer; all is lost where one overflows within the horizon."""
    overflow = min((one.overflow for one in types if one.overflow is not None), default=None)
    if overflow is not None and (settings.horizon is None or overflow <= settings.horizon):
        return 1.0
    return max(one.error.max or 0.0 for one in types)


def configured_type(
    chosen: StateType | None, layers: Sequence[LayerReport], settings: Settings
) -> Iterator[Finding]:
    """That the configuration asks for a type which loses too much, MC405."""
    if chosen is None or (chosen.configured_error or 0.0) <= settings.state_error:
        return
    served = [layer for layer in layers if layer.input_dependent and state_types(layer)]
    total = sum(layer.eigenvalues.count for layer in served)
    above = sum(
        one.above
        for layer in served
        for one in state_types(layer)
        if one.dtype == chosen.configured
    )
    limit, loss = percent(settings.state_error), percent(chosen.configured_error or 0.0)
    said = (
        f"config.json keeps the state in {chosen.configured}, which costs "
        f"{above} of {count(total, unit_of(served))} more than {limit} of it, up to {loss}"
    )
    kept = f"keep it in {chosen.smallest}: {CONFIGURED[0]}={chosen.smallest}"
    yield finding_of("MC405", "warning", said, "" if chosen.smallest is None else kept)
