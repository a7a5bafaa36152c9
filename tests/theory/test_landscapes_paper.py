"""The one-dimensional losses of figures 1, 6 and 7, as the authors' own code computed them.

``L = ½ [ f(λ,λ̄) γ² + f(λ*,λ̄*) γ*² - 2 Re γ γ* f(λ,λ̄*) ]`` for white noise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memcurse_cli.theory.autocorrelation.mixture import WHITE
from memcurse_cli.theory.moments.moments import bilinear, moments
from memcurse_cli.theory.parametrization import coordinates, parametrize
from memcurse_cli.theory.sensitivity import parameter_sensitivity


def loss(logs: Any, gains: Any) -> Any:
    """Of the first eigenvalue, the second being the target."""
    f = bilinear(logs[:, None], logs.conj()[None, :], 0.0).value * gains[:, None] * gains
    return 0.5 * (f[0, 0] + f[1, 1] - 2 * f[0, 1]).real


def without_gain(log: complex, target: complex) -> float:
    return float(loss(np.array([log, target]), np.ones(2)))


@pytest.fixture(scope="module")
def one_dimensional(paper: Path) -> dict[str, Any]:
    return json.loads((paper / "one_dimensional.json").read_text())


def test_the_loss_over_the_angle(one_dimensional: dict[str, Any]) -> None:
    for modulus, angle, expected in one_dimensional["loss_theta"]:
        found = without_gain(complex(np.log(modulus), angle), complex(np.log(modulus)))
        assert found == pytest.approx(expected, rel=1e-11)


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
        return loss(logs, jnp.sqrt(1 - jnp.exp(2 * logs.real)))

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
