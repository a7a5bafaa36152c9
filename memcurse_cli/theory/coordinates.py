"""The values that the parameters of a parametrisation have at given eigenvalues."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.theory.parametrization import DEFAULT_STEP_SIZE

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

SMALLEST_ANGLE = 1e-300
"""A real eigenvalue has no log θ; this one is its place, which no step leaves."""


def coordinates(
    log_eigenvalues: Complexes, parametrization: str, step_size: float = DEFAULT_STEP_SIZE
) -> dict[str, Floats]:
    """The parameters by name, in the order of `theory.parametrization.parametrize`.

    Args:
        log_eigenvalues: (n,) finite log λ, with the angle in [0, π].
        parametrization: ``real-imaginary``, ``polar``, ``lru``, ``optimal`` or ``s4``; all but the
            first two need |λ| < 1.
        step_size: Δ, which only ``s4`` asks for.

    Raises:
        KeyError: another parametrisation.
    """
    return _COORDINATES[parametrization](log_eigenvalues, step_size)


def _real_imaginary(log: Complexes, step_size: float) -> dict[str, Floats]:
    eigenvalue = np.exp(log)
    return {"lambda_re": eigenvalue.real.copy(), "lambda_im": eigenvalue.imag.copy()}


def _polar(log: Complexes, step_size: float) -> dict[str, Floats]:
    return {"nu": np.exp(log.real), "theta": log.imag.copy()}


def _lru(log: Complexes, step_size: float) -> dict[str, Floats]:
    return {
        "nu_log": np.log(-log.real),
        "theta_log": np.log(np.maximum(log.imag, SMALLEST_ANGLE)),
    }


def _optimal(log: Complexes, step_size: float) -> dict[str, Floats]:
    """ω_ν = artanh ν, written without 1-ν, and ω_θ = θ ν √(1+ν²) / (1-ν²)."""
    modulus = np.exp(log.real)
    return {
        "omega_nu": 0.5 * np.log((1 + modulus) / -np.expm1(log.real)),
        "omega_theta": log.imag * modulus * np.sqrt(1 + modulus**2) / -np.expm1(2 * log.real),
    }


def _s4(log: Complexes, step_size: float) -> dict[str, Floats]:
    return {
        "log_dt": np.full(log.shape, np.log(step_size)),
        "log_A_real": np.log(-log.real / step_size),
        "A_imag": log.imag / step_size,
    }


_COORDINATES: dict[str, Callable[[Complexes, float], dict[str, Floats]]] = {
    "real-imaginary": _real_imaginary,
    "polar": _polar,
    "lru": _lru,
    "optimal": _optimal,
    "s4": _s4,
}
PARAMETRIZATIONS = tuple(_COORDINATES)
