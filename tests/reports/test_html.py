"""The HTML pages: whole, self-contained, safe whatever a checkpoint's names are, and small."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from reports.build import lru_layers
from reports.page_reader import Reader, assert_self_contained
from reports.strategies import instances

from memcurse_cli import inspect
from memcurse_cli.diagnosis.comparison import compare
from memcurse_cli.reports.console import visible
from memcurse_cli.reports.html import comparison, tracking
from memcurse_cli.reports.html.report import to_html
from memcurse_cli.schema.derived import Comparison, Tracking
from memcurse_cli.schema.figures import HessianPicture
from memcurse_cli.schema.json_codec import to_json
from memcurse_cli.schema.report import Report

PAGES: dict[type, Any] = {
    Report: lambda report: to_html([report]),
    Comparison: comparison.to_html,
    Tracking: tracking.to_html,
}


@pytest.mark.parametrize("kind", PAGES)
@settings(max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_every_document_makes_a_page_that_is_well_formed_and_loads_nothing(
    kind: type, data: st.DataObject
) -> None:
    assert_self_contained(Reader(PAGES[kind](data.draw(instances(kind)))))


@pytest.mark.parametrize(
    "name",
    [
        "</script><script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</title><h1>",
        "{{ 7 * 7 }}{% raw %}",
        "\x1b[31mred\x1b[0m\u202egnp.evil",
    ],
)
def test_a_name_stays_text(name: str) -> None:
    state = {f"{name}.{key}": value for key, value in lru_layers(1, 3).items()}
    (key,) = {key.rpartition(".layers")[0] for key in state}
    text = to_html([inspect(state, values=True)])
    plain = Reader(to_html([inspect(lru_layers(1, 3), values=True)]))
    page = Reader(text)
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "49" not in re.findall(r"<summary>.*?</summary>", text)[0]
    (charts,) = json.loads(page.scripts["memcurse-charts"])
    assert charts["layers"][0]["name"].startswith(visible(key))


def test_sixty_four_layers_stay_under_three_megabytes() -> None:
    report, cells = inspect(lru_layers(1, 1024), values=True), 480
    correlation = np.random.default_rng(1).uniform(0, 1, (cells, cells))
    picture = HessianPicture(
        title="a block",
        order=cells,
        magnitude=correlation,
        correlation=correlation,
        groups=("nu_log", "theta_log"),
        boundaries=(0, cells // 2, cells),
        eigenvalues=np.ones(3),
        eigenvectors=np.ones((3, cells)),
    )
    layer = replace(report.layers[0], picture=picture)
    assert len(to_html([replace(report, layers=(layer,) * 64)]).encode()) < 3_000_000


def test_the_page_holds_the_comparison_and_its_moves() -> None:
    before, after = (inspect(lru_layers(2, 5, shift=shift), values=True) for shift in (0.0, -1.0))
    made = compare(before, after, values=True)
    page = Reader(comparison.to_html(made))
    document = json.loads(page.scripts["memcurse-report"])
    assert document == to_json(made, values=False)
    assert document["layers"][0]["spectrum"]["outward"] == 5
    (charts,) = json.loads(page.scripts["memcurse-charts"])
    for layer, drawn in zip(made.layers, charts["layers"], strict=True):
        assert layer.spectrum is not None
        assert layer.spectrum.pairs is not None
        assert drawn["name"] == layer.name
        assert np.allclose(sorted(drawn["moves"]), sorted(layer.spectrum.pairs), rtol=1e-6)
        old, new = (np.hypot(*np.array(drawn["moves"]).T[part]) for part in ([0, 1], [2, 3]))
        assert np.allclose(np.log(old), np.e * np.log(new), atol=1e-6)
