"""Damped cosines beside the decays, where an empirical autocorrelation oscillates.

A cosine is taken in only where it pays: where the mixture with it is off the one without it by more
than a tolerance at some lag.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.decay_mixture import (
    LONGEST,
    PER_DECADE,
    SHORTEST,
    nonnegative_least_squares,
)
from memcurse_cli.theory.autocorrelation.mixture import Autocorrelation, Decay

Floats = NDArray[np.float64]

FEWEST_LAGS = 8
MOST_COSINES = 8
FINER = 4  # frequencies of the search, per one that the lags tell apart
DAMPINGS_PER_DECADE = 4
NEGLIGIBLE = 1e-12  # of the variance: a weight that the bound at 0 has stopped


def add_cosines(
    mixture: Autocorrelation, values: Floats, pairs: Floats, tolerance: Floats
) -> Autocorrelation:
    """A mixture with the cosines that its residual holds, one at a time.

    The next one is the r^Δ cos(ωΔ) that lies along the residual most, of a grid of decays and of
    every frequency of at least one period within the lags, by Fourier transforms. The decays are
    then chosen anew from their grid beside it, by non-negative least squares, and every weight,
    decay and frequency is refined together.

    Args:
        mixture: of decays alone.
        values: (K+1,) R̂(0..K) with R̂(0) > 0.
        pairs: (K+1,) how many products stand behind each lag.
        tolerance: (K+1,) what a cosine must move some lag by.

    Returns:
        The mixture as it was where no cosine does, or where ever more of them do: that is a trend,
        not an oscillation.
    """
    lags = np.arange(values.size, dtype=np.float64)
    if values.size <= FEWEST_LAGS:
        return mixture
    fit, decays = _CosineFit(values, pairs), mixture
    for _ in range(MOST_COSINES):
        curve = mixture.at(lags)
        if np.all(np.abs(values - curve) <= tolerance):
            break
        cosines = [part for part in mixture.parts if part.frequency > 0]
        found = fit.nearest(values - curve)
        if found is None:
            break
        trial = fit.polished([*fit.decays_beside([*cosines, found]), *cosines, found])
        if np.all(np.abs(trial.at(lags) - curve) <= tolerance):
            break
        mixture = trial
    else:
        return decays
    return mixture


def simplify_cosines(
    mixture: Autocorrelation,
    values: Floats,
    pairs: Floats,
    tolerance: Floats,
    cosine_tolerance: Floats,
) -> Autocorrelation:
    """The fewest parts that follow the same curve.

    One at a time a part is dropped, taken as white noise or as one that does not decay, and all are
    fitted again. The change stays where no lag of the curve moves by more than its tolerance.

    Args:
        mixture: what `add_cosines` gave.
        values: (K+1,) R̂.
        pairs: (K+1,) how many products stand behind each lag.
        tolerance: (K+1,) how far each lag may move.
        cosine_tolerance: the same where a cosine is dropped.
    """
    fit = _CosineFit(values, pairs)
    lags = np.arange(values.size, dtype=np.float64)
    curve = mixture.at(lags)
    while True:
        best, least = None, 0.0
        for parts, drops_cosine in _simpler(list(mixture.parts)):
            found = fit.polished(parts)
            allowed = cosine_tolerance if drops_cosine else tolerance
            moved = float(np.max(np.abs(found.at(lags) - curve) / allowed))
            if moved <= 1 and (best is None or moved < least):
                best, least = found, moved
        if best is None:
            return mixture
        mixture = best


def _simpler(parts: list[Decay]) -> Iterator[tuple[list[Decay], bool]]:
    """Every way to have one parameter less, and whether it takes a cosine away."""
    for index, part in enumerate(parts):
        others = parts[:index] + parts[index + 1 :]
        if others:
            yield others, part.frequency > 0
        if 0 < part.rho < 1:
            if part.frequency > 0:
                yield [*others, part._replace(rho=1.0)], False
            elif all(other.rho > 0 for other in others):
                yield [*others, part._replace(rho=0.0)], False


class _CosineFit:
    """The least squares problem of decays and cosines, scaled to R̂(0) = 1."""

    def __init__(self, values: Floats, pairs: Floats) -> None:
        self.variance = float(values[0])
        self._root = np.sqrt(pairs / pairs[0])
        self._target = self._root * (values / self.variance)
        self._lags = np.arange(values.size, dtype=np.float64)

    def nearest(self, residual: Floats) -> Decay | None:
        """The cosine that takes most of a residual's square, or None where none takes any."""
        size = self._lags.size
        transform = 2 ** math.ceil(math.log2(FINER * size))
        bins = np.arange(transform // 2 + 1)
        doubled = np.minimum(2 * bins % transform, transform - 2 * bins % transform)
        longest = LONGEST * size
        count = math.ceil(DAMPINGS_PER_DECADE * math.log10(longest)) + 1
        best, gain = None, 0.0
        for constant in np.geomspace(1.0, longest, count).tolist():
            rho = math.exp(-1 / constant)
            window = self._root**2 * rho**self._lags
            along = np.fft.rfft(window * residual, transform).real
            squares = np.fft.rfft(window * rho**self._lags, transform).real
            gains = np.maximum(along, 0.0) ** 2 / (0.5 * (squares[0] + squares[doubled]))
            gains[bins * (size - 1) < transform] = 0.0
            place = int(np.argmax(gains))
            if gains[place] > gain:
                gain = float(gains[place])
                best = Decay(1.0, rho, float(2 * math.pi * place / transform))
        return best

    def decays_beside(self, cosines: list[Decay]) -> list[Decay]:
        """The decays of a grid that have weight beside some cosines, neighbours as one."""
        longest = LONGEST * (self._lags.size - 1)
        count = math.ceil(PER_DECADE * math.log10(longest / SHORTEST)) + 1
        grid = np.exp(-1 / np.geomspace(SHORTEST, longest, count))
        decays = [Decay(1.0, rho, 0.0) for rho in (0.0, *grid.tolist(), 1.0)]
        weights = self._weights([*decays, *cosines])[: len(decays)]
        chosen: list[Decay] = []
        previous = -2
        for place in np.flatnonzero(weights > 0).tolist():
            part = decays[place]._replace(weight=float(weights[place]))
            inside = 0 < part.rho < 1
            if inside and place == previous + 1 and 0 < chosen[-1].rho < 1:
                held = chosen.pop()
                share = part.weight / (held.weight + part.weight)
                rho = held.rho + share * (part.rho - held.rho)
                part = Decay(held.weight + part.weight, rho, 0.0)
            chosen.append(part)
            previous = place
        return chosen

    def polished(self, parts: list[Decay]) -> Autocorrelation:
        """The nearest mixture with as many parts or fewer; ρ = 0 and ρ = 1 stay."""
        from scipy.optimize import least_squares

        size = len(parts)
        rhos = np.array([part.rho for part in parts])
        angles = np.array([part.frequency for part in parts])
        damped, turning = (rhos > 0) & (rhos < 1), angles > 0
        split = size + int(np.count_nonzero(damped))

        def moved(point: Floats) -> tuple[Floats, Floats, Floats]:
            decays, turns = rhos.copy(), angles.copy()
            decays[damped] = np.exp(-np.exp(-point[size:split]))
            turns[turning] = point[split:]
            return point[:size], decays, turns

        lags, root = self._lags[:, None], self._root[:, None]

        def residuals(point: Floats) -> Floats:
            heights, decays, turns = moved(point)
            return np.asarray(
                self._root * (decays**lags * np.cos(turns * lags) @ heights) - self._target
            )

        def jacobian(point: Floats) -> Floats:
            heights, decays, turns = moved(point)
            envelope = root * decays**lags
            columns = envelope * np.cos(turns * lags)
            rates = lags * np.exp(-point[size:split])  # d log ρ^Δ / d log τ
            slopes = -heights * lags * envelope * np.sin(turns * lags)
            by_decay = (columns * heights)[:, damped] * rates
            return np.hstack([columns, by_decay, slopes[:, turning]])

        ends = np.log([SHORTEST / 10, 10 * LONGEST * self._lags.size])
        logs = np.log(-1 / np.log(rhos[damped]))
        lowest = 2 * math.pi / (self._lags.size - 1)  # a period within the lags
        start = np.concatenate([self._weights(parts), np.clip(logs, *ends), angles[turning]])
        lower, upper = np.zeros(start.size), np.full(start.size, np.inf)
        lower[size:split], upper[size:split] = ends
        lower[split:], upper[split:] = lowest, math.pi
        start = np.clip(start, lower, upper)
        best = least_squares(
            residuals, start, jacobian, bounds=(lower, upper), x_scale="jac", max_nfev=200
        ).x
        heights, decays, turns = moved(best)
        kept = np.flatnonzero(heights > NEGLIGIBLE)
        if kept.size == 0:
            return Autocorrelation((self.variance,), (0.0,))
        order = kept[np.lexsort((decays[kept], turns[kept]))]
        return Autocorrelation(
            tuple((self.variance * heights[order]).tolist()),
            tuple(decays[order].tolist()),
            tuple(turns[order].tolist()),
        )

    def _weights(self, parts: Iterable[Decay]) -> Floats:
        """The weights of some parts, in units of R̂(0)."""
        curves = [part.quadratures(self._lags)[0] for part in parts]
        columns = self._root[:, None] * np.array(curves).T
        orthogonal, triangular = np.linalg.qr(columns)
        return nonnegative_least_squares(triangular, orthogonal.T @ self._target)
