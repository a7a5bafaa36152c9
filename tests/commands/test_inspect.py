"""`memcurse inspect --spectra`: what a user types, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from end_to_end.command import SAMPLES
from reports.page_reader import Reader

from memcurse_cli.__main__ import run
from memcurse_cli.diagnosis import inspection

GRU, LRU = (str(SAMPLES / f"{name}.safetensors") for name in ("gru", "lru"))


def layer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run(["inspect", GRU, *arguments, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["layers"]
    return found


def test_spectra_are_in_the_json_only_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert layer(capsys)["hidden_spectra"] == []
    asked = layer(capsys, "--spectra")
    assert {spectrum["name"]: spectrum["order"] for spectrum in asked["hidden_spectra"]} == {
        "reset": 64,
        "update": 64,
        "new": 64,
        "jacobian": 64,
    }
    jacobian = asked["hidden_spectra"][-1]
    assert jacobian["spectral_radius"] > 1
    assert jacobian["time_constant"] is None
    assert asked["hidden_feedback"] is True
    assert asked["hidden_spectra_reason"] is None


def test_a_page_takes_its_hessians_while_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = []
    open_once = inspection.open_checkpoint

    def counted(path: Any) -> Any:
        opened.append(path)
        return open_once(path)

    monkeypatch.setattr(inspection, "open_checkpoint", counted)
    assert run(["inspect", LRU, "--format", "html"]) == 0
    assert opened == [LRU]
    (charts,) = json.loads(Reader(capsys.readouterr().out).scripts["memcurse-charts"])
    assert [layer["hessian"] is not None for layer in charts["layers"]] == [True]


def test_the_page_has_a_table_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", GRU]) == 0
    assert "Hidden weights" not in capsys.readouterr().out
    assert run(["inspect", GRU, "--spectra"]) == 0
    page = capsys.readouterr().out
    table = page.split("Hidden weights")[1].split("Findings")[0]
    row = next(line for line in table.splitlines() if line.split()[:1] == ["jacobian"])
    assert row.split()[-1] == "divergent"
    assert max(map(len, page.splitlines())) <= 80
