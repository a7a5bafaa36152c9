"""`memcurse families`, `formats` and `rule`: the tables, and the same as JSON."""

from __future__ import annotations

import json

import pytest
from end_to_end.command import memcurse

from memcurse_cli.checkpoints.registry import FORMATS
from memcurse_cli.diagnosis.rules import RULES
from memcurse_cli.families.registry import all_families


@pytest.mark.parametrize(
    ("command", "columns"), [("families", 40), ("families", 80), ("families", 200), ("formats", 80)]
)
def test_a_table_fits_and_names_everything(command: str, columns: int) -> None:
    done = memcurse(command, environment={"COLUMNS": str(columns)})
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(len(line) <= columns and line == line.rstrip() for line in lines)
    for entry in all_families() if command == "families" else FORMATS:
        assert any(line.startswith(entry.name) for line in lines), entry.name
        for assumption in getattr(entry, "assumptions", ()):
            assert f"{assumption.key}=" in done.stdout


def test_json_is_every_field() -> None:
    everything = json.loads(memcurse("rule", "--json").stdout)
    assert everything["schema"] == "memcurse.rules/1"
    assert [rule["code"] for rule in everything["rules"]] == [rule.code for rule in RULES.values()]
    (one,) = json.loads(memcurse("rule", "MC101", "--json").stdout)["rules"]
    assert one in everything["rules"]
    assert set(one) == {"code", "title", "source", "what", "why", "equation", "change"}
