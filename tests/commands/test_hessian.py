"""`memcurse hessian`: what a user types, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from end_to_end.command import process

from memcurse_cli.__main__ import run

SAMPLES = Path(__file__).parents[2] / "sample_checkpoints"
SAMPLE = str(SAMPLES / "lru.safetensors")


def test_options_reach_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--horizon", "50", "--readout", "last", "--rho", "0.5", "--layer", "l*", "--json"]
    assert run(["hessian", SAMPLE, *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["input"] == {
        "autocorrelation": [[1.0, 0.5]],
        "horizon": 50,
        "horizon_source": "option",
        "readout": "last",
    }


def test_a_matplotlibrc_of_the_working_directory_runs_no_latex(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nbackend: module://none\n")
    done = process("hessian", SAMPLE, "--plot", "figure.svg", "--quiet", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "figure.svg").is_file()
