"""From the parameter groups and the states of a diagonal layer to their part of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.verdicts import direction, step_effect
from memcurse_cli.families.reading import LARGEST_DECAY
from memcurse_cli.families.recurrence import ParameterGroup, Recurrence
from memcurse_cli.schema.figures import (
    ParameterSummary,
    Quantiles,
    Rounding,
    StateSummary,
    p99,
    quantiles,
)
from memcurse_cli.schema.layer import StateStorage, StoredState
from memcurse_cli.schema.report import finite
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.linalg import Floats
from memcurse_cli.theory.moments import Moments, moments, one_minus_exp
from memcurse_cli.theory.rounding import (
    Dtype,
    moved_logs,
    rounded,
    rounding_error,
    rounding_steps,
    state_change,
)
from memcurse_cli.theory.sensitivity import group_sensitivity, state_second_moment
from memcurse_cli.theory.stored_state import (
    STATE_TYPES,
    HeldStates,
    largest_of_blocks,
    overflow_steps,
    roundings,
    roundings_under,
    stored,
)

if TYPE_CHECKING:
    from memcurse_cli.theory.gates.moments import GatedMoments

Truths = NDArray[np.bool_]

DTYPES = cast(tuple[Dtype, ...], Rounding.__struct_fields__)
PARTS = {"complex64": "float32"}  # the type of the real and imaginary parts of a complex one
# The relative error of the state up to which first order is kept, and cancels less.
FIRST_ORDER = 1e-3
LARGE = 256  # scalars of a group up to which all of them are looked at beyond first order
ROUND_OFF = 1e-9  # the share of log|λ| within which a decay that rounding took away counts as gone
UNKNOWN = Quantiles(None, None, None, None, None)
FED_BACK = "its hidden weights carry errors on, which only running it shows (--simulate)"
MIXED = "rounding errors mix in its matrix, which only running it shows (--simulate)"
EMPTY = "it holds no state"


def is_stored(stored: str, dtype: Dtype) -> bool:
    """Whether a tensor of one type holds its numbers in another."""
    return PARTS.get(stored, stored) == dtype


def _rounding(
    relative_sensitivity: Floats,
    recurrence: Recurrence,
    group: ParameterGroup,
    held: Floats,
    share: Floats,
    settings: Settings,
) -> tuple[Rounding, float | None]:
    """The p99 relative error of the state by stored type, and in int8 with a scale of its own.

    κ is that of every scalar; ``held`` (n,) E|h|² of each state at γ = 1, ``share`` (n,) what κ
    weighs each with: |γ|² and its drive where scalars are tied. An error diverges where an infinite
    sequence meets an eigenvalue that rounding takes out of the disk.
    """
    bounded = recurrence.stable_by_construction or group.keeps_stable

    def figure(dtype: Dtype, largest: float | None) -> float | None:
        stored = is_stored(group.dtype, dtype)
        steps = rounding_steps(group.values, dtype, stored=stored, largest=largest)
        if steps.size and not steps.any():
            return 0.0
        error = rounding_error(relative_sensitivity, steps)
        if settings.horizon is None:
            crossed = leaves_disk(recurrence, replace(group, tensor_largest=largest), dtype)
            error[group.scalar[crossed[group.eigenvalue]]] = np.inf
        larger = np.isfinite(error) & (error >= FIRST_ORDER)
        below = 0
        if bounded and error.size > LARGE:
            # Only the p99 is told: the largest twentieth have it among them.
            below = int(0.95 * error.size)
            top = np.zeros(error.shape, bool)
            top[np.argpartition(error, below)[below:]] = True
            larger &= top
        if larger.any():
            error[larger] = beyond_first_order(steps, larger, stored=stored)
        return p99(error[top] if below else error, below)

    def beyond_first_order(steps: Floats, chosen: Truths, *, stored: bool) -> Floats:
        """The errors of these scalars, those of the moved eigenvalues themselves."""
        entries = np.flatnonzero(chosen[group.scalar])
        scalar, eigenvalue = group.scalar[entries], group.eigenvalue[entries]
        logs, rate = recurrence.log_eigenvalues[eigenvalue], group.log_gain_derivative
        squares = np.zeros(entries.size)
        # Two points of ±1/√12 have the mean of a uniform error's cubic polynomials.
        signs = (1.0, -1.0) if stored else (1.0,)
        for sign in signs:
            moved = sign * steps[scalar]
            squares += state_change(
                logs,
                moved_logs(logs, group.eigenvalue_derivative[entries], moved, bounded=bounded),
                np.zeros_like(logs) if rate is None else moved * rate[entries],
                *settings.of_states,
            ) / len(signs)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            change, whole = (
                np.bincount(scalar, share[eigenvalue] * values, group.size)[chosen]
                for values in (squares, held[eigenvalue])
            )
            exact = np.sqrt(change / whole)
        return np.where(np.isnan(exact), np.inf, exact)

    errors = Rounding(*(figure(dtype, group.tensor_largest) for dtype in DTYPES))
    return errors, None if group.tensor_largest is None else figure("int8", None)


def leaves_disk(recurrence: Recurrence, group: ParameterGroup, dtype: Dtype) -> Truths:
    """(n,) the stable eigenvalues that storing a group in a type takes to |λ| ≥ 1.

    By ``log|λ| + Re Σ δω (dλ/dω) / λ``: first order in δω, all scalars of the group at once.
    """
    safe = recurrence.stable_by_construction or group.keeps_stable
    if safe or is_stored(group.dtype, dtype):
        return np.zeros(recurrence.size, dtype=bool)
    moved = rounded(group.values, dtype, group.tensor_largest) - group.values
    moved = np.where(np.isfinite(moved), moved, 0.0)  # an overflow, which is told as such
    log_modulus = recurrence.log_eigenvalues.real
    change = np.zeros(recurrence.size)
    with np.errstate(over="ignore", invalid="ignore"):
        inverse = np.exp(-recurrence.log_eigenvalues[group.eigenvalue])
        pushed = (group.eigenvalue_derivative * inverse).real * moved[group.scalar]
    np.add.at(change, group.eigenvalue, np.where(np.isfinite(pushed), pushed, 0.0))
    reached = log_modulus + change >= ROUND_OFF * log_modulus
    return (log_modulus < 0) & (change != 0) & reached


def diagnose_diagonal(
    recurrence: Recurrence, settings: Settings, moment: Moments | None
) -> tuple[StateSummary, tuple[ParameterSummary, ...]]:
    """The state and the groups of eigenvalues; no moment is given where no linear figure holds."""
    state = UNKNOWN
    if moment is not None:
        state = quantiles(state_second_moment(moment, recurrence.log_gain))
    groups = (_summary(recurrence, group, moment, settings) for group in recurrence.parameters)
    return StateSummary(state), tuple(groups)


def _summary(
    recurrence: Recurrence, group: ParameterGroup, moment: Moments | None, settings: Settings
) -> ParameterSummary:
    rate, moves_at = settings.rate_of(group.tensor), 0.0
    absolute, relative, rounding, own_scale = UNKNOWN, UNKNOWN, Rounding(None, None, None), None
    if moment is not None:
        moves_at, gain, share = rate, recurrence.log_gain, np.ones(recurrence.size)
        sensitivity, kappa = group_sensitivity(moment, gain, group)
        if group.scalar.size > group.size:
            # A tied scalar moves states of different sizes: κ weighs them as γ and B drive them.
            if recurrence.readin is not None:
                share = np.sum(np.abs(recurrence.readin) ** 2, axis=1)
                _, kappa = group_sensitivity(moment, gain, group, share)
            share = share * np.exp(2 * (gain.real - max(gain.real.max(), -LARGEST_DECAY)))
        held = moment.second_moment
        absolute, relative = quantiles(sensitivity), quantiles(kappa)
        rounding, own_scale = _rounding(kappa, recurrence, group, held, share, settings)
    return ParameterSummary(
        name=group.name,
        tensor=group.tensor,
        size=group.size,
        dtype=group.dtype,
        sensitivity=absolute,
        relative_sensitivity=relative,
        step_effect=step_effect(relative.p99, rate),
        learning_rate=rate,
        direction=direction(recurrence, group, moves_at),
        rounding=rounding,
        int8_own_scale=own_scale,
    )


def store_state(
    recurrence: Recurrence, settings: Settings, moment: Moments | None
) -> StateStorage | str:
    """A layer's state in every type with its gates at zero input, or why not, as a clause.

    The ``moment`` is the one that was taken of the layer already, if any.
    """
    if recurrence.dense is not None:
        return MIXED
    if recurrence.hidden_feedback or recurrence.dynamics is not None:
        return FED_BACK
    logs, under, horizon = recurrence.log_eigenvalues, settings.autocorrelation, settings.horizon
    if not logs.size:
        return EMPTY
    decay = -2 * logs.real
    with np.errstate(over="ignore", invalid="ignore"):
        driven = np.exp(2 * recurrence.log_gain.real) * settings.input_scale**2
        if recurrence.readin is not None:
            driven = driven * np.sum(np.abs(recurrence.readin) ** 2, axis=1)
        if moment is None or settings.readout == "every":  # which is not that of the last step
            moment = moments(logs, under, horizon)
        of_unit_gain = np.asarray(moment.second_moment)
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

    def overflows(drive: Autocorrelation, *dtypes: Dtype) -> list[int | None]:
        if drive.is_white:
            return overflow_steps(decay, driven * drive.variance, dtypes)
        return overflow_steps(
            decay[largest],
            driven[largest] * drive.variance,
            dtypes,
            lambda steps: moments(logs[largest], drive, steps).second_moment / drive.variance,
        )

    beyond = 0 if horizon is None else int(np.count_nonzero(logs.real > -1 / horizon))
    constant = Autocorrelation((under.variance,), (1.0,))
    return StateStorage(
        tuple(
            _stored(states, one, settings, step)
            for one, step in zip(STATE_TYPES, overflows(under, *STATE_TYPES), strict=True)
        ),
        beyond,
        _growth(recurrence, settings),
        overflows(constant, "float16")[0] if beyond else None,
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
    overflows = overflow_steps(decay, driven, STATE_TYPES)
    return tuple(
        replace(
            _stored(states, one, settings, step),
            held_open=float(stored(slow, one).errors.max()),
        )
        for one, step in zip(STATE_TYPES, overflows, strict=True)
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
        figures.stochastic,
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
