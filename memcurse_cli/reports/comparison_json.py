"""A comparison as JSON, `memcurse.comparison/1`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from memcurse_cli.diagnosis.comparison import SCHEMA, Comparison, LayerComparison
from memcurse_cli.reports.json_codec import encode


def to_json(comparison: Comparison, *, values: bool = True) -> dict[str, Any]:
    """The object of a comparison: ``schema`` first, then the fields in their own order.

    Without ``values`` the pairs of eigenvalues are left out.
    """
    if not values:
        layers = tuple(_without_pairs(layer) for layer in comparison.layers)
        comparison = replace(comparison, layers=layers)
    return {"schema": SCHEMA, **encode(comparison)}


def to_text(comparison: Comparison) -> str:
    """The object as text."""
    return json.dumps(to_json(comparison), indent=2, allow_nan=False)


def _without_pairs(layer: LayerComparison) -> LayerComparison:
    if layer.spectrum is None:
        return layer
    return replace(layer, spectrum=replace(layer.spectrum, pairs=None))
