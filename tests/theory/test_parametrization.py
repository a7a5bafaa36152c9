"""Parametrisations and their inverse, against autodiff of the maps as the papers define them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memcurse_cli.diagnosis.prediction import chrono_biases, predict
from memcurse_cli.errors import UsageError
from memcurse_cli.theory.autocorrelation import Autocorrelation
from memcurse_cli.theory.moments import moments
from memcurse_cli.theory.parametrization import (
    DEFAULT_STEP_SIZE,
    GAINS,
    INVERTIBLE,
    PARAMETRIZATIONS,
    parametrize,
)
from memcurse_cli.theory.sensitivity import parameter_sensitivity

STEP = 0.05
STABLE = ["lru", "optimal", "s4", "sigmoid-gate"]
NO_ANGLE = 1e-300  # the LRU's own coordinates are log θ
Map = Callable[[jax.Array], jax.Array]


def maps(parametrization: str, z: complex) -> tuple[dict[str, float], Map]:
    """The parameters at log λ = z, and the map from them to log λ, written from the papers."""
    decay, angle = -z.real, z.imag
    modulus = np.exp(-decay)
    if parametrization == "real-imaginary":
        value = np.exp(z)
        point = {"lambda_re": value.real, "lambda_im": value.imag}
        return point, lambda w: jnp.log(w[0] + 1j * w[1])
    if parametrization == "polar":
        return {"nu": modulus, "theta": angle}, lambda w: jnp.log(w[0]) + 1j * w[1]
    if parametrization == "lru":
        point = {"nu_log": np.log(decay), "theta_log": np.log(angle)}
        return point, lambda w: -jnp.exp(w[0]) + 1j * jnp.exp(w[1])
    if parametrization == "optimal":

        def turns(nu: float) -> float:
            return (1 - nu**2) / (nu * (1 + nu**2) ** 0.5)

        point = {"omega_nu": np.arctanh(modulus), "omega_theta": angle / turns(modulus)}
        return point, lambda w: jnp.log(jnp.tanh(w[0])) + 1j * w[1] * turns(jnp.tanh(w[0]))
    if parametrization == "s4":
        point = {"log_dt": np.log(STEP), "log_A_real": np.log(decay / STEP), "A_imag": angle / STEP}
        return point, lambda w: jnp.exp(w[0]) * (-jnp.exp(w[1]) + 1j * w[2])
    return {"bias": -np.log(np.expm1(decay))}, lambda w: jnp.log(jax.nn.sigmoid(w[0])) + 0j


def log_gain(parametrization: str, normalization: str, w: jax.Array, log: Map) -> jax.Array:
    z = log(w)
    if normalization == "coupled" or (normalization, parametrization) == ("lru", "optimal"):
        return 0.5 * jnp.log(1 - jnp.abs(jnp.exp(z)) ** 2) + 0j
    if normalization == "gru":
        return jnp.log(1 - jnp.exp(z))
    if normalization == "zoh":
        return jnp.log((jnp.exp(z) - 1) / (z / jnp.exp(w[0])))
    return jnp.zeros_like(z)


def is_real(parametrization: str, normalization: str) -> bool:
    return parametrization == "sigmoid-gate" or normalization == "gru"


def reachable(parametrization: str, normalization: str) -> bool:
    return normalization != "zoh" or parametrization == "s4"


CASES = [(p, n) for p in PARAMETRIZATIONS for n in GAINS if reachable(p, n)]


@pytest.mark.parametrize("decay", [1.3, 0.1, 1e-4])
@pytest.mark.parametrize(("parametrization", "normalization"), CASES)
def test_derivatives_are_those_of_the_map(
    parametrization: str, normalization: str, decay: float
) -> None:
    real = is_real(parametrization, normalization)
    z = complex(-decay, NO_ANGLE if real else 2.5)
    point, log = maps(parametrization, z)
    w = np.array(list(point.values()))

    def both(v: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.exp(log(v)), log_gain(parametrization, normalization, v, log)

    with jax.enable_x64(True):
        eigenvalue, gain = (np.asarray(slopes) for slopes in jax.jacfwd(both)(w))
    logs = np.array([z.real + 0j if real else z])
    found = parametrize(logs, parametrization, normalization, STEP).derivatives
    own = ["gamma_log"] if normalization == "lru" and parametrization != "optimal" else []
    assert list(found) == [*point, *own]
    for index, name in enumerate(point):
        derivative = found[name]
        scale = max(abs(eigenvalue))
        assert abs(derivative.eigenvalue[0] - eigenvalue[index]) <= 1e-9 * scale
        if derivative.log_gain is None:
            assert gain[index] == 0
        else:
            scale = max(abs(gain))
            assert abs(derivative.log_gain[0] - gain[index]) <= 1e-9 * scale + 1e-15


@pytest.mark.parametrize(("parametrization", "normalization"), CASES)
def test_an_eigenvalue_of_zero_has_finite_derivatives(
    parametrization: str, normalization: str
) -> None:
    found = parametrize(np.array([complex(-np.inf)]), parametrization, normalization)
    near = parametrize(np.array([complex(-700.0)]), parametrization, normalization)
    for name, derivative in found.derivatives.items():
        limit = near.derivatives[name]
        assert derivative.eigenvalue == pytest.approx(limit.eigenvalue, abs=1e-12)
        if derivative.log_gain is not None:
            assert limit.log_gain is not None
            # 1/log λ is how slowly a zero-order hold gets there
            assert derivative.log_gain == pytest.approx(limit.log_gain, abs=1e-4)


def test_the_gru_of_the_papers_own_code(paper: Path) -> None:
    rows = json.loads((paper / "gru_theory.json").read_text())["rows"]
    text = Autocorrelation((0.332, 0.043056), (0.0, 0.997005))
    for span, second_moment, authors, expected in rows:
        logs = np.array([complex(np.log1p(-1 / span))])
        moment = moments(logs, text)
        found = parametrize(logs, "sigmoid-gate", "gru")
        gain = np.exp(2 * found.log_gain.real)
        assert (gain * moment.second_moment)[0] == pytest.approx(second_moment, rel=1e-4)
        bias = found.derivatives["bias"]
        each = parameter_sensitivity(moment, found.log_gain, bias.eigenvalue, bias.log_gain)
        sensitivity = each.sensitivity[0]
        assert sensitivity == pytest.approx(expected, rel=1e-4)
        assert abs(sensitivity / authors - 1) > 5e-3  # the printed curve has spurious terms


@pytest.mark.parametrize(
    ("log", "arguments", "message"),
    [
        *((log, (name,), "cannot reach") for log in (0j, 0.1 + 0j) for name in STABLE),
        (0j, ("polar", "lru"), r"lru cannot reach \|λ\| ≥ 1"),
        (-1 + 0.5j, ("sigmoid-gate",), "sigmoid-gate has real eigenvalues"),
        (-1 + 0.5j, ("polar", "gru"), "gru has real eigenvalues"),
        (-1 + 0j, ("cartesian",), "choose one of real-imaginary, polar, lru, optimal"),
        (-1 + 0j, ("polar", "norm"), "choose one of none, lru, coupled, gru, zoh"),
        (-1 + 0j, ("polar", "zoh"), "use it with the parametrization s4"),
        *(
            (-1 + 0j, ("s4", "zoh", step), "not between 1e-100 and 1e100")
            for step in (0.0, -1.0, np.nan, np.inf, 1e-300, 1e300)  # squares leave a float too
        ),
    ],
)
def test_what_is_refused(log: complex, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parametrize(np.array([log]), *arguments)


@pytest.mark.parametrize("parametrization", INVERTIBLE)
@pytest.mark.parametrize("decay", [3.0, 0.1, 1e-3])
@pytest.mark.parametrize("angle", [0.0, 1e-3, 1.2, np.pi])
def test_the_map_takes_the_coordinates_back(
    parametrization: str, decay: float, angle: float
) -> None:
    log = np.array([complex(-decay, angle)])
    values = PARAMETRIZATIONS[parametrization].values(log)
    assert PARAMETRIZATIONS[parametrization].logs(values)[0] == pytest.approx(
        log[0], rel=1e-11, abs=1e-12
    )
    _, by_the_papers = maps(parametrization, complex(-decay, max(angle, NO_ANGLE)))
    with jax.enable_x64(True):
        again = complex(by_the_papers(np.ravel(list(values.values()))))
    assert again == pytest.approx(log[0], rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("parametrization", ["lru", "optimal", "s4"])
def test_a_decay_of_1e_minus_12_keeps_its_digits(parametrization: str) -> None:
    """|λ| itself holds four of them."""
    found = list(PARAMETRIZATIONS[parametrization].values(np.array([-1e-12 + 0.3j])).values())
    expected = {
        "lru": [np.log(1e-12)],
        "optimal": [0.5 * np.log(2e12)],
        "s4": [np.log(DEFAULT_STEP_SIZE), np.log(1e-12 / DEFAULT_STEP_SIZE)],
    }
    for value, exact in zip(found, expected[parametrization], strict=False):
        assert value[0] == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("time_constant", [1.6, 3.0, 10.0, 1e6])
def test_the_bias_of_a_time_constant_gives_its_eigenvalue(time_constant: float) -> None:
    """Zucchet & Orvieto 2024, section 3.2: log T is not the bias of λ = 1 - 1/T."""
    found = chrono_biases(predict(time_constant=time_constant, parametrization="sigmoid-gate"))
    kept, printed = (1 / (1 + math.exp(-bias)) for bias in (found[0].bias, found[0].printed))
    assert kept == pytest.approx(math.exp(-1 / time_constant), rel=1e-12)
    assert printed == pytest.approx(found[0].steps / (1 + found[0].steps), rel=1e-12)
    assert time_constant > 100 or printed - kept > 0.005
