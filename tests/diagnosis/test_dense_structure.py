"""What a report says of a dense matrix beside its eigenvalues, through the whole line."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from memcurse_cli import inspect
from memcurse_cli.diagnosis.dense import dense as dense_structure
from memcurse_cli.reports.terminal.report import to_text
from memcurse_cli.schema.dense import DenseStructure
from memcurse_cli.schema.report import LayerReport, Report

Floats = NDArray[np.float64]


def drawn(radius: float, size: int = 6) -> Floats:
    matrix = np.random.default_rng(3).normal(size=(size, size))
    return np.asarray(matrix * (radius / np.abs(np.linalg.eigvals(matrix)).max()))


def report(matrix: Floats, horizon: int | None = None) -> Report:
    return inspect({"A": matrix, "B": np.ones((len(matrix), 1))}, horizon=horizon)


def layer(matrix: Floats, horizon: int | None = None) -> tuple[LayerReport, DenseStructure]:
    (found,) = report(matrix, horizon).layers
    assert found.dense is not None
    assert found.dense.structure is not None
    return found, found.dense.structure


def test_the_parts_add_up_and_the_conditions_are_those_of_the_eigenvalues() -> None:
    matrix = drawn(0.9)
    _, structure = layer(matrix)
    parts = (structure.eigenvalue_part, structure.eigenvector_part, structure.cross_part)
    assert all(part is not None for part in parts)
    assert sum(part or 0 for part in parts) == pytest.approx(1)
    _, vectors = np.linalg.eig(matrix)
    conditions = np.linalg.norm(np.linalg.inv(vectors), axis=1)
    assert structure.eigenvalue_condition.max == pytest.approx(conditions.max(), rel=1e-9)
    assert structure.eigenvalue_condition.min == pytest.approx(conditions.min(), rel=1e-9)
    assert structure.eigenvalue_condition.p50 == pytest.approx(np.median(conditions), rel=0.1)
    assert structure.reason is None


def test_a_matrix_that_grows_before_it_decays_is_found() -> None:
    shear = np.array([[0.5, 300.0], [0.0, 0.6]])
    found, structure = layer(shear)
    powers = [np.linalg.norm(np.linalg.matrix_power(shear, k), 2) for k in range(40)]
    assert structure.transient_growth == pytest.approx(max(powers))
    assert structure.transient_step == int(np.argmax(powers))
    assert structure.kreiss_bound is not None
    assert 1 < structure.kreiss_bound < max(powers)
    (finding,) = (one for one in found.findings if one.code == "MC106")
    assert f"at k = {structure.transient_step}" in finding.message
    page = " ".join(to_text(report(shear)).split())
    assert "Beyond eigenvalues" in page
    calm, _ = layer(np.diag([0.5, 0.6]))
    assert "MC106" not in [one.code for one in calm.findings]


def test_an_unstable_matrix_has_no_transient_of_its_own() -> None:
    _, structure = layer(drawn(1.05), 20)
    assert structure.transient_growth is None
    assert structure.kreiss_bound is None
    assert structure.eigenvalue_part is not None
    _, endless = layer(drawn(1.05))
    assert endless.eigenvalue_part is None


def test_what_is_left_out_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    _, structure = layer(np.array([[0.5, 1.0], [0.0, 0.5]]))
    assert "ill-conditioned" in str(structure.reason)
    assert structure.transient_growth is not None
    monkeypatch.setattr(dense_structure, "SPLIT_FLOPS", 10)
    assert "20 steps" in str(layer(drawn(0.9), 20)[1].reason)
    monkeypatch.setattr(dense_structure, "OPPOSED", 0.0)
    assert "undo" in str(layer(drawn(0.9))[1].reason)
    monkeypatch.setattr(dense_structure, "LARGEST", 5)
    _, large = layer(drawn(0.9))
    assert "up to 5 units" in str(large.reason)
    assert large.eigenvalue_condition.max is not None
    assert large.transient_growth is None
