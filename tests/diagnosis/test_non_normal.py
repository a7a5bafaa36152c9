"""What the commands make of matrices far from normal: one document, right or refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from end_to_end.command import memcurse
from numpy.typing import NDArray
from safetensors.numpy import save_file
from theory.non_normal import exact_powers, exact_sensitivity, far_from_normal

Floats = NDArray[np.float64]


def channels(size: int, inputs: int = 3, outputs: int = 2) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(5)
    return generator.normal(size=(size, inputs)), generator.normal(size=(outputs, size))


def saved(folder: Path, matrix: Floats, inputs: int = 3, outputs: int = 2) -> Path:
    path = folder / "layer.safetensors"
    readin, readout = channels(len(matrix), inputs, outputs)
    save_file({"A": matrix, "B": readin, "C": readout, "D": np.zeros((outputs, inputs))}, path)
    return path


@pytest.mark.parametrize("case", [(3, 0), (20, 0)], ids=str)
def test_standard_output_is_the_document_alone(case: tuple[float, int], tmp_path: Path) -> None:
    path = saved(tmp_path, far_from_normal(*case))
    for arguments in (["inspect"], ["inspect", "--horizon", "200"], ["hessian"]):
        result = memcurse(*arguments, path, "--json")
        assert result.returncode == 0
        assert result.stderr == ""
        json.loads(result.stdout)


def test_a_report_has_the_figures_of_the_stored_matrix(tmp_path: Path) -> None:
    matrix, powers = far_from_normal(4, 0), exact_powers(4, 0)
    path = saved(tmp_path, matrix)
    (layer,) = json.loads(memcurse("inspect", path, "--json").stdout)["layers"]
    dense, structure = layer["dense"], layer["dense"]["structure"]
    norms = np.linalg.norm(powers, 2, axis=(1, 2))
    assert 0.98 * norms.max() < structure["transient_growth"] < 1.01 * norms.max()
    assert norms.max() / (12 * np.e) < structure["kreiss_bound"] < norms.max()
    _, entries = exact_sensitivity(powers, channels(12)[0])
    assert dense["sensitivity"] == pytest.approx(entries.sum(), rel=0.01)
    assert 0.9 < dense["radius_within_rounding"] < 0.91
    (finding,) = (one for one in layer["findings"] if one["code"] == "MC303")
    assert "rounding it moves |λ| up to 0.902" in finding["message"]
