from __future__ import annotations

import numpy as np
import pytest

import memcurse_cli
from memcurse_cli.diagnosis.wording import percent
from memcurse_cli.schema.json_codec import from_json, to_json
from memcurse_cli.schema.report import Finding, LayerReport

EIGHT = ("int8", "float8_e4m3fn", "float8_e5m2")


def lru(decay: float, dtype: type = np.float32) -> LayerReport:
    tensors = {
        "nu_log": np.full(4, np.log(decay), dtype),
        "theta_log": np.full(4, np.log(1e-3), dtype),
        "gamma_log": np.zeros(4, dtype),
    }
    (layer,) = memcurse_cli.inspect(tensors).layers
    return layer


def found(layer: LayerReport, code: str) -> list[Finding]:
    return [finding for finding in layer.findings if finding.code == code]


def test_one_finding_names_all_groups_that_8_bits_are_too_few_for() -> None:
    (finding,) = found(lru(0.01), "MC404")
    assert finding.severity == "info"
    assert "nu_log" in finding.message
    assert "float8_e5m2 is too coarse for nu_log: " in finding.message
    assert "int8" not in finding.message  # it changes the state by 0 %
    assert "gamma_log" not in finding.message  # 0 is a number of every type
    assert finding.advice == "keep nu_log in 16 bits or more, or in int8 or float8_e4m3fn"


def test_a_group_that_16_bits_are_too_few_for_is_named_once() -> None:
    layer = lru(1e-6)
    (finding,) = found(layer, "MC402") + found(layer, "MC403")
    assert "theta_log" in finding.message
    assert "keep theta_log in float32" in finding.advice
    assert not any("theta_log" in other.message for other in found(layer, "MC404"))


def test_a_value_beyond_a_type_overflows() -> None:
    """S4D's Im A grows with the state: float8_e4m3fn ends at 448."""
    state = np.arange(8)
    (layer,) = memcurse_cli.inspect(
        {
            "kernel.log_dt": np.full(2, np.log(1e-3)),
            "kernel.log_A_real": np.full((2, 8), np.log(500.0)),
            "kernel.A_imag": np.tile(100.0 * state, (2, 1)),
            "kernel.C": np.ones((1, 2, 8, 2)),
        }
    ).layers
    imaginary = next(group for group in layer.parameters if group.name == "A_imag")
    assert imaginary.rounding.float8_e4m3fn is None
    assert imaginary.rounding.float8_e5m2 is not None
    assert "float8_e4m3fn overflows" in found(layer, "MC404")[0].message


def test_a_report_from_before_the_8_bit_types_is_still_read() -> None:
    report = memcurse_cli.inspect({"nu_log": np.zeros(2), "theta_log": np.zeros(2)})
    document = to_json(report)
    for parameter in document["layers"][0]["parameters"]:
        for dtype in EIGHT:
            del parameter["rounding"][dtype]
    (layer,) = from_json(document).layers
    assert layer.parameters[0].rounding.int8 is None
    assert layer.parameters[0].rounding.float32 == pytest.approx(
        report.layers[0].parameters[0].rounding.float32
    )


def shared_bias(units: int = 40) -> dict[str, np.ndarray]:
    """An LSTM of PyTorch's whose cell candidate has a far larger bias than its forget gate."""
    random = np.random.default_rng(0)
    bias = np.zeros(4 * units)
    bias[units : 2 * units] = random.uniform(3, 6, units)
    bias[2 * units : 3 * units] = 60.0
    return {
        "lstm.weight_ih_l0": random.normal(size=(4 * units, 3)),
        "lstm.weight_hh_l0": 0.01 * random.normal(size=(4 * units, units)),
        "lstm.bias_ih_l0": bias,
        "lstm.bias_hh_l0": np.zeros(4 * units),
    }


def test_the_scale_of_int8_is_that_of_the_whole_tensor_and_of_the_gate_by_itself() -> None:
    tensors = shared_bias()
    (layer,) = memcurse_cli.inspect(tensors).layers
    (forget,) = (one for one in layer.parameters if one.name == "bias_ih[forget]")
    bias = tensors["lstm.bias_ih_l0"]
    rows = slice(40, 80)

    def change(scale: float) -> float:
        """The p99 over units of √(E|c' - c|² / E|c|²), of impulse responses."""
        lags = np.arange(20_000)[:, None]
        before, after = (
            (1 / (1 + np.exp(-values[rows]))) ** lags
            for values in (bias, np.rint(bias / scale) * scale)
        )
        moved = np.sum((after - before) ** 2, axis=0) / np.sum(before**2, axis=0)
        return float(np.quantile(np.sqrt(moved), 0.99))

    whole, alone = change(60 / 127), change(np.abs(bias[rows]).max() / 127)
    assert whole > 5 * alone
    assert forget.rounding.int8 == pytest.approx(whole, rel=0.01)
    assert forget.int8_own_scale == pytest.approx(alone, rel=0.01)
    (finding,) = found(layer, "MC404")
    told = f"{percent(whole)} in int8 with one scale per tensor ({percent(alone)} with one per"
    assert told in finding.message


def test_a_matrix_within_a_larger_tensor_has_its_scale() -> None:
    """TensorFlow's kernel has the rows of the input above those of the state."""
    matrix = 0.9 * np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    kernel = np.concatenate([np.full((2, 6), 20.0), matrix])
    tensors = {"rnn/basic_rnn_cell/kernel": kernel, "rnn/basic_rnn_cell/bias": np.zeros(6)}
    (group,) = memcurse_cli.inspect(tensors, horizon=50).layers[0].parameters
    assert group.rounding.int8 is not None
    assert group.int8_own_scale is not None
    assert group.rounding.int8 > 5 * group.int8_own_scale
