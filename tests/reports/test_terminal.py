"""The terminal report: golden pages, and that every page fits its screen.

MEMCURSE_WRITE_GOLDEN=1 writes the golden pages anew.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reports import build
from reports.strategies import instances
from reports.streams import Stream
from rich.cells import cell_len

from memcurse_cli import inspect
from memcurse_cli.reports.console import text_for, text_for_file
from memcurse_cli.reports.html.report import to_html
from memcurse_cli.reports.terminal.report import describe_input, render, summary_text, to_text
from memcurse_cli.reports.terminal.tables import short_names
from memcurse_cli.schema.report import InputAssumption, Report

GOLDEN = Path(__file__).parent / "golden"
PAGES = {
    "four_families": lambda: page(build.four_families()),
    "divergent": lambda: page(build.divergent()),
    "many_layers": lambda: page(build.many_layers()),
    "hostile": lambda: page(build.hostile()),
    "narrow": lambda: page(build.four_families(), width=40),
    "wide": lambda: page(build.four_families(), width=120),
    "ascii": lambda: text_for(
        render(build.four_families()), Stream(terminal=False, encoding="ascii"), width=80
    ),
}


def page(report: Report, *, width: int = 80, all_layers: bool = False) -> str:
    return text_for_file(render(report, all_layers=all_layers), width=width)


@pytest.mark.parametrize("name", PAGES)
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    text = PAGES[name]()
    if "MEMCURSE_WRITE_GOLDEN" in os.environ:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def check(text: str, width: int) -> None:
    for line in text.split("\n"):
        assert cell_len(line) <= width, line
        assert line == line.rstrip(" ")
        assert not {unicodedata.category(one) for one in line} & {"Cc", "Cf", "Cs", "Co"}


@given(instances(Report), st.integers(40, 200), st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_any_report_fits_any_width(report: Report, width: int, all_layers: bool) -> None:
    check(page(report, width=width, all_layers=all_layers), width)


@given(st.integers(40, 200), st.sampled_from(["ascii", "utf-8"]), st.booleans())
@settings(max_examples=30)
def test_the_usual_reports_fit_any_width(width: int, encoding: str, all_layers: bool) -> None:
    stream = Stream(terminal=False, encoding=encoding)
    for report in (
        build.four_families(),
        build.divergent(),
        build.hostile(),
        build.many_layers(),
    ):
        check(text_for(render(report, all_layers=all_layers), stream, width=width), width)


@pytest.mark.parametrize(
    ("components", "text"),
    [
        (((1.0, 0.0),), "white noise, R(Δ) = δ(Δ)"),
        (((1.0, 1.0),), "constant, R(Δ) = 1"),
        (((0.5, 1.0), (0.5, 0.0)), "R(Δ) = 0.5 + 0.5·δ(Δ)"),
        ((), "R(Δ) = 0"),
        (((0.1, 0.5),) * 6, "R(Δ) = " + " + ".join(["0.1·0.5^|Δ|"] * 4) + " + 2 more"),
    ],
)
def test_the_input_is_described(components: tuple, text: str) -> None:
    assert describe_input(InputAssumption(components, None, None, 1e-3)) == text


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["backbone.layers.0.mixer", "backbone.layers.1.mixer"], ["layers.0", "layers.1"]),
        (["rnn", "lru"], ["rnn", "lru"]),
        (["model.rnn"], ["model.rnn"]),
        (["a.b", "a.b.c"], ["a.b", "a.b.c"]),
        (["enc.rnn.fwd", "enc.rnn.bwd"], ["rnn.fwd", "rnn.bwd"]),
        ([], []),
    ],
)
def test_names_lose_what_they_share(names: list[str], short: list[str]) -> None:
    assert list(short_names(names).values()) == short
    assert len(set(short_names(names).values())) == len(names)


def test_numbers_and_json_import_no_rich() -> None:
    code = (
        "import sys, memcurse_cli.schema.json_codec, memcurse_cli.reports.numbers, "
        "memcurse_cli.reports.console; sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_a_layer_has_no_sensitivities_for_is_said() -> None:
    random = np.random.default_rng(2)
    layer = {
        "to_qkv.weight": np.zeros((12, 4)),
        "to_a.0.weight": random.standard_normal((8, 4)),
        "to_a.0.bias": random.standard_normal(8),
    }
    report = inspect(layer, gates=True)
    assert "gateloop without κ: E|dλ/db|² is infinite" in " ".join(to_text(report).split())
    page = html.unescape(re.sub("<[^>]*>", " ", to_html([report])))
    assert "The layer is without κ: E|dλ/db|² is infinite" in " ".join(page.split())


def test_equal_stems_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    made = build.report()
    paths = ("a/model.safetensors", "b/model.safetensors")
    reports = [replace(made, checkpoint=replace(made.checkpoint, path=path)) for path in paths]
    text = summary_text(reports, file=tmp_path / "out.txt")
    assert "a/model" in text
    assert "b/model" in text


def test_a_checkpoint_has_the_worst_figures_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    turning = build.parameter("theta", 9.0, "decorrelating")
    loud = build.layer("a", "lru", [1.0, 20.0], [replace(turning, max_lr=0.0104)])
    slow = build.layer("b", "lru", [1.0, 5000.0], [replace(turning, step_effect=0.2, max_lr=0.005)])
    row = summary_text([build.report(loud, slow)]).splitlines()[2].split()
    assert row[2:] == ["5000", "0", "theta", "900", "%", "0.0050", "decorrelating"]
