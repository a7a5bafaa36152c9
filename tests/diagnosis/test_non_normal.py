"""What the commands make of matrices far from normal: one document, right or refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from diagnosis.build import finding, only
from end_to_end.command import memcurse
from safetensors.numpy import save_file
from theory.non_normal import exact_powers, exact_sensitivity, far_from_normal


@pytest.mark.parametrize("radius", [3, 20])
def test_standard_output_is_the_document_alone(radius: float, tmp_path: Path) -> None:
    path, generator = tmp_path / "layer.safetensors", np.random.default_rng(5)
    readin, readout = generator.normal(size=(12, 3)), generator.normal(size=(2, 12))
    matrix = far_from_normal(radius, 0)
    save_file({"A": matrix, "B": readin, "C": readout, "D": np.zeros((2, 3))}, path)
    for arguments in (["inspect"], ["inspect", "--horizon", "200"], ["hessian"]):
        result = memcurse(*arguments, path, "--json")
        assert (result.returncode, result.stderr) == (0, "")
        json.loads(result.stdout)


def test_a_report_has_the_figures_of_the_stored_matrix() -> None:
    matrix, powers = far_from_normal(4, 0), exact_powers(4, 0)
    readin = np.random.default_rng(5).normal(size=(12, 3))
    layer = only({"A": matrix, "B": readin})
    norms = np.linalg.norm(powers, 2, axis=(1, 2))
    structure = layer.dense.structure
    assert 0.98 * norms.max() < structure.transient_growth < 1.01 * norms.max()
    assert norms.max() / (12 * np.e) < structure.kreiss_bound < norms.max()
    _, entries = exact_sensitivity(powers, readin)
    assert layer.dense.sensitivity == pytest.approx(entries.sum(), rel=0.01)
    assert 0.9 < layer.dense.radius_within_rounding < 0.91
    assert "rounding it moves |λ| up to 0.902" in finding(layer, "MC303").message
