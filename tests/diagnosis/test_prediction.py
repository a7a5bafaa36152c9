from __future__ import annotations

import math

import numpy as np
import pytest

from memcurse_cli import predict
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.json_codec import to_json
from memcurse_cli.theory.autocorrelation import Autocorrelation


def test_the_grid_goes_from_no_memory_to_a_million_steps_and_beyond_within_a_horizon() -> None:
    rows = predict(rho=0.5).rows
    assert (rows[0].modulus, rows[-1].modulus) == (0, 1 - 1e-6)
    gaps = 1 - np.array([row.modulus for row in rows])
    np.testing.assert_allclose(gaps[1:] / gaps[:-1], 10**-0.5, rtol=1e-9)
    (row,) = predict(modulus=1.0, horizon=100).rows
    assert row.time_constant is None
    assert row.second_moment == pytest.approx(100)
    assert row.sensitivity == pytest.approx(99 * 100 * 199 / 6)


@pytest.mark.parametrize("tau", [1.0, 1e15])
def test_a_time_constant_keeps_its_digits_however_large(tau: float) -> None:
    (row,) = predict(time_constant=tau, rho=0.0).rows
    assert row.time_constant == tau
    assert row.second_moment == pytest.approx(-1 / math.expm1(-2 / tau), rel=1e-14)
    sensitivity = (1 + math.exp(-2 / tau)) / -(math.expm1(-2 / tau) ** 3)
    assert row.sensitivity == pytest.approx(sensitivity, rel=1e-14)


def test_the_gain_scales_the_state_and_cancels_from_what_is_relative() -> None:
    plain, scaled = (
        predict(modulus=0.9, parametrization="lru", angle=0.5, normalization=gain).rows[0]
        for gain in ("none", "lru")
    )
    assert scaled.second_moment == pytest.approx(0.19 * plain.second_moment, rel=1e-14)
    for name, found in plain.parameters.items():
        other = scaled.parameters[name]
        assert other.relative_sensitivity == found.relative_sensitivity
        assert other.sensitivity == pytest.approx(0.19 * found.sensitivity, rel=1e-14)


def test_a_mixture_has_no_single_rho() -> None:
    text = "0.332:0,0.044:0.997"
    prediction = predict(autocorrelation=text, modulus=0.99)
    assert prediction == predict(autocorrelation=Autocorrelation.parse(text), modulus=0.99)
    assert prediction.rows[0].rho is None
    assert [*map(tuple, prediction.settings.autocorrelation)] == [(0.332, 0.0), (0.044, 0.997)]
    parts = predict(rho=[0.0, 0.997], modulus=0.99).rows
    expected = 0.332 * parts[0].sensitivity + 0.044 * parts[1].sensitivity
    assert prediction.rows[0].sensitivity == pytest.approx(expected, rel=1e-14)
    assert predict(autocorrelation="1:0.4", modulus=0.5) == predict(rho=0.4, modulus=0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rho": math.nan}, r"rho = nan is outside \[0, 1\]"),
        ({"rho": 0.5, "autocorrelation": "1:0"}, "rho: given beside an autocorrelation"),
        ({"time_constant": math.inf}, "time-constant: inf is not a finite number"),
        ({"modulus": 0.5, "time_constant": 1.0}, "time-constant: given beside a modulus"),
        ({"angle": math.inf}, "angle is not finite"),
        ({"horizon": 0}, "a horizon of 0 steps is too short"),
        ({"modulus": 1.0, "parametrization": "lru"}, r"lru cannot reach \|λ\| ≥ 1"),
        ({"parametrization": "s4", "step_size": 0.0}, "step size"),
        ({"ring": "a:b"}, "MIN:MAX"),
        ({"ring": "0.9:0.5", "modulus": 0.5}, "smaller radius first"),
        ({"ring": "nan:0.5", "modulus": 0.5}, "no ring"),
        ({"ring": (0.9, 1.0)}, "--horizon"),
        ({"ring": (0.9, 1.1), "horizon": 9, "normalization": "coupled", "modulus": 0.5}, "below 1"),
        ({"ring": (0, 0.9), "normalization": "gru", "parametrization": "sigmoid-gate"}, "angles"),
    ],
)
def test_what_has_no_meaning_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        predict(**arguments)


def test_the_radii_are_the_moduli_where_no_others_are_given() -> None:
    found = predict(ring="0.9:0.999", rho=0.5)
    assert [row.modulus for row in found.rows] == [0.9, 0.999]
    assert found.ring == predict(ring=(0.9, 0.999), time_constant=10.0).ring
    assert [row.modulus for row in predict(ring=(0.9, 0.999), modulus=0.5).rows] == [0.5]
    assert to_json(found)["ring"]["second_moment"] == pytest.approx(
        np.log(0.19 / (1 - 0.999**2)) / (0.999**2 - 0.81)
    )
    mixed = predict(ring=(0, 0.9), autocorrelation="0.5:0.9,1.5:0").ring
    assert mixed.second_moment == pytest.approx(2 * predict(ring=(0, 0.9)).ring.second_moment)
