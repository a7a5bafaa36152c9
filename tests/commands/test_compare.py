"""`memcurse compare` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from end_to_end.command import SAMPLES, assert_refused, memcurse
from jsonschema import Draft202012Validator

from memcurse_cli.schema.documents import document_schema, find_document

LRU = SAMPLES / "lru.safetensors"
COMPLEX = SAMPLES / "complex_diagonal_rnn.safetensors"


def test_the_json_is_what_the_schema_says() -> None:
    done = memcurse("compare", LRU, COMPLEX, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    schema = document_schema(find_document("comparison"), closed=True)
    Draft202012Validator(schema).validate(json.loads(done.stdout))


@pytest.mark.parametrize("width", [40, 80])
def test_the_page_fits(width: int) -> None:
    environment = {"COLUMNS": str(width), "NO_COLOR": "1"}
    done = memcurse("compare", LRU, LRU, environment=environment, encoding="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert max(map(len, done.stdout.splitlines())) <= width
    assert "No decay changed" in " ".join(done.stdout.split())


def test_what_is_assumed_differently_is_said(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    memcurse("inspect", LRU, "--json", "--values", "--horizon", "9", "--output", path)
    page = " ".join(memcurse("compare", path, LRU).stdout.split())
    assert "The horizon assumed differs: 9 steps" in page
    assert "The input assumed differs" not in page


def test_reports_are_read_and_take_no_reading_options(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert memcurse("inspect", LRU, "--json", "--output", path).returncode == 0
    done = memcurse("compare", path, LRU, "--json")
    (layer,) = json.loads(done.stdout)["layers"]
    assert "--values" in layer["spectrum_reason"]
    assert_refused(memcurse("compare", path, LRU, "--horizon", "9"), "is a report")
    assert_refused(memcurse("compare", "-", "-"), "only one")
