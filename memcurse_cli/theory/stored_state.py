"""What keeping the state in fewer bits costs: a rounding at every step, of which memory adds up.

``q[t] = round(λ q[t-1] + γ x[t])`` is off by ``e[t] = λ e[t-1] + r[t]``, with a rounding error r
that is independent of h to first order, so that from h = 0

    E|e|² / E|h|² = δ² N,    N = Σ_k |λ|^(2(T-k)) E|h_k|² / E|h_T|²

with δ² = E|r|² / E|h|² of one rounding, and N the number of roundings that a state holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.linalg import Complexes, Floats
from memcurse_cli.theory.moments import turned_parts
from memcurse_cli.theory.rounding import FORMATS, LARGEST_INTEGER, Dtype, multiples, spacing

# From the smallest to the largest, of one size the one of the larger range first.
STATE_TYPES: tuple[Dtype, ...] = (
    "float8_e5m2", "float8_e4m3fn", "int8", "bfloat16", "float16", "float32",
)  # fmt: skip
BLOCK = 128  # states that share a scale of int8
# The median of the largest of so many products of two normal draws, as states of a head are that
# sum keys times values; in standard deviations.
LARGEST_PRODUCT = 4.16
DEVIATIONS = 5  # of a state that must fit into a type
# Of the power of 2 at or below |h| over |h|, for a mantissa of uniform logarithm.
MEAN_POWER, SQUARED_POWER = 0.5 / math.log(2), 0.375 / math.log(2)
MEAN_NORMAL = math.sqrt(2 / math.pi)  # E|z|
NEAR = 1e-3  # of T(1 - |λ|²), below which N is taken by its first terms
CHUNK = 1 << 14  # eigenvalues whose 5 × 5 matrices are held at once
FOREVER = 2.0**53  # steps
# The median of the largest of 1 to 128 draws, in standard deviations, found to 1 % by halving.
SMALLEST_TOP, LARGEST_TOP, HALVINGS = 0.65, 2.9, 7
# log P(|z| < x) of a normal z at every PER_NODE of x; beyond the last it is 0.
PER_NODE = 1 / 512
LOG_BELOW = np.array([math.log(math.erf((n + 0.5) * PER_NODE / 2**0.5)) for n in range(3000)])


class HeldStates(NamedTuple):
    """n states as they are kept from one step to the next; E|h|² is at the horizon."""

    roundings: Floats  # N
    movement: Floats  # E|h[t] - h[t-1]|² / E|h|²
    left_behind: Floats  # |1 - λ|, by how much of itself a step without input moves a state
    largest: Floats  # the largest |h| of the block of states that share a scale, over √E|h|²


class StoredFigures(NamedTuple):
    """What one type does to n states."""

    errors: Floats  # √(E|e|² / E|h|²) to nearest, at most 1: nothing left
    stochastic: float  # the largest of them where the rounding is random and without bias
    frozen: float  # the share of steps that are lost, being below half a spacing
    stopped: int  # states whose decay alone is lost so, before they have reached the next power


def roundings(energy_decay: Floats, horizon: int | None) -> Floats:
    """N of a white drive, from ``-log|λ|²``, or -log E|λ|² of gates drawn anew at every step.

    ``N = 1/(1-a) - T aᵀ/(1-aᵀ)`` with a = |λ|²: 1/(1-a) for T → ∞ whatever the drive, and
    (T+1)/2 where nothing decays.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        endless = -1 / np.expm1(-energy_decay)
        if horizon is None:
            return np.where(energy_decay > 0, endless, np.inf)
        of_all = energy_decay * horizon
        first = (horizon + 1) / 2 - energy_decay * (horizon**2 - 1) / 12
        return np.where(np.abs(of_all) < NEAR, first, endless - horizon / np.expm1(of_all))


def roundings_under(
    log_eigenvalues: Complexes, autocorrelation: Autocorrelation, horizon: int | None
) -> Floats:
    """N for a drive of this autocorrelation.

    With c = E h x̄, p = E|h|² and q = E|e|²/δ² one step of R(Δ) = ρ^|Δ| is linear in (c, p, q, 1):
    ``c' = ρλ c + 1``, ``p' = |λ|² p + 2 Re(ρλ c) + 1``, ``q' = |λ|² q + p'``.
    """
    if autocorrelation.is_white or horizon is None:
        return roundings(-2 * log_eigenvalues.real, horizon)
    found = np.empty(log_eigenvalues.size)
    for start in range(0, found.size, CHUNK):
        logs = log_eigenvalues[start : start + CHUNK]
        totals = np.zeros((2, logs.size))
        energy = np.exp(2 * logs.real)
        for weight, rho, turn in turned_parts(autocorrelation):
            turned = rho * np.exp(logs + 1j * turn)
            step = np.zeros((logs.size, 5, 5))
            step[:, 0, 0] = step[:, 1, 1] = turned.real
            step[:, 1, 0], step[:, 0, 1] = turned.imag, -turned.imag
            step[:, [0, 2, 3, 4], 4] = 1.0
            for row in (2, 3):
                step[:, row, 0], step[:, row, 1] = 2 * turned.real, -2 * turned.imag
                step[:, row, 2] = energy
            step[:, 3, 3] = energy
            with np.errstate(over="ignore", invalid="ignore"):
                totals += weight * np.linalg.matrix_power(step, horizon)[:, 2:4, 4].T
        with np.errstate(invalid="ignore"):
            ratio = totals[1] / totals[0]
        found[start : start + CHUNK] = np.where(np.isnan(ratio), np.inf, ratio)
    return found


def largest_of_blocks(second_moment: Floats, repeats: int) -> Floats:
    """(n,) the median of the largest |h| in the block of each state, over its own √E|h|².

    Blocks are of `BLOCK` states in their order, each there ``repeats`` times: Gaussian ones, or
    products of two Gaussians where an eigenvalue has a whole block of them.
    """
    size, width = second_moment.size, BLOCK // repeats
    if width <= 1:
        return np.full(size, LARGEST_PRODUCT)
    own = np.sqrt(second_moment)
    blocks = np.zeros((-(-size // width), width))
    blocks.ravel()[:size] = own
    found = np.repeat(_largest(blocks, repeats), width)[:size]
    return np.divide(found, own, out=np.zeros(size), where=own > 0)


def _largest(deviations: Floats, count: int) -> Floats:
    """(rows,) the median of the largest of ``count`` draws of every deviation in a row."""
    top = deviations.max(axis=1)
    low, high = np.full(top.shape, SMALLEST_TOP), np.full(top.shape, LARGEST_TOP)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = top[:, None] / deviations / PER_NODE
    shares[deviations == 0] = np.inf
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        nodes = np.minimum(middle[:, None] * shares, LOG_BELOW.size - 1).astype(np.int16)
        less = count * LOG_BELOW[nodes].sum(axis=1) < -math.log(2)
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    return np.asarray(np.sqrt(low * high) * top)


def stored(states: HeldStates, dtype: Dtype) -> StoredFigures:
    """What a type does to some states, whose distribution is taken as Gaussian.

    A float's spacing is that of |h| with a mantissa of uniform logarithm; int8 stands for integers
    times one scale per block, taken anew at every step.
    """
    # The spacing over √E|h|²: its mean, its RMS and the widest of |h| = √E|h|².
    spacings: tuple[Floats | float, ...] = (states.largest / LARGEST_INTEGER,) * 3
    if dtype != "int8":
        unit = 2.0 ** -FORMATS[dtype][0]
        spacings = MEAN_POWER * MEAN_NORMAL * unit, math.sqrt(SQUARED_POWER) * unit, unit
    mean, root, widest = spacings
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = root * np.sqrt(states.roundings / 12)
        lost = mean / np.sqrt(2 * math.pi * states.movement)
    return StoredFigures(
        np.minimum(errors, 1.0),
        float(np.minimum(math.sqrt(2) * errors.max(), 1.0)),
        float(np.mean(np.minimum(np.where(np.isnan(lost), 1.0, lost), 1.0))),
        int(np.count_nonzero(states.left_behind < widest / 2)),
    )


def overflow_steps(
    energy_decay: Floats,
    squared_gain: Floats,
    dtypes: Sequence[Dtype],
    second_moment: Callable[[int], Floats] | None = None,
) -> list[int | None]:
    """The first step at which `DEVIATIONS` √E|h|² of a state pass the largest number of a type.

    ``E|h_t|² = g (1 - aᵗ)/(1 - a)`` of a white drive, from -log a and g = E γ²; of another one of
    variance 1 γ² times ``second_moment`` of t steps, which grows with t. None where that never
    happens.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # None is larger in the end; of a drive of any kind |h| ≤ √g Σ √aᵏ in the root mean square.
        if second_moment is None:
            bound = squared_gain / -np.expm1(-energy_decay)
        else:
            bound = squared_gain / np.expm1(-energy_decay / 2) ** 2
        bound = np.where((energy_decay > 0) & ~np.isnan(bound), bound, np.inf)
        reached = bound.max(initial=0.0)
        found: list[int | None] = []
        for dtype in dtypes:
            # The scale of int8 follows the state, which passes nothing.
            limit = math.nan if dtype == "int8" else (FORMATS[dtype][3] / DEVIATIONS) ** 2
            step = None
            if limit <= reached:
                step = _first_step(energy_decay, limit / squared_gain, second_moment)
            found.append(step)
        return found


def _first_step(
    energy_decay: Floats, room: Floats, second_moment: Callable[[int], Floats] | None
) -> int | None:
    """When E|h_t|² of a state at γ = 1 passes its room, as `overflow_steps` says."""
    if second_moment is None:
        left = room * np.expm1(-energy_decay)  # aᵗ - 1 where it passes
        steps = np.where(
            np.abs(left) < 1e-9, room, -np.log1p(np.maximum(left, -1.0)) / energy_decay
        )
        first = float(np.min(np.where(np.isnan(steps), np.inf, steps), initial=np.inf))
        return math.ceil(first) if first < FOREVER else None

    def passed(steps: int) -> bool:
        return bool(np.any(second_moment(steps) >= room))

    low, high = 0, 1
    while not passed(high):
        low, high = high, 2 * high
        if high > FOREVER:
            return None
    while high - low > max(1, high // 64):
        middle = (low + high) // 2
        low, high = (low, middle) if passed(middle) else (middle, high)
    return high


def keep(
    values: NDArray[Any], dtype: Dtype, random: np.random.Generator | None = None
) -> NDArray[Any]:
    """States (…, n) as a type holds them, both parts of complex ones; to nearest, or at random.

    A draw goes up with the share of the spacing that is above the number below: it has no bias.
    """
    if np.iscomplexobj(values):
        both = np.empty_like(values)
        both.real, both.imag = (keep(part, dtype, random) for part in (values.real, values.imag))
        return both
    if dtype == "int8":
        size = values.shape[-1]
        largest = np.maximum.reduceat(np.abs(values), np.arange(0, size, BLOCK), axis=-1)
        unit = np.repeat(largest, BLOCK, axis=-1)[..., :size] / LARGEST_INTEGER
    else:
        unit = spacing(values, dtype)
    return multiples(values, unit, random)
