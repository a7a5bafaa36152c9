"""What `memcurse hessian` prints and draws."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memcurse_cli.diagnosis.hessian_report import picture
from memcurse_cli.diagnosis.inspection import hessian
from memcurse_cli.errors import UsageError
from memcurse_cli.reports.figures import MOST_LAYERS, check_figure, hessian_figure
from memcurse_cli.reports.terminal.hessian import to_text
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


pytest.importorskip("matplotlib")

HESSIAN_FIGURE_SAMPLE = Path(__file__).parents[2] / "sample_checkpoints" / "lru.safetensors"


@pytest.fixture(scope="module")
def report_of_hessian_figure() -> HessianReport:
    """The sample with a small picture, since most of the time goes into drawing text."""
    found = hessian(HESSIAN_FIGURE_SAMPLE)
    responses = np.random.default_rng(0).normal(size=(9, 12))
    small = picture(
        "9 parameters", responses @ responses.T, np.repeat([0, 1], [5, 4]), ["ν_log", "$x$"]
    )
    return replace(found, layers=(replace(found.layers[0], picture=small),))


def test_a_vector_image_is_the_same_every_time_and_keeps_its_text(
    report_of_hessian_figure: HessianReport,
) -> None:
    content = hessian_figure(report_of_hessian_figure, "svg", correlation=True)
    assert content == hessian_figure(report_of_hessian_figure, "svg", correlation=True)
    text = content.decode()
    for said in ("lru: 9 parameters", "ν_log", "$x$", "eigenvalues by rank", "top 9 eigenvectors"):
        assert said in text


def test_no_layer_to_draw_and_too_many(report_of_hessian_figure: HessianReport) -> None:
    (layer,) = report_of_hessian_figure.layers
    with pytest.raises(UsageError, match="no layer has a Hessian to draw"):
        hessian_figure(
            replace(report_of_hessian_figure, layers=(replace(layer, picture=None),)), "png"
        )
    with pytest.raises(UsageError, match="choose some with --layer"):
        hessian_figure(
            replace(report_of_hessian_figure, layers=(layer,) * (MOST_LAYERS + 1)), "png"
        )


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'memcurse-cli\[plot\]'"):
        check_figure(Path("figure.png"))
