"""How narrow the loss of one eigenvalue is in the parameters of several parametrisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from memcurse_cli.diagnosis.settings import Settings, require_known
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.report import finite
from memcurse_cli.schema.theory import Gain, LandscapeParameter, LandscapeReport, LandscapeView
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.landscape import NORMALIZATIONS, Landscape
from memcurse_cli.theory.parametrization import DEFAULT_STEP_SIZE, INVERTIBLE, parametrize
from memcurse_cli.theory.sensitivity import parameter_sensitivity, relative_sensitivity

COMPARED: tuple[tuple[str, Gain], ...] = (
    ("real-imaginary", "none"),
    ("polar", "none"),
    ("s4", "none"),
    ("lru", "own"),
    ("optimal", "coupled"),
)
OFFSETS = tuple(10 ** (exponent / 8) for exponent in range(-48, 9))
"""From 1e-6 to 10, eight per decade."""


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

    Args:
        modulus: |λ*|; 0.99 by default.
        time_constant: -1/log|λ*| in steps instead.
        angle: arg λ* in [0, π].
        rho: the input's autocorrelation is ρ^|Δ|; white noise by default.
        autocorrelation: a mixture instead, or the path of an estimate's JSON.
        horizon: the number of steps T; None for an infinite sequence.
        readout: ``last``, as by default, or ``every`` step of the horizon.
        parametrizations: of `theory.parametrization.INVERTIBLE`; `COMPARED` if empty.
        normalization: ``none``, ``own`` or ``coupled`` for all of them.
        step_size: Δ of ``s4``.
        learning_rate: what one step of Adam moves a parameter by.
        level: the loss at which a basin ends, over that of a silent student; in (0, 1].
        start_modulus: |λ| where training starts, for the gradient there.
        start_angle: its angle; that of the target by default.

    Raises:
        UsageError: a value outside its domain, an unknown name, or an eigenvalue that a
            parametrisation cannot reach.
    """
    settings = Settings.asked(rho, autocorrelation, horizon, readout, learning_rate=learning_rate)
    settings.check_readout_has_horizon()
    if not 0 < level <= 1:
        raise UsageError(
            f"a level of {level:g} is not in (0, 1]",
            where="--level",
            remedy="0 is a perfect fit and 1 the loss of a student that is silent",
        )
    target = _target(modulus, time_constant, angle, endless=horizon is None)
    start = None
    if start_modulus is not None:
        turn = angle if start_angle is None else start_angle
        start_log = _log(start_modulus, "--from", endless=horizon is None)
        start = complex(start_log, _checked(turn, "--from-angle"))
    elif start_angle is not None:
        raise UsageError(
            "given without a modulus to start from", where="--from-angle", remedy="give --from too"
        )
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
    given = settings.autocorrelation, settings.horizon, settings.state_readout
    moment, around = settings.moments_of(logs), Landscape(target, name, gain, *given, step_size)
    slope = None if start is None else around.slope(start)
    parameters = []
    for parameter, moved in found.derivatives.items():
        derivatives = moved.eigenvalue, moved.log_gain
        sensitivity = float(parameter_sensitivity(moment, found.log_gain, *derivatives)[0])
        basin = around.basin(parameter, level) if sensitivity > 0 else None
        offsets = np.array(OFFSETS)
        losses = np.maximum(around.along(parameter, offsets), around.along(parameter, -offsets))
        one = LandscapeParameter(
            name=parameter,
            value=around.centre[parameter],
            sensitivity=sensitivity,
            relative_sensitivity=float(relative_sensitivity(moment, *derivatives)[0]),
            max_stable_lr=2 / sensitivity if sensitivity > 0 else None,
            basin=basin,
            steps_across=None if basin is None else basin / settings.learning_rate,
            loss=tuple(finite(there) for there in losses),
        )
        if slope is not None:  # what is to be said of the start
            value, gradient = slope.values[parameter], slope.gradient[parameter]
            way, pace = one.value - value, -gradient * (one.max_stable_lr or 0.0)
            sgd_steps = way / pace if math.isfinite(pace) and pace * way > 0 else None
            one = replace(
                one,
                start=value,
                gradient=finite(gradient),
                adam_steps=abs(way) / settings.learning_rate,
                sgd_steps=0.0 if way == 0 else sgd_steps,
            )
        parameters.append(one)
    return LandscapeView(
        name, gain, tuple(parameters), None if slope is None else finite(slope.loss)
    )


def _target(
    modulus: float | None, time_constant: float | None, angle: float, *, endless: bool
) -> complex:
    """log λ*."""
    if modulus is not None and time_constant is not None:
        raise UsageError(
            "given beside a modulus", where="--time-constant", remedy="give one of the two"
        )
    if time_constant is None:
        log_modulus = _log(0.99 if modulus is None else modulus, "--modulus", endless=endless)
    elif 0 < time_constant < math.inf:
        log_modulus = -1 / time_constant
    else:
        raise UsageError(
            f"{time_constant:g} is not a positive number of steps",
            where="--time-constant",
            remedy="give -1/log|λ|, for example 100",
        )
    return complex(log_modulus, _checked(angle, "--angle"))


def _log(modulus: float, option: str, *, endless: bool) -> float:
    if not 0 < modulus < math.inf or (endless and modulus >= 1):
        limit = "between 0 and 1" if endless else "positive and finite"
        raise UsageError(
            f"a modulus of {modulus:g} is not {limit}",
            where=option,
            remedy="the loss of |λ| ≥ 1 needs a --horizon" if endless else "give |λ|",
        )
    return math.log(modulus)


def _checked(angle: float, option: str) -> float:
    if not 0 <= angle <= math.pi:
        raise UsageError(
            f"an angle of {angle:g} is not in [0, π]",
            where=option,
            remedy="give that of the eigenvalue with Im λ >= 0; its conjugate has the same loss",
        )
    return angle


def _chosen(names: Sequence[str], normalization: str | None) -> list[tuple[str, Gain]]:
    if normalization is not None:
        remedy = f"choose one of {', '.join(NORMALIZATIONS)}"
        require_known(normalization, NORMALIZATIONS, "--normalization", remedy)
    for name in names:
        remedy = f"choose one of {', '.join(INVERTIBLE)}"
        require_known(name, INVERTIBLE, "--parametrization", remedy)
    usual = dict(COMPARED)
    chosen = names or list(usual)
    if normalization == "own" and "optimal" in chosen:
        raise UsageError(
            "γ of optimal is tied to omega_nu",
            where="--normalization",
            remedy="give coupled, or other parametrizations",
        )
    return [(name, cast(Gain, normalization or usual[name])) for name in chosen]
