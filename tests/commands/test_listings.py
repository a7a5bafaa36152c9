"""`memcurse families`, `formats` and `rule`: the tables, and the same as JSON."""

from __future__ import annotations

import json

import pytest
from end_to_end.command import assert_refused, memcurse

from memcurse_cli.__main__ import run
from memcurse_cli.checkpoints.registry import FORMATS
from memcurse_cli.diagnosis.rules import RULES
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


def test_the_table_names_every_format_in_80_columns() -> None:
    lines = memcurse("formats", environment={"TERM": "dumb"}).stdout.splitlines()
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    for format in FORMATS:
        assert any(line.startswith(format.name) for line in lines)


def test_json_is_every_field() -> None:
    everything = json.loads(memcurse("rule", "--json").stdout)
    assert everything["schema"] == "memcurse.rules/1"
    assert [rule["code"] for rule in everything["rules"]] == [rule.code for rule in RULES.values()]
    (one,) = json.loads(memcurse("rule", "MC101", "--json").stdout)["rules"]
    assert one in everything["rules"]
    assert set(one) == {"code", "title", "source", "what", "why", "equation", "change"}


def test_an_unknown_code_is_refused() -> None:
    assert_refused(memcurse("rule", "MC999"), "MC999", "known are")
