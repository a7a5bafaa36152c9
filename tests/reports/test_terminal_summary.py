"""Several checkpoints side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reports import build

from memcurse_cli.reports.terminal.report import summary_text
from memcurse_cli.schema.report import Report


def at(path: str, report: Report) -> Report:
    return replace(report, checkpoint=replace(report.checkpoint, path=path))


def test_one_row_per_checkpoint_with_its_verdict(tmp_path: Path) -> None:
    reports = [
        at("runs/ok.safetensors", build.report(build.gru())),
        at("runs/cursed.safetensors", build.report(build.dense())),
    ]
    lines = summary_text(reports, file=tmp_path / "out.txt").splitlines()
    rows = {line.split()[1]: line.split()[0] for line in lines[2:4]}
    assert rows == {"ok": "ok", "cursed": "cursed"}
    assert max(map(len, lines)) <= 80


def test_equal_stems_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    reports = [at(f"{name}/model.safetensors", build.report(build.gru())) for name in ("a", "b")]
    text = summary_text(reports, file=tmp_path / "out.txt")
    assert "a/model" in text
    assert "b/model" in text


@pytest.mark.parametrize("width", [40, 60, 200])
def test_it_fits(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    reports = [at(f"{'x' * 80}{index}.pt", build.report(build.gru())) for index in range(3)]
    assert max(map(len, summary_text(reports).splitlines())) <= width


def test_a_checkpoint_has_the_worst_figures_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    turning = build.parameter("theta", 9.0, "decorrelating")
    loud = build.layer("a", "lru", [1.0, 20.0], [replace(turning, max_lr=0.0104)])
    slow = build.layer("b", "lru", [1.0, 5000.0], [replace(turning, step_effect=0.2, max_lr=0.005)])
    row = summary_text([build.report(loud, slow)]).splitlines()[2].split()
    assert row[2:] == ["5000", "0", "theta", "900", "%", "0.0050", "decorrelating"]
