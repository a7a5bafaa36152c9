"""The theory without a checkpoint: what memory costs under a parametrisation.

>>> from memcurse_cli import predict
>>> row = predict(rho=0.0, time_constant=1e6, parametrization="lru", normalization="lru").rows[0]
>>> round(row.second_moment, 12), round(row.parameters["nu_log"].relative_sensitivity, 6)
(1.0, 0.5)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memcurse_cli.diagnosis.settings import Settings, check_readout, read_autocorrelation
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.report import finite
from memcurse_cli.schema.theory import (
    ParameterPrediction,
    Prediction,
    PredictionRow,
    RingPrediction,
)
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.moments import Moments, moments, ring_moments
from memcurse_cli.theory.parametrization import (
    DEFAULT_STEP_SIZE,
    Parametrized,
    chrono_bias,
    chrono_steps,
    normalizing_log_gain,
    parametrize,
    printed_chrono_bias,
)
from memcurse_cli.theory.sensitivity import (
    parameter_sensitivity,
    relative_sensitivity,
    state_second_moment,
)

Numbers = float | Iterable[float]

DEFAULT_MODULI = (0.0, *(1 - 10 ** (-half_decades / 2) for half_decades in range(1, 13)))
"""From 0 to 1 - 1e-6, in half decades of 1 - |λ|."""

LEAST_CHRONO = 1.5
"""The shortest memory in steps that a gate is started at."""

Ring = tuple[float, float]
"""The least and the largest |λ|."""

ROUND_GAINS = ("none", "lru", "coupled")
"""Normalisations whose γ does not depend on the angle of λ."""


class _Magnitude(NamedTuple):
    """|λ| as it was given, and its logarithm, which may say more than |λ| can."""

    log_modulus: float
    modulus: float
    time_constant: float | None


def predict(
    *,
    rho: Numbers | None = None,
    autocorrelation: Autocorrelation | str | None = None,
    modulus: Numbers | None = None,
    time_constant: Numbers | None = None,
    angle: Numbers = 0.0,
    parametrization: str = "real-imaginary",
    normalization: str = "none",
    horizon: int | None = None,
    readout: str | None = None,
    step_size: float = DEFAULT_STEP_SIZE,
    ring: Ring | str | None = None,
) -> Prediction:
    """E|h|², E|dh/dλ|², and E|dh/dω|² and κ(ω) of every parameter, for given eigenvalues.

    Args:
        rho: one or more ρ in [0, 1], for inputs with R(Δ) = ρ^|Δ|; white noise by default.
        autocorrelation: a mixture instead, its text such as ``"0.332:0,0.044:0.997"``, or the path
            of the JSON that memcurse autocorrelation wrote.
        modulus: one or more |λ|; by default from 0 to 1 - 1e-6.
        time_constant: one or more τ in steps instead, log|λ| = -1/τ, exact however large.
        angle: one or more arg λ in radians.
        parametrization: real-imaginary, polar, lru, optimal, s4 or sigmoid-gate.
        normalization: the gain: none, lru, coupled, gru or zoh.
        horizon: the number of steps T since h = 0; None for an infinite sequence, where |λ| ≥ 1
            diverges.
        readout: ``last`` for the state at step T, as by default, or ``every`` for the mean over
            t = 1..T.
        step_size: Δ of ``s4``.
        ring: the least and the largest |λ| of a ring that eigenvalues are drawn from, uniformly by
            area, to average over, or its text such as ``"0.9:0.999"``; its two radii are the
            moduli where no others are given.

    Raises:
        UsageError: a value outside its domain, an unknown name, options that exclude each other,
            or an eigenvalue that the parametrisation cannot reach.
    """
    rhos = _several(rho)
    if autocorrelation is None:
        inputs = [Autocorrelation.from_rho(one) for one in rhos or (0.0,)]
    elif not rhos:
        inputs = [read_autocorrelation(autocorrelation)]
    else:
        raise UsageError(
            "given beside an autocorrelation", where="rho", remedy="give one of the two"
        )
    moduli, radii = _several(modulus), _radii(ring)
    if radii is not None and not moduli and time_constant is None:
        moduli = tuple(dict.fromkeys(map(float, radii)))
    magnitudes = _magnitudes(moduli, _several(time_constant))
    angles = _several(angle)
    if not np.isfinite(angles).all():
        raise UsageError(
            "an angle is not finite", where="angle", remedy="give radians, for example 0.5"
        )
    settings = Settings(horizon=horizon, readout=check_readout(readout))
    settings.check_readout_has_horizon()
    eigenvalues = [(magnitude, turn) for turn in angles for magnitude in magnitudes]
    logs = np.array([complex(magnitude.log_modulus, turn) for magnitude, turn in eigenvalues])
    parameters = parametrize(logs, parametrization, normalization, step_size)
    rows: list[PredictionRow] = []
    for source in inputs:
        moment = moments(logs, source, horizon, settings.state_readout)
        rows += _rows(eigenvalues, _single_rho(source), moment, parameters)
    single_rho = _single_rho(inputs[0])
    variance = inputs[0].variance
    return Prediction(
        parametrization=parametrization,
        normalization=normalization,
        step_size=step_size if parametrization == "s4" else None,
        horizon=horizon,
        readout=settings.readout,
        autocorrelation=tuple(inputs[0]) if single_rho is None else None,
        rows=tuple(rows),
        ring=None if radii is None else _average(radii, variance, settings, normalization),
    )


def _rows(
    eigenvalues: list[tuple[_Magnitude, float]],
    rho: float | None,
    moment: Moments,
    found: Parametrized,
) -> list[PredictionRow]:
    one = np.ones_like(found.log_gain)
    states = state_second_moment(moment, found.log_gain)
    sensitivities = parameter_sensitivity(moment, found.log_gain, one)
    columns = {
        name: (
            parameter_sensitivity(moment, found.log_gain, moved.eigenvalue, moved.log_gain),
            relative_sensitivity(moment, moved.eigenvalue, moved.log_gain),
        )
        for name, moved in found.derivatives.items()
    }
    return [
        PredictionRow(
            rho,
            *magnitude[1:],
            angle,
            finite(states[index]),
            finite(sensitivities[index]),
            {
                name: ParameterPrediction(*(finite(column[index]) for column in pair))
                for name, pair in columns.items()
            },
        )
        for index, (magnitude, angle) in enumerate(eigenvalues)
    ]


def _several(value: Numbers | None) -> tuple[float, ...]:
    if value is None:
        return ()
    return tuple(map(float, value)) if isinstance(value, Iterable) else (float(value),)


def _single_rho(source: Autocorrelation) -> float | None:
    alone = source.weights == (1.0,) and source.frequencies == (0.0,)
    return source.rhos[0] if alone else None


def _magnitudes(moduli: tuple[float, ...], time_constants: tuple[float, ...]) -> list[_Magnitude]:
    if moduli and time_constants:
        raise UsageError(
            "given beside a modulus", where="time-constant", remedy="give one of the two"
        )
    for name, values in (("modulus", moduli), ("time-constant", time_constants)):
        for value in values:
            if not 0 <= value < math.inf:
                raise UsageError(
                    f"{value:g} is not a finite number of at least 0",
                    where=name,
                    remedy="a modulus is |λ|, a time constant is in steps",
                )
    with np.errstate(divide="ignore", over="ignore"):
        if time_constants:
            logs = -1 / np.array(time_constants)
            return list(map(_Magnitude, logs, np.exp(logs).tolist(), time_constants))
        moduli = moduli or DEFAULT_MODULI
        logs = np.log(np.array(moduli))
    return [
        _Magnitude(log, modulus, float(-1 / log) if log < 0 else None)
        for log, modulus in zip(logs.tolist(), moduli, strict=True)
    ]


def _radii(given: Ring | str | None) -> Ring | None:
    if not isinstance(given, str):
        return given
    try:
        inner, outer = map(float, given.split(":"))
    except ValueError:
        raise UsageError(
            f"'{given}' is not MIN:MAX", where="--ring", remedy="give two radii, such as 0.9:0.999"
        ) from None
    return inner, outer


def _average(
    radii: Ring, variance: float, settings: Settings, normalization: str
) -> RingPrediction:
    """E|h|² and E|dh/dλ|² over a ring; of the input all that they depend on is R(0)."""
    inner, outer = radii
    if not 0 <= inner <= outer < math.inf:
        raise UsageError(
            f"no ring goes from {inner:g} to {outer:g}",
            where="--ring",
            remedy="give the smaller radius first, for example 0.9:0.999",
        )
    if outer >= 1 and (settings.horizon is None or normalization != "none"):
        raise UsageError(
            f"a ring up to {outer:g} averages to no number without end, and has no γ = √(1-|λ|²)",
            where="--ring",
            remedy="stay below 1, or give --horizon T and no normalization",
        )
    if normalization not in ROUND_GAINS:
        raise UsageError(
            f"under the normalization {normalization} the average depends on the angles too",
            where="--ring",
            remedy=f"choose --normalization {', '.join(ROUND_GAINS)}",
        )
    log_inner, log_outer = (math.log(radius) if radius else -math.inf for radius in radii)
    found = ring_moments(
        log_inner,
        log_outer,
        variance,
        settings.horizon,
        settings.state_readout,
        np.zeros_like if normalization == "none" else normalizing_log_gain,
    )
    return RingPrediction(inner, outer, *map(finite, found))


@dataclass(frozen=True)
class BeyondHorizon:
    """Eigenvalues whose time constants are beyond the horizon.

    ``factor`` is E|dh/dλ|² of the longest on an infinite sequence over that at the horizon; None
    where either is not finite, or nothing changes within it.
    """

    count: int
    time_constant: float  # τ of the longest, in steps
    factor: float | None


def beyond_horizon(prediction: Prediction, rows: Sequence[PredictionRow]) -> BeyondHorizon | None:
    """Those among rows of one input; None where the horizon is infinite or reaches past all."""
    horizon = prediction.horizon
    if horizon is None:
        return None
    longer = [row for row in rows if row.time_constant and row.time_constant > horizon]
    if not longer:
        return None
    longest = max(longer, key=lambda row: row.time_constant or 0.0)
    assert longest.time_constant is not None
    source = Autocorrelation.from_components(prediction.autocorrelation or WHITE)
    if longest.rho is not None:
        source = Autocorrelation.from_rho(longest.rho)
    log = np.array([complex(-1 / longest.time_constant, longest.angle)])
    endless = float(moments(log, source).sensitivity[0])
    cut = longest.sensitivity
    known = cut is not None and 0 < cut < endless < np.inf
    return BeyondHorizon(
        len({row.time_constant for row in longer}),
        longest.time_constant,
        endless / cut if cut is not None and known else None,
    )


class ChronoBiases(NamedTuple):
    """The ends of a range of memories, and of the biases that Chrono initialisation gives them."""

    time_constants: tuple[float, float]  # τ of the shortest and of the longest
    steps: tuple[float, float]  # their T = 1/(1 - λ)
    biases: tuple[float, float]  # log(T - 1), for λ = 1 - 1/T
    printed: tuple[float, float]  # log T, for λ = T/(1+T)


def chrono_biases(prediction: Prediction) -> ChronoBiases | None:
    """Those of a sigmoid gate's prediction, or None for others and where nothing is remembered."""
    memories = [
        row.time_constant
        for row in prediction.rows
        if row.time_constant and row.time_constant > LEAST_CHRONO
    ]
    if prediction.parametrization != "sigmoid-gate" or not memories:
        return None
    ends = chrono_steps(min(memories)), chrono_steps(max(memories))
    return ChronoBiases(
        (min(memories), max(memories)),
        ends,
        (chrono_bias(ends[0]), chrono_bias(ends[1])),
        (printed_chrono_bias(ends[0]), printed_chrono_bias(ends[1])),
    )
