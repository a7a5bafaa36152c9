"""The benchmark of a GPU, run whole on small sizes with torch's CPU in its place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import run

import numpy as np
import pytest
import torch

from benchmarks import gpu
from memcurse_cli.theory import devices

SMALL = gpu.Sizes(dense=(8, 16, 32), batch=(3, 8), hessian=(24, 16), lstm=(6, 3, 20), bound=32)


def test_every_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = torch.device("cpu")
    monkeypatch.setattr(devices, "find_gpu", lambda _: place)
    monkeypatch.setattr(devices, "WORTH", 1)
    found = gpu.measure(place, SMALL, tmp_path / "gpu.json")
    assert json.loads((tmp_path / "gpu.json").read_text()) == found
    assert [*found] == [
        *("card", "environment", "bounds", "dense"),
        *("crossover", "batch", "hessian", "simulation"),
    ]
    assert "crossover" in capsys.readouterr().out
    assert [row["n"] for row in found["dense"]] == [8, 16, 32]
    for row in found["dense"]:
        assert row["difference_by_condition"] <= 1e-10
        assert row["share_of_fp64"] > 0
    timed = [*found["dense"], found["batch"], found["hessian"], found["simulation"]]
    for row in timed:
        assert row["ratio"] == pytest.approx(row["cpu_seconds"] / row["gpu_seconds"])
    assert found["hessian"]["difference"] < 1e-10
    assert found["simulation"]["share_of_bandwidth"] > 0


def test_eigenvalues_that_differ_are_seen() -> None:
    """By either side, over their condition: 1 of a normal matrix."""
    vectors = np.eye(3, dtype=complex)
    values = np.array([1, 2, 4], complex)
    for others in ([4, 1, 2.2], [4, 1.2, 1]):
        assert gpu.apart(values, vectors, np.array(others, complex))[1] > 0.05
    skewed = np.array([[1, np.sqrt(0.99)], [0, 0.1]], complex)
    relative, by_condition = gpu.apart(values[:2], skewed, values[:2] * 1.01)
    assert relative == pytest.approx(0.01)
    assert by_condition == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((0.1, 0.2, 0.9), None),
        ((2, 3, 4), 4),
        ((0.5, 2, 4), 8),
        ((0.1, 0.5, 2), 32),
        ((2, 0.5, 2), 32),
        ((0.5, 2, 0.5), None),
    ],
)
def test_the_crossover_is_where_the_gpu_stays_faster(
    ratios: tuple[float, ...], expected: int | None
) -> None:
    rows = [{"n": n, "ratio": ratio} for n, ratio in zip((4, 16, 64), ratios, strict=True)]
    assert gpu.crossover(rows) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure for minutes")
def test_without_a_gpu_it_is_one_line() -> None:
    ended = run([sys.executable, "-m", "benchmarks", "gpu"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == "python -m benchmarks gpu: torch sees no CUDA GPU\n"
