"""`memcurse predict`, `autocorrelation` and `hessian`: what a user types, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from end_to_end.calls import SAMPLE
from end_to_end.command import memcurse, process
from end_to_end.test_json_documents import strictly
from theory.sequences import PAPER, gaussian

from memcurse_cli.diagnosis.prediction import predict


def document(*arguments: str | Path) -> dict[str, Any]:
    done = memcurse("predict", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return strictly(done.stdout)


def test_divergence_is_null_and_never_a_number() -> None:
    for row in document("--modulus", "1", "--modulus", "2", "--rho", "1")["rows"]:
        assert row["time_constant"] is row["second_moment"] is row["sensitivity"] is None
        for parameter in row["parameters"].values():
            assert parameter == {"sensitivity": None, "relative_sensitivity": None}


def test_every_option_reaches_the_theory() -> None:
    found = document(
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


def test_options_of_an_autocorrelation_reach_it_and_its_json_is_an_input(tmp_path: Path) -> None:
    data, target = tmp_path / "x.npy", tmp_path / "input.json"
    np.save(data, gaussian(PAPER, (64, 256, 8), 0).astype(np.float32))
    options = ("--lags", "100", "--centred", "--estimator", "biased", "--padding", "0", "--json")
    done = memcurse("autocorrelation", data, *options, "--output", target)
    assert (done.returncode, done.stdout) == (0, "")
    found = json.loads(target.read_text())
    shape = {"sequences": 64, "steps": 256, "features": 8, "masked": 0}
    assert found["data"] == {"source": str(data), **shape}
    assert (found["estimator"], found["centred"]) == ("biased", True)
    assert found["empirical"]["lags"] == list(range(101))
    for state in found["states"]:
        for name in ("second_moment", "sensitivity"):
            assert state[f"fitted_{name}"] == pytest.approx(state[name], rel=0.1)
    assert (
        document("--autocorrelation", target)["settings"]["autocorrelation"]
        == (found["components"])
    )


def test_options_of_a_hessian_reach_it_and_a_matplotlibrc_runs_no_latex(tmp_path: Path) -> None:
    options = "--horizon 50 --readout last --rho 0.5 --layer l* --json"
    assert json.loads(memcurse("hessian", SAMPLE, *options.split()).stdout)["input"] == {
        "autocorrelation": [{"weight": 1.0, "rho": 0.5}],
        "horizon": 50,
        "horizon_source": "option",
        "readout": "last",
    }
    pytest.importorskip("matplotlib")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nbackend: module://none\n")
    done = process("hessian", SAMPLE, "--plot", "figure.svg", "--quiet", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "figure.svg").is_file()
