"""Gates that no rule over one Gaussian covers: drawn, with the sampling error of each figure.

Every draw has a fixed seed and comes in `REPLICATES` of its own, from which its error is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.gates.laws import GateLaw, JointLaw, JointValues, Units, Write
from memcurse_cli.theory.gates.moments import (
    Expectations,
    GatedMoments,
    Preactivation,
    averaged,
    figures_of,
    gathered,
)
from memcurse_cli.theory.linalg import Floats, Integers

UNITS = 256  # at most so many stand for a layer of gates that are run
REPLICATES = 8  # independent shifts of the points, or chains of states
GENERATOR = (1, 182667, 469891, 498753)
"""Of a lattice in up to four dimensions, good for every power of two (Cools, Kuo & Nuyens 2006)."""
WIDTH = 1.3  # of the draws, in standard deviations: the tails count for 1 - λ of slow gates
COUNTS = (512, 2048, 8192)  # points of a replicate, tried in turn until the error is `AIM`
AIM = 0.007  # relative standard error of any figure: i.i.d. theory itself is good to 3 %
CHUNK = 1 << 17  # draws times units that are held at once
STEPS = 2000  # of a chain; the second half counts
SEED = 11


@dataclass(frozen=True)
class JointPreactivations:
    """Pre-activations of n units, each of one Gaussian: (n, gates) and (n, gates, gates)."""

    mean: Floats
    covariance: Floats

    @property
    def spread(self) -> Floats:
        """(n, gates) standard deviations."""
        variances: Floats = np.einsum("nii->ni", self.covariance)
        return np.sqrt(np.maximum(variances, 0.0))

    @property
    def still(self) -> JointPreactivations:
        """All held at their means."""
        return JointPreactivations(self.mean, np.zeros_like(self.covariance))

    def take(self, units: Units) -> JointPreactivations:
        """Those of some of the units."""
        return JointPreactivations(self.mean[units], self.covariance[units])

    def at(self, normal: Floats) -> Floats:
        """(…, n, gates) from independent normal draws (…, n, gates), or (…, 1, gates) for all."""
        factor = np.zeros_like(self.covariance)
        for gate in range(self.mean.shape[1]):
            done = factor[:, :, :gate]
            left = self.covariance[:, :, gate] - np.einsum("nik,nk->ni", done, done[:, gate])
            pivot = np.sqrt(np.maximum(left[:, gate], 0.0))
            # Of gates that are functions of those before it, only rounding is left.
            moves = pivot > 1e-7 * np.sqrt(self.covariance[:, gate, gate])
            column = left[:, gate:] / np.where(moves, pivot, np.inf)[:, None]
            factor[:, gate:, gate] = column
        shape = np.broadcast_shapes(normal.shape, self.mean.shape)
        moved: Floats = np.einsum("nik,...nk->...ni", factor, np.broadcast_to(normal, shape))
        return np.asarray(self.mean + moved)


class Drawn(NamedTuple):
    """Figures of gates that were drawn."""

    log_moduli: Floats  # (shares, n) log|λ| below which it is at the shares of the steps
    moments: GatedMoments  # E|h|², Re E[h s*] and E|s|²
    error: float  # the largest relative standard error of any unit's log|λ| there, E|h|² and κ


def normal_points(count: int, gates: int) -> tuple[Floats, Floats]:
    """(count, replicates, gates) independent normal draws, and their weights (count, replicates).

    A lattice in the unit cube, shifted at random: its error falls about as 1/count, a power of two.
    Its points become draws `WIDTH` times too wide, with the ratio of both densities as weights.
    """
    from scipy.special import ndtri

    shifts = np.random.default_rng(SEED).random((REPLICATES, gates))
    lattice = np.outer(np.arange(count), GENERATOR[:gates]) % count / count
    narrow = np.asarray(ndtri((shifts + lattice[:, None]) % 1.0))
    weights = np.exp((1 - WIDTH**2) / 2 * np.sum(narrow**2, axis=-1))
    return WIDTH * narrow, weights / weights.sum(axis=0)


def drawn_gates(
    law: JointLaw,
    gates: JointPreactivations,
    autocorrelation: Autocorrelation,
    shares: Sequence[float],
    *,
    parameters: Collection[str] = (),
    kinds: Sequence[float] = (1.0,),
) -> Drawn:
    """The bands and the second moments of ``h[t+1] = λ h[t] + γ x[t+1]``, gates anew at every step.

    Of n units, each with all kinds of states, in the given shares, that its |λ| drives in turn;
    R(Δ) is that of x, and that of a complex state has two parts like it. Bands are at ``shares`` of
    the steps; ``parameters`` are those of the law whose E|s|² is finite.
    """
    size = len(gates.mean) // len(kinds)
    log_moduli, parts = np.empty((len(shares), size)), []

    def bands(units: Integers, points: Floats, weights: Floats) -> list[Floats]:
        values = law(gates.take(units * len(kinds)).at(points[:, :, None]))
        of_replicates = _quantiles(values.log_eigenvalue.real, weights, shares)
        log_moduli[:, units] = of_replicates.mean(axis=1)
        return list(of_replicates)

    def moments(units: Integers, points: Floats, weights: Floats) -> list[Floats]:
        rows = (units[:, None] * len(kinds) + np.arange(len(kinds))).ravel()
        values = law(gates.take(rows).at(points[:, :, None]))
        expected = _expectations(values, weights, parameters, symmetric=law.symmetric)
        figures = figures_of(expected, len(parameters), autocorrelation)
        figures = figures.reshape(*figures.shape[:-1], -1, len(kinds)) @ np.array(kinds)
        parts.append((units, GatedMoments(figures[:, 0], tuple(parameters))))
        held, *moved = figures[::2, 1:]
        return [held, *(each / held for each in moved)]

    errors = (
        _refined(bands, gates, size, CHUNK),
        _refined(moments, gates, size, CHUNK // len(kinds)),
    )
    return Drawn(log_moduli, gathered(size, parts), max(errors))


def _refined(
    estimate: Callable[[Integers, Floats, Floats], list[Floats]],
    gates: JointPreactivations,
    size: int,
    chunk: int,
) -> float:
    """The largest error of figures (replicates, units), drawn again for units above the aim."""
    errors, left = np.zeros(size), np.arange(size)
    gate_count = gates.mean.shape[1]
    moving = bool(np.any(gates.covariance))
    for count in COUNTS if moving else (1,):
        points, weights = np.zeros((1, 1, gate_count)), np.ones((1, 1))
        if moving:
            points, weights = normal_points(count, gate_count)
        length = max(chunk // weights.size, 1)
        for units in (left[start : start + length] for start in range(0, left.size, length)):
            with np.errstate(invalid="ignore"):  # of gates that never forget
                figures = estimate(units, points, weights)
                errors[units] = np.max([relative_error(each) for each in figures], axis=0)
        left = left[errors[left] > AIM]
        if left.size == 0:
            break
    return float(np.max(errors, initial=0.0))


def relative_error(replicates: Floats) -> Floats:
    """The standard error of the mean of replicates, the first axis, over that mean; 0 of none."""
    if len(replicates) == 1:
        return np.zeros(replicates.shape[1:])
    mean = replicates.mean(axis=0)
    error = replicates.std(axis=0, ddof=1) / math.sqrt(len(replicates))
    counts = np.isfinite(error) & (mean != 0)
    return np.asarray(np.where(counts, error / np.abs(np.where(counts, mean, 1.0)), 0.0))


def _quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> Floats:
    """(shares, replicates, n) of (count, replicates, n) values."""
    order = np.argsort(values, axis=0)
    sorted_values = np.take_along_axis(values, order, axis=0)
    each = np.take_along_axis(weights[..., None], order, axis=0)
    places = np.cumsum(each, axis=0) - each / 2
    found = np.empty((len(shares), *values.shape[1:]))
    for at in np.ndindex(values.shape[1:]):
        whole = slice(None), *at
        found[whole] = np.interp(shares, places[whole], sorted_values[whole])
    return found


def _expectations(
    values: JointValues, weights: Floats, parameters: Collection[str], *, symmetric: bool
) -> Expectations:
    """(1 + replicates, n): over all replicates first, and then over one each."""
    log, share = values.log_eigenvalue, values.share
    eigenvalue, gain = np.exp(log), np.exp(values.log_gain)
    now, after = gain, None
    if share is not None:
        now, after = share * gain, (1 - share) * gain * eigenvalue
    columns = [eigenvalue, *(() if after is None else (after,)), now]
    for name in parameters:
        by_eigenvalue, by_gain = values.motions[name]
        columns.append(eigenvalue * by_eigenvalue)
        if after is not None:
            columns.append(after * (by_eigenvalue + by_gain))
        columns.append(now * by_gain)
    column = weights[..., None]
    found = (
        -np.sum(column * np.expm1(log), axis=0),
        -np.sum(column * np.expm1(2 * log.real), axis=0),
        *averaged(columns, column),
    )
    rows = (np.concatenate([each.mean(axis=0, keepdims=True), each]) for each in found)
    return Expectations(*(each.real if symmetric else each for each in rows))


class OwnState(NamedTuple):
    """One step of units whose gates see their own state.

    z of the gate that keeps the state, c after the step, and what other units see of it, or None.
    """

    kept: Floats
    state: Floats
    shown: Floats | None = None


OwnStep = Callable[[Floats, Floats, Integers], OwnState]
"""From (chains, units, gates) pre-activations, (chains, units) c and the indices of these units."""


def evenly_taken(size: int) -> Integers:
    """The indices of units that are run, ascending; all where there are no more than `UNITS`."""
    return np.unique(np.linspace(0, size - 1, UNITS).astype(np.intp))


def run_own_states(
    preactivations: Callable[[float], JointPreactivations], step: OwnStep, projection: float = 1.0
) -> tuple[Floats, float | None]:
    """Units in `REPLICATES` chains of random inputs, from a zero state.

    What such a gate keeps decides what it keeps next. ``preactivations`` is what gates have beside
    their own state, given the mean of h² over all that run, which a projection multiplies. Gives
    (chains, steps, units) z of the gate that keeps the state, and the mean of h², or None where
    none is shown.
    """
    still = preactivations(0.0)
    some = evenly_taken(len(still.mean))
    random = np.random.default_rng(SEED)
    c, held, shown, counted = np.zeros((REPLICATES, some.size)), 0.0, 0.0, []
    for index in range(STEPS):
        normal = random.standard_normal((still.mean.shape[1], *c.shape))
        after = step(preactivations(held).take(some).at(np.moveaxis(normal, 0, -1)), c, some)
        c = after.state
        if after.shown is not None:
            held = projection * float(np.mean(after.shown**2))
        if index >= STEPS // 2:
            counted.append(after.kept)
            shown += held
    return np.stack(counted, axis=1), None if after.shown is None else shown / len(counted)


def averaged_variance(
    law: GateLaw,
    gate: Preactivation,
    write: Write,
    write_gate: Preactivation,
    autocorrelation: Autocorrelation,
) -> Floats:
    """(n,) E m² of m = c/n for a drive u of variance 1 and autocorrelation R, as of an sLSTM.

    ``c' = λ c + γ u`` over ``n' = λ n + γ`` is ``m' = a m + (1-a) u`` with ``a = λn / (λn + γ)``.
    For ``R = ρ^|Δ|``, or a damped cosine with a complex ρ, it is v of

        g' = a ρ g + (1-a),    v' = a² v + 2 a (1-a) Re(ρ g) + (1-a)²

    from v = g = 1 after the first step, along drawn gates: the mean over drives is exact. λ and γ
    have pre-activations independent in time and of each other.
    """
    size = gate.mean.size
    some = evenly_taken(size)
    gate, write_gate, law = gate.take(some), write_gate.take(some), law.take(some)
    random = np.random.default_rng(7)

    def log_gain() -> Floats:
        drawn = write_gate.mean + write_gate.spread * random.standard_normal(some.size)
        return np.asarray(np.log(write(drawn).value))

    weights = np.array(autocorrelation.weights) / autocorrelation.variance
    poles = np.array([part.pole for part in autocorrelation.parts])[:, None]
    log_normaliser = log_gain()
    found = np.ones((weights.size, some.size))
    past = np.ones((weights.size, some.size), dtype=np.complex128)
    total = np.zeros(some.size)
    for step in range(1, STEPS):
        kept = law(gate.mean + gate.spread * random.standard_normal(some.size))
        with np.errstate(divide="ignore"):  # a gate that is shut forgets all
            log_kept = np.log(kept.eigenvalue) + log_normaliser
        written = log_gain()
        log_normaliser = np.logaddexp(log_kept, written)
        a, b = np.exp(log_kept - log_normaliser), np.exp(written - log_normaliser)
        turned = poles * past
        found = a**2 * found + 2 * a * b * turned.real + b**2
        past = a * turned + b
        if step >= STEPS // 2:
            total += weights @ found
    of_unit = np.searchsorted(some, np.arange(size), side="right") - 1
    return np.asarray(total[of_unit] / (STEPS - STEPS // 2))
