"""What the script of the page draws: a sample of each spectrum, the theory's curves, Hessians."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memcurse_cli.schema.figures import HessianPicture
from memcurse_cli.schema.report import LayerReport, Report

POINTS_PER_LAYER = 512
POINTS_IN_ALL = 20_000
CELLS = 64


def chart_data(report: Report) -> dict[str, Any]:
    """The numbers of a report's charts, rounded to what a chart can show."""
    share = max(16, min(POINTS_PER_LAYER, POINTS_IN_ALL // max(1, len(report.layers))))
    return {
        "curves": [
            {
                "horizon": curve.horizon,
                "points": [
                    [_round(constant), _round(kappa)]
                    for constant, kappa in zip(
                        curve.time_constant, curve.relative_sensitivity, strict=False
                    )
                    if kappa is not None
                ],
            }
            for curve in report.curves
        ],
        "layers": [
            {
                "name": layer.name,
                "count": layer.eigenvalues.count,
                "points": _points(layer, share),
                "hessian": None if layer.picture is None else _heat_map(layer.picture),
            }
            for layer in report.layers
        ],
    }


def _points(layer: LayerReport, most: int) -> list[list[float | None]]:
    """[re, im, κ] of the eigenvalues, or of an even sample of them by |λ|, both ends included."""
    values = layer.eigenvalues.values
    if values is None:
        return []
    kappas = layer.eigenvalues.relative_sensitivities or ()
    kappas += (None,) * (len(values) - len(kappas))
    order = np.argsort([math.hypot(*value) for value in values], kind="stable")
    if len(values) > most:
        order = order[np.round(np.linspace(0, len(values) - 1, most)).astype(np.intp)]
    return [
        [_round(values[index][0]), _round(values[index][1]), _round(kappas[index])]
        for index in order.tolist()
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


def _heat_map(picture: HessianPicture) -> dict[str, Any]:
    """The square roots of the correlations as bytes, 255 for 1."""
    step = -(-len(picture.correlation) // CELLS)
    shade = np.sqrt(np.clip(_shrink(picture.correlation, step), 0, 1))
    return {
        "cells": len(shade),
        "order": picture.order,
        "groups": list(picture.groups),
        "boundaries": [boundary / step for boundary in picture.boundaries],
        "shades": base64.b64encode(np.round(255 * shade).astype(np.uint8).tobytes()).decode(),
    }


def _shrink(matrix: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    """The largest of every ``step`` by ``step`` cells."""
    starts = np.arange(0, len(matrix), step)
    rows = np.maximum.reduceat(matrix, starts, axis=0)
    return np.asarray(np.maximum.reduceat(rows, starts, axis=1))
