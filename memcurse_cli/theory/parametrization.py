"""How the usual parametrisations of an eigenvalue and its gain, and the loss, move with parameters.

Derivatives are of λ itself, so that λ = 0 is an ordinary point; the eigenvalues come as log λ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from memcurse_cli.errors import UsageError
from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.linalg import Complexes, Floats, bisected
from memcurse_cli.theory.moments import Readout, one_minus_exp, pair_moments

Values = Mapping[str, Floats]
Turned = tuple[Floats | float, Floats | float]  # a derivative along the radius and across it

DEFAULT_STEP_SIZE = 0.01
STEP_SIZES = 1e-100, 1e100  # beyond them squares of the gain leave the range of a float
ROUNDING = 4 * float(np.finfo(np.float64).eps)
SMALLEST_ANGLE = 1e-300  # in the place of the 0 of a real eigenvalue, which no step leaves


class Derivative(Struct, frozen=True):
    """What one unit of a parameter does."""

    eigenvalue: Complexes  # (n,) dλ/dω
    log_gain: Complexes | None = None  # (n,) d log γ/dω, or None where γ does not depend on ω


class Parametrized(Struct, frozen=True):
    """Eigenvalues and gains as functions of named real parameters."""

    log_gain: Complexes  # (n,) log γ; complex, since the gain of a zero-order hold is
    derivatives: Mapping[str, Derivative]  # what each parameter moves


class Parametrization(ABC):
    """One map from parameters to eigenvalues; `values` and `logs` are those of `INVERTIBLE`."""

    keeps_stable = True  # whether the map itself keeps |λ| < 1
    is_real = False  # whether it reaches λ in (0, 1) alone

    @abstractmethod
    def derivatives(self, log: Complexes, step_size: float) -> dict[str, Turned]:
        """dλ/dω by name, turned back by the phase of λ, without each other's rounding."""

    def values(self, log: Complexes, step_size: float = DEFAULT_STEP_SIZE) -> dict[str, Floats]:
        """The parameters by name, in the order of `parametrize`.

        log λ is finite, with the angle in [0, π]; all but the first two need |λ| < 1.
        """
        raise NotImplementedError

    def logs(self, values: Values) -> Complexes:
        """(n,) log λ of the parameters by name: the inverse."""
        raise NotImplementedError


class _RealImaginary(Parametrization):
    keeps_stable = False

    def derivatives(self, log: Complexes, step_size: float) -> dict[str, Turned]:
        cosine, sine = np.cos(log.imag), np.sin(log.imag)
        return {"lambda_re": (cosine, -sine), "lambda_im": (sine, cosine)}

    def values(self, log: Complexes, step_size: float = DEFAULT_STEP_SIZE) -> dict[str, Floats]:
        eigenvalue = np.exp(log)
        return {"lambda_re": eigenvalue.real.copy(), "lambda_im": eigenvalue.imag.copy()}

    def logs(self, values: Values) -> Complexes:
        return np.asarray(np.log(values["lambda_re"] + 1j * values["lambda_im"]))


class _Polar(Parametrization):
    """λ = ν e^{iθ}."""

    keeps_stable = False

    def derivatives(self, log: Complexes, step_size: float) -> dict[str, Turned]:
        return {"nu": (1.0, 0.0), "theta": (0.0, np.exp(log.real))}

    def values(self, log: Complexes, step_size: float = DEFAULT_STEP_SIZE) -> dict[str, Floats]:
        return {"nu": np.exp(log.real), "theta": log.imag.copy()}

    def logs(self, values: Values) -> Complexes:
        nu = values["nu"]  # a negative one is the opposite angle
        return np.asarray(np.log(np.abs(nu)) + 1j * (values["theta"] + np.pi * (nu < 0)))


class _Lru(Parametrization):
    """log λ = -e^{ω_ν} + i e^{ω_θ}."""

    def derivatives(self, log: Complexes, step_size: float) -> dict[str, Turned]:
        modulus, log = np.exp(log.real), _finite(log)
        return {"nu_log": (modulus * log.real, 0.0), "theta_log": (0.0, modulus * log.imag)}

    def values(self, log: Complexes, step_size: float = DEFAULT_STEP_SIZE) -> dict[str, Floats]:
        theta_log = np.log(np.maximum(log.imag, SMALLEST_ANGLE))
        return {"nu_log": np.log(-log.real), "theta_log": theta_log}

    def logs(self, values: Values) -> Complexes:
        return np.asarray(-np.exp(values["nu_log"]) + 1j * np.exp(values["theta_log"]))


class _Optimal(Parametrization):
    """ν = tanh ω_ν, θ = ω_θ (1-ν²) / (ν √(1+ν²)): Zucchet & Orvieto 2024, B.1.2."""

    def derivatives(self, log: Complexes, step_size: float) -> dict[str, Turned]:
        squared = np.exp(log.real) ** 2
        remaining = -np.expm1(2 * log.real)  # 1 - ν²
        turn = -2 * squared - remaining - squared * remaining / (1 + squared)  # (ν/θ) dθ/dω_ν
        return {
            "omega_nu": (remaining, log.imag * turn),
            "omega_theta": (0.0, remaining / np.sqrt(1 + squared)),
        }

    def values(self, log: Complexes, step_size: float = DEFAULT_STEP_SIZE) -> dict[str, Floats]:
        modulus = np.exp(log.real)
        return {
            # artanh ν, written without 1-ν
            "omega_nu": 0.5 * np.log((1 + modulus) / -np.expm1(log.real)),
            "omega_theta": log.imag * modulus * np.sqrt(1 + modulus**2) / -np.expm1(2 * log.real),
        }

    def logs(self, values: Values) -> Complexes:
        omega = np.abs(values["omega_nu"])
        decay = np.exp(-2 * omega)
        log_modulus = np.log1p(-decay) - np.log1p(decay)  # without 1-ν
        modulus = np.exp(log_modulus)
        remaining = -np.expm1(2 * log_modulus)
        angle = values["omega_theta"] * remaining / (modulus * np.sqrt(1 + modulus**2))
        return np.asarray(log_modulus + 1j * (angle + np.pi * (values["omega_nu"] < 0)))


class _S4(Parametrization):
    """λ = e^{ΔA} with Δ = e^{log_dt} and Re A = -e^{log_A_real}."""

    def derivatives(self, log: Complexes, step_size: float) -> dict[str, Turned]:
        modulus, log = np.exp(log.real), _finite(log)
        return {
            "log_dt": (modulus * log.real, modulus * log.imag),
            "log_A_real": (modulus * log.real, 0.0),
            "A_imag": (0.0, modulus * step_size),
        }

    def values(self, log: Complexes, step_size: float = DEFAULT_STEP_SIZE) -> dict[str, Floats]:
        return {
            "log_dt": np.full(log.shape, np.log(step_size)),
            "log_A_real": np.log(-log.real / step_size),
            "A_imag": log.imag / step_size,
        }

    def logs(self, values: Values) -> Complexes:
        rate = -np.exp(values["log_A_real"]) + 1j * values["A_imag"]
        return np.asarray(np.exp(values["log_dt"]) * rate)


class _SigmoidGate(Parametrization):
    """λ = σ(b)."""

    is_real = True

    def derivatives(self, log: Complexes, step_size: float) -> dict[str, Turned]:
        moved = np.exp(log.real) * one_minus_exp(log)
        return {"bias": (moved.real, moved.imag)}


PARAMETRIZATIONS: dict[str, Parametrization] = {
    "real-imaginary": _RealImaginary(),
    "polar": _Polar(),
    "lru": _Lru(),
    "optimal": _Optimal(),
    "s4": _S4(),
    "sigmoid-gate": _SigmoidGate(),
}
INVERTIBLE = tuple(name for name in PARAMETRIZATIONS if name != "sigmoid-gate")
GAINS = ("none", "lru", "coupled", "gru", "zoh")


def parametrize(
    log_eigenvalues: Complexes,
    parametrization: str = "real-imaginary",
    normalization: str = "none",
    step_size: float = DEFAULT_STEP_SIZE,
) -> Parametrized:
    """The parameters behind given (n,) log λ, -inf for λ = 0, by what they move.

    Normalisations: ``none`` γ = 1; ``lru`` γ = √(1-|λ|²), learnt on its own as ``gamma_log`` (LRU)
    but tied to ν under ``optimal``; ``coupled`` the same γ, computed from λ under every
    parametrisation; ``gru`` γ = 1-λ; ``zoh`` γ = (e^{ΔA}-1)/A, of ``s4`` alone, as is the step Δ.
    Raises UsageError: an unknown name, an eigenvalue that the map cannot reach, a Δ that is not
    positive, or ``zoh`` without ``s4``.
    """
    for name, known, option in (
        (parametrization, PARAMETRIZATIONS, "parametrization"),
        (normalization, GAINS, "normalization"),
    ):
        if name not in known:
            remedy = f"choose one of {', '.join(known)}"
            raise UsageError(f"'{name}' is not known", where=option, remedy=remedy)
    if not STEP_SIZES[0] <= step_size <= STEP_SIZES[1]:
        what = f"a step size of {step_size:g} is not between 1e-100 and 1e100"
        remedy = "give Δ in the time unit of A, for example 0.01"
        raise UsageError(what, where="step-size", remedy=remedy)
    if normalization == "zoh" and parametrization != "s4":
        what = f"zoh is the gain of a discretised A, which {parametrization} does not have"
        remedy = "use it with the parametrization s4"
        raise UsageError(what, where="normalization", remedy=remedy)
    chosen = PARAMETRIZATIONS[parametrization]
    for name, option, stable, real in (
        (parametrization, "parametrization", chosen.keeps_stable, chosen.is_real),
        (normalization, "normalization", normalization != "none", normalization == "gru"),
    ):
        if stable and np.any(log_eigenvalues.real >= 0):
            what = f"{name} cannot reach |λ| ≥ 1"
            remedy = "give moduli below 1, or real-imaginary or polar without normalization"
            raise UsageError(what, where=option, remedy=remedy)
        if real and np.any(log_eigenvalues.imag != 0):
            what = f"{name} has real eigenvalues between 0 and 1 only"
            raise UsageError(what, where=option, remedy="leave the angle at 0")

    turned_back = chosen.derivatives(log_eigenvalues, step_size)
    phase, moved = np.exp(1j * log_eigenvalues.imag), {}
    for name, (radial, tangential) in turned_back.items():
        value = np.empty_like(log_eigenvalues)
        value.real, value.imag = radial, tangential
        moved[name] = phase * value
    log_gain, rates = np.zeros_like(log_eigenvalues), {}
    if normalization == "coupled" or (normalization, parametrization) == ("lru", "optimal"):
        log_gain = normalizing_log_gain(log_eigenvalues)
        by_radius = np.exp(log_eigenvalues.real) / np.expm1(2 * log_eigenvalues.real)
        rates = {
            name: np.asarray(by_radius * radial, np.complex128)
            for name, (radial, _) in turned_back.items()
        }
    elif normalization == "lru":
        log_gain = normalizing_log_gain(log_eigenvalues)
        moved["gamma_log"] = np.zeros_like(log_eigenvalues)
        rates = {"gamma_log": np.ones_like(log_eigenvalues)}
    elif normalization == "gru":
        to_one = one_minus_exp(log_eigenvalues)
        log_gain = np.log(to_one)
        with np.errstate(over="ignore"):
            rates = {name: -value / to_one for name, value in moved.items()}
    elif normalization == "zoh":
        log_gain, rates = _zero_order_hold(log_eigenvalues, step_size)
    return Parametrized(
        log_gain, {name: Derivative(value, rates.get(name)) for name, value in moved.items()}
    )


def normalizing_log_gain(log_eigenvalues: Complexes) -> Complexes:
    """log γ of γ = √(1-|λ|²), at which a white input leaves a state of its own variance."""
    return (0.5 * np.log(-np.expm1(2 * log_eigenvalues.real))).astype(np.complex128)


def normalizing_rate(log_eigenvalues: Complexes, eigenvalue_derivative: Complexes) -> Floats:
    """d log γ/dω of γ = √(1-|λ|²) computed from λ: -Re[λ̄ λ'] / (1-|λ|²)."""
    product = np.exp(log_eigenvalues).conj() * eigenvalue_derivative
    # What only turns λ leaves a rounding behind that 1-|λ|² would enlarge.
    radial = np.where(np.abs(product.real) > ROUNDING * np.abs(product), product.real, 0.0)
    return np.asarray(radial / np.expm1(2 * log_eigenvalues.real))


def _zero_order_hold(
    log_eigenvalues: Complexes, step_size: float
) -> tuple[Complexes, dict[str, Complexes]]:
    """log γ of γ = (e^{ΔA}-1)/A, and d log γ = dλ/(λ-1) - dA/A for each parameter of s4."""
    log = _finite(log_eigenvalues)
    to_one = one_minus_exp(log_eigenvalues)
    with np.errstate(divide="ignore"):  # log γ = -inf at λ = 0
        log_gain = np.log(to_one / -log_eigenvalues) + np.log(step_size)
    weight = -np.exp(log_eigenvalues) / to_one  # λ / (λ-1)
    with np.errstate(over="ignore"):
        real_share = 1 / (1 + 1j * (log_eigenvalues.imag / log_eigenvalues.real))  # Re A / A
    return log_gain, {
        "log_dt": weight * log,
        "log_A_real": weight * log.real - real_share,
        "A_imag": 1j * step_size * (weight - 1 / log_eigenvalues),
    }


def _finite(log_eigenvalues: Complexes) -> Complexes:
    """log λ with 0 for λ = 0, where it is only ever multiplied by λ."""
    return np.where(np.isneginf(log_eigenvalues.real), 0.0, log_eigenvalues)


NORMALIZATIONS = {"none": "none", "own": "lru", "coupled": "coupled"}
"""The gains of a landscape, and what `theory.parametrization` calls them."""

GRID = 24 * 12 + 1  # a dozen distances per decade, from 1e-18 on
BISECTIONS = 60
FARTHEST = 1e6  # a parameter that is moved farther than this does not raise the loss to the level


class Slope(NamedTuple):
    """The loss at one student."""

    loss: float  # over that of a silent student
    values: dict[str, float]  # the parameters there, by name
    # dL/dω of L = ½ E|h - h*|² by each of them, in the units of the input
    gradient: dict[str, float]


class Landscape:
    """The losses around a target log λ*, its angle in [0, π], in one of `INVERTIBLE`'s parameters.

    The gain is ``none`` for γ = 1, ``own`` for γ = √(1-|λ*|²) that is a parameter of its own, and
    ``coupled`` for γ = √(1-|λ|²). ``centre`` has the parameters at the target, by name.
    """

    def __init__(
        self,
        target: complex,
        parametrization: str,
        gain: str = "none",
        autocorrelation: Autocorrelation = WHITE,
        horizon: int | None = None,
        readout: Readout = "last",
        step_size: float = DEFAULT_STEP_SIZE,
    ) -> None:
        self._target, self._gain = target, gain
        self._parametrization, self._step_size = parametrization, step_size
        self._input = autocorrelation, horizon, readout
        self._target_log_gain = 0j
        if gain != "none":
            self._target_log_gain = complex(normalizing_log_gain(np.array([target]))[0])
        self.centre = self._values(target, self._target_log_gain)

    def losses(self, logs: Complexes, log_gains: Complexes) -> Floats:
        """(n,) L of students log λ, log γ over that of a silent one, inf where |λ| ≥ 1 diverges.

            L = ½ E|h - h*|² = ½ [ |γ|² f(λ,λ̄) + |γ*|² f(λ*,λ̄*) - 2 Re γ γ̄* f(λ,λ̄*) ]

        of a student ``h = λ h + γ x`` and a teacher λ*, γ*, with f of `theory.moments.bilinear`
        (Zucchet & Orvieto 2024, section 4.1 and appendix B.2).
        """
        diverges = (logs.real >= 0) & (self._input[1] is None)
        diverges |= ~np.isfinite(logs.imag) | np.isnan(logs.real)
        target = np.full(logs.shape, self._target)
        pairs = np.stack([np.where(diverges, target, logs), target], axis=-1)
        with np.errstate(all="ignore"):  # where a number leaves its range, the loss is inf
            table = pair_moments(pairs, *self._input)[1].hh
            gain = np.exp(log_gains - self._target_log_gain)  # γ / γ*
            own, silent = table[:, 0, 0].real, table[:, 1, 1].real
            mixed = (gain * table[:, 0, 1]).real
            relative = (np.abs(gain) ** 2 * own + silent - 2 * mixed) / silent
        # What is left of the difference at the target itself is rounding, of either sign.
        return np.where(diverges | ~np.isfinite(relative), np.inf, np.maximum(relative, 0.0))

    def along(self, name: str, offsets: Floats) -> Floats:
        """(n,) the loss with one parameter off by so much, over that of a silent student."""
        values = {other: np.full(offsets.shape, value) for other, value in self.centre.items()}
        values[name] = values[name] + offsets
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            logs = PARAMETRIZATIONS[self._parametrization].logs(values)
            gains = np.full(offsets.shape, self._target_log_gain)
            if self._gain == "own":
                gains = values["gamma_log"].astype(np.complex128)
            elif self._gain == "coupled":
                inside = np.where(logs.real < 0, logs, -1.0)
                gains = np.where(logs.real < 0, normalizing_log_gain(inside), -np.inf + 0j)
        return self.losses(logs, gains)

    def slope(self, start: complex) -> Slope:
        """The loss and its gradient at a student with another log λ, its γ normalised likewise.

        With γ' = γ d log γ/dω and ∂α f = E[s h̄] it is

            dL/dω = Re[ γ' γ̄ f(λ,λ̄) + |γ|² λ' ∂αf(λ,λ̄) - γ̄* (γ' f(λ,λ̄*) + γ λ' ∂αf(λ,λ̄*)) ]

        Raises UsageError: the parametrisation cannot reach it.
        """
        logs = np.array([start])
        found = parametrize(
            logs, self._parametrization, NORMALIZATIONS[self._gain], self._step_size
        )
        gradient = {}
        with np.errstate(all="ignore"):  # where a number leaves its range, it is not finite
            _, table = pair_moments(np.array([start, self._target]), *self._input)
            own, mixed = np.exp(found.log_gain[0]), np.exp(np.conj(self._target_log_gain))
            for name, moved in found.derivatives.items():
                turn = own * moved.eigenvalue[0]
                growth = 0j if moved.log_gain is None else own * moved.log_gain[0]
                by_own = (growth * table.hh[0, 0] + turn * table.sh[0, 0]) * np.conj(own)
                by_target = (growth * table.hh[0, 1] + turn * table.sh[0, 1]) * mixed
                gradient[name] = float((by_own - by_target).real)
        there = float(self.losses(logs, found.log_gain)[0])
        return Slope(there, self._values(start, complex(found.log_gain[0])), gradient)

    def _values(self, log: complex, log_gain: complex) -> dict[str, float]:
        """The parameters at an eigenvalue."""
        found = PARAMETRIZATIONS[self._parametrization].values(np.array([log]), self._step_size)
        values = {name: float(value[0]) for name, value in found.items()}
        if self._gain == "own":
            values["gamma_log"] = log_gain.real
        return values

    def basin(self, name: str, level: float) -> float | None:
        """How far a parameter may be off, to the nearer side, before the loss reaches a level.

        The level is over the loss of a silent student, in (0, 1]. None beyond `FARTHEST`.
        """
        reached = [self._reach(name, sign, level) for sign in (-1.0, 1.0)]
        return min((distance for distance in reached if distance is not None), default=None)

    def _reach(self, name: str, sign: float, level: float) -> float | None:
        distances = np.logspace(-18, np.log10(FARTHEST), GRID)
        beyond = np.flatnonzero(self.along(name, sign * distances) >= level)
        if not beyond.size:
            return None
        outer = beyond[0]
        low = distances[outer - 1] if outer else 0.0

        def is_beyond(distance: float) -> bool:
            return bool(self.along(name, np.array([sign * distance]))[0] >= level)

        return float(bisected(is_beyond, low, distances[outer], BISECTIONS))
