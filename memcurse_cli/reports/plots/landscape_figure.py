"""`--plot` of `memcurse landscape`: the losses over the distance, a panel per parametrisation."""

from __future__ import annotations

import numpy as np

from memcurse_cli.reports.plots.figures import STYLE, figure_bytes, new_figure
from memcurse_cli.reports.terminal.landscape import LEAST_LOSS, title
from memcurse_cli.schema.theory import LandscapeReport

COLUMNS = 3
PANEL = 2.2  # inches


def landscape_figure(report: LandscapeReport, name: str) -> bytes:
    """One panel per parametrisation on common logarithmic axes, a line per parameter.

    Args:
        report: what to draw.
        name: the format, as `check_figure` gave it.
    """
    import matplotlib

    count = len(report.views)
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(PANEL * columns, PANEL * rows)
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for axes, view in zip(panels, report.views, strict=False):
            axes.set(xscale="log", yscale="log", title=title(view))
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
        return figure_bytes(figure, name)
