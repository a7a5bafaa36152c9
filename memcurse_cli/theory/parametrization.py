"""How the usual parametrisations of an eigenvalue and of its gain move with their parameters.

Derivatives are of λ itself, not of log λ, so that λ = 0 is an ordinary point; the eigenvalues
come as log λ, so that those near the unit circle keep their decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.errors import UsageError
from memcurse_cli.theory.moments.moments import one_minus_exp

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Values = Mapping[str, Floats]

DEFAULT_STEP_SIZE = 0.01
STEP_SIZES = 1e-100, 1e100
"""Beyond them squares of the gain leave the range of a float."""
ROUNDING = 4 * float(np.finfo(np.float64).eps)
SMALLEST_ANGLE = 1e-300
"""A real eigenvalue has no log θ; this one is its place, which no step leaves."""


@dataclass(frozen=True)
class Derivative:
    """What one unit of a parameter does.

    Attributes:
        eigenvalue: (n,) dλ/dω.
        log_gain: (n,) d log γ/dω, or None where γ does not depend on ω.
    """

    eigenvalue: Complexes
    log_gain: Complexes | None = None


@dataclass(frozen=True)
class Parametrized:
    """Eigenvalues and gains as functions of named real parameters.

    Attributes:
        log_gain: (n,) log γ; complex, since the gain of a zero-order hold is.
        derivatives: what each parameter moves.
    """

    log_gain: Complexes
    derivatives: Mapping[str, Derivative]


@dataclass(frozen=True)
class Parametrization:
    """One map from parameters to eigenvalues.

    Attributes:
        derivatives: dλ/dω by name, each turned back by the phase of λ, at log λ and a step size Δ.
        values: the parameters by name, at log λ and Δ; None where they are not asked for.
        logs: log λ of the parameters; None likewise.
        keeps_stable: whether the map itself keeps |λ| < 1, so that nothing outside has parameters.
        is_real: whether it reaches λ in (0, 1) alone.
    """

    derivatives: Callable[[Complexes, float], dict[str, Complexes]]
    values: Callable[[Complexes, float], dict[str, Floats]] | None = None
    logs: Callable[[Values], Complexes] | None = None
    keeps_stable: bool = True
    is_real: bool = False


def _moved(
    log_eigenvalues: Complexes,
    radial: Floats | float,
    tangential: Floats | float,
) -> Complexes:
    """dλ/dω turned back by the phase of λ.

    The real part moves the modulus and the imaginary part turns λ, neither with the other's
    rounding in it.
    """
    value = np.empty_like(log_eigenvalues)
    value.real, value.imag = radial, tangential
    return value


def _real_imaginary_derivatives(
    log_eigenvalues: Complexes, step_size: float
) -> dict[str, Complexes]:
    cosine, sine = np.cos(log_eigenvalues.imag), np.sin(log_eigenvalues.imag)
    return {
        "lambda_re": _moved(log_eigenvalues, cosine, -sine),
        "lambda_im": _moved(log_eigenvalues, sine, cosine),
    }


def _real_imaginary_values(log: Complexes, step_size: float) -> dict[str, Floats]:
    eigenvalue = np.exp(log)
    return {"lambda_re": eigenvalue.real.copy(), "lambda_im": eigenvalue.imag.copy()}


def _real_imaginary_logs(values: Values) -> Complexes:
    logs: Complexes = np.log(values["lambda_re"] + 1j * values["lambda_im"])
    return logs


def _polar_derivatives(log_eigenvalues: Complexes, step_size: float) -> dict[str, Complexes]:
    """λ = ν e^{iθ}."""
    return {
        "nu": _moved(log_eigenvalues, 1, 0),
        "theta": _moved(log_eigenvalues, 0, np.exp(log_eigenvalues.real)),
    }


def _polar_values(log: Complexes, step_size: float) -> dict[str, Floats]:
    return {"nu": np.exp(log.real), "theta": log.imag.copy()}


def _polar_logs(values: Values) -> Complexes:
    """A negative ν is the opposite angle."""
    nu = values["nu"]
    logs: Complexes = np.log(np.abs(nu)) + 1j * (values["theta"] + np.pi * (nu < 0))
    return logs


def _lru_derivatives(log_eigenvalues: Complexes, step_size: float) -> dict[str, Complexes]:
    """log λ = -e^{ω_ν} + i e^{ω_θ}."""
    modulus, log = np.exp(log_eigenvalues.real), _finite(log_eigenvalues)
    return {
        "nu_log": _moved(log_eigenvalues, modulus * log.real, 0),
        "theta_log": _moved(log_eigenvalues, 0, modulus * log.imag),
    }


def _lru_values(log: Complexes, step_size: float) -> dict[str, Floats]:
    return {
        "nu_log": np.log(-log.real),
        "theta_log": np.log(np.maximum(log.imag, SMALLEST_ANGLE)),
    }


def _lru_logs(values: Values) -> Complexes:
    logs: Complexes = -np.exp(values["nu_log"]) + 1j * np.exp(values["theta_log"])
    return logs


def _optimal_derivatives(log_eigenvalues: Complexes, step_size: float) -> dict[str, Complexes]:
    """ν = tanh ω_ν, θ = ω_θ (1-ν²) / (ν √(1+ν²)): Zucchet & Orvieto 2024, B.1.2.

    At a given ω_θ a step on ω_ν turns the angle too.
    """
    modulus, angle = np.exp(log_eigenvalues.real), log_eigenvalues.imag
    remaining = -np.expm1(2 * log_eigenvalues.real)  # 1 - ν²
    squared = modulus**2
    turn = -2 * squared - remaining - squared * remaining / (1 + squared)  # (ν/θ) dθ/dω_ν
    return {
        "omega_nu": _moved(log_eigenvalues, remaining, angle * turn),
        "omega_theta": _moved(log_eigenvalues, 0, remaining / np.sqrt(1 + squared)),
    }


def _optimal_values(log: Complexes, step_size: float) -> dict[str, Floats]:
    """ω_ν = artanh ν, written without 1-ν, and ω_θ = θ ν √(1+ν²) / (1-ν²)."""
    modulus = np.exp(log.real)
    return {
        "omega_nu": 0.5 * np.log((1 + modulus) / -np.expm1(log.real)),
        "omega_theta": log.imag * modulus * np.sqrt(1 + modulus**2) / -np.expm1(2 * log.real),
    }


def _optimal_logs(values: Values) -> Complexes:
    """log ν of ν = tanh ω without 1 - ν; θ = ω_θ (1-ν²) / (ν √(1+ν²))."""
    omega = np.abs(values["omega_nu"])
    decay = np.exp(-2 * omega)
    log_modulus = np.log1p(-decay) - np.log1p(decay)
    modulus = np.exp(log_modulus)
    remaining = -np.expm1(2 * log_modulus)
    angle = values["omega_theta"] * remaining / (modulus * np.sqrt(1 + modulus**2))
    logs: Complexes = log_modulus + 1j * (angle + np.pi * (values["omega_nu"] < 0))
    return logs


def _s4_derivatives(log_eigenvalues: Complexes, step_size: float) -> dict[str, Complexes]:
    """λ = e^{ΔA} with Δ = e^{log_dt} and Re A = -e^{log_A_real}."""
    modulus, log = np.exp(log_eigenvalues.real), _finite(log_eigenvalues)
    return {
        "log_dt": modulus * log,
        "log_A_real": _moved(log_eigenvalues, modulus * log.real, 0),
        "A_imag": _moved(log_eigenvalues, 0, modulus * step_size),
    }


def _s4_values(log: Complexes, step_size: float) -> dict[str, Floats]:
    return {
        "log_dt": np.full(log.shape, np.log(step_size)),
        "log_A_real": np.log(-log.real / step_size),
        "A_imag": log.imag / step_size,
    }


def _s4_logs(values: Values) -> Complexes:
    step_size = np.exp(values["log_dt"])
    logs: Complexes = step_size * (-np.exp(values["log_A_real"]) + 1j * values["A_imag"])
    return logs


def _sigmoid_gate_derivatives(log_eigenvalues: Complexes, step_size: float) -> dict[str, Complexes]:
    """λ = σ(b)."""
    return {"bias": np.exp(log_eigenvalues.real) * one_minus_exp(log_eigenvalues)}


PARAMETRIZATIONS = {
    "real-imaginary": Parametrization(
        _real_imaginary_derivatives,
        _real_imaginary_values,
        _real_imaginary_logs,
        keeps_stable=False,
    ),
    "polar": Parametrization(_polar_derivatives, _polar_values, _polar_logs, keeps_stable=False),
    "lru": Parametrization(_lru_derivatives, _lru_values, _lru_logs),
    "optimal": Parametrization(_optimal_derivatives, _optimal_values, _optimal_logs),
    "s4": Parametrization(_s4_derivatives, _s4_values, _s4_logs),
    "sigmoid-gate": Parametrization(_sigmoid_gate_derivatives, is_real=True),
}
INVERTIBLE = tuple(name for name, one in PARAMETRIZATIONS.items() if one.values is not None)
"""Those whose `coordinates` and `log_eigenvalues_at` them are known."""
NORMALIZATIONS = ("none", "lru", "coupled", "gru", "zoh")


def parametrize(
    log_eigenvalues: Complexes,
    parametrization: str = "real-imaginary",
    normalization: str = "none",
    step_size: float = DEFAULT_STEP_SIZE,
) -> Parametrized:
    """The parameters behind given eigenvalues, by what they move.

    Normalisations: ``none`` γ = 1; ``lru`` γ = √(1-|λ|²), learnt on its own as ``gamma_log`` (LRU)
    but tied to ν under ``optimal``; ``coupled`` the same γ, computed from λ under every
    parametrisation; ``gru`` γ = 1-λ; ``zoh`` γ = (e^{ΔA}-1)/A, of ``s4`` alone.

    Args:
        log_eigenvalues: (n,) complex log λ; -inf for λ = 0.
        parametrization: one of `PARAMETRIZATIONS`.
        normalization: one of `NORMALIZATIONS`.
        step_size: Δ, which only ``s4`` asks for.

    Raises:
        UsageError: an unknown name, an eigenvalue that the map cannot reach, a Δ that is not
            positive, or ``zoh`` without ``s4``.
    """
    for name, known, option in (
        (parametrization, PARAMETRIZATIONS, "parametrization"),
        (normalization, NORMALIZATIONS, "normalization"),
    ):
        if name not in known:
            raise UsageError(
                f"'{name}' is not known", where=option, remedy=f"choose one of {', '.join(known)}"
            )
    if not STEP_SIZES[0] <= step_size <= STEP_SIZES[1]:
        raise UsageError(
            f"a step size of {step_size:g} is not between 1e-100 and 1e100",
            where="step-size",
            remedy="give Δ in the time unit of A, for example 0.01",
        )
    if normalization == "zoh" and parametrization != "s4":
        raise UsageError(
            f"zoh is the gain of a discretised A, which {parametrization} does not have",
            where="normalization",
            remedy="use it with the parametrization s4",
        )
    chosen = PARAMETRIZATIONS[parametrization]
    for name, option, stable, real in (
        (parametrization, "parametrization", chosen.keeps_stable, chosen.is_real),
        (normalization, "normalization", normalization != "none", normalization == "gru"),
    ):
        if stable and np.any(log_eigenvalues.real >= 0):
            raise UsageError(
                f"{name} cannot reach |λ| ≥ 1",
                where=option,
                remedy="give moduli below 1, or real-imaginary or polar without normalization",
            )
        if real and np.any(log_eigenvalues.imag != 0):
            raise UsageError(
                f"{name} has real eigenvalues between 0 and 1 only",
                where=option,
                remedy="leave the angle at 0",
            )

    turned_back = chosen.derivatives(log_eigenvalues, step_size)
    phase = _phase(log_eigenvalues)
    moved = {name: phase * value for name, value in turned_back.items()}
    if normalization == "coupled" or (normalization, parametrization) == ("lru", "optimal"):
        modulus = np.exp(log_eigenvalues.real)
        rates = {
            name: _normalizing_rate(log_eigenvalues, modulus * value.real).astype(np.complex128)
            for name, value in turned_back.items()
        }
        return _coupled(normalizing_log_gain(log_eigenvalues), moved, rates)
    if normalization == "lru":
        derivatives = {name: Derivative(eigenvalue) for name, eigenvalue in moved.items()}
        derivatives["gamma_log"] = Derivative(
            np.zeros_like(log_eigenvalues), np.ones_like(log_eigenvalues)
        )
        return Parametrized(normalizing_log_gain(log_eigenvalues), derivatives)
    if normalization == "gru":
        to_one = one_minus_exp(log_eigenvalues)
        with np.errstate(over="ignore"):
            rates = {name: -value / to_one for name, value in moved.items()}
        return _coupled(np.log(to_one), moved, rates)
    if normalization == "zoh":
        log_gain, rates = _zero_order_hold(log_eigenvalues, step_size)
        return _coupled(log_gain, moved, rates)
    return Parametrized(
        np.zeros_like(log_eigenvalues),
        {name: Derivative(eigenvalue) for name, eigenvalue in moved.items()},
    )


def coordinates(
    log_eigenvalues: Complexes, parametrization: str, step_size: float = DEFAULT_STEP_SIZE
) -> dict[str, Floats]:
    """The values of the parameters by name, in the order of `parametrize`.

    Args:
        log_eigenvalues: (n,) finite log λ, with the angle in [0, π].
        parametrization: one of `INVERTIBLE`; all but the first two need |λ| < 1.
        step_size: Δ, which only ``s4`` asks for.

    Raises:
        KeyError: another parametrisation.
    """
    values = PARAMETRIZATIONS[parametrization].values
    if values is None:
        raise KeyError(parametrization)
    return values(log_eigenvalues, step_size)


def log_eigenvalues_at(values: Values, parametrization: str) -> Complexes:
    """(n,) log λ of the parameters by name: the inverse of `coordinates`.

    Raises:
        KeyError: a parametrisation that is not one of `INVERTIBLE`.
    """
    logs = PARAMETRIZATIONS[parametrization].logs
    if logs is None:
        raise KeyError(parametrization)
    return logs(values)


def normalizing_log_gain(log_eigenvalues: Complexes) -> Complexes:
    """log γ of γ = √(1-|λ|²), at which a white input leaves a state of its own variance."""
    return (0.5 * np.log(-np.expm1(2 * log_eigenvalues.real))).astype(np.complex128)


def normalizing_rate(log_eigenvalues: Complexes, eigenvalue_derivative: Complexes) -> Floats:
    """d log γ/dω of γ = √(1-|λ|²) computed from λ: -Re[λ̄ λ'] / (1-|λ|²)."""
    product = _eigenvalue(log_eigenvalues).conj() * eigenvalue_derivative
    # What only turns λ leaves a rounding behind that 1-|λ|² would enlarge.
    radial = np.where(np.abs(product.real) > ROUNDING * np.abs(product), product.real, 0.0)
    return _normalizing_rate(log_eigenvalues, radial)


def _normalizing_rate(log_eigenvalues: Complexes, radial: Floats) -> Floats:
    """The same of radial = Re[λ̄ λ'] = ½ d|λ|²/dω."""
    rate: Floats = radial / np.expm1(2 * log_eigenvalues.real)
    return rate


def _zero_order_hold(
    log_eigenvalues: Complexes, step_size: float
) -> tuple[Complexes, dict[str, Complexes]]:
    """log γ of γ = (e^{ΔA}-1)/A, and d log γ = dλ/(λ-1) - dA/A for each parameter of s4."""
    log = _finite(log_eigenvalues)
    to_one = one_minus_exp(log_eigenvalues)
    with np.errstate(divide="ignore"):  # log γ = -inf at λ = 0
        log_gain = np.log(to_one / -log_eigenvalues) + np.log(step_size)
    weight = -_eigenvalue(log_eigenvalues) / to_one  # λ / (λ-1)
    with np.errstate(over="ignore"):
        real_share = 1 / (1 + 1j * (log_eigenvalues.imag / log_eigenvalues.real))  # Re A / A
    return log_gain, {
        "log_dt": weight * log,
        "log_A_real": weight * log.real - real_share,
        "A_imag": 1j * step_size * (weight - 1 / log_eigenvalues),
    }


def _coupled(
    log_gain: Complexes, moved: dict[str, Complexes], rates: dict[str, Complexes]
) -> Parametrized:
    return Parametrized(
        log_gain, {name: Derivative(value, rates[name]) for name, value in moved.items()}
    )


def _eigenvalue(log_eigenvalues: Complexes) -> Complexes:
    modulus: Floats = np.exp(log_eigenvalues.real)
    return modulus * _phase(log_eigenvalues)


def _phase(log_eigenvalues: Complexes) -> Complexes:
    phase: Complexes = np.exp(1j * log_eigenvalues.imag)
    return phase


def _finite(log_eigenvalues: Complexes) -> Complexes:
    """log λ with 0 for λ = 0, where it is only ever multiplied by λ."""
    return np.where(np.isneginf(log_eigenvalues.real), 0.0, log_eigenvalues)


def chrono_steps(time_constant: float) -> float:
    """T = 1/(1 - λ) of the gate with ``λ = e^(-1/τ)``: longer than τ by about half a step."""
    return -1 / math.expm1(-1 / time_constant)


def chrono_bias(steps: float) -> float:
    """``log(T - 1)``, at which σ(b) = 1 - 1/T, for T > 1 (Tallec & Ollivier 2018)."""
    return math.log(steps - 1)


def printed_chrono_bias(steps: float) -> float:
    """``log T`` as Zucchet & Orvieto 2024, section 3.2, print it: the memory of T + 1 steps."""
    return math.log(steps)
