"""The loss around one eigenvalue: explicit sums, autodiff, the authors' own numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory.brute_force import covariance

from memcurse_cli.theory.autocorrelation import WHITE, Autocorrelation
from memcurse_cli.theory.moments import Readout, moments
from memcurse_cli.theory.parametrization import Landscape, parametrize
from memcurse_cli.theory.sensitivity import parameter_sensitivity

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
    log: complex, gain: complex, autocorrelation: Autocorrelation, steps: int, *, every: bool
) -> float:
    """E|h - h*|² / E|h*|² at the last step or over every one, from all pairs of lags."""
    lags = np.arange(steps)
    ours, theirs = gain * np.exp(log * lags), np.exp(TARGET * lags)
    seen = covariance(autocorrelation, steps, every=every)
    left, right = ((of.conj() @ seen @ of).real for of in (ours - theirs, theirs))
    return float(left / right)


@pytest.mark.parametrize("autocorrelation", [WHITE, MIXTURE, Autocorrelation.from_rho(1.0)])
@pytest.mark.parametrize("horizon", [None, 7, 60])
@pytest.mark.parametrize("log", [complex(np.log(0.9), 0.1), complex(np.log(0.95), 0.41), TARGET])
def test_the_loss_is_the_explicit_sum(
    log: complex, horizon: int | None, autocorrelation: Autocorrelation
) -> None:
    for gain in (1.0, 0.7 * np.exp(0.3j)):
        student = np.array([log]), np.log(np.array([gain + 0j]))
        for readout in ("last", "every") if horizon == 7 else ("last",):
            around = Landscape(TARGET, "polar", "none", autocorrelation, horizon, readout)
            every = readout == "every"
            wanted = explicit(log, gain, autocorrelation, horizon or 900, every=every)
            assert around.losses(*student)[0] == pytest.approx(wanted, rel=1e-10, abs=1e-13)


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
        moment = moments(logs, autocorrelation)
        each = parameter_sensitivity(moment, found.log_gain, moved.eigenvalue, moved.log_gain)
        kappa = each.relative_sensitivity[0]
        step = 3e-4 / np.sqrt(kappa)
        lower, upper = around.along(name, np.array([-step, step]))
        assert 0.5 * (lower + upper) / step**2 == pytest.approx(kappa, rel=1e-5)
        assert around.along(name, np.zeros(1))[0] < 1e-13


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


def test_the_authors_loss_over_the_angle(paper: Path) -> None:
    rows = json.loads((paper / "one_dimensional.json").read_text())["loss_theta"]
    for modulus, angle, expected in rows:
        target = complex(np.log(modulus))
        relative = Landscape(target, "polar").along("theta", np.array([angle]))[0]
        assert 0.5 / (1 - modulus**2) * relative == pytest.approx(expected, rel=1e-11)
