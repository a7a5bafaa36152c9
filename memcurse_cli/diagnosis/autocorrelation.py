"""The statistics of an input: from sequences to the autocorrelation that the theory takes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, get_args

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memcurse_cli.diagnosis.settings import require_known
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.figures import components_of
from memcurse_cli.schema.theory import (
    AutocorrelationDocument,
    EmpiricalDocument,
    Estimator,
    FitQuality,
    SampleData,
    StateCheck,
)
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.estimate import (
    ROUNDING,
    EmpiricalAutocorrelation,
    empirical_autocorrelation,
    fit_mixture,
    gaussian_standard_error,
)
from memcurse_cli.theory.linalg import Floats
from memcurse_cli.theory.moments import empirical_moments, moments

DEFAULT_LAGS = 4096
MOST_LAGS = 100_000
TIME_CONSTANTS = (1.0, 10.0, 100.0, 1000.0)  # of the states that the mixture is tried on, in steps
FORGOTTEN = 10.0  # time constants after which what is left of an input, e^-10, no longer counts


def estimate_autocorrelation(
    data: NDArray[Any],
    *,
    lags: int | None = None,
    centred: bool = False,
    padding: float | None = None,
    estimator: Estimator = "unbiased",
    source: str = "data",
) -> AutocorrelationDocument:
    """Estimate R(Δ) of (T), (T, F) or (N, T, F) real samples and fit a mixture of decays to it.

    ``lags`` is K, by default half the steps, at most 4096; ``centred`` subtracts each feature's
    mean. ``padding`` leaves out the steps at either end of a sequence whose features all have this
    value; NaN leaves out every NaN. R̂ is divided as the ``estimator`` says; the mixture is that of
    the unbiased one in either case. Errors call the data ``source``.
    Raises `UsageError` for another shape or type, NaN or inf, too few steps, and no variance.
    """
    samples = _sequences(data, source)
    _check_finite(samples, data.ndim, padding, source)
    most = min(samples.shape[1] - 1, MOST_LAGS)
    if lags is not None and not 1 <= lags <= most:
        what = f"{lags} lags of {samples.shape[1]} steps"
        raise UsageError(what, where=f"{source}: --lags", remedy=f"give 1 to {most}")
    count = min(samples.shape[1] // 2, DEFAULT_LAGS) if lags is None else lags
    with np.errstate(over="ignore", invalid="ignore"):
        found = empirical_autocorrelation(samples, count, centred=centred, padding=padding)
    found = _usable(found, explicit=lags is not None, source=source)
    variance = float(found.values[0])
    if not math.isfinite(variance):
        what = "the square of a sample is beyond the range of a float"
        raise UsageError(what, where=source, remedy="scale the data")
    level = float(np.nanmax(np.abs(np.asarray(samples[0], np.float64)), initial=0.0)) ** 2
    if variance <= (ROUNDING * level if centred else 0.0):
        what = "the samples do not vary" + (" about their mean" if centred else ": all are zero")
        raise UsageError(what, where=source, remedy="an input without variance drives no state")
    spread = found.standard_errors
    sequences, steps, features = samples.shape
    lag = np.arange(found.values.size, dtype=np.float64)

    def standard_errors(mixture: Autocorrelation) -> Floats:
        if spread is not None:
            return spread
        return gaussian_standard_error(mixture, steps, sequences * features, lag.size - 1)

    mixture, errors = fit_mixture(found.values, found.pairs, standard_errors)
    scale = found.taper if estimator == "biased" else np.ones_like(found.values)
    values, fitted = scale * found.values, scale * mixture.at(lag)
    off = np.abs(values - fitted) / found.values[0]
    bias = 0.0
    if centred:  # Σ_{|k|<T} (1-|k|/T) R(k) / (N T), the variance of the estimated mean
        k = np.arange(steps, dtype=np.float64)
        shares = np.where(k == 0, 1.0, 2.0) * (1 - k / steps)
        bias = float(shares @ mixture.at(k)) / (sequences * steps)
    return AutocorrelationDocument(
        SampleData(source, sequences, steps, features, samples.size - found.observed),
        estimator,
        centred,
        bias,
        components_of(mixture),
        FitQuality(float(np.sqrt(np.mean(off**2))), float(np.max(off)), int(np.argmax(off))),
        _state_checks(found.values, mixture),
        EmpiricalDocument(
            tuple(range(values.size)),
            tuple(values.tolist()),
            tuple(fitted.tolist()),
            tuple((scale * errors).tolist()),
            "gaussian" if spread is None else "sequences",
        ),
    )


def check_estimator(name: str) -> Estimator:
    """The estimator of this name; raises `UsageError` where there is none."""
    return require_known(name, get_args(Estimator), "--estimator", "give unbiased or biased")


def _sequences(data: NDArray[Any], source: str) -> NDArray[Any]:
    """(N, T, F) of any accepted shape."""
    wrong = partial(UsageError, where=source)
    if data.dtype.kind == "c":
        raise wrong("the samples are complex", remedy="give real and imaginary part apart")
    if data.ndim not in (1, 2, 3):
        remedy = "give (steps), (steps, features) or (sequences, steps, features)"
        raise wrong(f"an array of shape {data.shape} is no set of sequences", remedy=remedy)
    shaped = data[:, None] if data.ndim == 1 else data
    shaped = shaped if data.ndim == 3 else shaped[None]
    if data.size == 0 or shaped.shape[1] < 2:
        what = "no sample" if data.size == 0 else "one step"
        what = f"an array of shape {data.shape} has {what}, too few for a lag"
        raise wrong(what, remedy="give two steps or more")
    return shaped


def _check_finite(samples: NDArray[Any], rank: int, padding: float | None, source: str) -> None:
    if samples.dtype.kind not in "fV":
        return
    masks_nan = padding is not None and math.isnan(padding)
    for index in range(samples.shape[0]):
        block = np.asarray(samples[index], np.float64)
        wrong = np.isinf(block) if masks_nan else ~np.isfinite(block)
        if not wrong.any():
            continue
        step, feature = (int(axis[0]) for axis in np.nonzero(wrong))
        place = [f"sequence {index}"] if rank == 3 else []
        place += [f"step {step}"] + ([f"feature {feature}"] if rank > 1 else [])
        is_nan = bool(np.isnan(block[step, feature]))
        more = int(np.count_nonzero(wrong)) - 1
        also = f", and {more} more of that sequence" if more else ""
        what = f"{'NaN' if is_nan else 'an infinite value'} at {', '.join(place)} (from 0){also}"
        remedy = "give --padding nan to leave missing samples out" if is_nan else "remove it"
        raise UsageError(what, where=source, remedy=remedy)


def _usable(
    found: EmpiricalAutocorrelation, *, explicit: bool, source: str
) -> EmpiricalAutocorrelation:
    """The lags up to the first that no two samples are apart."""
    empty = np.flatnonzero(found.pairs == 0)
    if empty.size == 0:
        return found
    count = int(empty[0])
    if explicit or count < 2:
        what = "every sample is masked" if count == 0 else f"no two samples are {count} steps apart"
        what = f"{what} after masking"
        raise UsageError(what, where=source, remedy="check --padding, or give fewer --lags")
    errors = found.standard_errors
    return replace(
        found,
        values=found.values[:count],
        pairs=found.pairs[:count],
        standard_errors=None if errors is None else errors[:count],
    )


def _state_checks(values: Floats, mixture: Autocorrelation) -> tuple[StateCheck, ...]:
    """Of the time constants of which the lags of R̂, unbiased, hold `FORGOTTEN` or more."""
    checks = []
    for time_constant in (one for one in TIME_CONSTANTS if FORGOTTEN * one <= values.size - 1):
        log = -1 / time_constant
        direct, fitted = empirical_moments(log, values), moments(np.array([log]), mixture)
        second = direct.second_moment, float(fitted.second_moment[0])
        sensitivity = direct.sensitivity, float(fitted.sensitivity[0])
        checks.append(StateCheck(time_constant, *second, *sensitivity))
    return tuple(checks)
