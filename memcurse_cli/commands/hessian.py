"""`memcurse hessian`: the curvature of the loss over every parameter of a recurrent layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memcurse_cli.commands.options import (
    AssumeOption,
    AutocorrelationOption,
    DeviceOption,
    FamilyOption,
    HorizonOption,
    JsonOption,
    LayerOption,
    OneRhoOption,
    OutputOption,
    QuietOption,
    ReadoutOption,
    emit,
    read_assumptions,
    write_file,
)


def hessian(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A checkpoint: a file, directory or URL.")
    ],
    rho: OneRhoOption = None,
    autocorrelation: AutocorrelationOption = None,
    horizon: HorizonOption = None,
    readout: ReadoutOption = None,
    family: FamilyOption = None,
    layer: LayerOption = None,
    assume: AssumeOption = None,
    device: DeviceOption = "auto",
    correlation: Annotated[
        bool,
        typer.Option("--correlation", help="Draw |H_ab|/√(H_aa H_bb) rather than |H_ab|."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE.png|svg|pdf",
            help="Draw heat map, eigenvectors and spectrum of every layer into FILE.",
        ),
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """The curvature of the loss: which parameters couple, and what Adam can mend.

    Example: memcurse hessian model.safetensors --plot hessian.svg
    """
    from memcurse_cli.commands.progress import layer_progress
    from memcurse_cli.diagnosis.hessian.inspection import hessian as inspect_hessian

    figure_format = None
    if plot is not None:
        from memcurse_cli.reports.plots.figures import check_figure

        figure_format = check_figure(plot)
    with layer_progress(path, quiet=quiet) as progress:
        report = inspect_hessian(
            path,
            rho=rho,
            autocorrelation=autocorrelation,
            horizon=horizon,
            readout=readout,
            family=family,
            layers=layer or (),
            assume=read_assumptions(assume),
            device=device,
            progress=progress,
        )
    if plot is not None and figure_format is not None:
        from memcurse_cli.reports.plots.hessian_figure import to_figure

        write_file(plot, to_figure(report, figure_format, correlation=correlation))
    if as_json:
        from memcurse_cli.schema.json_codec import to_text as json_text

        emit(json_text(report), output)
        return
    from memcurse_cli.reports.terminal.hessian import to_text

    emit(to_text(report, correlation=correlation, file=output), output)
