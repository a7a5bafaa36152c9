from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from reports.streams import Stream

from memcurse_cli.diagnosis.hessian.inspection import hessian
from memcurse_cli.reports.console import text_for
from memcurse_cli.reports.terminal.hessian import lines, to_text
from memcurse_cli.schema.hessian import HessianReport, LayerHessianReport
from memcurse_cli.schema.json_codec import to_json
from memcurse_cli.schema.report import SkippedLayer

SAMPLE = Path(__file__).parents[2] / "sample_checkpoints" / "lru.safetensors"
FILE = Path("page.txt")


@pytest.fixture(scope="module")
def report() -> HessianReport:
    return hessian(SAMPLE)


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_page_says_what_sets_the_limit_and_what_adam_mends(report: HessianReport) -> None:
    page = words(to_text(report, file=FILE))
    assert "449 parameters in one block" in page
    assert "`theta_log` bears 1.8e-6, the next one, `gamma_log`, 0.056" in page
    assert "leaves λ_max = 37.6 where 1 is perfect and 449 the worst" in page
    assert "theta_log 100 % #30 (τ 261) 100 %" in page
    assert "217 of 449 directions are not flat" in page


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_too_long(report: HessianReport, width: int) -> None:
    for correlation in (False, True):
        page = to_text(report, correlation=correlation, file=FILE, width=width)
        assert max(map(len, page.splitlines())) <= width
        assert "max SGD lr" in page


def test_colour_on_a_terminal_only(report: HessianReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORTERM", "truecolor")
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    page = partial(lines, report, False)
    assert "▀" in text_for(page, Stream(terminal=True), width=80)
    assert "▀" not in text_for(page, Stream(terminal=False), width=80)
    assert text_for(page, Stream(terminal=True, encoding="ascii"), width=80).isascii()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "▀" not in text_for(page, Stream(terminal=True), width=80)


def test_the_json_has_every_figure_and_no_picture(report: HessianReport) -> None:
    document = json.loads(json.dumps(to_json(report), allow_nan=False))
    assert document["schema"] == "memcurse.hessian/1"
    assert document["input"] == {
        "autocorrelation": [[1.0, 0.0]],
        "horizon": 300,
        "horizon_source": "checkpoint",
        "readout": "every",
    }
    (layer,) = document["layers"]
    assert "picture" not in layer
    assert len(layer["spectrum"]["largest"]) == 449
    assert len(layer["pairs"]) == 36
    assert len(layer["eigenvectors"]) == 10
    assert layer["eigenvectors"][0]["coordinates"][0]["group"] == "theta_log"


def test_a_layer_without_a_hessian_and_one_that_could_not_be_read(
    report: HessianReport,
) -> None:
    bare = LayerHessianReport("gate", "gru", 8, reason="B and C depend on the input")
    skipped = SkippedLayer("broken", "lru", "1 NaN of its 8 values")
    page = words(to_text(replace(report, layers=(bare,), skipped=(skipped,)), file=FILE))
    assert "no Hessian: B and C depend on the input" in page
    assert "broken (lru): 1 NaN of its 8 values" in page


def test_bounds_are_said_where_blocks_were_not_formed(report: HessianReport) -> None:
    (layer,) = report.layers
    assert layer.scores is not None
    scores = replace(layer.scores, sharpness_error=12.5, adam_residual_error=3.0)
    bounded = replace(layer, method="partial Cholesky", scores=scores, picture=None)
    page = words(to_text(replace(report, layers=(bounded,)), file=FILE))
    assert "the largest eigenvalue is at most 12" in page
    assert "what Adam leaves at most 3.0" in page
    assert layer.picture is not None
    picture = replace(layer.picture, title="3 of 9 parameters, evenly taken")
    page = words(to_text(replace(report, layers=(replace(bounded, picture=picture),)), file=FILE))
    assert "drawn 3 of 9 parameters, evenly taken" in page
