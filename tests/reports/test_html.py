"""The HTML pages: whole, self-contained, safe whatever a checkpoint's names are, and small."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from reports.build import SAMPLES, lru_layers
from reports.page_reader import Reader, assert_self_contained
from reports.strategies import instances

from memcurse_cli import inspect
from memcurse_cli.diagnosis.comparison import compare
from memcurse_cli.reports.console import visible
from memcurse_cli.reports.html import comparison, tracking
from memcurse_cli.reports.html.report import box, rate_bar, to_html
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
    assert "49" not in re.findall(r'<span class="name">.*?</span>', text)[-1]
    (layer,) = json.loads(page.scripts["memcurse-report"])["layers"]
    assert layer["name"].startswith(visible(key))


@pytest.mark.parametrize("path", ["</div><script>alert(1)</script>", "a\x1b[31m\u202eb.pt"])
def test_the_box_stands_alone_in_the_page_of_a_notebook(path: str) -> None:
    report = inspect(SAMPLES / "dense_linear_rnn.safetensors")
    hostile = replace(
        report,
        checkpoint=replace(report.checkpoint, path=path),
        actions=tuple(replace(one, command=f"memcurse inspect {path}") for one in report.actions),
    )
    made = Reader(hostile._repr_html_())
    assert made.elements == Reader(box(report)).elements
    assert not {"script", "button", "input", "a"} & {tag for tag, _ in made.elements}
    text = box(hostile)
    assert text.isascii()
    assert path not in text
    assert report.sentence in box(report)
    assert [one.text.lower() in box(report).lower() for one in report.actions] == [True, True]


def test_the_rate_bar_is_logarithmic_and_of_the_layer_that_is_worst() -> None:
    report = inspect(SAMPLES / "dense_linear_rnn.safetensors")
    (layer,) = report.layers
    slow = replace(layer, learning_rate=layer.learning_rate / 100)
    bar = rate_bar(replace(report, layers=(slow, layer, slow)))
    assert (bar.yours, bar.usable) == (layer.learning_rate, layer.usable_rate.rate)
    low, usable, high = map(bar.place, (bar.low, bar.usable, bar.high))
    assert 0 < low < usable < high < bar.place(bar.yours) < 100
    assert usable - low == pytest.approx(high - usable, abs=0.02)
    assert rate_bar(inspect(SAMPLES / "gru.safetensors")) is None


def test_a_light_says_which_type_is_fine_and_eight_bits_only_where_they_are_stored() -> None:
    report = inspect(SAMPLES / "dense_linear_rnn.safetensors")
    lights = dict(re.findall(r'<td [^>]*class="number (\w+)">([^<]*?),', to_html([report])))
    assert lights == {"bad": "too coarse", "fine": "fine"}
    (layer,) = report.layers
    (group,) = layer.parameters
    stored = replace(layer, parameters=(replace(group, dtype="int8"),))
    for one, heads in ((layer, []), (stored, ["int8"])):
        page = to_html([replace(report, layers=(one,))])
        assert re.findall(r"<button[^>]*>(int8|e4m3|e5m2)<", page) == heads


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
        assert drawn["name"] == layer.name
        assert np.allclose(sorted(drawn["moves"]), sorted(layer.spectrum.pairs), rtol=1e-6)
        old, new = (np.hypot(*np.array(drawn["moves"]).T[part]) for part in ([0, 1], [2, 3]))
        assert np.allclose(np.log(old), np.e * np.log(new), atol=1e-6)
