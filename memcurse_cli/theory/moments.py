"""Second moments of scalar linear recurrences and of their derivatives, in closed form."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.devices import beside, contiguous
from memcurse_cli.theory.finite_sums import DerivativeSums, summed_products, white_sums
from memcurse_cli.theory.finite_sums import Readout as Readout
from memcurse_cli.theory.linalg import (
    Array,
    Complexes,
    Floats,
    Integers,
    array_namespace,
    may_be_traced,
)

NEGLIGIBLE = 1e-20  # an impulse response that has fallen so far adds nothing more
CHUNK = 2**20  # impulse-response samples held at once
TOGETHER = 2**15  # eigenvalues whose moments are taken at once: a cache holds them
MOST_LAGS = 2**21  # beyond which a sum over lags takes minutes
FINEST = 1e-18  # -log|λ|² that nothing tells from 0
NOTHING = 745.0  # e^-745 is the smallest number


class Moments(NamedTuple):
    """Stationary moments at γ = 1, one per eigenvalue."""

    second_moment: Array  # E|h|²; +inf where it diverges
    cross_moment: Array  # E[s h̄], real of real λ; 0 where E|s|² diverges: no meaning there
    sensitivity: Array  # E|s|² with s = dh/dλ; +inf where it diverges


class PairMoments(NamedTuple):
    """Second moments of pairs of eigenvalues, (..., m, m) each for those of a block."""

    ss: Array  # E[s_i s_j]
    sh: Array  # E[s_i h_j]
    hs: Array  # E[h_i s_j]
    hh: Array  # E[h_i h_j]


def one_minus_exp(z: Array) -> Array:
    """1 - e^z without cancellation near z = 0; z may be -inf.

    For z = x + iy it is ``[-expm1(x) cos y + 2 sin²(y/2)] - i e^x sin y``.
    """
    xp = array_namespace(z)
    if not xp.isdtype(z.dtype, "complex floating"):
        return -xp.expm1(z)
    x, y = xp.real(z), xp.imag(z)
    real = -xp.expm1(x) * xp.cos(y) + 2 * xp.sin(y / 2) ** 2
    return real - 1j * (xp.exp(x) * xp.sin(y))


def bilinear(log_alpha: Array, log_beta: Array, autocorrelation: Autocorrelation) -> PairMoments:
    """f(α, β) = Σ_nm α^n β^m R(n-m) as ``hh``, ∂α f as ``sh``, ∂β f as ``hs`` and ∂α∂β f as ``ss``.

    For R = ρ^|n-m|, with ``s = αβ, u = 1 - s, N = 1 - ρ² s, p = 1 - ρα, q = 1 - ρβ``:

        f       = N / (u p q)
        ∂α f    = f g_α,              g_α = β (1-ρ²) / (u N) + ρ / p
        ∂α∂β f  = f (g_α g_β + V),    V = (1-ρ) (1+ρs) (N+ρu) / (u N)²

    which is Zucchet & Orvieto 2024, eq. 35 and 37, corrected; nothing cancels near the unit circle.
    A cosine is the mean of the two with ``α e^(±iω)`` and ``β e^(∓iω)``. log α and log β broadcast,
    below 0 and -inf for 0.
    """
    xp, both = array_namespace(log_alpha), log_alpha + log_beta
    tables = PairMoments(*(xp.zeros_like(both, dtype=xp.complex128) for _ in range(4)))
    u = one_minus_exp(both)
    for weight, rho, angle in turned_parts(autocorrelation):
        found = _of_decay(u, log_alpha, log_beta, rho, angle)
        for table, part in zip(tables, found, strict=True):
            table += weight * part
    return tables


def _of_decay(u: Array, log_alpha: Array, log_beta: Array, rho: float, angle: float) -> PairMoments:
    """Σ_nm α^n β^m ρ^|n-m| e^(iφ(n-m)); real for real arrays and φ = 0."""
    xp = array_namespace(u)
    forth, back = log_alpha, log_beta
    turn: complex = 1.0
    if angle:
        forth, back, turn = log_alpha + 1j * angle, log_beta - 1j * angle, cmath.rect(1, angle)
    white = 1 - rho  # exact for rho ≥ 1/2
    p, q = white + rho * one_minus_exp(forth), white + rho * one_minus_exp(back)
    slope = variance = 0.0
    if rho == 1:  # N is u, which may be subnormal and has fewer digits then
        value = 1 / (p * q)
    else:
        numerator = white * (1 + rho) + rho**2 * u
        value = numerator / u / (p * q)
        inverse = 1 / (u * numerator)
        slope = white * (1 + rho) * inverse
        variance = (white * inverse) * ((1 + rho) - rho * u) * ((numerator + rho * u) * inverse)
    by_alpha = xp.exp(log_beta) * slope + rho * turn / p
    by_beta = xp.exp(log_alpha) * slope + rho / turn / q
    return PairMoments(
        value * (by_alpha * by_beta + variance), value * by_alpha, value * by_beta, value
    )


def moments(
    log_eigenvalues: Array,
    autocorrelation: Autocorrelation = WHITE,
    horizon: int | None = None,
    readout: Readout = "last",
) -> Moments:
    """E|h|², E[s h̄] and E|s|² for a stationary input, at γ = 1.

    (n,) log λ are complex or real, -inf for λ = 0. T steps since h = s = 0 are exact for every λ;
    for T → ∞, None, they are `bilinear` at α = λ, β = λ̄, and |λ| ≥ 1 diverges. The readout is
    ``last`` for the state at step T, ``every`` for the mean over t = 1..T.
    """
    xp = array_namespace(log_eigenvalues)
    if xp is np and log_eigenvalues.size > TOGETHER:
        size = log_eigenvalues.size
        mixed = np.empty_like(log_eigenvalues)
        whole = Moments(np.empty(size), mixed, np.empty(size))
        for start in range(0, size, TOGETHER):
            some = slice(start, start + TOGETHER)
            found = moments(log_eigenvalues[some], autocorrelation, horizon, readout)
            for array, part in zip(whole, found, strict=True):
                array[some] = part
        return whole
    log_modulus, angle, rotation = log_eigenvalues, None, None
    is_complex = xp.isdtype(log_eigenvalues.dtype, "complex floating")
    if is_complex:
        log_modulus, angle = xp.real(log_eigenvalues), xp.imag(log_eigenvalues)
        # A traced JAX array has no values to look at, so there the angle always stays.
        if not may_be_traced(angle) and not bool(xp.any(angle != 0)):
            angle = None
    if angle is not None and autocorrelation.is_white:
        # White input sees |λ| alone; only the phase of E[s h̄] = λ̄ (…) is left to restore.
        rotation, angle = xp.cos(angle) - 1j * xp.sin(angle), None

    second_moment = cross_moment = sensitivity = xp.zeros_like(log_modulus)
    converges = log_modulus < 0
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for weight, rho, turn in turned_parts(autocorrelation):
            if rho == 0 and angle is None and readout == "last" and xp is np:
                f, c, s = white_sums(log_modulus, horizon)
            elif horizon is None:
                inside = xp.where(converges, log_modulus, -1.0)
                log = inside if angle is None else inside + 1j * angle
                pair = _of_decay(-xp.expm1(2 * inside), log, xp.conj(log), rho, turn)
                f, c, s = xp.real(pair.hh), pair.sh, xp.real(pair.ss)
            else:
                turned = angle
                if turn != 0:
                    turned = turn + (xp.zeros_like(log_modulus) if angle is None else angle)
                sums = DerivativeSums(log_modulus, turned, rho)
                f, c, s = summed_products(sums, rho, horizon, readout)[-3:]
                c = c * cmath.rect(1, turn)
            second_moment = second_moment + weight * f
            cross_moment = cross_moment + weight * c
            sensitivity = sensitivity + weight * s
        # What left the range of a float is as divergent as what has no limit.
        converges = converges | (horizon is not None)
        second_moment = xp.where(converges & xp.isfinite(second_moment), second_moment, xp.inf)
        sensitivity = xp.where(converges & xp.isfinite(sensitivity), sensitivity, xp.inf)
        if rotation is not None:
            cross_moment = cross_moment * rotation
        cross_moment = cross_moment + 0j if is_complex else xp.real(cross_moment)
        cross_moment = xp.where(xp.isfinite(sensitivity), cross_moment, 0.0)
    return Moments(second_moment, cross_moment, sensitivity)


def turned_parts(autocorrelation: Autocorrelation) -> Iterator[tuple[float, float, float]]:
    """(weight, ρ, φ) of decays without a frequency that act on λ e^(iφ), all of one R."""
    for part in autocorrelation.parts:
        if part.weight > 0 and part.rho > 0 and part.frequency > 0:
            yield part.weight / 2, part.rho, part.frequency
            yield part.weight / 2, part.rho, -part.frequency
        elif part.weight > 0:
            yield part.weight, part.rho, 0.0


def lags_within(log_eigenvalues: Complexes, autocorrelation: Autocorrelation, horizon: int) -> int:
    """About how many lags `pair_moments` sums: at most T, fewer where every response dies out."""
    longest = max(part.rho for part in autocorrelation.parts if part.weight > 0)
    slowest = float(np.max(log_eigenvalues.real, initial=-np.inf))
    slowest = max(slowest, np.log(longest) if longest > 0 else -np.inf)
    if slowest >= 0:
        return horizon
    # Twice the decay of λ^k alone, as k λ^(k-1) falls later.
    return min(horizon, int(min(2 * np.log(NEGLIGIBLE) / slowest, float(horizon))) + 1)


def innovations(lags: Integers | Floats, rho: float, horizon: int, readout: Readout) -> Floats:
    """The variance of the innovation that is k steps old, or its mean over every step.

    T-k steps see a lag of k, one of them from the first innovation, of variance 1.
    """
    later = (1 - rho) * (1 + rho)
    if readout == "every":
        return np.asarray((later * (horizon - 1 - lags) + 1) / horizon)
    return np.where(lags == horizon - 1, 1.0, later)


def responses(
    log_eigenvalues: Array,
    autocorrelation: Autocorrelation,
    horizon: int,
    readout: Readout,
    chunk: int,
) -> Iterator[tuple[Floats, Array]]:
    """What the innovations of every part of the input leave in each state, a chunk of lags a time.

    The (lags,) weights of their squares, and of (..., m) log λ the (lags, ..., 4m) real parts of
    every s, of every h, and the imaginary parts; a part ends where all of them have died out.
    """
    xp = array_namespace(log_eigenvalues)
    there = {"dtype": xp.float64, "device": log_eigenvalues.device}
    *batch, size = log_eigenvalues.shape
    eigenvalue = xp.exp(log_eigenvalues)
    for part in autocorrelation.parts:
        for of in range(len(part.quadratures(np.zeros(1)))):
            state = derivative = xp.zeros_like(eigenvalue)
            for start in range(0, horizon, chunk):
                lags = np.arange(start, min(start + chunk, horizon))
                response = xp.empty((lags.size, *batch, 4 * size), **there)
                echo = part.quadratures(lags.astype(np.float64))[of].tolist()
                for place in range(lags.size):
                    derivative = eigenvalue * derivative + state
                    state = eigenvalue * state + echo[place]
                    response[place] = xp.concat(
                        [derivative.real, state.real, derivative.imag, state.imag], axis=-1
                    )
                yield part.weight * innovations(lags, part.rho, horizon, readout), response
                if xp.all(xp.abs(response[-1]) < NEGLIGIBLE):
                    break


def pair_moments(
    log_eigenvalues: Array,
    autocorrelation: Autocorrelation,
    horizon: int | None,
    readout: Readout = "every",
    columns: Integers | None = None,
) -> tuple[PairMoments, PairMoments]:
    """The tables of E[z_i z_j] and of E[z_i z̄_j], z = s and h; |λ| < 1 without a horizon.

    Of (..., m) log λ all come second, or (c,) ``columns``. With z(k) the response to an innovation
    through the input's AR(1) filters, T steps give ``Σ_k z_i(k) z_j(k) [(1-ρ²)(T-1-k) + 1] / T``.
    """
    xp = array_namespace(log_eigenvalues)
    batch, size = log_eigenvalues.shape[:-1], log_eigenvalues.shape[-1]
    columns = np.arange(size) if columns is None else columns
    if horizon is None:
        first, second = log_eigenvalues[..., :, None], log_eigenvalues[..., None, columns]
        plain = bilinear(first, second, autocorrelation)
        return plain, bilinear(first, second.conj(), autocorrelation)
    width, seconds = columns.size, (columns + size * np.arange(4)[:, None]).ravel()
    there = {"dtype": xp.float64, "device": log_eigenvalues.device}
    products = xp.zeros((*batch, 4 * size, 4 * width), **there)
    chunk = max(64, CHUNK // max(1, 4 * size * math.prod(batch)))
    for share, found in responses(log_eigenvalues, autocorrelation, horizon, readout, chunk):
        response = contiguous(xp.moveaxis(found, 0, -1))
        second = response[..., seconds, :].mT
        products += (response * beside(share, response)) @ second
    upper, lower = products[..., : 2 * size, :], products[..., 2 * size :, :]
    both, mixed = upper[..., : 2 * width], upper[..., 2 * width :]
    across, turned = lower[..., : 2 * width], lower[..., 2 * width :]
    return (
        _split((both - turned) + 1j * (mixed + across), size, width),
        _split((both + turned) + 1j * (across - mixed), size, width),
    )


def _split(table: Array, size: int, width: int) -> PairMoments:
    s, h = table[..., :size, :], table[..., size:, :]
    return PairMoments(s[..., :width], s[..., width:], h[..., :width], h[..., width:])


class StateMoments(NamedTuple):
    """E|h|² and E|dh/dλ|² of one state; inf where they leave the range of a float."""

    second_moment: float
    sensitivity: float


def ring_moments(
    log_inner: float,
    log_outer: float,
    variance: float = 1.0,
    horizon: int | None = None,
    readout: Readout = "last",
    log_gain: Callable[[Complexes], Complexes] = np.zeros_like,
) -> StateMoments:
    """E|h|² and E|dh/dλ|² over λ uniform by area on a ring, its phase uniform on the circle.

    The mean over the phase leaves of ``E|h|² = |γ|² Σ_nm λ^n λ̄^m R(n-m)`` the terms with n = m, so
    that any input counts as white; |λ|² is uniform. Without a gain and a horizon that is

        E|h|²     = R(0) log((1-r_min²) / (1-r_max²)) / (r_max²-r_min²)
        E|dh/dλ|² = R(0) (1 - r_min² r_max²) / ((1-r_min²)² (1-r_max²)²)

    the first of which is Orvieto et al. 2023, proposition 3. log r_min is -inf for a disk, and
    log r_max below 0 without a horizon; ``log_gain`` gives log γ of eigenvalues, by |λ| alone.
    """

    def at(log_modulus: float) -> Floats:
        logs = np.array([complex(log_modulus)])
        gain = np.exp(2 * log_gain(logs).real)
        there = moments(logs, WHITE, horizon, readout)
        return variance * np.concatenate(
            (gain * np.asarray(there.second_moment), gain * np.asarray(there.sensitivity))
        )

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        outermost = at(log_outer)
        scale = np.maximum(outermost, variance)
        if not np.isfinite(scale).all():
            return StateMoments(math.inf, math.inf)
        if log_inner == log_outer:
            return StateMoments(*outermost.tolist())
        from scipy.integrate import quad_vec  # slow to import, and only rings need it

        least = -2 * log_outer

        def share(place: float) -> Floats:
            decay = FINEST * math.sinh(place)
            width = FINEST * math.cosh(place) * math.exp(least - decay)
            return width * at(-0.5 * decay) / scale

        # Over the decades of -log|λ|², on either side of the unit circle.
        ends = (math.asinh(end / FINEST) for end in (least, min(-2 * log_inner, least + NOTHING)))
        total, *_ = quad_vec(share, *ends, epsrel=1e-11, epsabs=0, norm="max")
        area = -math.expm1(2 * (log_inner - log_outer))  # over r_max²
        return StateMoments(*(scale * total / area).tolist())


def empirical_moments(log_eigenvalue: float, values: Floats) -> StateMoments:
    """E h² and E (dh/dλ)² of a real λ in (0, 1) at γ = 1, from R(0..K) alone, 0 beyond.

    With ``N = R(0) + 2 Σ λ^Δ R(Δ)``, ``D = Σ Δ λ^(Δ-1) R(Δ)`` over 1 ≤ Δ ≤ K, and u = 1 - λ²:

        E h²        = N / u
        E (dh/dλ)²  = (N + 2 λ D) / u² + 2 λ² N / u³

    (Zucchet & Orvieto 2024, eq. 6 and 35). Of an estimated R either may come out negative.
    Raises ValueError: λ is not in (0, 1).
    """
    if not -math.inf < log_eigenvalue < 0:
        raise ValueError("λ is not between 0 and 1")
    lags = np.arange(1, values.size, dtype=np.float64)
    terms = np.exp(lags * log_eigenvalue) * values[1:]
    whole = float(values[0] + 2 * np.sum(terms))
    moved = float(np.sum(lags * terms))  # λ D
    below = -math.expm1(2 * log_eigenvalue)
    squared = math.exp(2 * log_eigenvalue)
    return StateMoments(
        whole / below, (whole + 2 * moved) / below**2 + 2 * squared * whole / below**3
    )
