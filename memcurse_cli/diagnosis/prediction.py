"""The theory without a checkpoint: what memory costs, and how narrow the loss is around λ.

>>> from memcurse_cli import predict
>>> row = predict(rho=0.0, time_constant=1e6, parametrization="lru", normalization="lru").rows[0]
>>> round(row.second_moment, 12), round(row.parameters["nu_log"].relative_sensitivity, 6)
(1.0, 0.5)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from memcurse_cli.diagnosis.settings import (
    Settings,
    check_readout,
    read_autocorrelation,
    require_known,
)
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.figures import components_of
from memcurse_cli.schema.report import finite
from memcurse_cli.schema.theory import (
    Gain,
    LandscapeParameter,
    LandscapeReport,
    LandscapeView,
    ParameterPrediction,
    Prediction,
    PredictionRow,
    PredictionSettings,
    RingPrediction,
)
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.moments import moments, ring_moments
from memcurse_cli.theory.parametrization import (
    DEFAULT_STEP_SIZE,
    INVERTIBLE,
    NORMALIZATIONS,
    Landscape,
    normalizing_log_gain,
    parametrize,
)
from memcurse_cli.theory.sensitivity import parameter_sensitivity, state_second_moment

Numbers = float | Iterable[float]

# From 0 to 1 - 1e-6, in half decades of 1 - |λ|.
DEFAULT_MODULI = (0.0, *(1 - 10 ** (-half_decades / 2) for half_decades in range(1, 13)))
LEAST_CHRONO = 1.5  # the shortest memory in steps that a gate is started at
Ring = tuple[float, float]  # the least and the largest |λ|
ROUND_GAINS = ("none", "lru", "coupled")  # normalisations whose γ does not depend on the angle of λ

COMPARED: dict[str, Gain] = {
    "real-imaginary": "none",
    "polar": "none",
    "s4": "none",
    "lru": "own",
    "optimal": "coupled",
}
OFFSETS = tuple(10 ** (exponent / 8) for exponent in range(-48, 9))  # 1e-6 to 10


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
        autocorrelation: a mixture instead, as `inspect` takes it.
        modulus: one or more |λ|; by default from 0 to 1 - 1e-6.
        time_constant: one or more τ in steps instead, log|λ| = -1/τ, exact however large.
        angle: one or more arg λ in radians.
        parametrization: real-imaginary, polar, lru, optimal, s4 or sigmoid-gate.
        normalization: the gain: none, lru, coupled, gru or zoh.
        horizon: the steps T since h = 0; None for infinitely many, where |λ| ≥ 1 diverges.
        readout: ``last`` (the default) for the state at step T, ``every`` for the mean over all.
        step_size: Δ of ``s4``.
        ring: the least and the largest |λ| of a ring, or ``"0.9:0.999"``, to average over,
            uniformly by area; its radii are the moduli where no others are given.

    Raises UsageError: a value outside its domain, an unknown name, options that exclude each other,
    or an eigenvalue that the parametrisation cannot reach.
    """
    rhos = _several(rho)
    if autocorrelation is None:
        inputs = [Autocorrelation.from_rho(one) for one in rhos or (0.0,)]
    elif not rhos:
        inputs = [read_autocorrelation(autocorrelation)]
    else:
        what = "given beside an autocorrelation"
        raise UsageError(what, where="rho", remedy="give one of the two")
    moduli, radii = _several(modulus), _radii(ring)
    if radii is not None and not moduli and time_constant is None:
        moduli = tuple(dict.fromkeys(map(float, radii)))
    log_moduli, magnitudes = _magnitudes(moduli, _several(time_constant))
    angles = _several(angle)
    if not np.isfinite(angles).all():
        what = "an angle is not finite"
        raise UsageError(what, where="angle", remedy="give radians, for example 0.5")
    settings = Settings(horizon=horizon, readout=check_readout(readout))
    settings.check_readout_has_horizon()
    eigenvalues = [(*magnitude, turn) for turn in angles for magnitude in magnitudes]
    logs = np.array([complex(log_modulus, turn) for turn in angles for log_modulus in log_moduli])
    found = parametrize(logs, parametrization, normalization, step_size)
    one = np.ones_like(found.log_gain)
    rows: list[PredictionRow] = []
    for source in inputs:
        moment = replace(settings, autocorrelation=source).moments_of(logs)
        states = state_second_moment(moment, found.log_gain)
        sensitivities = parameter_sensitivity(moment, found.log_gain, one).sensitivity
        columns = {
            name: parameter_sensitivity(moment, found.log_gain, moved.eigenvalue, moved.log_gain)
            for name, moved in found.derivatives.items()
        }
        for index, eigenvalue in enumerate(eigenvalues):
            parameters = {
                name: ParameterPrediction(*(finite(column[index]) for column in pair))
                for name, pair in columns.items()
            }
            figures = finite(states[index]), finite(sensitivities[index])
            rows.append(PredictionRow(_single_rho(source), *eigenvalue, *figures, parameters))
    mixture = None if _single_rho(inputs[0]) is not None else components_of(inputs[0])
    step = step_size if parametrization == "s4" else None
    assumed = PredictionSettings(
        parametrization, normalization, step, horizon, settings.readout, mixture
    )
    average = None
    if radii is not None:
        average = _average(radii, inputs[0].variance, settings, normalization)
    return Prediction(assumed, tuple(rows), average)


def _several(value: Numbers | None) -> tuple[float, ...]:
    if value is None:
        return ()
    return tuple(map(float, value)) if isinstance(value, Iterable) else (float(value),)


def _single_rho(source: Autocorrelation) -> float | None:
    alone = source.weights == (1.0,) and source.frequencies == (0.0,)
    return source.rhos[0] if alone else None


def _magnitudes(
    moduli: tuple[float, ...], time_constants: tuple[float, ...]
) -> tuple[list[float], list[tuple[float, float | None]]]:
    """log|λ|, which may say more than |λ| can, and (|λ|, τ) as they were given."""
    if moduli and time_constants:
        what = "given beside a modulus"
        raise UsageError(what, where="time-constant", remedy="give one of the two")
    for value in moduli + time_constants:
        if not 0 <= value < math.inf:
            what = f"{value:g} is not a finite number of at least 0"
            remedy = "a modulus is |λ|, a time constant is in steps"
            raise UsageError(what, where="modulus" if moduli else "time-constant", remedy=remedy)
    with np.errstate(divide="ignore", over="ignore"):
        if time_constants:
            logs = -1 / np.array(time_constants)
            return logs.tolist(), list(zip(np.exp(logs).tolist(), time_constants, strict=True))
        moduli = moduli or DEFAULT_MODULI
        found: list[float] = np.log(np.array(moduli)).tolist()
    taus = (-1 / log if log < 0 else None for log in found)
    return found, list(zip(moduli, taus, strict=True))


def _radii(given: Ring | str | None) -> Ring | None:
    if not isinstance(given, str):
        return given
    try:
        inner, outer = map(float, given.split(":"))
    except ValueError:
        what = f"'{given}' is not MIN:MAX"
        raise UsageError(what, where="--ring", remedy="give two radii, such as 0.9:0.999") from None
    return inner, outer


def _average(
    radii: Ring, variance: float, settings: Settings, normalization: str
) -> RingPrediction:
    """E|h|² and E|dh/dλ|² over a ring; of the input all that they depend on is R(0)."""
    inner, outer = radii
    if not 0 <= inner <= outer < math.inf:
        what = f"no ring goes from {inner:g} to {outer:g}"
        remedy = "give the smaller radius first, for example 0.9:0.999"
        raise UsageError(what, where="--ring", remedy=remedy)
    if outer >= 1 and (settings.horizon is None or normalization != "none"):
        what = f"a ring up to {outer:g} averages to no number without end, and has no γ = √(1-|λ|²)"
        remedy = "stay below 1, or give --horizon T and no normalization"
        raise UsageError(what, where="--ring", remedy=remedy)
    if normalization not in ROUND_GAINS:
        what = f"under the normalization {normalization} the average depends on the angles too"
        remedy = f"choose --normalization {', '.join(ROUND_GAINS)}"
        raise UsageError(what, where="--ring", remedy=remedy)
    log_inner, log_outer = (math.log(radius) if radius else -math.inf for radius in radii)
    gain = np.zeros_like if normalization == "none" else normalizing_log_gain
    _, horizon, readout = settings.of_states
    found = ring_moments(log_inner, log_outer, variance, horizon, readout, gain)
    return RingPrediction(inner, outer, *map(finite, found))


class BeyondHorizon(Struct, frozen=True):
    """Eigenvalues whose time constants are beyond the horizon."""

    count: int
    time_constant: float  # τ of the longest, in steps
    # E|dh/dλ|² of the longest on an infinite sequence over that at the horizon; None where either
    # is not finite, or nothing changes within it
    factor: float | None


def beyond_horizon(prediction: Prediction, rows: Sequence[PredictionRow]) -> BeyondHorizon | None:
    """Those among rows of one input; None where the horizon is infinite or reaches past all."""
    horizon = math.inf if prediction.settings.horizon is None else prediction.settings.horizon
    longer = {memory: row for row in rows if (memory := row.time_constant or 0.0) > horizon}
    if not longer:
        return None
    time_constant = max(longer)
    longest = longer[time_constant]
    source = Autocorrelation.from_components(prediction.settings.autocorrelation or WHITE)
    if longest.rho is not None:
        source = Autocorrelation.from_rho(longest.rho)
    log = np.array([complex(-1 / time_constant, longest.angle)])
    endless, cut = float(moments(log, source).sensitivity[0]), longest.sensitivity or 0.0
    factor = endless / cut if 0 < cut < endless < math.inf else None
    return BeyondHorizon(len(longer), time_constant, factor)


class ChronoBias(NamedTuple):
    """The bias that Chrono initialisation gives a gate for one memory."""

    time_constant: float  # τ
    steps: float  # T = 1/(1 - λ)
    bias: float  # log(T - 1), for λ = 1 - 1/T
    printed: float  # log T, for λ = T/(1+T)


def chrono_biases(prediction: Prediction) -> list[ChronoBias]:
    """Those of the shortest and of the longest memory of a sigmoid gate's prediction, if any."""
    every = (row.time_constant or 0.0 for row in prediction.rows)
    memories = [memory for memory in every if memory > LEAST_CHRONO]
    if prediction.settings.parametrization != "sigmoid-gate" or not memories:
        return []
    # T = 1/(1 - λ) of λ = e^(-1/τ), longer than τ by about half a step, needs σ(b) = 1 - 1/T
    # (Tallec & Ollivier 2018); Zucchet & Orvieto 2024, section 3.2, print log T, that of T + 1.
    ends = [(one, -1 / math.expm1(-1 / one)) for one in (min(memories), max(memories))]
    return [ChronoBias(*one, math.log(one[1] - 1), math.log(one[1])) for one in ends]


def landscape(
    *,
    modulus: float | None = None,
    time_constant: float | None = None,
    angle: float = 0.0,
    rho: float | None = None,
    autocorrelation: Autocorrelation | str | None = None,
    horizon: int | None = None,
    readout: str | None = None,
    parametrizations: Sequence[str] = (),
    normalization: str | None = None,
    step_size: float = DEFAULT_STEP_SIZE,
    learning_rate: float = 1e-3,
    level: float = 0.1,
    start_modulus: float | None = None,
    start_angle: float | None = None,
) -> LandscapeReport:
    """The loss of a student that is off by one parameter, under several parametrisations.

    The target λ* has ``modulus`` (0.99 by default) or ``time_constant`` -1/log|λ*| in steps, and
    ``angle`` in [0, π]; input, horizon, readout, ``step_size`` and errors are those of `predict`.
    Parametrisations are of `INVERTIBLE`, `COMPARED` by default, with a ``normalization`` of
    ``none``, ``own`` or ``coupled`` for all. A basin ends where the loss is ``level``, in (0, 1],
    of that of a silent student; ``learning_rate`` is one step of Adam. The gradient is that at
    ``start_modulus`` and ``start_angle`` (the target's by default), where training starts.
    """
    settings = Settings.asked(rho, autocorrelation, horizon, readout, learning_rate=learning_rate)
    settings.check_readout_has_horizon()
    if not 0 < level <= 1:
        what = f"a level of {level:g} is not in (0, 1]"
        remedy = "0 is a perfect fit and 1 the loss of a student that is silent"
        raise UsageError(what, where="--level", remedy=remedy)
    target = _target(modulus, time_constant, angle, endless=horizon is None)
    start = None
    if start_modulus is not None:
        turn = angle if start_angle is None else start_angle
        start_log = _log(start_modulus, "--from", endless=horizon is None)
        start = complex(start_log, _checked(turn, "--from-angle"))
    elif start_angle is not None:
        what = "given without a modulus to start from"
        raise UsageError(what, where="--from-angle", remedy="give --from too")
    chosen = _chosen(parametrizations, normalization)
    return LandscapeReport(
        modulus=math.exp(target.real),
        time_constant=-1 / target.real if target.real < 0 else None,
        angle=angle,
        step_size=step_size if any(name == "s4" for name, _ in chosen) else None,
        level=level,
        input=settings.input,
        offsets=OFFSETS,
        views=tuple(
            _view(name, gain, target, start, settings, step_size, level) for name, gain in chosen
        ),
        start_modulus=start_modulus,
        start_angle=None if start is None else start.imag,
    )


def _view(
    name: str,
    gain: Gain,
    target: complex,
    start: complex | None,
    settings: Settings,
    step_size: float,
    level: float,
) -> LandscapeView:
    logs = np.array([target])
    found = parametrize(logs, name, NORMALIZATIONS[gain], step_size)
    moment = settings.moments_of(logs)
    around = Landscape(target, name, gain, *settings.of_states, step_size)
    slope = None if start is None else around.slope(start)
    parameters, offsets = [], np.array(OFFSETS)
    for parameter, moved in found.derivatives.items():
        derivatives = moved.eigenvalue, moved.log_gain
        figures = parameter_sensitivity(moment, found.log_gain, *derivatives)
        sensitivity, kappa = (float(figure[0]) for figure in figures)
        stable, basin = None, None
        if sensitivity > 0:
            stable, basin = 2 / sensitivity, around.basin(parameter, level)
        losses = np.maximum(around.along(parameter, offsets), around.along(parameter, -offsets))
        one = LandscapeParameter(
            name=parameter,
            value=around.centre[parameter],
            sensitivity=sensitivity,
            relative_sensitivity=kappa,
            max_stable_lr=stable,
            basin=basin,
            steps_across=None if basin is None else basin / settings.learning_rate,
            loss=tuple(map(finite, losses)),
        )
        if slope is not None:  # what is to be said of the start
            value, gradient = slope.values[parameter], slope.gradient[parameter]
            way, pace = one.value - value, -gradient * (stable or 0.0)
            sgd_steps = way / pace if math.isfinite(pace) and pace * way > 0 else None
            one = replace(
                one,
                start=value,
                gradient=finite(gradient),
                adam_steps=abs(way) / settings.learning_rate,
                sgd_steps=0.0 if way == 0 else sgd_steps,
            )
        parameters.append(one)
    start_loss = None if slope is None else finite(slope.loss)
    return LandscapeView(name, gain, tuple(parameters), start_loss)


def _target(
    modulus: float | None, time_constant: float | None, angle: float, *, endless: bool
) -> complex:
    """log λ*."""
    if modulus is not None and time_constant is not None:
        what = "given beside a modulus"
        raise UsageError(what, where="--time-constant", remedy="give one of the two")
    if time_constant is None:
        log_modulus = _log(0.99 if modulus is None else modulus, "--modulus", endless=endless)
    elif 0 < time_constant < math.inf:
        log_modulus = -1 / time_constant
    else:
        what = f"{time_constant:g} is not a positive number of steps"
        raise UsageError(what, where="--time-constant", remedy="give -1/log|λ|, for example 100")
    return complex(log_modulus, _checked(angle, "--angle"))


def _log(modulus: float, option: str, *, endless: bool) -> float:
    if not 0 < modulus < math.inf or (endless and modulus >= 1):
        limit = "between 0 and 1" if endless else "positive and finite"
        what = f"a modulus of {modulus:g} is not {limit}"
        remedy = "the loss of |λ| ≥ 1 needs a --horizon" if endless else "give |λ|"
        raise UsageError(what, where=option, remedy=remedy)
    return math.log(modulus)


def _checked(angle: float, option: str) -> float:
    if not 0 <= angle <= math.pi:
        what = f"an angle of {angle:g} is not in [0, π]"
        remedy = "give that of the eigenvalue with Im λ >= 0; its conjugate has the same loss"
        raise UsageError(what, where=option, remedy=remedy)
    return angle


def _chosen(names: Sequence[str], normalization: str | None) -> list[tuple[str, Gain]]:
    given = [(name, INVERTIBLE, "--parametrization") for name in names]
    if normalization is not None:
        given.insert(0, (normalization, tuple(NORMALIZATIONS), "--normalization"))
    for name, known, option in given:
        require_known(name, known, option, f"choose one of {', '.join(known)}")
    chosen = names or list(COMPARED)
    if normalization == "own" and "optimal" in chosen:
        what = "γ of optimal is tied to omega_nu"
        remedy = "give coupled, or other parametrizations"
        raise UsageError(what, where="--normalization", remedy=remedy)
    return [(name, cast(Gain, normalization or COMPARED[name])) for name in chosen]
