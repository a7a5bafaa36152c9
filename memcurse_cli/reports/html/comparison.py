"""The page of a comparison: where every eigenvalue went, and the figures before and after."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from memcurse_cli.reports.answer import assumed_words
from memcurse_cli.reports.html.page import Table, render, row, sample, verdict_cell
from memcurse_cli.reports.html.tracking import column_cell
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


def to_html(comparison: Comparison) -> str:
    """The page of a comparison that was made with its pairs of eigenvalues."""
    before, after = comparison.before, comparison.after
    changed = [layer for layer in comparison.layers if not agrees(layer)]
    return render(
        "comparison.html",
        made=comparison,
        heads=("figure", "before", "after"),
        whole=tuple((name, tell(before).text, tell(after).text) for name, tell in WHOLE.items()),
        assumed=assumed_differently(before.input, after.input)
        or f"Assumed of both: {assumed_words(after.input)}.",
        columns=list(TABLE),
        closing=tuple(closing(comparison)),
        layers=[
            row(
                TABLE,
                layer,
                f"l{index}",
                index=index,
                name=layer.name,
                words=" ".join(words(layer)),
                figures=figures(layer)[0],
            )
            for index, layer in enumerate(changed)
        ],
        charts=[{"layers": [_chart(layer, len(changed)) for layer in changed]}],
        document=to_json(comparison, values=False),
    )


TABLE: Table = {
    "layer": lambda one: one.name,
    "verdict": lambda one: verdict_cell(one.verdict_after),
    **{column.heading: partial(column_cell, column) for column in LAYERS[3:]},
}


def _chart(layer: LayerComparison, layers: int) -> dict[str, Any]:
    """[re, im, re, im] of the pairs, as far as they are drawn.

    Conjugates were matched as the same eigenvalue, so the later one is drawn on the earlier's side.
    """
    pairs = np.array((layer.spectrum and layer.spectrum.pairs) or (), np.float64).reshape(-1, 4)
    across = np.sign(pairs[:, 1]) * np.sign(pairs[:, 3]) < 0
    pairs[across, 3] *= -1
    moves = sample(pairs.tolist(), np.hypot(pairs[:, 2], pairs[:, 3]), layers)
    return {"name": layer.name, "count": len(pairs), "moves": moves}
