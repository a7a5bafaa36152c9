"""Gates that no rule over one Gaussian covers: drawn, with the sampling error of each figure.

Where several pre-activations move λ and γ, which may turn as they decay, a stratified draw of all
of them gives the bands of |λ| and the expectations that the second moments rest on. Gates that see
the state of their own unit, which stays from step to step, and states that are weighted means of
all that came in, are run from step to step instead.

Every draw has a fixed seed and comes in `REPLICATES` of its own, from which its error is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.gates.laws import GateLaw, JointLaw, JointValues, Write
from memcurse_cli.theory.gates.moments import GatedMoments, gathered
from memcurse_cli.theory.gates.quadrature import Preactivation, evenly_taken

Array = NDArray[Any]
Floats = NDArray[np.float64]

REPLICATES = 8
"""Independent shifts of the points, or chains of states."""
GENERATOR = (1, 182667, 469891, 498753)
"""Of a lattice in up to four dimensions, good for every power of two (Cools, Kuo & Nuyens 2006)."""
WIDTH = 1.3
"""Of the draws, in standard deviations: the tails count for 1 - λ of slow gates."""
COUNTS = (512, 2048, 8192)
"""Points of a replicate, tried in turn until the error is `AIM`."""
AIM = 0.007
"""The standard error of any figure, relative: the theory of i.i.d. gates is itself good to 3 %."""
CHUNK = 1 << 17
"""Draws times units that are held at once."""
STEPS = 2000
"""Of a chain; the second half counts."""
SEED = 11


@dataclass(frozen=True)
class JointPreactivations:
    """Pre-activations of n units, those of each Gaussian together.

    Attributes:
        mean: (n, gates).
        covariance: (n, gates, gates).
    """

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

    def take(self, units: slice | NDArray[np.intp]) -> JointPreactivations:
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
    """Figures of gates that were drawn.

    Attributes:
        log_moduli: (shares, n) log|λ| below which it is at the shares of the steps.
        moments: E|h|², Re E[h s*] and E|s|².
        error: the largest relative standard error of any unit's log|λ| there, E|h|² and κ.
    """

    log_moduli: Floats
    moments: GatedMoments
    error: float


def normal_points(count: int, gates: int) -> tuple[Floats, Floats]:
    """(replicates, count, gates) independent normal draws, and their weights (replicates, count).

    A lattice in the unit cube, shifted at random, takes every multiple of 1/count once in each
    coordinate: its error falls about as 1/count. Its points become draws that are `WIDTH` times too
    wide, with the ratio of both densities as weights. The count is a power of two.
    """
    from scipy.special import ndtri

    shifts = np.random.default_rng(SEED).random((REPLICATES, 1, gates))
    lattice = np.outer(np.arange(count), GENERATOR[:gates]) % count / count
    narrow = np.asarray(ndtri((shifts + lattice) % 1.0))
    weights = np.exp((1 - WIDTH**2) / 2 * np.sum(narrow**2, axis=-1))
    return WIDTH * narrow, weights / weights.mean(axis=1, keepdims=True)


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

    Args:
        law: λ and γ as functions of the pre-activations.
        gates: those of n units, each with all kinds of states that its |λ| drives one after the
            other.
        autocorrelation: R(Δ) of the drive x; that of a complex state has two parts like it.
        shares: of the steps, in (0, 1).
        parameters: of the law, those whose E|s|² is finite.
        kinds: what share of the states each kind has.
    """
    size, gate_count = len(gates.mean) // len(kinds), gates.mean.shape[1]
    log_moduli, errors = np.empty((len(shares), size)), np.zeros(size)
    parts, left = [], np.arange(size)
    moving = bool(np.any(gates.covariance))
    for count in COUNTS if moving else (1,):
        points, weights = np.zeros((1, 1, gate_count)), np.ones((1, 1))
        if moving:
            points, weights = normal_points(count, gate_count)
        length = max(CHUNK // (weights.size * len(kinds)), 1)
        for units in (left[start : start + length] for start in range(0, left.size, length)):
            rows = (units[:, None] * len(kinds) + np.arange(len(kinds))).ravel()
            values = law(gates.take(rows).at(points[:, :, None]))
            bands = _quantiles(values.log_eigenvalue.real[..., :: len(kinds)], weights, shares)
            log_moduli[:, units] = bands.mean(axis=0)
            expected = _expectations(values, weights, parameters, symmetric=law.symmetric)
            held, mixed, moved = _moments(expected, parameters, autocorrelation, kinds)
            whole = ({name: each[0] for name, each in of.items()} for of in (mixed, moved))
            parts.append((units, GatedMoments(held[0], *whole)))
            with np.errstate(invalid="ignore"):  # of gates that never forget
                figures = [*bands.swapaxes(0, 1), held[1:]]
                figures += [each[1:] / held[1:] for each in moved.values()]
                errors[units] = np.max([relative_error(each) for each in figures], axis=0)
        left = left[errors[left] > AIM]
        if left.size == 0:
            break
    return Drawn(log_moduli, gathered(size, parts), float(np.max(errors, initial=0.0)))


def relative_error(replicates: Floats) -> Floats:
    """The standard error of the mean of replicates, the first axis, over that mean; 0 of none."""
    if len(replicates) == 1:
        return np.zeros(replicates.shape[1:])
    mean = replicates.mean(axis=0)
    error = replicates.std(axis=0, ddof=1) / math.sqrt(len(replicates))
    counts = np.isfinite(error) & (mean != 0)
    return np.asarray(np.where(counts, error / np.abs(np.where(counts, mean, 1.0)), 0.0))


class _Expectations(NamedTuple):
    """Of g = (λ, μ, ν) and of its derivatives by each parameter, in that order.

    The first row is over all replicates, the others are over one each.

    Attributes:
        complement: (rows, n) E[1 - λ].
        squared_complement: (rows, n) E[1 - |λ|²].
        means: (rows, n, 3 (1 + parameters)) E g.
        products: (rows, n, …, …) E g_i g_j*.
    """

    complement: Array
    squared_complement: Floats
    means: Array
    products: Array


def _quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> Floats:
    """(replicates, shares, n) of (replicates, count, n) values."""
    order = np.argsort(values, axis=1)
    sorted_values = np.take_along_axis(values, order, axis=1)
    each = np.take_along_axis(weights[..., None], order, axis=1)
    places = (np.cumsum(each, axis=1) - each / 2) / each.shape[1]
    found = np.empty((len(values), len(shares), values.shape[2]))
    for replicate, unit in np.ndindex(len(values), values.shape[2]):
        at = replicate, slice(None), unit
        found[at] = np.interp(shares, places[at], sorted_values[at])
    return found


def _expectations(
    values: JointValues, weights: Floats, parameters: Collection[str], *, symmetric: bool
) -> _Expectations:
    log, share = values.log_eigenvalue, values.share
    eigenvalue, gain = np.exp(log), np.exp(values.log_gain)
    now = gain if share is None else share * gain
    after = np.zeros_like(gain) if share is None else (1 - share) * gain * eigenvalue
    columns = [eigenvalue, after, now]
    for name in parameters:
        by_eigenvalue, by_gain = values.motions[name]
        columns += [eigenvalue * by_eigenvalue, after * (by_eigenvalue + by_gain), now * by_gain]
    g = np.stack(np.broadcast_arrays(*columns), axis=-1).swapaxes(1, 2)
    column = weights[:, :, None]
    weighted = weights[:, None, :, None] * g.conj()
    found = (
        -(column * np.expm1(log)).mean(axis=1),
        -(column * np.expm1(2 * log.real)).mean(axis=1),
        weighted.mean(axis=2).conj(),
        g.swapaxes(-1, -2) @ weighted / g.shape[2],
    )
    rows = (np.concatenate([each.mean(axis=0, keepdims=True), each]) for each in found)
    return _Expectations(*(each.real if symmetric else each for each in rows))


@np.errstate(over="ignore", invalid="ignore")  # of units that the last lines put out as inf
def _moments(
    of: _Expectations,
    parameters: Collection[str],
    autocorrelation: Autocorrelation,
    kinds: Sequence[float],
) -> GatedMoments:
    """(rows, n) second moments of the mean state of a unit; inf where they do not stay finite."""
    stable = (of.squared_complement > 0) & np.isfinite(of.products).all(axis=(-1, -2))
    total = np.zeros((1 + 2 * len(parameters), *stable.shape))
    for part in autocorrelation.parts:
        # A cosine is the mean of the poles p and p*.
        for p in (part.pole, np.conj(part.pole)):
            total += part.weight / 2 * _of_pole(of, complex(p), stable)
    beyond = np.full(len(total), math.inf)
    beyond[1::2] = 0.0
    total[2::2] = np.maximum(total[2::2], 0.0)  # where λ's and γ' u cancel, rounding is left
    found = np.where(stable, total, beyond[:, None, None])
    held, *others = found.reshape(*found.shape[:-1], -1, len(kinds)) @ np.array(kinds)
    mixed, moved = (
        dict(zip(parameters, some, strict=True)) for some in (others[::2], others[1::2])
    )
    return GatedMoments(held, mixed, moved)


def _of_pole(of: _Expectations, p: complex, stable: NDArray[np.bool_]) -> Floats:
    """E|h|², and Re E hs* and E|s|² by each parameter, for a drive ``u = p u⁻ + ε`` of E|u|² = 1.

    ``h = λ h⁻ + β u⁻ + ν ε`` has β = μ + pν, and s = dh/dω is ``λ s⁻ + λ' h⁻ + β' u⁻ + ν' ε``. With
    E over the gates and 1 - |p|² for E|ε|²,

        a = E hu* = (p* E β + (1-|p|²) E ν) / (1 - p* E λ)
        y = E su* = (p* (E[λ'] a + E β') + (1-|p|²) E ν') / (1 - p* E λ)

    and the second moments follow from the squares of both sides.
    """
    fresh, back, pole = 1 - abs(p) ** 2, p.conjugate(), np.array([1.0, p])
    below = np.where(stable, of.squared_complement, 1.0)
    past = np.where(stable, (1 - back) + back * of.complement, 1.0)

    def entered(first: int) -> Array:
        """p* E β + (1-|p|²) E ν or that of their derivatives, by the place of μ."""
        now = of.means[..., first + 1]
        return back * (of.means[..., first] + p * now) + fresh * now

    def paired(left: int, right: int) -> Array:
        """E ββ* + (1-|p|²) E νν* or its like, by the places of both μ."""
        square = of.products[..., left : left + 2, right : right + 2]
        both: Array = np.einsum("i,...ij,j->...", pole, square, pole.conj())
        return np.asarray(both + fresh * square[..., 1, 1])

    def by_input(left: int, right: int) -> Array:
        """E λβ* or its like, by the places of λ and μ."""
        row = of.products[..., left, right : right + 2]
        return np.asarray(row @ pole.conj())

    a = entered(1) / past
    second = (2 * (by_input(0, 1) * a).real + paired(1, 1).real) / below
    found = [second]
    for at in range(3, of.means.shape[-1], 3):
        y = (back * of.means[..., at] * a + entered(at + 1)) / past
        slope = of.products[..., 0, at]
        cross = slope * second + by_input(0, at + 1) * a + paired(1, at + 1)
        cross = (cross + (by_input(0, 1) * y + by_input(at, 1) * a).conj()) / below
        both = slope * cross.conj() + by_input(0, at + 1) * y + by_input(at, at + 1) * a
        square = of.products[..., at, at].real * second + paired(at + 1, at + 1).real
        found += [cross.real, (square + 2 * both.real) / below]
    return np.array(found)


class OwnState(NamedTuple):
    """One step of units whose gates see their own state.

    Attributes:
        kept: z of the gate that keeps the state.
        state: c after the step.
        shown: what the other units see of it, or None.
    """

    kept: Floats
    state: Floats
    shown: Floats | None = None


OwnStep = Callable[[Floats, Floats, NDArray[np.intp]], OwnState]
"""From (chains, units, gates) pre-activations, (chains, units) c and the indices of these units."""


def run_own_states(
    preactivations: Callable[[float], JointPreactivations],
    step: OwnStep,
    projection: float = 1.0,
) -> tuple[Floats, float | None]:
    """Units in `REPLICATES` chains of random inputs, from a zero state.

    Such a gate is not independent of the state that it multiplies: what it keeps decides what it
    keeps next. Other units are seen by the mean of h² over all that run, as at every step.

    Args:
        preactivations: what the gates have beside their own state, given E h² of what is seen.
        step: of the units.
        projection: what a projection makes of E h².

    Returns:
        (chains, steps, units) z of the gate that keeps the state, at the steps that count, and the
        mean of h², or None where nothing is shown.
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

    ``c' = λ c + γ u`` over ``n' = λ n + γ`` is ``m' = a m + (1-a) u`` with ``a = λn / (λn + γ)``,
    which rests on all gates so far, so that E m² has no closed form where γ may grow without bound.
    For ``R = ρ^|Δ|``, or a damped cosine with a complex ρ, it is v of

        g' = a ρ g + (1-a),    v' = a² v + 2 a (1-a) Re(ρ g) + (1-a)²

    from v = g = 1 after the first step, along drawn gates: the mean over drives is exact, that over
    gates that over steps; units that are not taken get the value of one before them.

    Args:
        law: λ as a function of z.
        gate: z ~ N(b, σ²) of every unit, independent in time.
        write: γ as a function of its own pre-activation.
        write_gate: that pre-activation, independent of z.
        autocorrelation: R; its weights are taken relative to their sum.
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
