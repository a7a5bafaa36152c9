from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memcurse_cli.diagnosis.hessian.inspection import hessian
from memcurse_cli.diagnosis.hessian.picture import picture
from memcurse_cli.errors import UsageError
from memcurse_cli.reports.figures import MOST_LAYERS, check_figure, hessian_figure
from memcurse_cli.schema.hessian import HessianReport

pytest.importorskip("matplotlib")

SAMPLE = Path(__file__).parents[2] / "sample_checkpoints" / "lru.safetensors"


@pytest.fixture(scope="module")
def report() -> HessianReport:
    """The sample with a small picture, since most of the time goes into drawing text."""
    found = hessian(SAMPLE)
    responses = np.random.default_rng(0).normal(size=(9, 12))
    small = picture(
        "9 parameters", responses @ responses.T, np.repeat([0, 1], [5, 4]), ["ν_log", "$x$"]
    )
    return replace(found, layers=(replace(found.layers[0], picture=small),))


def test_a_raster_image(report: HessianReport) -> None:
    content = hessian_figure(report, "png")
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 2 * 500
    assert height > 500


def test_a_vector_image_is_the_same_every_time_and_keeps_its_text(report: HessianReport) -> None:
    content = hessian_figure(report, "svg", correlation=True)
    assert content == hessian_figure(report, "svg", correlation=True)
    text = content.decode()
    for said in ("lru: 9 parameters", "ν_log", "$x$", "eigenvalues by rank", "top 9 eigenvectors"):
        assert said in text


def test_one_row_for_each_layer(report: HessianReport) -> None:
    (layer,) = report.layers
    one = struct.unpack(">II", hessian_figure(report, "png")[16:24])
    two = struct.unpack(">II", hessian_figure(replace(report, layers=(layer, layer)), "png")[16:24])
    assert two == (one[0], 2 * one[1])


def test_no_layer_to_draw_and_too_many(report: HessianReport) -> None:
    (layer,) = report.layers
    with pytest.raises(UsageError, match="no layer has a Hessian to draw"):
        hessian_figure(replace(report, layers=(replace(layer, picture=None),)), "png")
    with pytest.raises(UsageError, match="choose some with --layer"):
        hessian_figure(replace(report, layers=(layer,) * (MOST_LAYERS + 1)), "png")


@pytest.mark.parametrize("name", ["figure.gif", "figure"])
def test_a_format_that_is_not_written(name: str) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg or \.pdf"):
        check_figure(Path(name))


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'memcurse-cli\[plot\]'"):
        check_figure(Path("figure.png"))
