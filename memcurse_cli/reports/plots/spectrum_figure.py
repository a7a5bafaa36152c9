"""`--plot` of `memcurse inspect`: spectra in the unit disk, and sensitivities over the theory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from memcurse_cli.reports.console import visible
from memcurse_cli.reports.plots.figures import STYLE, figure_bytes, new_figure
from memcurse_cli.reports.ranking import layer_rank
from memcurse_cli.schema.report import LayerReport, Report, SensitivityCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = 6
ROW_HEIGHT = 2.6  # inches
WIDTH = 5.6


def spectrum_figure(reports: Sequence[Report], name: str) -> bytes:
    """A row per layer, the worst first and no more than six: the unit disk, and κ(λ) against τ.

    Args:
        reports: made with every eigenvalue.
        name: the format, as `check_figure` gave it.
    """
    import matplotlib

    ranked = sorted(
        ((report, layer) for report in reports for layer in report.layers),
        key=lambda pair: layer_rank(pair[1]),
        reverse=True,
    )[:ROWS]
    with matplotlib.rc_context(STYLE):
        figure = new_figure(WIDTH, ROW_HEIGHT * len(ranked))
        rows = figure.subplots(len(ranked), 2, squeeze=False)
        for (report, layer), (disk, memory) in zip(ranked, rows, strict=True):
            _draw_disk(disk, layer, visible(layer.name))
            _draw_sensitivity(memory, layer, report.curves)
        return figure_bytes(figure, name)


def _draw_disk(axes: Axes, layer: LayerReport, title: str) -> None:
    values = np.asarray(layer.eigenvalues.values or np.empty((0, 2)))
    inside = np.hypot(values[:, 0], values[:, 1]) < 1
    turn = np.linspace(0, 2 * np.pi, 361)
    axes.plot(np.cos(turn), np.sin(turn), color="0.6", linewidth=0.8)
    axes.plot(*values[inside].T, ".", color="tab:blue", markersize=3)
    axes.plot(*values[~inside].T, ".", color="tab:red", markersize=3)
    axes.set(title=title, xlabel="Re λ", ylabel="Im λ", aspect="equal")


def _draw_sensitivity(axes: Axes, layer: LayerReport, curves: Sequence[SensitivityCurve]) -> None:
    values = np.asarray(layer.eigenvalues.values or np.empty((0, 2)))
    kappa = np.array(layer.eigenvalues.relative_sensitivities or (), dtype=np.float64)
    modulus = np.hypot(values[:, 0], values[:, 1])
    shown = (modulus < 1) & (modulus > 0) & np.isfinite(kappa)
    axes.set(xscale="log", yscale="log", xlabel="time constant τ, steps", ylabel="κ(λ)")
    for curve in curves:
        label = "infinite sequence" if curve.horizon is None else f"{curve.horizon} steps"
        heights = np.array(curve.relative_sensitivity, dtype=np.float64)
        style = "--" if curve.horizon is None else "-"
        axes.plot(curve.time_constant, heights, style, color="0.6", linewidth=0.8, label=label)
    axes.plot(-1 / np.log(modulus[shown]), kappa[shown], ".", color="tab:blue", markersize=3)
    if np.any(shown):
        constants = -1 / np.log(modulus[shown])
        axes.set_xlim(min(1, constants.min() / 2), 2 * constants.max())
        axes.set_ylim(kappa[shown].min() / 3, 3 * kappa[shown].max())
    axes.legend(frameon=False)
