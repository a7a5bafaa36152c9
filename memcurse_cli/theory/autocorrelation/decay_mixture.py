"""A mixture of decays Σ w ρ^Δ, w ≥ 0, that follows an empirical autocorrelation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import Autocorrelation

Floats = NDArray[np.float64]

SHORTEST, LONGEST = 0.2, 10.0  # time constants of the grid: in steps, and in lags that are known
PER_DECADE = 12
FINEST = 1e-3  # spacing of log τ at which the grid is fine enough
NEIGHBOURS = np.arange(-2, 3)


def fit_decays(values: Floats, pairs: Floats) -> Autocorrelation:
    """The non-negative mixture nearest to R̂ in the least squares sense.

    Lags count by the number of products behind them. Non-negative least squares on a grid of
    log τ, ρ = e^{-1/τ}, with ρ = 0 and ρ = 1 beside it; then on ever finer grids around the ρ that
    have weight.

    Args:
        values: (K+1,) R̂(0..K) with R̂(0) > 0, by the unbiased estimator.
        pairs: (K+1,) how many products stand behind each lag.
    """
    fit = _Fit(values, pairs)
    longest = LONGEST * max(1, values.size - 1)
    count = int(np.ceil(PER_DECADE * np.log10(longest / SHORTEST))) + 1
    grid = np.linspace(np.log(SHORTEST), np.log(longest), count)
    spacing = float(grid[1] - grid[0])
    weights, rhos = fit.solve([0.0, *_rho(grid), 1.0])
    return _refined(fit, rhos[weights > 0], spacing)


def simplify(
    mixture: Autocorrelation, values: Floats, pairs: Floats, tolerance: Floats
) -> Autocorrelation:
    """The fewest decays that follow the same curve.

    One at a time a decay is dropped, taken as white noise or joined with the next one, and all are
    fitted again. The change stays where no lag of the curve moves by more than its tolerance.

    Args:
        mixture: what `fit_decays` gave.
        values: (K+1,) R̂.
        pairs: (K+1,) how many products stand behind each lag.
        tolerance: (K+1,) how far each lag may move.
    """
    fit = _Fit(values, pairs)
    lags = np.arange(values.size, dtype=np.float64)
    curve = mixture.at(lags)
    while True:
        found = [fit.polished(rhos) for rhos in _simpler(mixture.rhos)]
        moves = [float(np.max(np.abs(one.at(lags) - curve) - tolerance)) for one in found]
        if not moves or min(moves) > 0:
            return mixture
        mixture = found[int(np.argmin(moves))]


def _simpler(rhos: tuple[float, ...]) -> Iterator[list[float]]:
    """Every way to have one positive ρ less, for ρ in ascending order."""
    for index, rho in enumerate(rhos):
        before, after = list(rhos[:index]), list(rhos[index + 1 :])
        if before or after:
            yield before + after
        if rho > 0 and 0.0 not in rhos:
            yield [0.0, *before, *after]
        if after and rho > 0 and after[0] < 1:
            yield [*before, math.sqrt(rho * after[0]), *after[1:]]


class _Fit:
    """The least squares problem of some ρ, scaled to R̂(0) = 1."""

    def __init__(self, values: Floats, pairs: Floats) -> None:
        self.variance = float(values[0])
        self._root = np.sqrt(pairs / pairs[0])
        self._target = self._root * (values / self.variance)
        self._lags = np.arange(values.size, dtype=np.float64)

    def solve(self, rhos: Iterable[float]) -> tuple[Floats, Floats]:
        """The weights of some ρ, in units of R̂(0), and the ρ in ascending order, each once."""
        ordered = np.unique(np.fromiter(rhos, np.float64))
        columns = self._root[:, None] * ordered ** self._lags[:, None]
        # The triangular factor is a problem of few rows with the same answer.
        orthogonal, triangular = np.linalg.qr(columns)
        return nonnegative_least_squares(triangular, orthogonal.T @ self._target), ordered

    def polished(self, rhos: Iterable[float]) -> Autocorrelation:
        """The nearest mixture with as many decays as are given, or fewer; 0 and 1 stay."""
        from scipy.optimize import least_squares

        weights, found = self.solve(rhos)
        inside = (found > 0) & (found < 1)
        if not inside.any():
            return self.mixture(weights, found)
        size = found.size

        def split(point: Floats) -> tuple[Floats, Floats]:
            moved = found.copy()
            moved[inside] = _rho(point[size:])
            return point[:size], moved

        def residuals(point: Floats) -> Floats:
            heights, moved = split(point)
            model = moved ** self._lags[:, None] @ heights
            return np.asarray(self._root * model - self._target)

        def jacobian(point: Floats) -> Floats:
            heights, moved = split(point)
            columns = self._root[:, None] * moved ** self._lags[:, None]
            rates = self._lags[:, None] * np.exp(-point[size:])  # d log ρ^Δ / d log τ
            return np.hstack([columns, columns[:, inside] * heights[inside] * rates])

        count = int(np.count_nonzero(inside))
        ends = np.log([SHORTEST / 10, 10 * LONGEST * self._lags.size])
        start = np.concatenate([weights, np.clip(_log_time_constant(found[inside]), *ends)])
        lower = np.concatenate([np.zeros(size), np.full(count, ends[0])])
        upper = np.concatenate([np.full(size, np.inf), np.full(count, ends[1])])
        best = least_squares(residuals, start, jacobian, bounds=(lower, upper), xtol=1e-12).x
        weights, found = split(best)
        order = np.argsort(found)
        return self.mixture(weights[order], found[order])

    def mixture(self, weights: Floats, rhos: Floats) -> Autocorrelation:
        """The decays that have weight; white noise if none has."""
        kept = weights > 0
        if not kept.any():
            return Autocorrelation((self.variance,), (0.0,))
        scaled = self.variance * weights[kept]
        return Autocorrelation(tuple(scaled.tolist()), tuple(rhos[kept].tolist()))


def nonnegative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """argmin ‖A w - b‖ over w ≥ 0, by the active sets of Lawson and Hanson (1974).

    Columns of neighbouring decays are collinear to rounding, where a column that enters may leave
    again at once. This one ends as soon as a new column no longer lowers the residual.
    """
    size = matrix.shape[1]
    weights, passive = np.zeros(size), np.zeros(size, np.bool_)
    residual = target.copy()
    for _ in range(3 * size):
        gradient = np.where(passive, -np.inf, matrix.T @ residual)
        entering = int(np.argmax(gradient))
        if not gradient[entering] > 0:
            break
        trial, trial_passive = weights.copy(), passive.copy()
        trial_passive[entering] = True
        while trial_passive.any():
            solution = np.zeros(size)
            solution[trial_passive] = np.linalg.lstsq(matrix[:, trial_passive], target)[0]
            leaving = trial_passive & (solution <= 0)
            if not leaving.any():
                trial = solution
                break
            steps = np.full(size, np.inf)
            steps[leaving] = trial[leaving] / (trial[leaving] - solution[leaving])
            first = int(np.argmin(steps))
            trial = np.where(trial_passive, trial + steps[first] * (solution - trial), 0.0)
            trial_passive &= trial > 0
            trial_passive[first] = False
            trial[~trial_passive] = 0.0
        left = target - matrix @ trial
        if not left @ left < (residual @ residual) * (1 - 1e-14):
            break
        weights, passive, residual = trial, trial_passive, left
    return weights


def _refined(fit: _Fit, rhos: Iterable[float], spacing: float) -> Autocorrelation:
    """Fit on finer and finer grids around some ρ; 0 and 1 stay what they are."""
    start = np.fromiter(rhos, np.float64)
    ends = start[(start == 0) | (start == 1)]
    inside = start[(start > 0) & (start < 1)]
    weights, found = fit.solve(start)
    while inside.size and spacing > FINEST:
        spacing /= 2
        candidates = _rho(_log_time_constant(inside)[:, None] + spacing * NEIGHBOURS).ravel()
        weights, found = fit.solve([*ends, *candidates[(candidates > 0) & (candidates < 1)]])
        weights, found = _merged(weights, found, 2.5 * spacing)
        inside = found[(found > 0) & (found < 1)]
    return fit.polished(found)


def _merged(weights: Floats, rhos: Floats, distance: float) -> tuple[Floats, Floats]:
    """Neighbours on a grid of log τ become one ρ between them, so that supports stay few."""
    merged: list[tuple[float, float]] = []
    previous = -np.inf
    for weight, rho in zip(weights.tolist(), rhos.tolist(), strict=True):
        if weight <= 0:
            continue
        log = math.log(-1 / math.log(rho)) if 0 < rho < 1 else math.inf
        if log - previous <= distance:
            held, place = merged[-1]
            merged[-1] = (held + weight, place + (rho - place) * (weight / (held + weight)))
        else:
            merged.append((weight, rho))
        previous = log if math.isfinite(log) else -math.inf
    return np.array([weight for weight, _ in merged]), np.array([rho for _, rho in merged])


def _rho(log_time_constant: Floats) -> Floats:
    return np.exp(-np.exp(-log_time_constant))


def _log_time_constant(rho: Floats) -> Floats:
    return np.asarray(np.log(-1 / np.log(rho)))
