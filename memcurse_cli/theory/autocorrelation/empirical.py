"""The empirical autocorrelation of sequences, and how far chance moves it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.autocorrelation.mixture import Autocorrelation, Decay

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Shaped

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

BLOCK_ELEMENTS = 2**22  # samples that are transformed at once
EVALUATED_LAGS = 48  # lags at which the sampling error of one sequence is summed, others between


@dataclass(frozen=True)
class EmpiricalAutocorrelation:
    """R̂(Δ) for Δ = 0..K, each the mean of all products of samples Δ steps apart.

    Attributes:
        values: (K+1,) R̂.
        pairs: (K+1,) how many products stand behind each.
        standard_errors: (K+1,) from the spread between sequences; None for a single one.
        observed: how many samples were not masked.
    """

    values: Floats
    pairs: Floats
    standard_errors: Floats | None
    observed: int

    @property
    def taper(self) -> Floats:
        """(K+1,) the share of lag 0's products: the biased estimator is R̂ times this."""
        return np.asarray(self.pairs / self.pairs[0])


def empirical_autocorrelation(
    data: Shaped[NDArray[Any], "sequences steps features"],
    lags: int,
    *,
    centred: bool = False,
    padding: float | None = None,
) -> EmpiricalAutocorrelation:
    """R̂(Δ) = Σ x(t) x(t+Δ) / (number of such products), over sequences, features and t.

    This is Zucchet & Orvieto 2024 (v2), eq. 75, averaged over features as in their figure 12. The
    estimator is unbiased for wide-sense stationary sequences. Dividing by the number of samples
    instead gives the biased one, (1-Δ/T) R(Δ) in the mean. Centring takes the variance of the
    estimated mean away from every lag.

    The sums are circular correlations of zero-padded sequences, by FFT. The standard error treats
    sequences as independent and R̂ as the ratio of two sums over them; features of one sequence
    may depend on each other.

    Args:
        data: (N, T, F) real samples of any numeric type; it is read block by block.
        lags: K, from 0 to T-1.
        centred: subtract each feature's mean over all sequences and steps.
        padding: leave out the steps at either end of a sequence whose features all have this
            value; NaN leaves out every sample that is NaN, wherever it stands.

    Returns:
        The estimate; lags that no two samples are apart have 0 pairs and the value NaN.
    """
    import scipy.fft

    sequences, steps, features = data.shape
    transform = scipy.fft.next_fast_len(steps + lags, real=True)
    means = _means(data, transform, padding) if centred else np.zeros(features)
    total, pairs = np.zeros(lags + 1), np.zeros(lags + 1)
    squares, mixed, pair_squares = np.zeros(lags + 1), np.zeros(lags + 1), np.zeros(lags + 1)
    complete = features * (steps - np.arange(lags + 1.0))
    observed = 0
    for rows, columns in _blocks(data.shape, transform):
        products, counts = np.zeros((1, lags + 1)), np.zeros((1, lags + 1))
        for some in columns:
            block, seen = _samples(data, rows, some, padding)
            block = block - means[some]
            if seen is not None:
                block[~seen] = 0.0
                counts = counts + np.rint(_correlate(seen.astype(np.float64), transform, lags))
                observed += int(np.count_nonzero(seen))
            else:
                observed += block.size
            products = products + _correlate(block, transform, lags)
        if padding is None:
            counts = np.broadcast_to(complete, products.shape)
        total += products.sum(axis=0)
        pairs += counts.sum(axis=0)
        squares += np.sum(products**2, axis=0)
        mixed += np.sum(products * counts, axis=0)
        pair_squares += np.sum(counts**2, axis=0)
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

    which is Isserlis' theorem; Bartlett's formula is its limit for large m. A part with ρ = 1 is
    taken as the square μ² of a mean that is the same in every series, and a cosine that outlasts
    the series as a sinusoid of one amplitude, whose power takes the place of μ² with a factor
    cos²(ωΔ) cos(ωk). At no more than 48 lags the sum is taken, and other lags lie on straight
    lines between them.
    """
    lines = [part for part in autocorrelation.parts if _is_line(part, steps)]
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


def _is_line(part: Decay, steps: int) -> bool:
    """Whether a part is a mean or a sinusoid as far as a series of these steps can tell."""
    if part.frequency == 0:
        return part.rho == 1
    return part.rho > 0 and -steps * math.log(part.rho) <= 1


def padded_steps(block: Shaped[NDArray[Any], "n steps features"], value: float) -> Booleans:
    """(n, T) the steps at either end of a sequence whose features all have a value."""
    same = np.all(block == value, axis=2)
    head = np.logical_and.accumulate(same, axis=1)
    tail = np.logical_and.accumulate(same[:, ::-1], axis=1)[:, ::-1]
    return head | tail


def _samples(
    data: Shaped[NDArray[Any], "sequences steps features"],
    rows: slice,
    columns: slice,
    padding: float | None,
) -> tuple[Float[NDArray[Any], "n steps f"], Bool[NDArray[Any], "n steps f"] | None]:
    """A block as float64, and where it is not masked; None where nothing can be."""
    block = np.asarray(data[rows, :, columns], np.float64)
    if padding is None:
        return block, None
    if np.isnan(padding):
        return block, ~np.isnan(block)
    # Whether a step is padding depends on all of its features.
    padded = padded_steps(np.asarray(data[rows]), padding)
    return block, np.broadcast_to(~padded[:, :, None], block.shape)


def _means(
    data: Shaped[NDArray[Any], "sequences steps features"], transform: int, padding: float | None
) -> Floats:
    """(F,) the mean of each feature over what is not masked."""
    total, count = np.zeros(data.shape[2]), np.zeros(data.shape[2])
    for rows, columns in _blocks(data.shape, transform):
        for some in columns:
            block, seen = _samples(data, rows, some, padding)
            if seen is None:
                seen = np.ones(block.shape, np.bool_)
            total[some] += np.sum(block, axis=(0, 1), where=seen)
            count[some] += np.count_nonzero(seen, axis=(0, 1))
    return total / np.maximum(count, 1)


def _correlate(block: Floats, transform: int, lags: int) -> Floats:
    """(n, K+1) Σ_t x(t) x(t+Δ) of each sequence, summed over its features."""
    import scipy.fft

    spectrum = scipy.fft.rfft(block, transform, axis=1)
    power = np.sum(spectrum.real**2 + spectrum.imag**2, axis=2)
    return np.asarray(scipy.fft.irfft(power, transform, axis=1)[:, : lags + 1])


def _blocks(shape: tuple[int, ...], transform: int) -> Iterator[tuple[slice, list[slice]]]:
    """Sequences that are transformed together, each time with the features in turn."""
    sequences, _, features = shape
    width = min(features, max(1, BLOCK_ELEMENTS // transform))
    height = max(1, BLOCK_ELEMENTS // (transform * features))
    columns = [slice(start, start + width) for start in range(0, features, width)]
    for start in range(0, sequences, height):
        yield slice(start, start + height), columns
