"""The terminal report: golden pages, and that every page fits its screen.

MEMCURSE_WRITE_GOLDEN=1 writes the golden pages anew.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import sys
import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from end_to_end.command import program
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from reports import build
from reports.strategies import instances
from reports.streams import Stream
from rich.cells import cell_len

import memcurse_cli
from memcurse_cli import inspect
from memcurse_cli.reports.answer import describe_input, short_names
from memcurse_cli.reports.console import Lines, text_for
from memcurse_cli.reports.html.report import to_html
from memcurse_cli.reports.numbers import number
from memcurse_cli.reports.terminal import page
from memcurse_cli.reports.terminal.report import render
from memcurse_cli.schema.figures import components_of
from memcurse_cli.schema.report import Action, Finding, Report

GOLDEN = Path(__file__).parent / "golden"
DENSE, LRU, GRU = (
    f"sample_checkpoints/{name}.safetensors" for name in ("dense_linear_rnn", "lru", "gru")
)
RUN = [f"sample_checkpoints/run/step_{step}.safetensors" for step in (0, 20, 200)]


@cache
def sample(path: str) -> Report:
    with contextlib.chdir(build.SAMPLES.parent):
        return inspect(path)


PAGES: dict[str, Callable[[], Lines]] = {
    "dense": lambda: page.render(sample(DENSE)),
    "lru": lambda: page.render(sample(LRU)),
    "gru": lambda: page.render(sample(GRU)),
    "hybrid": lambda: page.render(build.hybrid()),
    "several": lambda: page.render(*map(sample, (*RUN, DENSE, GRU))),
    "full_four_families": lambda: render(build.four_families(), explain=True),
    "full_divergent": lambda: render(build.divergent()),
    "full_many_layers": lambda: render(build.many_layers(), explain=True),
    "full_hostile": lambda: render(build.hostile()),
}
PIPE = Stream(terminal=False)


def screens(lines: Lines) -> str:
    """The page at 80 and at 120 columns, and where only ASCII can be written."""
    ascii_only = Stream(terminal=False, encoding="ascii")
    shown = (text_for(lines, PIPE, width=width) for width in (80, 120))
    return f"\n{'=' * 80}\n".join((*shown, text_for(lines, ascii_only, width=80)))


@pytest.mark.parametrize("name", PAGES)
def test_golden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lines, path = PAGES[name](), GOLDEN / f"{name}.txt"
    text = screens(lines)
    if "MEMCURSE_WRITE_GOLDEN" in os.environ:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert text.startswith(text_for(lines, Stream(terminal=True), width=80))


@pytest.mark.parametrize(
    "path", [DENSE, LRU, GRU, "sample_checkpoints/complex_diagonal_rnn.safetensors"]
)
def test_one_layer_takes_25_lines(path: str) -> None:
    lines = text_for(page.render(sample(path)), None).rstrip().split("\n")
    assert len(lines) <= 25
    wrapped = [
        line
        for before, line in pairwise(lines)
        if line.startswith(" ") and not before.endswith("\\")  # of a command to paste
    ]
    assert all(len(line.split()) != 1 for line in wrapped)


def check(text: str, width: int) -> None:
    for line in text.split("\n"):
        assert cell_len(line) <= width, line
        assert line == line.rstrip(" ")
        assert not {unicodedata.category(one) for one in line} & {"Cc", "Cf", "Cs", "Co"}


@given(instances(Report), st.integers(40, 200), st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_any_report_fits_any_width(report: Report, width: int, every: bool) -> None:
    assume(all(layer.usable_rate is None or layer.usable_rate.rate != 0 for layer in report.layers))
    for lines in (
        page.render(report),
        page.render(report, report),
        render(report, all_layers=every, explain=every),
    ):
        check(text_for(lines, None, width=width), width)


@given(st.integers(40, 200), st.sampled_from(["ascii", "utf-8"]), st.booleans())
@settings(max_examples=20)
def test_the_usual_reports_fit_any_width(width: int, encoding: str, every: bool) -> None:
    stream = Stream(terminal=False, encoding=encoding)
    made = (build.four_families(), build.divergent(), build.hostile(), build.hybrid())
    for report in made:
        for lines in (page.render(report), render(report, all_layers=every, explain=True)):
            check(text_for(lines, stream, width=width), width)


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
    assert describe_input(components_of(components)) == text


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["backbone.layers.0.mixer", "backbone.layers.1.mixer"], ["layers.0", "layers.1"]),
        (["rnn", "lru"], ["rnn", "lru"]),
        (["model.rnn"], ["model.rnn"]),
        (["a.b", "a.c.d"], ["b", "c.d"]),
        (["enc.rnn.fwd", "enc.rnn.bwd"], ["fwd", "bwd"]),
        (["params/layers_0/seq", "params/layers_1/seq"], ["layers_0", "layers_1"]),
        (["a_0,params,GRU_0", "a_1,params,GRU_0"], ["a_0", "a_1"]),
        (["/lstm/LSTM/forward", "/lstm/LSTM/reverse"], ["forward", "reverse"]),
        (["a.x", "a/x", "a.x."], ["a.x", "a/x", "a.x."]),
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
    assert program(sys.executable, "-c", code).returncode == 0


def test_what_a_layer_has_no_sensitivities_for_is_said() -> None:
    random = np.random.default_rng(2)
    layer = {
        "to_qkv.weight": np.zeros((12, 4)),
        "to_a.0.weight": random.standard_normal((8, 4)),
        "to_a.0.bias": random.standard_normal(8),
    }
    report = inspect(layer, gates=True)
    drawn = text_for(render(report), None)
    assert "gateloop without κ: E|dλ/db|² is infinite" in " ".join(drawn.split())
    browser = html.unescape(re.sub("<[^>]*>", " ", to_html([report])))
    assert "without κ: E|dλ/db|² is infinite" in " ".join(browser.split())


def test_several_checkpoints_stand_in_a_table_and_only_what_needs_attention_below() -> None:
    judged = [
        build.report(
            build.layer("rnn", "lru", [9.0, memory], [build.parameter("nu", 0.1)], usable=usable),
            checkpoint=replace(build.report().checkpoint, path=f"{name}/model.safetensors"),
        )
        for name, memory, usable in (("a", 20.0, 1e-5), ("b", 700.0, 1.0))
    ]
    table, *below = text_for(page.render(*judged), None).split("\n\n")
    rows = [" ".join(line.split()) for line in table.splitlines()]
    assert rows[1:] == ["cursed a 20 1e-5 0.001 100 times too large", "ok b 700 1.0 0.001"]
    assert "CURSED  a/model.safetensors" in below[0]
    assert not any("b/model" in part for part in below)


def test_layers_are_called_by_what_tells_them_apart_and_a_code_is_told_of_its_worst() -> None:
    found = [
        Finding("MC201", "warning", f"a step on {name} by {size} %", "", "")
        for name, size in (("P", 20), ("Q", 90))
    ]
    names = [f"model.layers.{index}.kernel" for index in (0, 1)]
    made = build.report(
        *(build.layer(name, "s4", [9.0], [], tuple(found)) for name in names),
        sentence=f"The state of {names[1]} changes.",
        actions=(Action(f"train Q of {names[1]} at 1e-5"),),
    )
    text = text_for(page.render(made), None)
    assert "The state of layers.1 changes." in text
    assert "train Q of layers.1 at 1e-5" in text
    assert "a step on Q by 90 % (layers.0 and 1 more)" in text
    assert "a step on P" not in text
    assert "1 more reason: --full" in text


def test_layers_that_forget_are_told_from_the_rest_of_a_stack() -> None:
    text = text_for(page.render(build.hybrid()), None)
    (depth,) = (line.split()[1] for line in text.splitlines() if line.startswith("  10k "))
    assert (len(depth), depth.count("#"), depth[17], depth[29]) == (48, 12, "▁", "▁")
    assert "\n  layers.17, layers.29         0.61" in text


def test_a_group_is_given_one_rate_and_the_limit_is_only_a_figure() -> None:
    made = inspect(build.SAMPLES / "dense_linear_rnn.safetensors", learning_rates=True)
    text = text_for(render(made, sections=["learning-rates"]), None)
    heading, row, rest = (line.split() for line in text.splitlines()[1:4])
    assert heading == ["group", "tensor", "10", "%", "step", "at", "give"]
    usable = number(made.usable_rate.rate, 2)
    assert row == ["A", "A", "3.2e-5", usable]
    assert rest[-1] == "0.001"
    wide = inspect(
        build.SAMPLES / "dense_linear_rnn.safetensors", learning_rates=True, step_limit=0.2
    )
    text = text_for(render(wide, sections=["learning-rates"]), None)
    assert "20 % step at" in text
    assert text.split().count(usable) == 1


def test_the_code_to_paste_gives_the_groups_of_the_page() -> None:
    path = str(build.SAMPLES / "dense_linear_rnn.safetensors")
    asked = {"learning_rate": 3e-3, "horizon": 50, "rho": 0.5, "readout": "every"}
    made = inspect(path, learning_rates=True, **asked)
    lines = text_for(render(made, sections=["learning-rates"]), None, width=300).splitlines()
    (code,) = (line.strip() for line in lines if "memcurse_cli.inspect" in line)
    again: dict[str, Report] = {}
    exec(code, {"memcurse_cli": memcurse_cli}, again)
    assert again["report"].groups() == made.groups()
    assert len(made.groups()) == 2
