"""The HTML report: whole, self-contained, safe whatever a checkpoint's names are, and small."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from reports.page_reader import Reader, assert_self_contained
from reports.strategies import instances

from memcurse_cli import inspect
from memcurse_cli.reports.console import visible
from memcurse_cli.reports.html.report import to_html
from memcurse_cli.reports.terminal.report import to_text
from memcurse_cli.schema.figures import HessianPicture
from memcurse_cli.schema.report import Report


def layers_of(count: int, size: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    state: dict[str, Any] = {}
    for layer in range(count):
        prefix = f"layers.{layer}.lru."
        state[prefix + "nu_log"] = random.uniform(-8, 0, size)
        state[prefix + "theta_log"] = random.uniform(-3, 1, size)
        state[prefix + "gamma_log"] = random.uniform(-3, 0, size)
    return state


@settings(max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(report=instances(Report))
def test_every_report_makes_a_page_that_is_well_formed_and_loads_nothing(report: Report) -> None:
    assert_self_contained(Reader(to_html([report])))


@pytest.mark.parametrize(
    "name",
    [
        "</script><script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</title><h1>",
        "{{ 7 * 7 }}{% raw %}",
        "\x1b[31mred\x1b[0m",
        "\u202egnp.evil",
    ],
)
def test_a_name_stays_text(name: str) -> None:
    state = {f"{name}.{key}": value for key, value in layers_of(1, 3).items()}
    (key,) = {key.rpartition(".layers")[0] for key in state}
    text = to_html([inspect(state, values=True)])
    plain = Reader(to_html([inspect(layers_of(1, 3), values=True)]))
    page = Reader(text)
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "49" not in re.findall(r"<summary>.*?</summary>", text)[0]
    (charts,) = json.loads(page.scripts["memcurse-charts"])
    assert charts["layers"][0]["name"].startswith(visible(key))


def test_every_table_of_the_terminal_is_on_the_page() -> None:
    random = np.random.default_rng(0)
    shapes = {"gru.weight_hh_l0": (24, 8), "gru.weight_ih_l0": (24, 5), "gru.bias_hh_l0": 24}
    shapes |= {"gru.bias_ih_l0": 24, "rnn.weight_hh_l0": (8, 8), "rnn.weight_ih_l0": (8, 1)}
    state = {name: random.standard_normal(shape) / 4 for name, shape in shapes.items()}
    report = inspect(state, values=True, spectra=True, input_scale=1.0, rewrite_as=["lru"])
    titles = set(re.findall(r"<h3>(.*?)</h3>", to_html([report])))
    printed = set(to_text(report, all_layers=True).splitlines())
    both = {"What if", "Moving gates", "State at work", "Hidden weights", "Beyond eigenvalues"}
    assert titles == {"Findings", "Parameters", "Assumed", "Dense matrix"} | both
    assert both <= printed


def test_sixty_four_layers_stay_under_three_megabytes() -> None:
    one = inspect(layers_of(1, 1024), values=True)
    report = replace(one, layers=one.layers * 64)
    drawn = replace(
        report, layers=tuple(replace(one, picture=picture(480)) for one in report.layers)
    )
    assert len(to_html([drawn]).encode()) < 3_000_000


def picture(cells: int) -> HessianPicture:
    random = np.random.default_rng(1)
    correlation = random.uniform(0, 1, (cells, cells))
    return HessianPicture(
        title="a block",
        order=cells,
        magnitude=correlation,
        correlation=correlation,
        groups=("nu_log", "theta_log"),
        boundaries=(0, cells // 2, cells),
        eigenvalues=np.ones(3),
        eigenvectors=np.ones((3, cells)),
    )


def test_a_heat_map_keeps_the_largest_correlation_of_what_it_merges() -> None:
    report = inspect(layers_of(1, 3), values=True)
    correlation = np.zeros((480, 480))
    correlation[479, 3] = 1.0
    layer = replace(report.layers[0], picture=replace(picture(480), correlation=correlation))
    page = Reader(to_html([replace(report, layers=(layer,))]))
    heat = json.loads(page.scripts["memcurse-charts"])[0]["layers"][0]["hessian"]
    shades = np.frombuffer(base64.b64decode(heat["shades"]), np.uint8)
    shades = shades.reshape(heat["cells"], heat["cells"])
    assert shades[-1, 0] == 255
    assert np.count_nonzero(shades) == 1
    assert heat["boundaries"][-1] == heat["cells"]
