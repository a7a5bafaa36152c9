"""`memcurse compare` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from end_to_end.command import SAMPLES, assert_refused, memcurse

LRU = SAMPLES / "lru.safetensors"


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
