"""The page of a comparison: where every eigenvalue went, and the figures before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from memcurse_cli.reports.answer import assumed_words, rate_words, steps
from memcurse_cli.reports.html.page import Cell, Table, figure, render, row, verdict_cell, word
from memcurse_cli.reports.terminal.comparison import (
    WHOLE,
    agrees,
    assumed_differently,
    closing,
    figures,
    words,
)
from memcurse_cli.schema.derived import Change, Comparison, LayerComparison
from memcurse_cli.schema.json_codec import to_json

MOVES_PER_LAYER = 512
MOVES_IN_ALL = 20_000

HEADS = ("figure", "before", "after")


@dataclass(frozen=True)
class LayerView:
    """A layer's part of the page."""

    made: LayerComparison
    index: int
    words: str
    figures: tuple[tuple[str, str, str], ...]


def to_html(comparison: Comparison) -> str:
    """The page of a comparison that was made with its pairs of eigenvalues."""
    before, after, layers = comparison.before, comparison.after, comparison.layers
    changed = [(index, layer) for index, layer in enumerate(layers) if not agrees(layer)]
    share = max(16, min(MOVES_PER_LAYER, MOVES_IN_ALL // max(1, len(changed))))
    return render(
        "comparison.html",
        made=comparison,
        heads=HEADS,
        whole=tuple((name, tell(before).text, tell(after).text) for name, tell in WHOLE.items()),
        assumed=assumed_differently(before.input, after.input)
        or f"Assumed of both: {assumed_words(after.input)}.",
        columns=tuple(LAYERS),
        rows=tuple({"cells": row(LAYERS, layer), "href": f"l{index}"} for index, layer in changed),
        closing=tuple(closing(comparison)),
        layers=tuple(
            LayerView(layer, index, " ".join(words(layer)), tuple(figures(layer)[0]))
            for index, layer in changed
        ),
        charts=[{"curves": [], "layers": [_chart(layer, share) for layer in layers]}],
        document=to_json(comparison, values=False),
    )


def _sides(name: str, write: Callable[[float], str]) -> Table:
    """Two columns, before and after."""

    def change(layer: LayerComparison) -> Change:
        found = (one for one in layer.changes if one.figure == name)
        return next(found, Change(name, None, None))

    def before(layer: LayerComparison) -> Cell:
        one = change(layer)
        return figure(one.before, write, divergent=one.divergent_before)

    def after(layer: LayerComparison) -> Cell:
        one = change(layer)
        return figure(one.after, write, divergent=one.divergent_after)

    said = name.replace("_", " ")
    return {f"{said} before": before, f"{said} after": after}


def _moved(field: str) -> Callable[[LayerComparison], Cell]:
    return lambda layer: figure(getattr(layer.spectrum, field, None), "{:,}".format)


LAYERS: Table = {
    "layer": lambda one: word(one.name),
    "verdict": lambda one: verdict_cell(one.verdict_after),
    **_sides("memory", steps),
    **_sides("usable_rate", rate_words),
    "remember longer": _moved("outward"),
    "shorter": _moved("inward"),
}


def _chart(layer: LayerComparison, most: int) -> dict[str, Any]:
    """[re, im, re, im] of the pairs, or of an even sample of them by |λ| after.

    Conjugates were matched as the same eigenvalue, so the later one is drawn on the earlier's side.
    """
    if layer.spectrum is None or layer.spectrum.pairs is None:
        return {"name": layer.name, "count": 0, "moves": []}
    pairs = np.array(layer.spectrum.pairs, np.float64).reshape(-1, 4)
    across = np.sign(pairs[:, 1]) * np.sign(pairs[:, 3]) < 0
    pairs[across, 3] *= -1
    order = np.argsort(np.hypot(pairs[:, 2], pairs[:, 3]), kind="stable")
    if len(order) > most:
        order = order[np.round(np.linspace(0, len(order) - 1, most)).astype(np.intp)]
    return {
        "name": layer.name,
        "count": len(pairs),
        "moves": [[float(f"{value:.7g}") for value in pairs[index]] for index in order],
    }
