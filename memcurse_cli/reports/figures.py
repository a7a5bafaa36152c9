"""Figures as files, drawn by matplotlib, an optional extra.

Figures are made without pyplot, so that no window system and no global state is touched, and the
same figure always gives the same file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.errors import UsageError
from memcurse_cli.reports.console import visible
from memcurse_cli.reports.plots import drawn_magnitudes
from memcurse_cli.reports.ranking import layer_rank
from memcurse_cli.reports.terminal.landscape import LEAST_LOSS
from memcurse_cli.reports.terminal.steps import title as landscape_title
from memcurse_cli.schema.hessian import HessianPicture, HessianReport
from memcurse_cli.schema.report import LayerReport, Report, SensitivityCurve
from memcurse_cli.schema.theory import LandscapeReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FORMATS = ("png", "svg", "pdf")
DOTS_PER_INCH = 150
STYLE: dict[Any, Any] = {
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "memcurse",  # ids that do not change from run to run
    "text.usetex": False,  # else a matplotlibrc in the working directory could run LaTeX
}


def check_figure(path: Path) -> str:
    """The format that a file's name asks for, before any work is done for it.

    Raises UsageError: no format of that name is written, or matplotlib is not installed.
    """
    name = path.suffix.removeprefix(".").lower()
    if name not in FORMATS:
        raise UsageError(
            f"'{path.suffix}' is no format of a figure" if name else "the file has no suffix",
            where=f"--plot {shown_place(path)}",
            remedy="name a file that ends in .png, .svg or .pdf",
        )
    try:
        import matplotlib  # noqa: F401, only whether it is there
    except ImportError as error:
        raise UsageError(
            "matplotlib is not installed", where="--plot", remedy="pip install 'memcurse-cli[plot]'"
        ) from error
    return name


def _file(name: str, width: float, height: float, draw: Callable[[Figure], None]) -> bytes:
    """The file of a figure of so many inches, in a format, without the time of its making."""
    import matplotlib
    from matplotlib.figure import Figure

    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    stream = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        figure.savefig(stream, format=name, dpi=DOTS_PER_INCH, metadata=dates[name])
    return stream.getvalue()


ROWS = 6
ROW_HEIGHT = 2.6  # inches
WIDTH = 5.6


def spectrum_figure(reports: Sequence[Report], name: str) -> bytes:
    """A row per layer, the worst first and no more than six: the unit disk, and κ(λ) against τ."""
    ranked = sorted(
        ((report, layer) for report in reports for layer in report.layers),
        key=lambda pair: layer_rank(pair[1]),
        reverse=True,
    )[:ROWS]

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(ranked), 2, squeeze=False)
        for (report, layer), (disk, memory) in zip(ranked, rows, strict=True):
            _draw_layer(disk, memory, layer, report.curves)

    return _file(name, WIDTH, ROW_HEIGHT * len(ranked), draw)


def _draw_layer(
    disk: Axes, memory: Axes, layer: LayerReport, curves: Sequence[SensitivityCurve]
) -> None:
    values = np.asarray(layer.eigenvalues.values or np.empty((0, 2)))
    modulus = np.hypot(*values.T)
    turn = np.linspace(0, 2 * np.pi, 361)
    disk.plot(np.cos(turn), np.sin(turn), color="0.6", linewidth=0.8)
    disk.plot(*values[modulus < 1].T, ".", color="tab:blue", markersize=3)
    disk.plot(*values[modulus >= 1].T, ".", color="tab:red", markersize=3)
    disk.set(title=visible(layer.name), xlabel="Re λ", ylabel="Im λ", aspect="equal")

    memory.set(xscale="log", yscale="log", xlabel="time constant τ, steps", ylabel="κ(λ)")
    for curve in curves:
        label = "infinite sequence" if curve.horizon is None else f"{curve.horizon} steps"
        heights = np.array(curve.relative_sensitivity, dtype=np.float64)
        style = "--" if curve.horizon is None else "-"
        memory.plot(curve.time_constant, heights, style, color="0.6", linewidth=0.8, label=label)
    kappa = np.array(layer.eigenvalues.relative_sensitivities or (), dtype=np.float64)
    shown = (modulus < 1) & (modulus > 0) & np.isfinite(kappa)
    constants, kappa = -1 / np.log(modulus[shown]), kappa[shown]
    memory.plot(constants, kappa, ".", color="tab:blue", markersize=3)
    if kappa.size:
        memory.set_xlim(min(1, constants.min() / 2), 2 * constants.max())
        memory.set_ylim(kappa.min() / 3, 3 * kappa.max())
    memory.legend(frameon=False)


MOST_LAYERS = 12
HESSIAN_WIDTH, HESSIAN_HEIGHT = 8.8, 4.4  # inches of one layer's row
FAINT = 0.2  # weights of eigenvectors that are all below it are drawn by the largest of them


def hessian_figure(report: HessianReport, name: str, *, correlation: bool = False) -> bytes:
    """A row per layer: the picture of its Hessian, the top eigenvectors and the spectrum.

    Raises UsageError: no layer can be drawn, or more than a figure has room for.
    """
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

    def draw(figure: Figure) -> None:
        ratios = {"width_ratios": [3.1, 1, 1.6]}
        rows = figure.subplots(len(drawn), 3, squeeze=False, gridspec_kw=ratios)
        for axes, (layer, picture) in zip(rows, drawn, strict=True):
            _hessian_row(figure, axes, layer, picture, correlation=correlation)

    return _file(name, HESSIAN_WIDTH, HESSIAN_HEIGHT * len(drawn), draw)


def _hessian_row(
    figure: Any, axes: Sequence[Axes], layer: str, picture: HessianPicture, *, correlation: bool
) -> None:
    from matplotlib.colors import LogNorm

    matrix, vectors, spectrum = axes
    values, decades, unit = drawn_magnitudes(picture, correlation=correlation)
    top = float(values.max())
    least = top / 10**decades
    cells: dict[str, Any] = {"interpolation": "none", "rasterized": True}
    scale = LogNorm(least, top, clip=True)
    image = matrix.imshow(np.maximum(values, least), norm=scale, cmap="viridis", **cells)
    shown = f"{visible(layer)}: {picture.title}".replace("$", r"\$")
    matrix.set_title(f"{shown}\n{unit}", loc="left")
    _mark_groups(matrix, picture, both=True)
    figure.colorbar(image, ax=matrix, location="left", shrink=0.6, pad=0.02)

    # Of a few parameters among many every weight is small.
    heaviest = float(picture.eigenvectors.max(initial=0.0))
    bright = 1.0 if heaviest > FAINT or heaviest == 0 else heaviest
    weights = picture.eigenvectors.T
    vectors.imshow(weights, vmin=0, vmax=bright, cmap="Greys", aspect="auto", **cells)
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
    edges = np.asarray(picture.boundaries) - 0.5
    middles = (edges[:-1] + edges[1:]) / 2
    colour = "white" if both else "0.6"
    for edge in edges[1:-1]:
        axes.axhline(edge, color=colour, linewidth=0.5)
        if both:
            axes.axvline(edge, color=colour, linewidth=0.5)
    names = [visible(name).replace("$", r"\$") for name in picture.groups]
    axes.set_yticks(middles, names if both else [])
    axes.tick_params(length=0)
    if both:
        axes.set_xticks(middles, names, rotation=90)


PANELS_ACROSS = 3
PANEL = 2.2  # inches


def landscape_figure(report: LandscapeReport, name: str) -> bytes:
    """One panel per parametrisation on common logarithmic axes, a line per parameter."""
    count = len(report.views)
    columns = min(PANELS_ACROSS, count)
    rows = -(-count // columns)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for axes, view in zip(panels, report.views, strict=False):
            axes.set(xscale="log", yscale="log", title=landscape_title(view))
            axes.set(xlim=(report.offsets[0], report.offsets[-1]), ylim=(LEAST_LOSS, 10))
            axes.axhline(report.level, color="0.7", linewidth=0.8, linestyle="--")
            axes.axvline(report.input.learning_rate, color="0.7", linewidth=0.8, linestyle=":")
            for one in view.parameters:
                losses = np.array(one.loss, dtype=np.float64)
                axes.plot(report.offsets, losses, linewidth=1, label=one.name)
            axes.legend(frameon=False)
        for axes in panels[count:]:
            axes.set_visible(False)
        figure.supxlabel("distance of one parameter from its optimum", fontsize=8)
        figure.supylabel("loss / that of a silent student", fontsize=8)

    return _file(name, PANEL * columns, PANEL * rows, draw)
