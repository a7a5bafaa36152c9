"""From one parameter group of a diagonal layer to its part of the report."""

from __future__ import annotations

from typing import cast

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
    quantiles,
)
from memcurse_cli.theory.linalg import Floats
from memcurse_cli.theory.moments import Moments
from memcurse_cli.theory.rounding import (
    Dtype,
    moved_logs,
    rounded,
    rounding_error,
    rounding_steps,
    state_change,
)
from memcurse_cli.theory.sensitivity import group_sensitivity, state_second_moment

Truths = NDArray[np.bool_]

DTYPES = cast(tuple[Dtype, ...], Rounding.__struct_fields__)
PARTS = {"complex64": "float32"}  # the type of the real and imaginary parts of a complex one
# The relative error of the state up to which first order is kept, and cancels less.
FIRST_ORDER = 1e-3
LARGE = 256  # scalars of a group up to which every one beyond first order is taken by itself
ROUND_OFF = 1e-9  # the share of log|λ| within which a decay that rounding took away counts as gone
UNKNOWN = Quantiles(None, None, None, None, None)


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
        error = rounding_error(relative_sensitivity, steps)
        larger = np.isfinite(error) & (error >= FIRST_ORDER)
        chosen = larger
        if bounded and np.count_nonzero(larger) > LARGE:
            # Only the p99 is told: the largest tenth have it among them.
            chosen = larger & (error >= np.quantile(error[larger], 0.9))
        if chosen.any():
            exact = beyond_first_order(steps, chosen, stored=stored)
            error = np.where(larger, np.minimum(error, exact.min()), error)
            error[chosen] = exact
        if settings.horizon is None:
            crossed = leaves_disk(recurrence, replace(group, tensor_largest=largest), dtype)
            error[group.scalar[crossed[group.eigenvalue]]] = np.inf
        return quantiles(error).p99

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
    recurrence: Recurrence, settings: Settings, withheld: str | None = None
) -> tuple[StateSummary, tuple[ParameterSummary, ...]]:
    """The state and the groups of eigenvalues, unknown where no linear figure holds."""
    moment, state = None, UNKNOWN
    if withheld is None:
        moment = settings.moments_of(recurrence.log_eigenvalues)
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
