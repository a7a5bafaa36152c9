"""From sequences to R(Δ): the empirical autocorrelation, how far chance moves it, and a fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation import Autocorrelation, Decay
from memcurse_cli.theory.linalg import Floats

BLOCK_ELEMENTS = 2**22  # samples that are transformed at once
EVALUATED_LAGS = 48  # lags at which the sampling error of one sequence is summed, others between

CHANCE = 2.0  # standard errors that a simpler mixture may move a lag by, and
COSINE_CHANCE = 4.0  # one without a cosine, whose frequency could follow chance at many of them
ROUNDING = 1e-12  # of the mean square: what is left of a constant after centring
SHORTEST, LONGEST = 0.2, 10.0  # time constants of the grid: in steps, and in lags that are known
PER_DECADE = 12  # of the grid
FEWEST_LAGS = 8  # that an oscillation is looked for in
MOST_COSINES = 8  # more are a trend
FINER = 4  # frequencies of the search, per one that the lags tell apart
DAMPINGS_PER_DECADE = 4  # of the search
NEGLIGIBLE = 1e-12  # of the variance: a weight that the bound at 0 has stopped


class EmpiricalAutocorrelation(Struct, frozen=True):
    """R̂(Δ) for Δ = 0..K, each the mean of all products of samples Δ steps apart."""

    values: Floats  # (K+1,) R̂
    pairs: Floats  # (K+1,) how many products stand behind each
    standard_errors: Floats | None  # (K+1,) from the spread between sequences; None for one
    observed: int  # how many samples were not masked

    @property
    def taper(self) -> Floats:
        """(K+1,) the share of lag 0's products: the biased estimator is R̂ times this."""
        return np.asarray(self.pairs / self.pairs[0])


def empirical_autocorrelation(
    data: NDArray[Any], lags: int, *, centred: bool = False, padding: float | None = None
) -> EmpiricalAutocorrelation:
    """R̂(Δ) = Σ x(t) x(t+Δ) / (number of such products), over sequences, features and t.

    Zucchet & Orvieto 2024 (v2), eq. 75, averaged over features as in their figure 12. The standard
    error is that of the ratio of two sums over independent sequences. Lags without a pair are NaN.

    The data are (N, T, F) real samples of any numeric type. ``padding`` leaves out the steps at
    either end of a sequence whose features all have this value; NaN every sample that is NaN.
    """
    from scipy.fft import next_fast_len

    sequences, steps, features = data.shape
    transform = next_fast_len(steps + lags, real=True)
    means = _means(data, transform, padding) if centred else np.zeros(features)
    sums = np.zeros((5, lags + 1))
    complete = features * (steps - np.arange(lags + 1.0))
    observed = 0
    for rows, columns in _blocks(data.shape, transform):
        products, counts = np.zeros((1, lags + 1)), np.zeros((1, lags + 1))
        for some in columns:
            block, seen = _samples(data, rows, some, padding)
            block = np.where(seen, block - means[some], 0.0)
            if padding is not None:
                counts = counts + np.rint(_correlate(seen.astype(np.float64), transform, lags))
            observed += int(np.count_nonzero(seen))
            products = products + _correlate(block, transform, lags)
        if padding is None:
            counts = np.broadcast_to(complete, products.shape)
        every = products, counts, products**2, products * counts, counts**2
        sums += [each.sum(axis=0) for each in every]
    total, pairs, squares, mixed, pair_squares = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        values = total / pairs
        errors = None
        if sequences > 1:
            spread = squares - 2 * values * mixed + values**2 * pair_squares
            scale = sequences / (sequences - 1)
            errors = np.sqrt(np.maximum(spread, 0.0) * scale) / pairs
    return EmpiricalAutocorrelation(values, pairs, errors, observed)


def gaussian_standard_error(
    autocorrelation: Autocorrelation, steps: int, series: int, lags: int
) -> Floats:
    """(K+1,) the standard error of R̂(Δ) for Gaussian sequences whose autocorrelation is known.

    With m = T-Δ products from each of some independent series, and R of what varies,

        Var R̂(Δ) = Σ_{|k|<m} (1-|k|/m) [ R(k)² + R(k+Δ) R(k-Δ) + 4μ² R(k) ] / (m · series)

    by Isserlis' theorem. A part with ρ = 1 is the square μ² of a mean that is the same in every
    series; the power of a cosine that outlasts the series takes its place, times cos²(ωΔ) cos(ωk).
    """

    def is_line(part: Decay) -> bool:
        if part.frequency == 0:
            return part.rho == 1
        return part.rho > 0 and -steps * math.log(part.rho) <= 1

    lines = [part for part in autocorrelation.parts if is_line(part)]
    varying = [part for part in autocorrelation.parts if part.weight and part not in lines]
    if not varying:
        return np.zeros(lags + 1)
    curve = Autocorrelation.from_components(varying).at(np.arange(steps + lags + 1.0))
    some = np.arange(lags + 1)
    if some.size > EVALUATED_LAGS:
        some = np.unique(np.geomspace(1, lags + 1, EVALUATED_LAGS).round().astype(np.intp) - 1)
    variances = []
    for lag in some.tolist():
        products = steps - lag
        k = np.arange(products)
        share = np.where(k == 0, 1.0, 2.0) * (1 - k / products)
        at_k = curve[:products]
        summed = at_k**2 + curve[lag : lag + products] * curve[np.abs(k - lag)]
        for line in lines:
            power = line.weight * np.cos(line.frequency * lag) ** 2
            summed += 4 * power * np.cos(line.frequency * k) * at_k
        variances.append(float(share @ summed) / (products * series))
    return np.interp(np.arange(lags + 1), some, np.sqrt(np.maximum(variances, 0.0)))


def padded_steps(block: NDArray[Any], value: float) -> NDArray[np.bool_]:
    """(n, T) the steps at either end of a sequence whose features all have a value."""
    same = np.all(block == value, axis=2)
    head = np.logical_and.accumulate(same, axis=1)
    tail = np.logical_and.accumulate(same[:, ::-1], axis=1)[:, ::-1]
    return head | tail


def _samples(
    data: NDArray[Any], rows: slice, columns: slice, padding: float | None
) -> tuple[Floats, NDArray[np.bool_]]:
    """A block, and where it is not masked."""
    block = np.asarray(data[rows, :, columns], np.float64)
    if padding is None:
        return block, np.ones(block.shape, np.bool_)
    if np.isnan(padding):
        return block, ~np.isnan(block)
    # Whether a step is padding depends on all of its features.
    padded = padded_steps(np.asarray(data[rows]), padding)
    return block, np.broadcast_to(~padded[:, :, None], block.shape)


def _means(data: NDArray[Any], transform: int, padding: float | None) -> Floats:
    """(F,) the mean of each feature over what is not masked."""
    total, count = np.zeros(data.shape[2]), np.zeros(data.shape[2])
    for rows, columns in _blocks(data.shape, transform):
        for some in columns:
            block, seen = _samples(data, rows, some, padding)
            total[some] += np.sum(block, axis=(0, 1), where=seen)
            count[some] += np.count_nonzero(seen, axis=(0, 1))
    return total / np.maximum(count, 1)


def _correlate(block: Floats, transform: int, lags: int) -> Floats:
    """(n, K+1) Σ_t x(t) x(t+Δ) of each sequence, summed over its features."""
    spectrum = np.fft.rfft(block, transform, axis=1)
    power = np.sum(spectrum.real**2 + spectrum.imag**2, axis=2)
    return np.fft.irfft(power, transform, axis=1)[:, : lags + 1]


def _blocks(shape: tuple[int, ...], transform: int) -> Iterator[tuple[slice, list[slice]]]:
    """Sequences that are transformed together, each time with the features in turn."""
    sequences, _, features = shape
    width = min(features, max(1, BLOCK_ELEMENTS // transform))
    height = max(1, BLOCK_ELEMENTS // (transform * features))
    columns = [slice(start, start + width) for start in range(0, features, width)]
    for start in range(0, sequences, height):
        yield slice(start, start + height), columns


def fit_mixture(
    values: Floats, pairs: Floats, standard_errors: Callable[[Autocorrelation], Floats]
) -> tuple[Autocorrelation, Floats]:
    """The mixture of fewest parts that chance does not tell from the nearest one, and the errors.

    Of (K+1,) R̂(0..K) by the unbiased estimator, R̂(0) > 0, whose errors under a given
    autocorrelation are ``standard_errors``.
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
    """The least squares problem of `fit_mixture`, scaled to R̂(0) = 1; pairs weigh the lags."""

    def __init__(self, values: Floats, pairs: Floats) -> None:
        self._values = values
        self._root = np.sqrt(pairs / pairs[0])
        self._target = self._root * (values / values[0])
        self._lags = np.arange(values.size, dtype=np.float64)

    def with_decays(self, cosines: Sequence[Decay] = ()) -> Autocorrelation:
        """The nearest mixture of any number of decays beside some cosines.

        Non-negative least squares on a grid of log τ, ρ = e^{-1/τ}; neighbours become one.
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
                one = chosen.pop()
                weight = one.weight + part.weight
                part = Decay(weight, one.rho + (part.weight / weight) * (part.rho - one.rho), 0.0)
            chosen.append(part)
            previous = place
        return self.refined([*chosen, *cosines])

    def with_cosines(self, mixture: Autocorrelation, tolerance: Floats) -> Autocorrelation:
        """A mixture with the cosines that its residual holds, one at a time, decays chosen anew.

        It stays as it is if none moves a lag by the (K+1,) tolerance, or ever more do: a trend.
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
        self, mixture: Autocorrelation, tolerance: Floats, cosine_tolerance: Floats
    ) -> Autocorrelation:
        """The fewest parts that follow the same curve, no lag off by more than its tolerance.

        One at a time a part is dropped, taken as white noise or as undamped, or joined with the
        next decay, and all are refined again.
        """
        curve = mixture.at(self._lags)
        while True:
            best, least = None, 1.0
            for parts, drops_cosine in _simpler(list(mixture.parts)):
                found = self.refined(parts)
                allowed = cosine_tolerance if drops_cosine else tolerance
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
        """The r^Δ cos(ωΔ) of a grid that takes most of a residual's square, or None."""
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
        from scipy.optimize import nnls

        curves = [part.quadratures(self._lags)[0] for part in parts]
        columns = self._root[:, None] * np.array(curves).T
        # The triangular factor is a problem of few rows with the same answer.
        orthogonal, triangular = np.linalg.qr(columns)
        return np.asarray(nnls(triangular, orthogonal.T @ self._target)[0])


def _simpler(parts: list[Decay]) -> Iterator[tuple[list[Decay], bool]]:
    """Every way to have one parameter less of parts in order, and whether it drops a cosine."""
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
        joins = after and after[0].frequency == 0 and after[0].rho < 1
        if part.rho > 0 and not oscillates and joins:
            middle = math.sqrt(part.rho * after[0].rho)
            yield [*before, part._replace(rho=middle), *after[1:]], False
