"""`memcurse families`: the registry, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcurse_cli.__main__ import run
from memcurse_cli.families.registry import all_families


@pytest.mark.parametrize("columns", ["80", "200", "40"])
def test_the_table_fits_and_names_everything(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run(["families"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= int(columns)
    for family in all_families():
        assert f"{family.name}  {family.title.split()[0]}" in captured.out
    words = " ".join(captured.out.split())
    if columns == "200":
        for family in all_families():
            for text in (family.recognised_by, family.equation, family.source):
                assert text in words
            for assumption in family.assumptions:
                assert f"{assumption.key}=" in words
                assert assumption.meaning in words


def test_json_is_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["families", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "memcurse.families/1"
    assert [entry["name"] for entry in document["families"]] == [f.name for f in all_families()]
    for entry, family in zip(document["families"], all_families(), strict=True):
        assert entry["recognised_by"] == family.recognised_by
        assert entry["equation"] == family.equation
        assert [a["key"] for a in entry["assumptions"]] == [a.key for a in family.assumptions]
        assert [a["default"] for a in entry["assumptions"]] == [
            a.default for a in family.assumptions
        ]


def test_a_file_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "families.txt"
    assert run(["families", "--output", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert "lstm  LSTM" in target.read_text(encoding="utf-8")
