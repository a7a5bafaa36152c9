from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from memcurse_cli.theory.parametrization import (
    DEFAULT_STEP_SIZE,
    INVERTIBLE,
    coordinates,
    log_eigenvalues_at,
    parametrize,
)

MAPS: dict[str, Callable[..., np.ndarray]] = {
    "real-imaginary": lambda real, imaginary: np.log(real + 1j * imaginary),
    "polar": lambda nu, theta: np.log(nu) + 1j * theta,
    "lru": lambda nu_log, theta_log: -np.exp(nu_log) + 1j * np.exp(theta_log),
    "optimal": lambda w, v: (
        np.log(np.tanh(w)) + 1j * v * (1 - np.tanh(w) ** 2) / np.tanh(w) / np.hypot(1, np.tanh(w))
    ),
    "s4": lambda log_dt, a, b: np.exp(log_dt) * (-np.exp(a) + 1j * b),
}
"""log λ of the parameters, as the papers define it."""


@pytest.mark.parametrize("parametrization", INVERTIBLE)
@pytest.mark.parametrize("decay", [3.0, 0.1, 1e-3])
@pytest.mark.parametrize("angle", [0.0, 1e-3, 1.2, np.pi])
def test_the_map_takes_the_coordinates_back(
    parametrization: str, decay: float, angle: float
) -> None:
    log = np.array([complex(-decay, angle)])
    values = coordinates(log, parametrization)
    assert log_eigenvalues_at(values, parametrization)[0] == pytest.approx(
        log[0], rel=1e-11, abs=1e-12
    )
    assert MAPS[parametrization](*values.values())[0] == pytest.approx(log[0], rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("parametrization", INVERTIBLE)
def test_the_names_are_those_of_the_derivatives(parametrization: str) -> None:
    log = np.array([complex(-0.1, 0.5)])
    assert list(coordinates(log, parametrization)) == list(
        parametrize(log, parametrization).derivatives
    )


@pytest.mark.parametrize("parametrization", ["lru", "optimal", "s4"])
def test_a_decay_of_1e_minus_12_keeps_its_digits(parametrization: str) -> None:
    """|λ| itself holds four of them."""
    found = list(coordinates(np.array([complex(-1e-12, 0.3)]), parametrization).values())
    expected = {
        "lru": [np.log(1e-12)],
        "optimal": [0.5 * np.log(2e12)],
        "s4": [np.log(DEFAULT_STEP_SIZE), np.log(1e-12 / DEFAULT_STEP_SIZE)],
    }
    for value, exact in zip(found, expected[parametrization], strict=False):
        assert value[0] == pytest.approx(exact, rel=1e-12)
