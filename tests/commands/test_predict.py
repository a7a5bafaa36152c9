"""`memcurse predict`: what a user types, and what comes back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from memcurse_cli.__main__ import run
from memcurse_cli.diagnosis.prediction import predict

ROW = {"rho", "modulus", "time_constant", "angle", "second_moment", "sensitivity", "parameters"}


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run(["predict", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} in the JSON")

    return json.loads(captured.out, parse_constant=refuse)


def test_json_has_the_fields_of_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--rho", "0.5", "--modulus", "0.9", "--angle", "0.2")
    assert found["schema"] == "memcurse.prediction/1"
    (row,) = found["rows"]
    assert set(row) == ROW
    (expected,) = predict(rho=0.5, modulus=0.9, angle=0.2).rows
    assert (row["rho"], row["modulus"], row["angle"]) == (0.5, 0.9, 0.2)
    assert row["sensitivity"] == expected.sensitivity
    assert set(row["parameters"]) == {"lambda_re", "lambda_im"}
    for found_parameter in row["parameters"].values():
        assert set(found_parameter) == {"sensitivity", "relative_sensitivity"}


def test_options_repeat_and_rows_follow_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--rho", "0.9", "--rho", "0", "--modulus", "0.99", "--modulus", "0.5")
    pairs = [(row["rho"], row["modulus"]) for row in found["rows"]]
    assert pairs == [(0.9, 0.99), (0.9, 0.5), (0, 0.99), (0, 0.5)]


def test_divergence_is_null_and_never_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--modulus", "1", "--modulus", "2", "--rho", "1")
    for row in found["rows"]:
        assert row["time_constant"] is row["second_moment"] is row["sensitivity"] is None
        for parameter in row["parameters"].values():
            assert parameter == {"sensitivity": None, "relative_sensitivity": None}


def test_time_constants_to_ten_to_the_fifteen(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys, "--time-constant", "1e15", "--parametrization", "lru", "--normalization", "lru"
    )
    (row,) = found["rows"]
    assert row["time_constant"] == 1e15
    assert row["second_moment"] == pytest.approx(1, rel=1e-14)
    assert row["parameters"]["nu_log"]["relative_sensitivity"] == pytest.approx(0.5, rel=1e-14)


def test_every_option_reaches_the_theory(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys,
        *("--autocorrelation", "0.332:0,0.044:0.997", "--modulus", "0.99", "--horizon", "300"),
        *("--readout", "every"),
        *("--parametrization", "s4", "--normalization", "zoh", "--step-size", "0.1"),
    )
    (expected,) = predict(
        autocorrelation="0.332:0,0.044:0.997",
        modulus=0.99,
        horizon=300,
        readout="every",
        parametrization="s4",
        normalization="zoh",
        step_size=0.1,
    ).rows
    (row,) = found["rows"]
    assert row["rho"] is None
    assert row["second_moment"] == expected.second_moment
    for name, parameter in expected.parameters.items():
        assert row["parameters"][name]["sensitivity"] == parameter.sensitivity
    assert found["settings"] == {
        "parametrization": "s4",
        "normalization": "zoh",
        "step_size": 0.1,
        "horizon": 300,
        "readout": "every",
        "autocorrelation": [{"weight": 0.332, "rho": 0.0}, {"weight": 0.044, "rho": 0.997}],
    }


def test_plain_prints_the_curve_and_what_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "--rho", "0.5"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b" not in captured.out
    assert max(map(len, captured.out.splitlines())) <= 80
    words = " ".join(captured.out.split())
    assert "R(Δ) = 0.5^|Δ|" in words
    assert "This is the curse of memory: one step replaces the state" in words


def test_output_is_written_whole_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "prediction.json"
    assert run(["predict", "--json", "--output", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert len(json.loads(target.read_text())["rows"]) == 13
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rho", "1.5"], "outside [0, 1]"),
        (["--rho", "x"], "--rho"),
        (["--autocorrelation", "0.5"], "write WEIGHT:RHO pairs"),
        (["--modulus", "-1"], "modulus: -1"),
        (["--time-constant", "-1"], "time-constant: -1"),
        (["--horizon", "0"], "--horizon"),
        (["--parametrization", "complex"], "choose one of real-imaginary, polar"),
        (["--normalization", "batch"], "choose one of none, lru, coupled, gru, zoh"),
        (["--normalization", "gru", "--angle", "1"], "leave the angle at 0"),
        (["--parametrization", "sigmoid-gate", "--modulus", "1"], "cannot reach"),
        (["--output", "absent/folder/file"], "cannot be written"),
        (["--bogus"], "--bogus"),
    ],
    ids=" ".join,
)
def test_bad_values_are_one_line_and_status_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_numbers_survive_the_trip_through_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--rho", "0.997")
    for row, expected in zip(found["rows"], predict(rho=0.997).rows, strict=True):
        assert row["sensitivity"] == expected.sensitivity
        assert math.isfinite(row["second_moment"])
