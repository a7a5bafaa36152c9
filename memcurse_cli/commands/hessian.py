"""`memcurse hessian`: the curvature of the loss over every parameter of a recurrent layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memcurse_cli.commands.options import (
    JsonOption,
    OutputOption,
    check_figure,
    emit,
    emit_json,
    write_file,
)
from memcurse_cli.commands.request import Request, with_request


@with_request("learning_rate", "watch_limit", "cursed_limit", "spectra")
def hessian(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A checkpoint: a file, directory or URL.")
    ],
    request: Request,
    correlation: Annotated[
        bool, typer.Option("--correlation", help="Draw |H_ab|/√(H_aa H_bb) rather than |H_ab|.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png|svg|pdf",
            help="Draw heat map, eigenvectors and spectrum of every layer into FILE.",
        ),
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """The curvature of the loss: which parameters couple, and what Adam can mend.

    Example: memcurse hessian model.safetensors --plot hessian.svg
    """
    from memcurse_cli.commands.progress import layer_progress
    from memcurse_cli.diagnosis.inspection import hessian as inspect_hessian

    figure_format = "" if plot is None else check_figure(plot)
    with layer_progress(path, quiet=request.quiet) as progress:
        report = inspect_hessian(path, **request.arguments(), progress=progress)
    if plot is not None:
        from memcurse_cli.reports.plots.hessian_figure import to_figure

        write_file(plot, to_figure(report, figure_format, correlation=correlation))
    if as_json:
        emit_json(report, output)
        return
    from memcurse_cli.reports.terminal.hessian import to_text

    emit(to_text(report, correlation=correlation, file=output), output)
