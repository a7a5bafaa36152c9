"""Golden pages of every command: what a change of the wording or of a table shows.

MEMCURSE_WRITE_GOLDEN=1 writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from end_to_end.command import ROOT, memcurse

GOLDEN = Path(__file__).parent / "golden"
LRU, GRU, DENSE = (
    f"sample_checkpoints/{name}.safetensors" for name in ("lru", "gru", "dense_linear_rnn")
)
STEP = "sample_checkpoints/run/step_{}.safetensors".format
ASKED = (
    "--full --explain --all --horizon 256 --rho 0.9 --spectra --gates --as lru --as s4 "
    "--normalize own"
)
LIMITS = "--max-step-effect 0.1 --max-unstable 0 --max-time-constant 100 --forbid MC2"
FAILING = f"check {LRU} {GRU} {LIMITS} --allow-missing --exit-zero"
PAGES = {
    "inspect_lru": f"inspect {LRU} {ASKED} --learning-rates",
    "inspect_gru": f"inspect {GRU} {ASKED} --learning-rates",
    "inspect_dense": f"inspect {DENSE} {ASKED}",
    "inspect_several": f"inspect {STEP(0)} {STEP(100)} {STEP(200)} {LRU}",
    "hessian": f"hessian {LRU} --horizon 100",
    "compare": f"compare {STEP(0)} {STEP(200)}",
    "compare_families": f"compare {LRU} {DENSE}",
    "track": "track sample_checkpoints/run --no-cache --jobs 1",
    "check": FAILING,
    "check_github": f"{FAILING} --format github",
    "check_junit": f"{FAILING} --format junit",
    "predict": "predict",
    "predict_inputs": "predict --plot --rho 0 --rho 0.9",
    "predict_lru": "predict --rho 0.5 --parametrization lru --normalization lru",
    "predict_s4": "predict --parametrization s4 --normalization zoh --angle 0.3 --angle 1",
    "predict_gates": "predict --parametrization sigmoid-gate --normalization gru",
    "predict_mixture": "predict --autocorrelation 0.3:0,0.7:0.99:0.2 --horizon 50 --readout every",
    "predict_ring": "predict --ring 0.9:0.999 --plot",
    "predict_unstable": "predict --modulus 1.1 --modulus 0.5",
    "landscape": "landscape --modulus 0.999 --angle 0.3 --from 0.9",
    "autocorrelation": "autocorrelation data.csv",
    "autocorrelation_cosine": "autocorrelation cosine.csv --centred",
    "rule": "rule MC204",
    "rules": "rule",
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_it_was(name: str, tmp_path: Path) -> None:
    random, steps = np.random.default_rng(0), np.arange(400)
    noise = random.standard_normal(400)
    np.savetxt(tmp_path / "data.csv", noise + np.cumsum(noise) / 10)
    np.savetxt(tmp_path / "cosine.csv", np.cos(0.3 * steps) + 0.1 * noise)
    folder = tmp_path if PAGES[name].startswith("autocorrelation") else ROOT
    result = memcurse(*PAGES[name].split(), folder=folder)
    assert (result.returncode, result.stderr) == (0, "")
    path = GOLDEN / f"{name}.txt"
    if "MEMCURSE_WRITE_GOLDEN" in os.environ:
        path.write_text(result.stdout, encoding="utf-8")
    assert result.stdout == path.read_text(encoding="utf-8")
