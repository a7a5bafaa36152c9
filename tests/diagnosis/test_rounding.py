"""Stored numbers rounded for real, and states simulated, against what is said of each type."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from diagnosis.build import codes, finding, only
from families.test_rounding_simulation import store_as
from theory.matrices import random
from theory.test_rounding import TYPES

import memcurse_cli
from memcurse_cli.diagnosis import dense as matrix_rounding
from memcurse_cli.schema.json_codec import from_json, to_json
from memcurse_cli.wording import percent


def chain() -> np.ndarray:
    """Far from normal, of two values and zeros: equal errors add up along the diagonal."""
    return np.diag(np.full(32, 0.7)) + np.diag(np.full(31, 0.5), 1)


def full() -> np.ndarray:
    return random(24, 0.9, 2)


def layer(matrix: np.ndarray, **options: object) -> Any:
    one = np.eye(len(matrix))
    return only({"A": matrix, "B": one, "C": one}, **{"horizon": math.inf} | options)


def simulated(matrix: np.ndarray, stored: np.ndarray, gain: float = 1.0) -> float:
    """The relative error of the state of a white input over 4000 steps."""
    random, size = np.random.default_rng(3), len(matrix)
    state, moved = np.zeros(size), np.zeros(size)
    power = difference = 0.0
    for step in range(4000):
        x = gain * random.normal(size=size)
        state, moved = matrix @ state + x, stored @ moved + x
        if step >= 200:
            power += state @ state
            difference += (moved - state) @ (moved - state)
    return float(np.sqrt(difference / power))


@pytest.mark.parametrize(("make", "dtype"), [(chain, "bfloat16"), (chain, "int8"), (full, "int8")])
def test_a_matrix_with_structure_moves_its_state_as_predicted(make: Any, dtype: str) -> None:
    matrix = make()
    predicted = getattr(layer(matrix).parameters[0].rounding, dtype)
    assert predicted == pytest.approx(simulated(matrix, store_as(matrix, dtype)), rel=0.15)


def test_of_more_units_it_is_the_first_order_of_the_impulse_responses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matrix_rounding, "EXACT", 0)
    matrix, steps = chain(), 40
    (group,) = layer(matrix, horizon=steps, readout="every").parameters
    change = store_as(matrix, "bfloat16") - matrix
    powers = [np.linalg.matrix_power(matrix, lag) for lag in range(steps)]
    moved = power = 0.0
    for k in range(steps):
        response = sum(powers[m] @ change @ powers[k - 1 - m] for m in range(k))
        moved += (steps - k) / steps * np.sum(np.square(response))
        power += (steps - k) / steps * np.sum(powers[k] ** 2)
    assert group.rounding.bfloat16 == pytest.approx(float(np.sqrt(moved / power)), rel=1e-8)


def test_what_a_type_holds_exactly_costs_nothing_but_for_the_type_it_is_stored_in() -> None:
    rounding = layer(np.diag([0.5, 0.25, 0.75])).parameters[0].rounding
    assert rounding.int8 > 0
    assert {rounding.bfloat16, rounding.float16, rounding.float32} == {0.0}
    single = layer(full().astype(np.float32)).parameters[0].rounding
    # What the matrix was before is not known: the errors of 24 bits are 2^-16 times those of 8.
    assert 0 < single.float32 == pytest.approx(single.bfloat16 / 2**16, rel=0.5)


def test_a_leaky_layer_is_rounded_in_the_matrix_that_is_stored() -> None:
    """A = (1 - α) I + α W: rounding moves A by α δW."""
    weight, leak, one = 0.5 * full(), 0.25, np.eye(24)
    tensors = {"wrec": weight, "wi": one, "wo": one, "si": np.ones(24)}
    found = only(tensors, family="leaky_rnn", assume={"alpha": str(leak)}, horizon=math.inf)
    before = (1 - leak) * one + leak * weight
    after = (1 - leak) * one + leak * store_as(weight, "bfloat16")
    measured = simulated(before, after, leak)
    assert found.parameters[0].rounding.bfloat16 == pytest.approx(measured, rel=0.15)


def test_a_value_that_rounds_to_the_unit_circle_makes_the_state_diverge() -> None:
    """0.999 is 1.0 in bfloat16."""
    state = {"A_re": np.array([0.999, 0.5], np.float32), "A_im": np.zeros(2, np.float32)}
    found = only(state, horizon=math.inf)
    assert found.parameters[0].rounding.bfloat16 is None
    assert found.parameters[0].rounding.float16 is not None
    told = finding(found, "MC401")
    assert told.severity == "warning"
    assert "takes 1 of 2 eigenvalues to |λ| >= 1" in told.message
    assert "diverges" in told.message
    finite = only(state, horizon=300)
    assert finite.parameters[0].rounding.bfloat16 is not None
    assert finding(finite, "MC401").severity == "warning"
    assert "within 300 steps" in finding(finite, "MC401").message


@pytest.mark.parametrize("steps", [300, 5_000])
def test_the_change_past_the_unit_circle_is_the_real_one(steps: int) -> None:
    """0.9995 is 1.0 in bfloat16, where first order stands still at 1/√2."""
    modulus = float(np.float32(0.9995))
    lags = np.arange(steps)
    real = np.sqrt(np.sum((1 - modulus**lags) ** 2) / np.sum(modulus ** (2 * lags)))
    stored = np.full(2, 0.9995, np.float32)
    found = only({"A_re": stored, "A_im": np.zeros(2, np.float32)}, horizon=steps)
    assert found.parameters[0].rounding.bfloat16 == pytest.approx(real, rel=1e-9)
    assert f"changes the state by {percent(real)} within" in finding(found, "MC401").message
    dense = layer(np.diag(stored), horizon=steps)
    assert dense.parameters[0].rounding.bfloat16 == pytest.approx(real, rel=1e-6)


def test_a_large_change_that_is_known_to_first_order_has_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def message() -> str:
        return finding(layer(np.diag(np.full(3, 0.9995)), horizon=10_000), "MC401").message

    assert "changes the state by 265 %" in message()
    monkeypatch.setattr(matrix_rounding, "EXACT", 0)  # as between 256 and 512 units
    assert "changes the state by 265 %" in message()
    monkeypatch.setattr(matrix_rounding, "LARGEST", 0)
    assert "changes the state by more than 10 %" in message()


def test_a_dense_matrix_is_told_by_the_eigenvalues_of_the_rounded_one() -> None:
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(12, 12)))[0]
    matrix = turn @ np.diag(np.linspace(0.1, 0.9995, 12)) @ turn.T
    rounding = layer(matrix).parameters[0].rounding
    for dtype in (*TYPES, "int8"):
        crossing = np.abs(np.linalg.eigvals(store_as(matrix, dtype))).max() >= 1
        assert (getattr(rounding, dtype) is None) == crossing


def lru(decay: float, dtype: Any = np.float32) -> Any:
    each = {"nu_log": np.log(decay), "theta_log": np.log(1e-3), "gamma_log": 0.0}
    state = {name: np.full(4, value, np.float32) for name, value in each.items()}
    return only(state | {"nu_log": state["nu_log"].astype(dtype)}, horizon=math.inf)


def test_8_bits_are_told_of_where_a_group_is_stored_in_them() -> None:
    assert "MC404" not in codes(lru(0.01))  # nobody has quantised it
    told = finding(lru(0.01, ml_dtypes.float8_e4m3fn), "MC404")
    assert told.severity == "warning"
    assert told.message.startswith("having stored nu_log in float8_e4m3fn changes the state by 10")
    assert told.advice == "keep nu_log in 16 bits or more"
    tiny = lru(1e-6)
    told = finding(tiny, "MC402" if "MC402" in codes(tiny) else "MC403")
    assert "keep theta_log in float32" in told.advice
    assert not {"MC402", "MC403"} <= codes(tiny)


def test_a_value_beyond_a_type_overflows() -> None:
    """S4D's Im A grows with the state: float8_e4m3fn ends at 448."""
    found = only(
        {
            "kernel.log_dt": np.full(2, np.log(1e-3)),
            "kernel.log_A_real": np.full((2, 8), np.log(500.0)),
            "kernel.A_imag": np.tile(100.0 * np.arange(8), (2, 1)),
            "kernel.C": np.ones((1, 2, 8, 2)),
        },
        horizon=math.inf,
    )
    imaginary = next(group for group in found.parameters if group.name == "A_imag")
    assert imaginary.rounding.float8_e4m3fn is None
    assert imaginary.rounding.float8_e5m2 is not None
    assert "MC404" not in codes(found)


def test_a_report_from_before_the_8_bit_types_is_still_read() -> None:
    report = memcurse_cli.inspect({"nu_log": np.zeros(2), "theta_log": np.zeros(2)})
    document = to_json(report)
    for parameter in document["layers"][0]["parameters"]:
        for dtype in ("int8", "float8_e4m3fn", "float8_e5m2"):
            del parameter["rounding"][dtype]
    rounding = from_json(document).layers[0].parameters[0].rounding
    assert rounding.int8 is None
    assert rounding.float32 == report.layers[0].parameters[0].rounding.float32


def test_the_scale_of_int8_is_that_of_the_whole_tensor_and_of_the_gate_by_itself() -> None:
    """An LSTM of PyTorch's whose cell candidate has a far larger bias than its forget gate."""
    random = np.random.default_rng(0)
    bias = np.repeat([0.0, 0.0, 60.0, 0.0], 40)
    bias[40:80] = random.uniform(3, 6, 40)
    found = only(
        {
            "lstm.weight_ih_l0": random.normal(size=(160, 3)),
            "lstm.weight_hh_l0": 0.01 * random.normal(size=(160, 40)),
            "lstm.bias_ih_l0": bias,
            "lstm.bias_hh_l0": np.zeros(160),
        },
        horizon=math.inf,
    )
    (forget,) = (one for one in found.parameters if one.name == "bias_ih[forget]")

    def change(scale: float) -> float:
        """The p99 over units of √(E|c' - c|² / E|c|²), of impulse responses."""
        lags = np.arange(20_000)[:, None]
        before, after = (
            (1 / (1 + np.exp(-values[40:80]))) ** lags
            for values in (bias, np.rint(bias / scale) * scale)
        )
        moved = np.sum((after - before) ** 2, axis=0) / np.sum(before**2, axis=0)
        return float(np.quantile(np.sqrt(moved), 0.99))

    whole, alone = change(60 / 127), change(np.abs(bias[40:80]).max() / 127)
    assert whole > 5 * alone
    assert forget.rounding.int8 == pytest.approx(whole, rel=0.01)
    assert forget.int8_own_scale == pytest.approx(alone, rel=0.01)
    # TensorFlow's kernel has the rows of the input above those of the state.
    matrix = 0.9 * np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    kernel = np.concatenate([np.full((2, 6), 20.0), matrix])
    tensors = {"rnn/basic_rnn_cell/kernel": kernel, "rnn/basic_rnn_cell/bias": np.zeros(6)}
    (group,) = only(tensors, horizon=50).parameters
    assert group.rounding.int8 > 5 * group.int8_own_scale
