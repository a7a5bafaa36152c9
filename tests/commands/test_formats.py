"""`memcurse formats` lists the registry."""

from __future__ import annotations

import json

from end_to_end.command import memcurse

from memcurse_cli.checkpoints.registry import FORMATS


def run(*arguments: str) -> str:
    done = memcurse("formats", *arguments, environment={"TERM": "dumb"})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_table_names_every_format_in_80_columns() -> None:
    lines = run().splitlines()
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    for format in FORMATS:
        assert any(line.startswith(format.name) for line in lines)


def test_the_json_is_the_registry() -> None:
    document = json.loads(run("--json"))
    assert document["schema"] == "memcurse.formats/1"
    assert [entry["name"] for entry in document["formats"]] == [f.name for f in FORMATS]
    for entry, format in zip(document["formats"], FORMATS, strict=True):
        assert entry["extensions"] == list(format.extensions)
        assert entry["recognised_by"] == format.recognised_by
