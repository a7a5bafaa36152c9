"""`memcurse hessian`: what a user types, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from end_to_end.calls import SAMPLE
from end_to_end.command import memcurse, process


def test_options_reach_the_report() -> None:
    options = "--horizon 50 --readout last --rho 0.5 --layer l* --json"
    assert json.loads(memcurse("hessian", SAMPLE, *options.split()).stdout)["input"] == {
        "autocorrelation": [{"weight": 1.0, "rho": 0.5}],
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
