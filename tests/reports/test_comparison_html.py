"""The HTML page of a comparison: self-contained, safe, small, and true to the comparison."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from reports.page_reader import Reader, assert_self_contained
from reports.strategies import instances

from memcurse_cli import inspect
from memcurse_cli.diagnosis.comparison import compare
from memcurse_cli.reports.html.comparison import to_html
from memcurse_cli.schema.derived import Comparison
from memcurse_cli.schema.json_codec import to_json


def layers(count: int, size: int, *, shift: float = 0.0, name: str = "layers") -> dict[str, Any]:
    """LRU layers; ``shift`` is added to every nu_log."""
    random = np.random.default_rng(0)
    state: dict[str, Any] = {}
    for layer in range(count):
        prefix = f"{name}.{layer}.lru."
        state[prefix + "nu_log"] = random.uniform(-8, 0, size) + shift
        state[prefix + "theta_log"] = random.uniform(-3, 1, size)
        state[prefix + "gamma_log"] = random.uniform(-3, 0, size)
    return state


def made(before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    return compare(inspect(before, values=True), inspect(after, values=True), values=True)


@settings(max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(comparison=instances(Comparison))
def test_every_comparison_makes_a_page_that_loads_nothing(comparison: Comparison) -> None:
    assert_self_contained(Reader(to_html(comparison)))


def test_the_page_holds_the_comparison_and_its_moves() -> None:
    comparison = made(layers(2, 5), layers(2, 5, shift=-1.0))
    page = Reader(to_html(comparison))
    document = json.loads(page.scripts["memcurse-report"])
    assert document == to_json(comparison, values=False)
    assert document["layers"][0]["spectrum"]["outward"] == 5
    (charts,) = json.loads(page.scripts["memcurse-charts"])
    for layer, drawn in zip(comparison.layers, charts["layers"], strict=True):
        assert layer.spectrum is not None
        assert layer.spectrum.pairs is not None
        assert drawn["name"] == layer.name
        assert np.allclose(sorted(drawn["moves"]), sorted(layer.spectrum.pairs), rtol=1e-6)
        before, after = (np.hypot(*np.array(drawn["moves"]).T[part]) for part in ([0, 1], [2, 3]))
        assert np.allclose(np.log(before), np.e * np.log(after), atol=1e-6)


def test_a_conjugate_is_drawn_where_its_partner_was() -> None:
    before, after = (
        {"A_re": np.array([re_]), "A_im": np.array([im])} for re_, im in ((0.5, 0.6), (0.4, -0.7))
    )
    comparison = made(before, after)
    (layer,) = comparison.layers
    assert layer.spectrum is not None
    assert layer.spectrum.pairs == (pytest.approx((0.5, 0.6, 0.4, -0.7)),)
    (charts,) = json.loads(Reader(to_html(comparison)).scripts["memcurse-charts"])
    assert charts["layers"][0]["moves"] == [[0.5, 0.6, 0.4, 0.7]]
