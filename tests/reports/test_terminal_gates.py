"""What the terminal and the page say of layers whose gates have no figures, or the band alone."""

from __future__ import annotations

import html
import re

import numpy as np

from memcurse_cli import inspect
from memcurse_cli.reports.html.report import to_html
from memcurse_cli.reports.terminal.report import to_text

RANDOM = np.random.default_rng(1)
MIN_LSTM = {"first.to_hidden_and_f_i_gate.weight": 0.5 * RANDOM.standard_normal((9, 4))}
SRU = {
    "first.weight": RANDOM.standard_normal((4, 9)),
    "first.weight_c": np.ones(6),
    "first.bias": np.ones(6),
}
UNDRIVEN = {"second._bias_": np.ones(24), "second._recurrent_kernel_": np.zeros((2, 12, 3))}
"""An sLSTM without the weights that its gates see the input through."""


def shown(first: dict[str, np.ndarray]) -> tuple[str, str]:
    """The report on the terminal and on the page, in words alone."""
    report = inspect(first | UNDRIVEN, gates=True)
    page = html.unescape(re.sub("<[^>]*>", " ", to_html([report])))
    return " ".join(to_text(report).split()), " ".join(page.split())


def test_a_layer_with_the_band_alone_is_told_from_one_with_nothing() -> None:
    text, page = shown(SRU)
    assert "first without E h² and κ: weight_c lets its gate see its own unit's state" in text
    assert "The layer is without E h² and κ: weight_c lets its gate see" in page
    assert "second left out: the family does not say" in text


def test_a_layer_without_sensitivities_alone_is_told_that() -> None:
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


def test_a_layer_with_all_figures_is_told_nothing() -> None:
    for said in shown(MIN_LSTM):
        assert "Moving gates" in said
        assert "without E h² and κ" not in said
        assert re.search(r"Drawn figures have a standard error of 0\.\d+ %\.", said)
