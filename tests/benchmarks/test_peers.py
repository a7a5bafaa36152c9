"""The benchmarks: tables that say what was measured, and peers that compute what we compute."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks import peers
from benchmarks.__main__ import MARKS, README, RESULTS, table
from benchmarks.checkpoints import dense_weights, lru_layer, lru_recurrence
from benchmarks.scaling import MARKS as SCALING_MARKS
from benchmarks.scaling import PAGE, STEPS, lru_logs, monte_carlo, rows
from benchmarks.scaling import table as scaling_table
from memcurse_cli import inspect
from memcurse_cli.diagnosis.inspection import hessian
from memcurse_cli.theory.autocorrelation import WHITE
from memcurse_cli.theory.moments import moments


def between(page: Path, marks: tuple[str, str]) -> str:
    start, end = marks
    return page.read_text(encoding="utf-8").partition(start)[2].partition(end)[0].strip()


def test_the_tables_say_what_was_measured() -> None:
    kept = json.loads(RESULTS.read_text())
    assert between(README, MARKS) == table(kept["figures"])
    assert between(PAGE, SCALING_MARKS) == scaling_table(kept["scaling"])


def test_poles_and_norm_are_those_of_python_control(tmp_path: Path) -> None:
    pytest.importorskip("control")
    weights, path = dense_weights(24), tmp_path / "system.safetensors"
    weights["A"] *= 0.8  # so few units do not keep to the circular law
    save_file(weights, path)
    poles, norm = peers.dense_control(str(path))
    system = {**weights, "C": np.eye(24)}
    (layer,) = inspect(system, horizon=math.inf, values=True).layers
    found = np.array([complex(*value) for value in layer.eigenvalues.values])
    assert np.sort_complex(found) == pytest.approx(np.sort_complex(poles), abs=1e-10)
    (curved,) = hessian(system, horizon=math.inf).layers
    assert curved.output_second_moment == pytest.approx(norm, rel=1e-9)


def test_tangents_of_jax_have_the_second_moment_of_the_closed_form(tmp_path: Path) -> None:
    path = tmp_path / "diagonal.safetensors"
    save_file(lru_recurrence(8), path)
    squares = np.abs(peers.diagonal_tangents(str(path), steps=100, sequences=4000)) ** 2
    error = squares.std(axis=0, ddof=1) / math.sqrt(len(squares))
    expected = moments(lru_logs(8), WHITE, 100).sensitivity
    assert np.all(np.abs(squares.mean(axis=0) - expected) < 4 * error)


def test_sequences_of_the_benchmark_have_the_moments_of_the_closed_forms() -> None:
    logs = lru_logs(8)
    means, errors = monte_carlo(np.exp(logs), 4000, 0)
    closed = moments(logs, WHITE, STEPS)
    expected = closed.second_moment, closed.sensitivity
    for mean, error, exact in zip(means, errors, expected, strict=True):
        assert np.all(np.abs(mean - exact) < 4 * error)


def test_trace_and_sharpness_are_those_of_pyhessian(tmp_path: Path) -> None:
    pytest.importorskip("pyhessian")
    path = tmp_path / "lru.safetensors"
    save_file(lru_layer(8), path)
    (layer,), (curved,) = inspect(path, horizon=50).layers, hessian(path, horizon=50).layers
    trace = sum(one.scores.trace for one in curved.groups if one.kind == "recurrent")
    every = [
        peers.hessian_autodiff(str(path), steps=50, sequences=32, seed=seed) for seed in range(40)
    ]
    traces = np.array([np.mean(one.traces) for one in every])
    error = traces.std(ddof=1) / math.sqrt(len(traces))
    assert error < 0.05 * trace
    assert traces.mean() == pytest.approx(trace, abs=4 * error)
    sharpness = np.mean([one.sharpness for one in every])
    assert sharpness == pytest.approx(layer.hessian.sharpness, rel=0.2)


def test_every_row_of_the_scaling_runs() -> None:
    pytest.importorskip("pyhessian")
    found = dict(rows(1 / 64))
    assert len(found) == 7
    for row in found.values():
        assert all(math.isfinite(value) for value in (*row.ours.values(), *row.theirs.values()))
