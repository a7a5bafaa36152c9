"""κ(λ) of every eigenvalue, and the curves behind them."""

from __future__ import annotations

import numpy as np
import pytest

from memcurse_cli import inspect
from memcurse_cli.diagnosis.diagnose import sensitivity_curves
from memcurse_cli.diagnosis.settings import Settings

HORIZON = 50


def summed(modulus: float, horizon: int) -> float:
    """E|s|²/E|h|² at the last step under white noise, impulse by impulse."""
    lags = np.arange(horizon)
    slopes = lags * modulus ** np.maximum(lags - 1.0, 0)
    return float(np.sum(slopes**2) / np.sum(modulus ** (2.0 * lags)))


def test_every_value_has_its_relative_sensitivity() -> None:
    state = {"A": np.diag([0.0, 0.5, 0.99]), "B": np.eye(3), "C": np.eye(3)}
    (layer,) = inspect(state, horizon=HORIZON, values=True).layers
    values, found = layer.eigenvalues.values, layer.eigenvalues.relative_sensitivities
    assert values is not None
    assert found is not None
    for (real, imag), kappa in zip(values, found, strict=True):
        assert kappa == pytest.approx(summed(abs(complex(real, imag)), HORIZON), rel=1e-10)
    unstable = {"A": np.diag([0.5, 1.0]), "B": np.eye(2), "C": np.eye(2)}
    (layer,) = inspect(unstable, values=True).layers
    assert layer.eigenvalues.relative_sensitivities == (pytest.approx(5 / 3 / 0.75), None)


def test_the_curves_are_those_of_the_horizon_and_of_an_infinite_sequence() -> None:
    finite, endless = sensitivity_curves(Settings(horizon=HORIZON))
    assert (finite.horizon, endless.horizon) == (HORIZON, None)
    for constant, at_horizon, at_infinity in zip(
        finite.time_constant, finite.relative_sensitivity, endless.relative_sensitivity, strict=True
    ):
        modulus = np.exp(-1 / constant)
        assert at_horizon == pytest.approx(summed(modulus, HORIZON), rel=1e-9)
        squared = modulus**2
        assert at_infinity == pytest.approx((1 + squared) / (1 - squared) ** 2, rel=1e-8)
    assert len(sensitivity_curves(Settings())) == 1
    report = inspect({"A": np.eye(2) / 2, "B": np.eye(2), "C": np.eye(2)})  # without values
    assert report.curves == ()
    assert report.layers[0].eigenvalues.relative_sensitivities is None
