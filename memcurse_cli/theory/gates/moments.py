"""Second moments of a recurrence whose gates are drawn anew at every step, z ~ N(b, σ²)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation, Decay
from memcurse_cli.theory.gates.laws import (
    Exponential,
    GateLaw,
    JointLaw,
    JointValues,
    OfUnits,
    Write,
)
from memcurse_cli.theory.linalg import Array, Floats, Integers, array_namespace, may_be_traced
from memcurse_cli.theory.moments import moments

LARGEST_STEP = 0.35  # standard deviations: e^(-2π²/h²) of a Gaussian is then far below an ulp
STRIP = math.pi / 2  # every smooth law is analytic for |Im z| < π/2, and bounded there
DIGITS = 40.0  # -log of the error of the rule that is allowed
KINKED_STEP = 0.01  # for laws with corners, whose error falls with h² only
TAIL = 9.0  # standard deviations beyond which a Gaussian is below an ulp
REACH = 20.0  # how far beyond |b| a law may still grow exponentially, as softplus does below 0
MOST_NODES = 5000  # on either side
CHUNK = 1 << 17  # nodes or draws times units held at once; a few such arrays fit into a cache
ROUNDING = 16 * float(np.finfo(np.float64).eps)


class Preactivation(OfUnits, frozen=True):
    """z ~ N(b, σ²) of n units."""

    mean: Array  # (n,) b
    spread: Array  # (n,) σ ≥ 0

    def at(self, nodes: Floats) -> Array:
        """z = b + σu of every unit at every node, which is a first axis before those of units."""
        column = array_namespace(self.mean).asarray(nodes.reshape(-1, *(1,) * self.mean.ndim))
        return self.mean + self.spread * column


def normal_nodes(mean: Array, spread: Array, smooth: bool = True) -> tuple[Floats, Floats]:
    """Nodes u and weights w with ``E f(z) = Σ w f(b + σ u)`` for every unit, of the largest σ.

    The trapezoidal rule, of the error e^(η²/2 - 2πη/h) with any η ≤ a/σ for an f that is analytic
    in a strip of half width a. A ``smooth`` one is for |Im z| < π/2; others take a fine step.
    """
    widest = float(np.max(np.asarray(spread), initial=0.0))
    if widest == 0:
        return np.zeros(1), np.ones(1)
    step = KINKED_STEP
    if smooth:
        shift = min(STRIP / widest, math.sqrt(2 * DIGITS))
        step = min(LARGEST_STEP, 2 * math.pi * shift / (DIGITS + shift**2 / 2))
    # Products of two laws can fall as e^(-2z): their weight sits up to 2σ off the centre, though
    # no further than where the laws level out.
    reach = TAIL + 2 * widest
    if not may_be_traced(mean):
        farthest = float(np.max(np.abs(np.asarray(mean)), initial=0.0)) + REACH
        reach = TAIL + min(2 * widest, farthest / widest)
    # A gate that is so wide is a switch; what is between its two ends hardly counts.
    step = max(step, reach / MOST_NODES)
    count = math.ceil(reach / step)
    nodes: Floats = step * np.arange(-count, count + 1, dtype=np.float64)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, weights / math.fsum(weights)


def mean_of(function: Callable[[Array], Array], gate: Preactivation, smooth: bool = True) -> Array:
    """E f(z) of every unit, for a function f of pre-activations (nodes, n)."""
    values, weights = _at_nodes(function, gate, smooth)
    return array_namespace(values).sum(weights * values, axis=0)


class Candidate(Struct, frozen=True):
    """What a cell takes in, u = f(n) of a Gaussian n."""

    bounded: bool  # whether |u| ≤ 1
    moments: Callable[[Preactivation], tuple[Floats, Floats]]  # (n,) E u and E u² of every unit


def _tanh_moments(n: Preactivation) -> tuple[Floats, Floats]:
    return mean_of(np.tanh, n), mean_of(lambda z: np.tanh(z) ** 2, n)


def _relu_moments(n: Preactivation) -> tuple[Floats, Floats]:
    """``E u = b Φ(b/σ) + σ φ(b/σ)`` and ``E u² = (b² + σ²) Φ(b/σ) + b σ φ(b/σ)``."""
    from scipy.special import ndtr

    moving = n.spread > 0
    place = n.mean / np.where(moving, n.spread, 1.0)
    above = np.where(moving, ndtr(place), n.mean > 0)
    first = n.mean * above + n.spread * np.exp(-(place**2) / 2) / math.sqrt(2 * math.pi)
    # Far below 0 the two terms cancel, and neither moment is negative.
    return np.maximum(first, 0.0), np.maximum(n.spread**2 * above + n.mean * first, 0.0)


TANH = Candidate(True, _tanh_moments)
RELU = Candidate(False, _relu_moments)


class Expectations(NamedTuple):
    """Of g = (λ, γ), or (λ, μ, ν) of ``h = λ h⁻ + μ u⁻ + ν u``, and then their derivatives.

    Each is (..., n), or (rows, shared) where rows of units share their gates.
    """

    complement: Array  # E[1 - λ]
    squared_complement: Array  # E[1 - |λ|²]
    means: Array  # (..., n, k) E g
    products: Array  # (..., n, k, k) E g_i g_j*


def averaged(columns: Sequence[Array], weights: Array) -> tuple[Array, Array]:
    """E g and E g_i g_j* from the values of every g_i at nodes (nodes, ..., n)."""
    xp = array_namespace(weights)
    g = xp.stack(xp.broadcast_arrays(*columns), axis=-1)
    weighted = weights[..., None] * g
    products = xp.moveaxis(weighted, 0, -1) @ xp.conj(xp.moveaxis(g, 0, -2))
    return xp.sum(weighted, axis=0), products


def expectations(
    law: GateLaw, gate: Preactivation, write: Write | None, write_gate: Preactivation | None
) -> tuple[Expectations, tuple[str, ...]]:
    """E over z and over the pre-activation of ``write``, and the names of the parameters."""
    values, weights = _at_nodes(law, gate, law.smooth)
    squared_complement = values.squared_complement
    if squared_complement is None:
        squared_complement = values.complement * (1 + values.eigenvalue)
    columns = [values.eigenvalue, values.gain]
    for motion in values.motions.values():
        columns += motion
    xp = array_namespace(weights)
    found = Expectations(
        xp.sum(weights * values.complement, axis=0),
        xp.sum(weights * squared_complement, axis=0),
        *averaged(columns, weights),
    )
    parameters = tuple(values.motions)
    if write is None or write_gate is None:
        return found, parameters
    return _with_write(found, write, write_gate), (*parameters, write.parameter)


def _at_nodes(function: Callable[[Array], Any], gate: Preactivation, smooth: bool) -> Any:
    """What a function of z has at nodes, and their weights (nodes, 1, ...)."""
    nodes, weights = normal_nodes(gate.mean, gate.spread, smooth)
    column = weights.reshape(-1, *(1,) * gate.mean.ndim)
    return function(gate.at(nodes)), array_namespace(gate.mean).asarray(column)


def _with_write(law: Expectations, write: Write, gate: Preactivation) -> Expectations:
    """γ k in place of γ, with an independent k.

    A delta rule has λ (1 - k c) in place of λ, too, with a c that is 1 at the share 1/d and else 0.
    """
    xp, share = array_namespace(gate.mean), 1 / write.width
    lost: Array = 0.0
    lost_square: Array = 0.0
    # What λ, γ and their derivatives by other parameters and by that of the gate are multiplied by.
    if isinstance(write.opening, Exponential) and write.opening.cap is None:
        # E e^{pz} = e^{pb + p²σ²/2} has its weight pσ standard deviations off, beyond any fixed
        # reach. No delta rule has such a gate.
        power, there = xp.asarray([0.0, 1.0, 0.0, 1.0]), xp.asarray([1.0, 1.0, 0.0, 1.0])

        def mean(exponent: Array, present: Array) -> Array:
            column = (...,) + (None,) * exponent.ndim
            spread = (exponent * gate.spread[column]) ** 2 / 2
            grown = write.factor**exponent * xp.exp(exponent * gate.mean[column] + spread)
            return xp.where(present > 0, grown, 0.0)

        with np.errstate(over="ignore"):
            means = mean(power, there)
            products = mean(power[:, None] + power, there[:, None] * there)
    else:
        opened, weights = _at_nodes(write, gate, write.opening.smooth)
        k, slope = opened.value, opened.slope
        means, products = averaged([1 + 0 * k, k, 0 * k, slope], weights)
        if share:
            over = averaged([1 - k, k, -slope, slope], weights)
            means, products = (
                (1 - share) * kept + share * written
                for kept, written in zip((means, products), over, strict=True)
            )
            lost = share * xp.sum(weights * k, axis=0)
            lost_square = share * xp.sum(weights * k * (2 - k), axis=0)
    size = law.means.shape[-1]
    of_law, of_write = np.array([*range(size), 0, 1]), np.array([0, 1] * (size // 2) + [2, 3])
    return Expectations(
        law.complement + (1 - law.complement) * lost,
        law.squared_complement + (1 - law.squared_complement) * lost_square,
        _times(law.means[..., of_law], means[..., of_write]),
        _times(
            law.products[..., of_law, :][..., of_law], products[..., of_write, :][..., of_write]
        ),
    )


def _times(of_law: Array, of_write: Array) -> Array:
    """Their product, 0 where the law's is 0 and the other one beyond all floats."""
    return of_law * array_namespace(of_law).where(of_law == 0, 0.0, of_write)


class GatedMoments(NamedTuple):
    """Stationary moments of n units, for a drive of the given autocorrelation."""

    # (3 + 2 parameters, n) E|h|², and Re E[h s*] and E|s|² by each parameter; inf where they
    # diverge, with 0 for E[h s*]. The last two rows are 1 - E|λ|² and E|1 - λ|².
    figures: Array
    parameters: tuple[str, ...]  # their names

    @property
    def second_moment(self) -> Array:
        """E|h|²."""
        return self.figures[0]

    @property
    def sensitivities(self) -> Mapping[str, Array]:
        """E|s|² by parameter."""
        return {name: self.figures[2 + 2 * i] for i, name in enumerate(self.parameters)}

    @property
    def squared_complement(self) -> Array:
        """1 - E|λ|², the share of E|h|² that a step forgets."""
        return self.figures[-2]

    @property
    def left_behind(self) -> Array:
        """√E|1 - λ|², by how much of itself a step without input moves a state."""
        return self.figures[-1] ** 0.5


def gated_moments(
    law: GateLaw,
    gate: Preactivation,
    autocorrelation: Autocorrelation = WHITE,
    write: Write | None = None,
    write_gate: Preactivation | None = None,
) -> GatedMoments:
    """E h², E[h s] and E s² of a gated recurrence, over an infinite horizon.

    With E over z, m₁ = E λ, m₂ = E λ², d = dλ/dω, e = dγ/dω and a drive of autocorrelation ρ:

        a    = ρ E[γ] / (1 - ρ m₁)                                            = E[h_t x_{t+1}]
        y    = ρ (E[d] a + E[e]) / (1 - ρ m₁)                                 = E[s_t x_{t+1}]
        E h² = (E γ² + 2 E[λγ] a) / (1 - m₂)
        E hs = (E[λd] E h² + E[λe] a + E[γλ] y + E[γd] a + E[γe]) / (1 - m₂)
        E s² = (E d² E h² + E e² + 2 E[λd] E hs + 2 E[λe] y + 2 E[de] a) / (1 - m₂)

    and a mixture sums them with its weights; Zucchet & Orvieto 2024, appendix D.2, at σ = 0.
    ``write`` is a further factor of γ, of a pre-activation independent of z.
    """

    def found(law: GateLaw, gate: Preactivation, write_gate: Preactivation | None) -> GatedMoments:
        of, parameters = expectations(law, gate, write, write_gate)
        return GatedMoments(figures_of(of, len(parameters), autocorrelation), parameters)

    if not isinstance(gate.mean, np.ndarray) or gate.mean.size == 0:
        return found(law, gate, write_gate)
    of_pieces = (
        (units, found(its, z, z_write)) for units, its, z, z_write in pieces(law, gate, write_gate)
    )
    return _gathered(gate.mean.size, of_pieces)


def _gathered(size: int, parts: Iterable[tuple[Integers, GatedMoments]]) -> GatedMoments:
    found = list(parts)
    figures = np.zeros((len(found[0][1].figures), size))
    for units, of in found:
        figures[:, units] = of.figures
    return GatedMoments(figures, found[0][1].parameters)


def pieces(
    law: GateLaw, gate: Preactivation, write_gate: Preactivation | None
) -> Iterator[tuple[Integers, GateLaw, Preactivation, Preactivation | None]]:
    """The (rows, shared) indices of some units, their law, z and write gate (rows, 1).

    Rows share a pre-activation; the widest go first and decide how many nodes all have.
    """
    alike = [gate.mean, gate.spread]
    if write_gate is not None:
        alike += [write_gate.mean, write_gate.spread]
    rows = np.arange(gate.mean.size).reshape(-1, shared_by(*alike))
    rows = rows[np.argsort(-gate.spread[rows[:, 0]], kind="stable")]
    farthest = np.max(np.abs(gate.mean), keepdims=True, initial=0.0)
    start = 0
    while start < len(rows):
        # No unit of the piece takes more nodes than its first, were that the farthest off.
        count = normal_nodes(farthest, gate.spread[rows[start, :1]], law.smooth)[0].size
        width = min(rows.shape[1], max(CHUNK // count, 1))
        stop = start + max(CHUNK // (count * width), 1)
        for left in range(0, rows.shape[1], width):
            units = rows[start:stop, left : left + width]
            first = units[:, :1]
            second = None if write_gate is None else write_gate.take(first)
            yield units, law.take(units), gate.take(first), second
        start = stop


def shared_by(*arrays: Floats) -> int:
    """The largest k for which entries 1 to k are alike in every array, the next k, and so on."""
    differs = np.zeros(max(arrays[0].size - 1, 0), dtype=bool)
    for array in arrays:
        differs |= array[1:] != array[:-1]
    return max(int(np.gcd.reduce(np.flatnonzero(differs) + 1, initial=arrays[0].size)), 1)


@np.errstate(over="ignore", invalid="ignore")  # of units that the last lines put out as inf
def figures_of(of: Expectations, parameters: int, autocorrelation: Autocorrelation) -> Array:
    """(3 + 2 parameters, ..., n) those of `GatedMoments`."""
    xp = array_namespace(of.means)
    stable = (of.squared_complement > 0) & xp.all(xp.isfinite(of.products), axis=(-2, -1))
    real = not xp.isdtype(of.means.dtype, "complex floating")
    total: list[Array] = [0.0] * (1 + 2 * parameters)
    for part in autocorrelation.parts:
        # A cosine is the mean of the poles p and p*, which move a real state alike.
        poles = {part.pole} if real else {complex(part.pole), complex(part.pole).conjugate()}
        mean = None
        if real and part.frequency and part.rho and of.means.shape[-1] == 2 + 2 * parameters:
            mean = _mean_response(of, part, stable)
        for pole in poles if part.weight else ():
            found = _of_pole(of, parameters, pole, stable, mean)
            weight = part.weight / len(poles)
            total = [so_far + weight * each for so_far, each in zip(total, found, strict=True)]
    # Where λ's and γ' u cancel, only rounding is left.
    squares = [xp.where(value > 0, value, 0.0) for value in total[2::2]]
    held, crossed = xp.where(stable, total[0], math.inf), total[1::2]
    figures = [held]
    for cross, square in zip(crossed, squares, strict=True):
        figures += [xp.where(stable, cross, 0.0), xp.where(stable, square, math.inf)]
    lost = xp.abs(of.complement)
    left_behind = xp.clip(2 * xp.real(of.complement) - of.squared_complement, lost**2, None)
    figures += [of.squared_complement, left_behind]
    return xp.stack(xp.broadcast_arrays(*figures))


class _MeanResponse(NamedTuple):
    """E[h|x] and E[s|x], about which a state fluctuates: at a tone off resonance sums cancel."""

    figures: list[Array]  # as those of `figures_of`
    covariances: Array  # (..., n, k, k) of g


def _mean_response(of: Expectations, part: Decay, stable: Array) -> _MeanResponse:
    xp, means = array_namespace(of.means), of.means
    # That of a gate which is shut at all nodes may round to more than 1.
    complement = xp.clip(of.complement, None, math.nextafter(1.0, 0.0))
    log = xp.log1p(-xp.where(stable, complement, 0.5))
    f, mixed, s = moments(log, Autocorrelation((1.0,), (part.rho,), (part.frequency,)))
    c, gain = xp.real(mixed), means[..., 1]
    figures = [gain**2 * f]
    for place in range(2, means.shape[-1], 2):
        by_gain, e = means[..., place] * gain, means[..., place + 1]
        figures += [gain * (by_gain * c + e * f), by_gain**2 * s + 2 * by_gain * e * c + e**2 * f]
    covariances = _beyond_rounding(
        of.products - means[..., :, None] * means[..., None, :], of.products
    )
    variance = _beyond_rounding(  # of λ, from 1 - λ
        2 * of.complement - of.squared_complement - of.complement**2, of.complement
    )
    first = np.zeros(of.products.shape[-2:], dtype=bool)
    first[0, 0] = True
    return _MeanResponse(figures, xp.where(first, variance[..., None, None], covariances))


def _beyond_rounding(difference: Array, scale: Array) -> Array:
    xp = array_namespace(difference)
    return xp.where(xp.abs(difference) <= ROUNDING * xp.abs(scale), 0.0, difference)


def _of_pole(
    of: Expectations, parameters: int, pole: complex, stable: Array, mean: _MeanResponse | None
) -> list[Array]:
    """The figures for a drive ``u = p u⁻ + ε`` of E|u|² = 1.

    ``h = λ h⁻ + β u⁻ + ν ε`` has β = μ + pν, or pγ where ν = γ, and s = dh/dω is
    ``λ s⁻ + λ' h⁻ + β' u⁻ + ν' ε``; a = E hu* and y = E su* are divided by 1 - p* E λ.
    """
    xp, back = array_namespace(of.means), np.conj(pole)
    root = math.sqrt(1 - abs(pole) ** 2)
    written = [[0.0, 1.0, 0.0], [0.0, pole, root]]
    block = [[1.0, 0.0, 0.0], *written[-(of.means.shape[-1] // (1 + parameters)) + 1 :]]
    turn = np.kron(np.eye(1 + parameters), np.array(block))
    left, right = xp.asarray(turn.T), xp.asarray(np.conj(turn))
    means = of.means @ xp.asarray(turn)  # E λ, E β and E ν √(1-|p|²), and of their derivatives
    products = left @ of.products @ right
    source, expected = products, [0.0] * (1 + 2 * parameters)
    if mean is not None:
        source, expected = left @ mean.covariances @ right, mean.figures
    below = xp.where(stable, of.squared_complement, 1.0)
    past = xp.where(stable, (1 - back) + back * of.complement, 1.0)

    def entered(first: int) -> Array:
        return back * means[..., first + 1] + root * means[..., first + 2]

    def both(one: int, other: int) -> Array:
        return source[..., one, other]

    a, held = entered(0) / past, expected[0]
    second = both(0, 0) * held + 2 * both(0, 1) * a + both(1, 1) + both(2, 2)
    fluctuation = xp.real(second) / below
    found = [held + fluctuation]
    for place in range(parameters):
        d, (c, s) = 3 + 3 * place, expected[1 + 2 * place : 3 + 2 * place]
        y, slope = (back * means[..., d] * a + entered(d)) / past, products[..., 0, d]
        cross = both(0, 0) * c + both(0, d) * held + slope * fluctuation + both(0, d + 1) * a
        cross = cross + xp.conj(both(0, 1) * y + both(d, 1) * a)
        cross = (cross + both(1, d + 1) + both(2, d + 2)) / below
        twice = both(0, d) * c + slope * xp.conj(cross) + both(0, d + 1) * y + both(d, d + 1) * a
        square = both(0, 0) * s + both(d, d) * held + products[..., d, d] * fluctuation
        square = square + both(d + 1, d + 1) + both(d + 2, d + 2) + 2 * twice
        found += [xp.real(c + cross), s + xp.real(square) / below]
    return found


# Gates that no rule over one Gaussian covers are drawn. Every draw has a fixed seed and comes in
# `REPLICATES` of its own, from which the sampling error of each figure is taken.
UNITS = 256  # at most so many stand for a layer of gates that are run
REPLICATES = 8  # independent shifts of the points, or chains of states
GENERATOR = (1, 182667, 469891, 498753)
"""Of a lattice in up to four dimensions, good for every power of two (Cools, Kuo & Nuyens 2006)."""
WIDTH = 1.3  # of the draws, in standard deviations: the tails count for 1 - λ of slow gates
COUNTS = (512, 2048, 8192)  # points of a replicate, tried in turn until the error is `AIM`
AIM = 0.007  # relative standard error of any figure: i.i.d. theory itself is good to 3 %
STEPS = 2000  # of a chain; the second half counts
SEED = 11


class JointPreactivations(OfUnits, frozen=True):
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

    def at(self, normal: Floats) -> Floats:
        """(…, n, gates) from normal draws (…, n, gates), or (…, 1, gates) for all."""
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

    A lattice in the unit cube, shifted at random; the weights are for draws `WIDTH` times too wide.
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

    Of n units, each with all ``kinds`` of states in these shares; bands are at ``shares`` of the
    steps, and ``parameters`` are those of the law whose E|s|² is finite.
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
        held, *moved = figures[:-2:2, 1:]
        return [held, *(each / held for each in moved)]

    errors = (
        _refined(bands, gates, size, CHUNK),
        _refined(moments, gates, size, CHUNK // len(kinds)),
    )
    return Drawn(log_moduli, _gathered(size, parts), max(errors))


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
    """(chains, steps, units) z of the gate that keeps the state, from 0, and the mean of h² shown.

    ``preactivations`` is what gates have beside their own state, given the mean of h² over all that
    run, which a projection multiplies.
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

    from v = g = 1 after the first step, along drawn gates independent in time and of each other.
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
