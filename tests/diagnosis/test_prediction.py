from __future__ import annotations

import math

import numpy as np
import pytest

from memcurse_cli.diagnosis.prediction import DEFAULT_MODULI, predict
from memcurse_cli.errors import UsageError
from memcurse_cli.theory.autocorrelation import Autocorrelation


def test_the_grid_goes_from_no_memory_to_a_million_steps() -> None:
    rows = predict(rho=0.5).rows
    assert [row.modulus for row in rows] == list(DEFAULT_MODULI)
    assert rows[0].modulus == 0
    assert rows[-1].modulus == 1 - 1e-6
    gaps = 1 - np.array(DEFAULT_MODULI)
    np.testing.assert_allclose(gaps[1:] / gaps[:-1], 10**-0.5, rtol=1e-9)
    for row in rows:
        assert set(row.parameters) == {"lambda_re", "lambda_im"}
        assert row.rho == 0.5
        for found in row.parameters.values():
            assert found.sensitivity == row.sensitivity
            assert found.relative_sensitivity is not None
            assert row.sensitivity is not None
            assert row.second_moment is not None
            relative = row.sensitivity / row.second_moment
            assert found.relative_sensitivity == pytest.approx(relative, rel=1e-14)


def test_no_memory_is_no_time_constant() -> None:
    (row,) = predict(modulus=0.0).rows
    assert (row.time_constant, row.second_moment, row.sensitivity) == (0, 1, 1)
    (same,) = predict(time_constant=0.0).rows
    assert same == row


@pytest.mark.parametrize("tau", [1.0, 1e6, 1e12, 1e15])
def test_a_time_constant_keeps_its_digits_however_large(tau: float) -> None:
    (row,) = predict(time_constant=tau, rho=0.0).rows
    assert row.time_constant == tau
    assert row.second_moment == pytest.approx(-1 / math.expm1(-2 / tau), rel=1e-14)
    sensitivity = (1 + math.exp(-2 / tau)) / -(math.expm1(-2 / tau) ** 3) * -1
    assert row.sensitivity == pytest.approx(abs(sensitivity), rel=1e-14)


def test_what_the_user_gave_comes_back_as_given() -> None:
    rows = predict(modulus=np.array([0.9, 0.3]), angle=[0.1, 2.0], rho=[0.25, 1.0]).rows
    assert [(row.rho, row.angle, row.modulus) for row in rows] == [
        (rho, angle, modulus)
        for rho in (0.25, 1.0)
        for angle in (0.1, 2.0)
        for modulus in (0.9, 0.3)
    ]


def test_a_modulus_of_one_is_divergent_and_not_an_error() -> None:
    for row in predict(modulus=[1.0, 1.5], rho=0.3).rows:
        assert row.time_constant is None
        assert row.second_moment is None
        assert row.sensitivity is None
        for found in row.parameters.values():
            assert (found.sensitivity, found.relative_sensitivity) == (None, None)
    (row,) = predict(modulus=1.0, horizon=100).rows
    assert row.time_constant is None
    assert row.second_moment == pytest.approx(100)
    assert row.sensitivity == pytest.approx(99 * 100 * 199 / 6)


def test_the_gain_scales_the_state_and_cancels_from_what_is_relative() -> None:
    plain = predict(modulus=0.9, parametrization="lru", angle=0.5)
    scaled = predict(modulus=0.9, parametrization="lru", angle=0.5, normalization="lru")
    assert scaled.rows[0].second_moment == pytest.approx(1, rel=1e-14)
    assert plain.rows[0].second_moment == pytest.approx(1 / 0.19, rel=1e-14)
    for name, found in plain.rows[0].parameters.items():
        other = scaled.rows[0].parameters[name]
        assert other.relative_sensitivity == found.relative_sensitivity
        assert found.sensitivity is not None
        assert other.sensitivity == pytest.approx(0.19 * found.sensitivity, rel=1e-14)


def test_a_mixture_has_no_single_rho() -> None:
    text = "0.332:0,0.044:0.997"
    prediction = predict(autocorrelation=text, modulus=0.99)
    assert prediction == predict(autocorrelation=Autocorrelation.parse(text), modulus=0.99)
    assert prediction.rows[0].rho is None
    assert prediction.autocorrelation == ((0.332, 0.0), (0.044, 0.997))
    parts = predict(rho=[0.0, 0.997], modulus=0.99).rows
    assert parts[0].sensitivity is not None
    assert parts[1].sensitivity is not None
    expected = 0.332 * parts[0].sensitivity + 0.044 * parts[1].sensitivity
    assert prediction.rows[0].sensitivity == pytest.approx(expected, rel=1e-14)
    assert predict(autocorrelation="1:0.4", modulus=0.5) == predict(rho=0.4, modulus=0.5)


def test_the_step_size_belongs_to_s4() -> None:
    assert predict(modulus=0.5).step_size is None
    fine, coarse = (
        predict(modulus=0.5, parametrization="s4", step_size=step) for step in (0.01, 0.1)
    )
    assert (fine.step_size, coarse.step_size) == (0.01, 0.1)
    before = fine.rows[0].parameters["A_imag"].sensitivity
    assert before is not None
    assert coarse.rows[0].parameters["A_imag"].sensitivity == pytest.approx(100 * before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rho": 1.5}, r"rho = 1.5 is outside \[0, 1\]"),
        ({"rho": math.nan}, r"rho = nan is outside"),
        ({"rho": 0.5, "autocorrelation": "1:0"}, "rho: given beside an autocorrelation"),
        ({"modulus": -0.5}, "modulus: -0.5 is not a finite number"),
        ({"modulus": math.inf}, "modulus: inf is not a finite number"),
        ({"time_constant": -1.0}, "time-constant: -1 is not a finite number"),
        ({"time_constant": math.nan}, "time-constant: nan is not a finite number"),
        ({"modulus": 0.5, "time_constant": 1.0}, "time-constant: given beside a modulus"),
        ({"angle": math.inf}, "angle is not finite"),
        ({"horizon": 0}, "a horizon of 0 steps is too short"),
        ({"parametrization": "cartesian"}, "choose one of real-imaginary, polar"),
        ({"normalization": "rms"}, "choose one of none, lru, coupled, gru, zoh"),
        ({"modulus": 1.0, "parametrization": "lru"}, r"lru cannot reach \|λ\| ≥ 1"),
        ({"parametrization": "s4", "step_size": 0.0}, "step size"),
    ],
)
def test_refuses_what_has_no_meaning(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        predict(**arguments)  # type: ignore[arg-type]  # what a caller without types would pass
