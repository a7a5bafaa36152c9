"""The dense path against impulse responses, through the whole line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis.build import codes, finding, only
from end_to_end.command import memcurse
from numpy.typing import NDArray
from safetensors.numpy import save_file
from theory.matrices import random
from theory.non_normal import exact_sensitivity, far_from_normal

from memcurse_cli import inspect
from memcurse_cli.diagnosis import dense as dense_structure

Floats = NDArray[np.float64]
GENERATOR = np.random.default_rng(3)


@pytest.mark.parametrize(("radius", "horizon"), [(0.9, math.inf), (1.05, 40)])
def test_every_entry_of_the_matrix(radius: float, horizon: float) -> None:
    transition, readin = random(4, radius), GENERATOR.normal(size=(4, 2))
    powers = np.stack([np.linalg.matrix_power(transition, k) for k in range(min(horizon, 400))])
    state = np.sum((powers @ readin) ** 2)
    _, entries = exact_sensitivity(powers[:-1], readin)
    layer = only({"A": transition, "B": readin, "C": np.ones((1, 4))}, horizon=horizon)
    (group,) = layer.parameters
    assert group.sensitivity.max == pytest.approx(entries.max(), rel=1e-9)
    assert group.sensitivity.p50 == pytest.approx(np.median(entries), rel=1e-9)
    assert group.step_effect == pytest.approx(1e-3 * np.sqrt(entries.sum() / state), rel=1e-9)
    assert group.direction == "destabilising"
    assert layer.dense.sensitivity == pytest.approx(entries.sum(), rel=1e-9)
    assert layer.dense.relative_sensitivity == pytest.approx(entries.sum() / state, rel=1e-9)


def test_a_leak_scales_the_sensitivity_to_the_stored_weights() -> None:
    weights = random(4, 0.8)
    stored = {"W_rec": weights, "W_in": np.eye(4), "W_out": np.ones((1, 4))}
    (group,) = only(stored, assume={"alpha": "0.25"}, horizon=50).parameters
    transition = 0.75 * np.eye(4) + 0.25 * weights
    readin = 0.25 * np.eye(4)
    (own,) = only({"A": transition, "B": readin, "C": np.ones((1, 4))}, horizon=50).parameters
    assert group.step_effect == pytest.approx(0.25 * own.step_effect, rel=1e-9)


def test_a_delay_line_remembers_all_its_steps() -> None:
    """All λ = 0 and τ = 0, and the last unit holds what the first took in 63 steps before."""
    state = {"A": np.eye(64, k=-1), "B": np.eye(64)[:, :1], "C": np.eye(64)[-1:]}
    report = inspect(state, horizon=100)
    (layer,) = report.layers
    assert report.memory == layer.memory == layer.dense.memory == 63
    assert layer.eigenvalues.time_constant.max == 0
    assert "MC104" not in codes(layer)
    assert not report.findings
    # No shift of its eigenvalues is bounded, which is no explosion.
    assert "nearly parallel" in layer.not_judged
    (short,) = inspect(state, horizon=1000).findings
    assert (short.code, short.severity) == ("MC107", "warning")
    assert short.message == "its memory is 63 of 1000 steps"


def dense_layer(matrix: Floats, horizon: float = math.inf) -> Any:
    return only({"A": matrix, "B": np.ones((len(matrix), 1))}, horizon=horizon)


def test_the_parts_add_up_and_the_conditions_are_those_of_the_eigenvalues() -> None:
    transition = random(6, 0.9)
    structure = dense_layer(transition).dense.structure
    parts = (structure.eigenvalue_part, structure.eigenvector_part, structure.cross_part)
    assert sum(parts) == pytest.approx(1)
    _, vectors = np.linalg.eig(transition)
    conditions = np.linalg.norm(np.linalg.inv(vectors), axis=1)
    assert structure.eigenvalue_condition.max == pytest.approx(conditions.max(), rel=1e-9)
    assert structure.reason is None


def test_a_matrix_that_grows_before_it_decays_or_forgets_at_once_is_found() -> None:
    shear = np.array([[0.5, 300.0], [0.0, 0.6]])
    found = dense_layer(shear)
    structure = found.dense.structure
    powers = [np.linalg.norm(np.linalg.matrix_power(shear, k), 2) for k in range(40)]
    assert structure.transient_growth == pytest.approx(max(powers))
    assert structure.transient_step == int(np.argmax(powers))
    assert 1 < structure.kreiss_bound < max(powers)
    assert f"within {structure.transient_step} steps" in finding(found, "MC106").message
    assert "MC106" not in codes(dense_layer(np.diag([0.5, 0.6])))
    dead = finding(dense_layer(np.diag([0.9] + 7 * [1e-3])), "MC104")  # within one step
    assert dead.message.startswith("7 of 8 singular values")


def test_what_is_left_out_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def structure(matrix: Floats, horizon: float = math.inf) -> Any:
        return dense_layer(matrix, horizon).dense.structure

    ill = structure(np.array([[0.5, 1.0], [0.0, 0.5]]))
    assert "ill-conditioned" in ill.reason
    assert ill.transient_growth is not None
    monkeypatch.setattr(dense_structure, "SPLIT_FLOPS", 10)
    assert "20 steps" in structure(random(6, 0.9), 20).reason
    monkeypatch.setattr(dense_structure, "OPPOSED", 0.0)
    assert "undo" in structure(random(6, 0.9)).reason
    monkeypatch.setattr(dense_structure, "LARGEST", 5)
    large = structure(random(6, 0.9))
    assert "up to 5 units" in large.reason
    assert large.eigenvalue_condition.max is not None
    assert large.transient_growth is None


def test_the_advice_for_a_large_state_of_a_non_normal_matrix_works() -> None:
    matrix = far_from_normal(0.4, 1)
    state = {"A": matrix, "B": np.eye(12)}
    advice = finding(only(state), "MC205").advice
    factor = float(advice.removeprefix("scale the input of the layer by "))
    scaled = only(state | {"B": factor * np.eye(12)})
    assert 0.2 < scaled.state.second_moment.p99 <= 1
    assert "MC205" not in codes(scaled)


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


def test_a_report_tells_what_rounding_the_stored_matrix_may_do() -> None:
    layer = only({"A": far_from_normal(4, 0), "B": np.eye(12)})
    assert 0.9 < layer.dense.radius_within_rounding < 0.91
    assert "rounding it moves |λ| up to 0.902" in finding(layer, "MC303").message
