"""What `memcurse hessian` prints and draws."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from memcurse_cli.diagnosis.hessian import picture
from memcurse_cli.diagnosis.inspection import hessian
from memcurse_cli.errors import UsageError
from memcurse_cli.reports.figures import MOST_LAYERS, check_figure, hessian_figure
from memcurse_cli.schema.hessian import HessianReport
from memcurse_cli.schema.json_codec import to_json

SAMPLE = Path(__file__).parents[2] / "sample_checkpoints" / "lru.safetensors"


@pytest.fixture(scope="module")
def report() -> HessianReport:
    return hessian(SAMPLE)


def test_the_json_has_every_figure_and_no_picture(report: HessianReport) -> None:
    (layer,) = json.loads(json.dumps(to_json(report), allow_nan=False))["layers"]
    assert "picture" not in layer
    counts = [len(layer["spectrum"]["largest"]), len(layer["pairs"]), len(layer["eigenvectors"])]
    assert counts == [449, 36, 10]
    assert layer["eigenvectors"][0]["coordinates"][0]["group"] == "theta_log"


pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def drawn(report: HessianReport) -> HessianReport:
    """The sample with a small picture, since most of the time goes into drawing text."""
    responses = np.random.default_rng(0).normal(size=(9, 12))
    small = picture(
        "9 parameters", responses @ responses.T, np.repeat([0, 1], [5, 4]), ["ν_log", "$x$"]
    )
    return replace(report, layers=(replace(report.layers[0], picture=small),))


def test_a_vector_image_is_the_same_every_time_and_keeps_its_text(drawn: HessianReport) -> None:
    content = hessian_figure(drawn, "svg", correlation=True)
    assert content == hessian_figure(drawn, "svg", correlation=True)
    for said in ("lru: 9 parameters", "ν_log", "$x$"):
        assert said in content.decode()


def test_no_layer_to_draw_and_too_many(drawn: HessianReport) -> None:
    (layer,) = drawn.layers
    with pytest.raises(UsageError, match="no layer has a Hessian to draw"):
        hessian_figure(replace(drawn, layers=(replace(layer, picture=None),)), "png")
    with pytest.raises(UsageError, match="choose some with --layer"):
        hessian_figure(replace(drawn, layers=(layer,) * (MOST_LAYERS + 1)), "png")


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'memcurse-cli\[plot\]'"):
        check_figure(Path("figure.png"))
