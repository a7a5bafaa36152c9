"""The page of a comparison: where every eigenvalue went, and the figures before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from memcurse_cli.reports.html.page import Cell, Table, figure, render, row, verdict_cell, word
from memcurse_cli.reports.numbers import number, percent
from memcurse_cli.reports.terminal.comparison import (
    ASSUMED,
    HOW,
    assumed_differently,
    figures,
    spectrum_words,
)
from memcurse_cli.schema.derived import Change, Comparison, LayerComparison
from memcurse_cli.schema.json_codec import to_json

MOVES_PER_LAYER = 512
MOVES_IN_ALL = 20_000

FIGURES = ("figure", "before", "after")


@dataclass(frozen=True)
class LayerView:
    """A layer's part of the page."""

    made: LayerComparison
    index: int
    words: str
    figures: tuple[tuple[str, str, str], ...]


def to_html(comparison: Comparison) -> str:
    """The page of a comparison that was made with its pairs of eigenvalues."""
    layers = comparison.layers
    share = max(16, min(MOVES_PER_LAYER, MOVES_IN_ALL // max(1, len(layers))))
    alone = (("before", comparison.only_before), ("after", comparison.only_after))
    return render(
        "comparison.html",
        made=comparison,
        assumed=tuple(assumed_differently(comparison.input, comparison.input_after)),
        facts=tuple(_facts(comparison)),
        columns=tuple(LAYERS),
        rows=tuple(
            {"cells": row(LAYERS, layer), "href": f"l{index}"} for index, layer in enumerate(layers)
        ),
        alone=tuple((when, names) for when, names in alone if names),
        figure_columns=FIGURES,
        layers=tuple(_view(layer, index) for index, layer in enumerate(layers)),
        charts=[{"curves": [], "layers": [_chart(layer, share) for layer in layers]}],
        document=to_json(comparison, values=False),
    )


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """What both reports assumed; `assumed_differently` tells the rest."""
    for label, describe in ASSUMED.items():
        ours = describe(comparison.input)
        if ours == describe(comparison.input_after) != "none":
            yield label, ours
    yield "memcurse", comparison.version


def _view(layer: LayerComparison, index: int) -> LayerView:
    words = [f"Matched with {layer.name_after}: {HOW[layer.matched_by]}."]
    if layer.spectrum is None:
        words.append(f"How eigenvalues moved is not known: {layer.spectrum_reason}.")
    else:
        words.extend(spectrum_words(layer.spectrum))
    return LayerView(layer, index, " ".join(words), tuple(figures(layer)))


def _value(change: Change, write: Callable[[float], str] = number, *, after: bool) -> Cell:
    if after:
        return figure(change.after, write, divergent=change.divergent_after)
    return figure(change.before, write, divergent=change.divergent_before)


def _step(layer: LayerComparison, *, after: bool) -> Cell:
    cells = [_value(group.step_effect, percent, after=after) for group in layer.parameters]
    return max(cells, key=lambda cell: cell.key, default=figure(None))


def _moved(field: str) -> Callable[[LayerComparison], Cell]:
    return lambda layer: figure(getattr(layer.spectrum, field, None), "{:,}".format)


LAYERS: Table = {
    "layer": lambda one: word(one.name),
    "verdict": lambda one: verdict_cell(one.verdict_after),
    "τ max before": lambda one: _value(one.time_constant, after=False),
    "τ max after": lambda one: _value(one.time_constant, after=True),
    "outward": _moved("outward"),
    "inward": _moved("inward"),
    "step before": lambda one: _step(one, after=False),
    "step after": lambda one: _step(one, after=True),
    "usable lr": lambda one: _value(one.usable_rate, after=True),
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
