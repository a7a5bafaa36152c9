"""The page of a comparison: where every eigenvalue went, and the figures before and after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from memcurse_cli.reports.answer import assumed_words
from memcurse_cli.reports.grid import cells
from memcurse_cli.reports.html.page import Cell, render, sample, verdict_cell
from memcurse_cli.reports.html.tracking import sorted_cell
from memcurse_cli.reports.terminal.comparison import (
    LAYERS,
    WHOLE,
    agrees,
    assumed_differently,
    closing,
    figures,
    words,
)
from memcurse_cli.schema.derived import Comparison, LayerComparison
from memcurse_cli.schema.json_codec import to_json

HEADS = ("figure", "before", "after")


def to_html(comparison: Comparison) -> str:
    """The page of a comparison that was made with its pairs of eigenvalues."""
    before, after = comparison.before, comparison.after
    changed = [layer for layer in comparison.layers if not agrees(layer)]
    return render(
        "comparison.html",
        made=comparison,
        heads=HEADS,
        whole=tuple((name, tell(before).text, tell(after).text) for name, tell in WHOLE.items()),
        assumed=assumed_differently(before.input, after.input)
        or f"Assumed of both: {assumed_words(after.input)}.",
        columns=tuple(column.heading for column in LAYERS[1:]),
        closing=tuple(closing(comparison)),
        layers=tuple(
            {
                "cells": tuple(_cells(layer)),
                "href": f"l{index}",
                "index": index,
                "name": layer.name,
                "words": " ".join(words(layer)),
                "figures": figures(layer)[0],
            }
            for index, layer in enumerate(changed)
        ),
        charts=[{"layers": [_chart(layer, len(changed)) for layer in changed]}],
        document=to_json(comparison, values=False),
    )


def _cells(layer: LayerComparison) -> Iterator[Cell]:
    """What the terminal's table says of a layer, sorted by what it is after."""
    yield Cell(layer.name, layer.name)
    yield verdict_cell(layer.verdict_after)
    for said in cells(LAYERS[3:], layer):
        after = said.text.rpartition(" → ")[2].partition(" ")[0]
        yield Cell(said.text, sorted_cell(after).key)


def _chart(layer: LayerComparison, layers: int) -> dict[str, Any]:
    """[re, im, re, im] of the pairs, as far as they are drawn.

    Conjugates were matched as the same eigenvalue, so the later one is drawn on the earlier's side.
    """
    pairs = np.array((layer.spectrum and layer.spectrum.pairs) or (), np.float64).reshape(-1, 4)
    across = np.sign(pairs[:, 1]) * np.sign(pairs[:, 3]) < 0
    pairs[across, 3] *= -1
    moves = sample(pairs.tolist(), np.hypot(pairs[:, 2], pairs[:, 3]), layers)
    return {"name": layer.name, "count": len(pairs), "moves": moves}
