"""The loss around one eigenvalue: explicit sums, autodiff, the authors' own numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.landscape import Landscape, loss
from memcurse_cli.theory.moments import Readout, bilinear, moments
from memcurse_cli.theory.parametrization import coordinates, normalizing_log_gain, parametrize
from memcurse_cli.theory.sensitivity import parameter_sensitivity, relative_sensitivity

TARGET = complex(np.log(0.95), 0.4)
NAMES = {"none": "none", "own": "lru", "coupled": "coupled"}
VIEWS = [
    ("real-imaginary", "none"),
    ("polar", "none"),
    ("polar", "coupled"),
    ("s4", "none"),
    ("lru", "own"),
    ("lru", "coupled"),
    ("optimal", "coupled"),
]
MIXTURE = Autocorrelation((0.4, 0.6), (0.0, 0.9))


def explicit(
    log: complex, gain: complex, autocorrelation: Autocorrelation, steps: int
) -> tuple[float, float]:
    """½ E|h - h*|² and ½ E|h*|² at the last of so many steps, from all pairs of lags."""
    lags = np.arange(steps)
    ours, theirs = gain * np.exp(log * lags), np.exp(TARGET * lags)
    covariance = autocorrelation.at(np.abs(lags[:, None] - lags).astype(np.float64))
    left = ours - theirs
    return (
        0.5 * float((left.conj() @ covariance @ left).real),
        0.5 * float((theirs.conj() @ covariance @ theirs).real),
    )


def printed(logs: Any, gains: Any) -> Any:
    """``½ [ f(λ,λ̄) γ² + f(λ*,λ̄*) γ*² - 2 Re γ γ* f(λ,λ̄*) ]``, white; ½ f γ² of one λ alone."""
    f = bilinear(logs[:, None], logs.conj()[None, :], 0.0).value * gains[:, None] * gains
    if len(logs) == 1:
        return 0.5 * f[0, 0].real
    return 0.5 * (f[0, 0] + f[1, 1] - 2 * f[0, 1]).real


@pytest.mark.parametrize("autocorrelation", [WHITE, MIXTURE, Autocorrelation.from_rho(1.0)])
@pytest.mark.parametrize("horizon", [None, 7, 60])
@pytest.mark.parametrize("log", [complex(np.log(0.9), 0.1), complex(np.log(0.95), 0.41), TARGET])
def test_the_loss_is_the_explicit_sum(
    log: complex, horizon: int | None, autocorrelation: Autocorrelation
) -> None:
    for gain in (1.0, 0.7 * np.exp(0.3j)):
        found = loss(
            np.array([log]), np.log(np.array([gain + 0j])), TARGET, 0j, autocorrelation, horizon
        )
        ours, silent = explicit(log, gain, autocorrelation, horizon or 900)
        assert found[0] == pytest.approx(ours / silent, rel=1e-10, abs=1e-13)


def test_the_mean_over_every_step() -> None:
    logs = np.array([complex(np.log(0.9), 0.1)])
    found = loss(logs, np.zeros(1, np.complex128), TARGET, 0j, MIXTURE, 20, "every")
    steps = [explicit(logs[0], 1.0, MIXTURE, step) for step in range(1, 21)]
    ours, silent = np.sum(steps, axis=0)
    assert found[0] == pytest.approx(ours / silent, rel=1e-11)


@pytest.mark.parametrize(("parametrization", "gain"), VIEWS)
@pytest.mark.parametrize("autocorrelation", [WHITE, MIXTURE])
def test_the_curvature_at_the_optimum_is_twice_kappa(
    parametrization: str, gain: str, autocorrelation: Autocorrelation
) -> None:
    around = Landscape(TARGET, parametrization, gain, autocorrelation)
    logs = np.array([TARGET])
    found = parametrize(logs, parametrization, NAMES[gain])
    assert list(around.centre) == list(found.derivatives)
    for name, moved in found.derivatives.items():
        kappa = relative_sensitivity(
            moments(logs, autocorrelation), moved.eigenvalue, moved.log_gain
        )[0]
        step = 3e-4 / np.sqrt(kappa)
        lower, upper = around.along(name, np.array([-step, step]))
        assert 0.5 * (lower + upper) / step**2 == pytest.approx(kappa, rel=1e-5)
        assert around.along(name, np.zeros(1))[0] < 1e-13


def test_autodiff_of_the_loss_has_the_same_hessian() -> None:
    """Of λ = exp(-exp(ν) + i exp(θ)) with γ = √(1-|λ|²), from JAX on the printed formula."""

    def of(w: jax.Array) -> jax.Array:
        logs = jnp.stack([-jnp.exp(w[0]) + 1j * jnp.exp(w[1]), jnp.asarray(TARGET)])
        gains = jnp.sqrt(1 - jnp.exp(2 * logs.real))
        return printed(logs, gains) / printed(logs[1:], gains[1:])

    around = Landscape(TARGET, "lru", "coupled")
    point = np.array([around.centre["nu_log"], around.centre["theta_log"]])
    with jax.enable_x64(True):
        curvature = np.diag(np.asarray(jax.jit(jax.hessian(of))(jnp.array(point))))
        far = float(jax.jit(of)(jnp.array(point + np.array([0.3, 0.0]))))
    found = parametrize(np.array([TARGET]), "lru", "coupled")
    for wanted, moved in zip(curvature, found.derivatives.values(), strict=True):
        kappa = relative_sensitivity(moments(np.array([TARGET])), moved.eigenvalue, moved.log_gain)[
            0
        ]
        assert 2 * kappa == pytest.approx(wanted, rel=1e-9)
    assert around.along("nu_log", np.array([0.3]))[0] == pytest.approx(far, rel=1e-10)


@settings(max_examples=20)
@given(
    view=st.sampled_from(VIEWS),
    decay=st.floats(1e-6, 2),
    angle=st.floats(0.05, 3),
    level=st.floats(0.01, 0.9),
)
def test_a_basin_ends_where_the_loss_reaches_the_level(
    view: tuple[str, str], decay: float, angle: float, level: float
) -> None:
    around = Landscape(complex(-decay, angle), *view)
    for name in around.centre:
        basin = around.basin(name, level)
        if basin is None:
            continue
        ends = around.along(name, np.array([-basin, basin]))
        assert ends.max() >= level * (1 - 1e-9)
        inside = basin * np.linspace(-0.999, 0.999, 41)
        assert around.along(name, inside).max() < level


def test_where_the_state_diverges_the_loss_does() -> None:
    around = Landscape(TARGET, "polar")
    losses = around.along("nu", np.array([0.049, 0.05, 0.06]))
    assert np.isfinite(losses[0])
    assert np.all(np.isinf(losses[1:]))
    bounded = Landscape(TARGET, "polar", horizon=50).along("nu", np.array([0.05, 0.06]))
    assert np.all(np.isfinite(bounded))


def test_the_gain_keeps_a_state_of_unit_variance() -> None:
    """γ = √(1-|λ|²): a student on the other side of the circle has the loss of two unrelated."""
    logs = np.array([complex(np.log(0.999), np.pi)])
    target = complex(np.log(0.999), 0.0)
    gains = normalizing_log_gain(np.append(logs, target))
    found = loss(logs, gains[:1], target, complex(gains[1]))
    assert found[0] == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize(("parametrization", "gain"), VIEWS)
@pytest.mark.parametrize(("horizon", "readout"), [(None, "last"), (20, "last"), (20, "every")])
def test_the_gradient_at_a_start_is_the_slope_of_the_loss(
    parametrization: str, gain: str, horizon: int | None, readout: Readout
) -> None:
    """Any move of the eigenvalue changes the loss by the gradient times the parameters' moves."""
    around = Landscape(TARGET, parametrization, gain, MIXTURE, horizon, readout)
    silent = 0.5 * moments(np.array([TARGET]), MIXTURE, horizon, readout).second_moment[0]
    if gain != "none":
        silent *= 1 - np.exp(2 * TARGET.real)
    start = complex(np.log(0.9), 1.1)
    gradient = around.slope(start).gradient
    for move in (1e-5, 1e-5j, 1e-5 - 2e-5j):
        before, after = around.slope(start - move), around.slope(start + move)
        along = sum(
            gradient[name] * (after.values[name] - before.values[name]) for name in gradient
        )
        assert along == pytest.approx(silent * (after.loss - before.loss), rel=1e-6)


def test_autodiff_has_the_same_gradient_at_a_start() -> None:
    """Of each parameter alone, from JAX on the formula that [Z] prints for white noise."""

    def of(w: jax.Array) -> jax.Array:
        logs = jnp.stack([-jnp.exp(w[0]) + 1j * jnp.exp(w[1]), jnp.asarray(TARGET)])
        return printed(logs, jnp.stack([jnp.exp(w[2]), jnp.sqrt(1 - jnp.exp(2 * TARGET.real))]))

    slope = Landscape(TARGET, "lru", "own").slope(complex(np.log(0.9), 1.1))
    with jax.enable_x64(True):
        wanted = np.asarray(jax.jit(jax.grad(of))(jnp.array(list(slope.values.values()))))
    np.testing.assert_allclose(list(slope.gradient.values()), wanted, rtol=1e-10)
    assert slope.loss == pytest.approx(1.64, abs=0.4)


def without_gain(log: complex, target: complex) -> float:
    return float(printed(np.array([log, target]), np.ones(2)))


@pytest.fixture(scope="module")
def one_dimensional(paper: Path) -> dict[str, Any]:
    return json.loads((paper / "one_dimensional.json").read_text())


def test_the_loss_over_the_angle(one_dimensional: dict[str, Any]) -> None:
    for modulus, angle, expected in one_dimensional["loss_theta"]:
        target = complex(np.log(modulus))
        found = without_gain(target + 1j * angle, target)
        assert found == pytest.approx(expected, rel=1e-11)
        relative = Landscape(target, "polar").along("theta", np.array([angle]))[0]
        assert 0.5 / (1 - modulus**2) * relative == pytest.approx(expected, rel=1e-11)


def test_the_authors_closed_form_of_the_sensitivity(one_dimensional: dict[str, Any]) -> None:
    """The code has 1-ρ² where the paper prints 1-ρ."""
    for rho, eigenvalue, coded, exact in one_dimensional["dh_dlamb"]:
        assert coded == pytest.approx(exact, rel=1e-9), (rho, eigenvalue)


@pytest.mark.parametrize(
    ("parametrization", "normalization", "parameter", "key", "share"),
    [
        # The authors' loss without a gain has a ½ more.
        ("polar", "none", "nu", "nogamma_nu", 0.5),
        ("polar", "coupled", "nu", "gamma_nu", 1),
        ("lru", "coupled", "nu_log", "gamma_exp_nu", 1),
        ("optimal", "coupled", "omega_nu", "gamma_tanh_nu", 1),
        ("polar", "coupled", "theta", "gamma_polar_theta", 1),
        ("optimal", "coupled", "omega_theta", "gamma_tanh_theta", 1),
    ],
)
def test_curvatures_at_the_optimum(
    one_dimensional: dict[str, Any],
    parametrization: str,
    normalization: str,
    parameter: str,
    key: str,
    share: float,
) -> None:
    for row in one_dimensional["hessian_at_opt"]:
        logs = np.array([complex(np.log(row["lam"]))])
        found = parametrize(logs, parametrization, normalization)
        moved = found.derivatives[parameter]
        curvature = parameter_sensitivity(
            moments(logs, WHITE), found.log_gain, moved.eigenvalue, moved.log_gain
        )[0]
        assert share * curvature == pytest.approx(row[key], rel=1e-9)


def test_equations_74_and_81_are_the_curvatures_of_the_loss() -> None:
    """With γ = √(1-ν²): 1/(1-ν²)² along ν and ν²(1+ν²)/(1-ν²)² along θ, by autodiff."""
    nu, theta = 0.9, 0.4

    def of(w: jax.Array) -> jax.Array:
        logs = jnp.stack([jnp.log(w[0]) + 1j * w[1], jnp.log(nu) + 1j * theta])
        return printed(logs, jnp.sqrt(1 - jnp.exp(2 * logs.real)))

    with jax.enable_x64(True):
        hessian = np.asarray(jax.jit(jax.hessian(of))(jnp.array([nu, theta])))
    remaining = 1 - nu**2
    wanted = np.diag([1, nu**2 * (1 + nu**2)]) / remaining**2
    np.testing.assert_allclose(hessian, wanted, atol=1e-9 * wanted.max())
    logs = np.array([complex(np.log(nu), theta)])
    polar = parametrize(logs, "polar", "coupled")
    for name, curvature in zip(("nu", "theta"), np.diag(wanted), strict=True):
        moved = polar.derivatives[name]
        found = parameter_sensitivity(
            moments(logs), polar.log_gain, moved.eigenvalue, moved.log_gain
        )
        assert found[0] == pytest.approx(curvature, rel=1e-12)


def turned(name: str, nu: float, raw: float) -> float:
    """θ of the three ways to parametrise it in figure 7."""
    if name.startswith("exp("):
        return raw
    if name == "exp_exp":
        return float(np.exp(raw))
    return raw * (1 - nu**2) / (nu * np.sqrt(1 + nu**2))


def test_the_losses_along_the_trajectories_of_figure_7(paper: Path) -> None:
    """The target is 0.99 e^(iπ/100); single precision knows 1-|λ|² to 6e-6, the loss to 3e-4."""
    target = complex(np.log(0.99), np.pi / 100)
    for name, run in json.loads((paper / "learn_theta.json").read_text()).items():
        for (step, expected), (same_step, (raw_nu, raw_theta)) in zip(
            run["losses"], run["v"], strict=True
        ):
            assert step == same_step
            nu = float(np.tanh(raw_nu))
            log = complex(np.log(nu), turned(name, nu, raw_theta))
            assert without_gain(log, target) == pytest.approx(expected, rel=1e-4, abs=5e-4)
            if name.startswith("scaled"):
                found = coordinates(np.array([log]), "optimal")
                assert found["omega_nu"][0] == pytest.approx(raw_nu, rel=1e-9)
                assert found["omega_theta"][0] == pytest.approx(raw_theta, rel=1e-9)


@pytest.mark.parametrize(("inner", "outer"), [(0.0, 0.9), (0.5, 0.99), (0.9, 0.9999)])
def test_the_blow_up_of_a_ring(inner: float, outer: float) -> None:
    """Orvieto et al. 2023, prop. 3: E‖x‖²/E‖Bu‖², the eigenvalues uniform by area on a ring."""

    def second_moment(squared: float) -> float:
        return float(moments(np.array([0.5 * np.log(squared) + 0.3j])).second_moment[0])

    area = outer**2 - inner**2
    found = quad(second_moment, inner**2, outer**2, epsrel=1e-10, limit=200)[0] / area
    wanted = np.log((1 - inner**2) / (1 - outer**2)) / area
    assert found == pytest.approx(wanted, rel=1e-8)
