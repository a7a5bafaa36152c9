"""`memcurse predict` and `autocorrelation`: what a user types, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from theory.sequences import PAPER, gaussian

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


def test_divergence_is_null_and_never_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--modulus", "1", "--modulus", "2", "--rho", "1")
    for row in found["rows"]:
        assert row["time_constant"] is row["second_moment"] is row["sensitivity"] is None
        for parameter in row["parameters"].values():
            assert parameter == {"sensitivity": None, "relative_sensitivity": None}


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


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "x.npy"
    np.save(path, gaussian(PAPER, (64, 256, 8), 0).astype(np.float32))
    return str(path)


def test_json_goes_into_the_other_commands(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "input.json"
    options = ["--lags", "100", "--centred", "--estimator", "biased", "--padding", "0"]
    assert run(["autocorrelation", data, *options, "--json", "--output", str(target)]) == 0
    document = json.loads(target.read_text())
    assert document["schema"] == "memcurse.autocorrelation/1"
    assert document["data"] == {
        "source": data,
        "sequences": 64,
        "steps": 256,
        "features": 8,
        "masked": 0,
    }
    assert (document["estimator"], document["centred"]) == ("biased", True)
    assert document["empirical"]["lags"] == list(range(101))
    assert set(document["fit"]) == {"relative_rms", "relative_max", "worst_lag"}
    assert [state["time_constant"] for state in document["states"]] == [1, 10]
    for state in document["states"]:
        for name in ("second_moment", "sensitivity"):
            assert state[f"fitted_{name}"] == pytest.approx(state[name], rel=0.1)
    assert capsys.readouterr().out == ""
    assert run(["predict", "--autocorrelation", str(target), "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["autocorrelation"] == document["components"]
