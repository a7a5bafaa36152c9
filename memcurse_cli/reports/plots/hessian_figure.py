"""The heat map of a Hessian as a figure, laid out as figures 4 and 9 of Zucchet & Orvieto 2024.

One row per layer: H over its parameters, group by group; its 10 steepest eigenvectors beside it,
on the same parameters; and its eigenvalues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memcurse_cli.errors import UsageError
from memcurse_cli.reports.console import visible
from memcurse_cli.reports.plots.figures import STYLE, figure_bytes, new_figure
from memcurse_cli.reports.plots.heat_map import drawn_magnitudes
from memcurse_cli.schema.hessian import HessianPicture, HessianReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LAYERS = 12
WIDTH, HEIGHT = 8.8, 4.4
"""Inches of one layer's row."""

LINE = "white"
FAINT = 0.2
"""Weights of eigenvectors that are all below it are drawn by the largest of them."""


def to_figure(report: HessianReport, name: str, *, correlation: bool = False) -> bytes:
    """The figure's file.

    Args:
        report: what to draw.
        name: the format, one of `figures.FORMATS`.
        correlation: draw |H_ab| / √(H_aa H_bb) rather than |H_ab|.

    Raises:
        UsageError: no layer can be drawn, or more than a figure has room for.
    """
    import matplotlib

    drawn = [(layer.name, layer.picture) for layer in report.layers if layer.picture is not None]
    if not drawn:
        reason = report.layers[0].reason if report.layers else None
        raise UsageError(
            "no layer has a Hessian to draw" + (f": {reason}" if reason else ""),
            where="--plot",
            remedy="name another checkpoint, or give a finite --horizon",
        )
    if len(drawn) > MOST_LAYERS:
        raise UsageError(
            f"{len(drawn)} layers are more than the {MOST_LAYERS} that a figure has room for",
            where="--plot",
            remedy="choose some with --layer GLOB",
        )
    with matplotlib.rc_context(STYLE):
        figure = new_figure(WIDTH, HEIGHT * len(drawn))
        rows = figure.subplots(
            len(drawn), 3, squeeze=False, gridspec_kw={"width_ratios": [3.1, 1, 1.6]}
        )
        for axes, (layer, picture) in zip(rows, drawn, strict=True):
            _row(figure, axes, layer, picture, correlation=correlation)
        return figure_bytes(figure, name)


def _row(
    figure: Any, axes: Sequence[Axes], layer: str, picture: HessianPicture, *, correlation: bool
) -> None:
    from matplotlib.colors import LogNorm

    matrix, vectors, spectrum = axes
    values, decades, unit = drawn_magnitudes(picture, correlation=correlation)
    top = float(values.max())
    scale = LogNorm(top / 10**decades, top, clip=True)
    image = matrix.imshow(
        np.maximum(values, top / 10**decades),
        norm=scale,
        cmap="viridis",
        aspect="equal",
        interpolation="none",
        rasterized=True,
    )
    shown = f"{visible(layer)}: {picture.title}".replace("$", r"\$")
    matrix.set_title(f"{shown}\n{unit}", loc="left")
    _mark_groups(matrix, picture, both=True)
    figure.colorbar(image, ax=matrix, location="left", shrink=0.6, pad=0.02)

    # Of a few parameters among many every weight is small.
    heaviest = float(picture.eigenvectors.max(initial=0.0))
    bright = 1.0 if heaviest > FAINT or heaviest == 0 else heaviest
    vectors.imshow(
        picture.eigenvectors.T,
        vmin=0,
        vmax=bright,
        cmap="Greys",
        aspect="auto",
        interpolation="none",
        rasterized=True,
    )
    reach = "|v|" if bright == 1 else f"|v| up to {bright:.1g}"
    vectors.set_title(f"top {len(picture.eigenvectors)} eigenvectors, {reach}", loc="left")
    vectors.set_xticks([])
    _mark_groups(vectors, picture, both=False)

    positive = picture.eigenvalues[picture.eigenvalues > 0]
    spectrum.semilogy(np.arange(1, positive.size + 1), positive, ".", markersize=3, color="C0")
    spectrum.set_ylim(bottom=max(float(positive.min()), float(positive.max()) * 1e-16) / 2)
    spectrum.set_title("eigenvalues by rank", loc="left")
    for side in ("top", "right"):
        spectrum.spines[side].set_visible(False)


def _mark_groups(axes: Axes, picture: HessianPicture, *, both: bool) -> None:
    """Lines between the groups and their names at the middle of each."""
    edges = np.asarray(picture.boundaries) - 0.5
    middles = (edges[:-1] + edges[1:]) / 2
    colour = LINE if both else "0.6"
    for edge in edges[1:-1]:
        axes.axhline(edge, color=colour, linewidth=0.5)
        if both:
            axes.axvline(edge, color=colour, linewidth=0.5)
    names = [visible(name).replace("$", r"\$") for name in picture.groups]
    axes.set_yticks(middles, names if both else [])
    axes.tick_params(length=0)
    if both:
        axes.set_xticks(middles, names, rotation=90)
