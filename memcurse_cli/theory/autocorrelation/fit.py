"""A mixture of decays and damped cosines, Σ w ρ^Δ cos(ωΔ) with w ≥ 0, that follows R̂.

The decays are those of a grid that non-negative least squares gives weight to; then weights, decays
and frequencies are refined together. A cosine is taken in only where it pays: where the mixture
with it is off the one without it by more than chance moves some lag.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import Autocorrelation, Decay

Floats = NDArray[np.float64]

CHANCE = 2.0
"""Standard errors that a simpler mixture may move a lag by."""
COSINE_CHANCE = 4.0
"""The same for a cosine, whose frequency could follow chance at many of them."""
ROUNDING = 1e-12
"""Of the mean square: what is left of a constant after centring."""

SHORTEST, LONGEST = 0.2, 10.0  # time constants of the grid: in steps, and in lags that are known
PER_DECADE = 12  # of the grid
FEWEST_LAGS = 8  # that an oscillation is looked for in
MOST_COSINES = 8  # more are a trend
FINER = 4  # frequencies of the search, per one that the lags tell apart
DAMPINGS_PER_DECADE = 4  # of the search
NEGLIGIBLE = 1e-12  # of the variance: a weight that the bound at 0 has stopped


def fit_mixture(
    values: Floats, pairs: Floats, standard_errors: Callable[[Autocorrelation], Floats]
) -> tuple[Autocorrelation, Floats]:
    """The mixture of fewest parts that chance does not tell from the nearest one, and the errors.

    Args:
        values: (K+1,) R̂(0..K) with R̂(0) > 0, by the unbiased estimator.
        pairs: (K+1,) how many products stand behind each lag.
        standard_errors: (K+1,) of R̂, where the autocorrelation is a given one.

    Returns:
        The mixture, and the standard errors of R̂ that it was judged by.
    """
    fit, rounding = MixtureFit(values, pairs), ROUNDING * values[0]

    def for_cosines(errors: Floats) -> Floats:
        typical = float(np.sqrt(np.mean(errors**2)))
        return np.asarray(COSINE_CHANCE * np.maximum(errors, typical) + rounding)

    decays = fit.with_decays()
    errors = standard_errors(decays)
    full = fit.with_cosines(decays, for_cosines(errors))
    if full != decays:
        errors = standard_errors(full)
    tolerance = np.maximum(CHANCE * errors, rounding)
    return fit.simplified(full, tolerance, for_cosines(errors)), errors


class MixtureFit:
    """The least squares problem of decays and cosines, scaled to R̂(0) = 1.

    Args:
        values: (K+1,) R̂(0..K) with R̂(0) > 0, by the unbiased estimator.
        pairs: (K+1,) how many products stand behind each lag, by which it counts.
    """

    def __init__(self, values: Floats, pairs: Floats) -> None:
        self._values = values
        self._root = np.sqrt(pairs / pairs[0])
        self._target = self._root * (values / values[0])
        self._lags = np.arange(values.size, dtype=np.float64)

    def with_decays(self, cosines: Sequence[Decay] = ()) -> Autocorrelation:
        """The nearest mixture of any number of decays beside some cosines.

        Non-negative least squares on a grid of log τ, ρ = e^{-1/τ}, with ρ = 0 and ρ = 1 beside it;
        neighbours that have weight become one, and all parts are refined.
        """
        longest = LONGEST * max(1, self._lags.size - 1)
        count = math.ceil(PER_DECADE * math.log10(longest / SHORTEST)) + 1
        inside = np.exp(-1 / np.geomspace(SHORTEST, longest, count))
        grid = [Decay(1.0, rho, 0.0) for rho in (0.0, *inside.tolist(), 1.0)]
        weights = self._weights([*grid, *cosines])
        chosen: list[Decay] = []
        previous = -2
        for place in np.flatnonzero(weights[: len(grid)]).tolist():
            part = grid[place]._replace(weight=float(weights[place]))
            if place == previous + 1 and chosen[-1].rho > 0 and part.rho < 1:
                part = _joined(chosen.pop(), part)
            chosen.append(part)
            previous = place
        return self.refined([*chosen, *cosines])

    def with_cosines(self, mixture: Autocorrelation, tolerance: Floats) -> Autocorrelation:
        """A mixture with the cosines that its residual holds, one at a time.

        The decays are chosen anew beside each.

        Args:
            mixture: of decays alone.
            tolerance: (K+1,) what a cosine must move some lag by.

        Returns:
            The mixture as it was where no cosine does, or where ever more of them do: that is a
            trend, not an oscillation.
        """
        decays = mixture
        if self._lags.size <= FEWEST_LAGS:
            return mixture
        for _ in range(MOST_COSINES):
            curve = mixture.at(self._lags)
            residual = self._values - curve
            found = self._nearest_cosine(residual)
            if found is None or np.all(np.abs(residual) <= tolerance):
                return mixture
            cosines = [part for part in mixture.parts if part.frequency > 0]
            trial = self.with_decays([*cosines, found])
            if np.all(np.abs(trial.at(self._lags) - curve) <= tolerance):
                return mixture
            mixture = trial
        return decays

    def simplified(
        self, mixture: Autocorrelation, tolerance: Floats, cosine_tolerance: Floats | None = None
    ) -> Autocorrelation:
        """The fewest parts that follow the same curve.

        One at a time a part is dropped, taken as white noise or as undamped, or joined with the
        next decay, and all are refined again. The change stays where no lag of the curve moves by
        more than its tolerance.

        Args:
            mixture: what is to be simpler.
            tolerance: (K+1,) how far each lag may move.
            cosine_tolerance: the same where a cosine is dropped.
        """
        curve = mixture.at(self._lags)
        while True:
            best, least = None, 1.0
            for parts, drops_cosine in _simpler(list(mixture.parts)):
                found = self.refined(parts)
                allowed = tolerance
                if drops_cosine and cosine_tolerance is not None:
                    allowed = cosine_tolerance
                moved = float(np.max(np.abs(found.at(self._lags) - curve) / allowed))
                if moved <= least:
                    best, least = found, moved
            if best is None:
                return mixture
            mixture = best

    def refined(self, parts: Sequence[Decay]) -> Autocorrelation:
        """The nearest mixture with as many parts or fewer; ρ = 0, ρ = 1 and ω = 0 stay."""
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

        weights = self._weights(parts)
        ends = np.log([SHORTEST / 10, 10 * LONGEST * self._lags.size])
        logs = np.log(-1 / np.log(rhos[damped]))
        point = np.concatenate([weights, np.clip(logs, *ends), angles[turning]])
        if point.size > size:
            lower, upper = np.zeros(point.size), np.full(point.size, np.inf)
            lower[size:split], upper[size:split] = ends
            lower[split:] = 2 * math.pi / (self._lags.size - 1)  # a period within the lags
            upper[split:] = math.pi
            point = least_squares(
                residuals,
                np.clip(point, lower, upper),
                jacobian,
                bounds=(lower, upper),
                x_scale="jac",
                xtol=1e-12,
                max_nfev=200,
            ).x
        heights, decays, turns = moved(point)
        kept = np.flatnonzero(heights > NEGLIGIBLE)
        variance = float(self._values[0])
        if kept.size == 0:
            return Autocorrelation((variance,), (0.0,))
        order = kept[np.lexsort((decays[kept], turns[kept]))]
        return Autocorrelation(
            tuple((variance * heights[order]).tolist()),
            tuple(decays[order].tolist()),
            tuple(turns[order].tolist()),
        )

    def _nearest_cosine(self, residual: Floats) -> Decay | None:
        """The r^Δ cos(ωΔ) that takes most of a residual's square, or None where none takes any.

        Of a grid of decays and of every frequency of at least one period within the lags, by
        Fourier transforms.
        """
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

    def _weights(self, parts: Iterable[Decay]) -> Floats:
        """The weights of some parts, in units of R̂(0)."""
        curves = [part.quadratures(self._lags)[0] for part in parts]
        columns = self._root[:, None] * np.array(curves).T
        # The triangular factor is a problem of few rows with the same answer.
        orthogonal, triangular = np.linalg.qr(columns)
        return nonnegative_least_squares(triangular, orthogonal.T @ self._target)


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


def _joined(one: Decay, other: Decay) -> Decay:
    """One decay in the place of two neighbours."""
    weight = one.weight + other.weight
    return Decay(weight, one.rho + (other.weight / weight) * (other.rho - one.rho), 0.0)


def _simpler(parts: list[Decay]) -> Iterator[tuple[list[Decay], bool]]:
    """Every way to have one parameter less, and whether it takes a cosine away.

    The parts stand in the order of their frequencies, then of their ρ.
    """
    white = any(part.rho == 0 for part in parts)
    for index, part in enumerate(parts):
        before, after = parts[:index], parts[index + 1 :]
        oscillates = part.frequency > 0
        if before or after:
            yield [*before, *after], oscillates
        if oscillates and part.rho < 1:
            yield [*before, part._replace(rho=1.0), *after], False
        if part.rho > 0 and not (oscillates or white):
            yield [*before, part._replace(rho=0.0), *after], False
        if (
            part.rho > 0
            and not oscillates
            and after
            and after[0].frequency == 0
            and after[0].rho < 1
        ):
            middle = math.sqrt(part.rho * after[0].rho)
            yield [*before, part._replace(rho=middle), *after[1:]], False
