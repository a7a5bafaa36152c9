"""`memcurse inspect`: read checkpoints, report on every recurrent layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memcurse_cli.commands.options import (
    AssumeOption,
    AutocorrelationOption,
    CursedLimitOption,
    DeviceOption,
    FamilyOption,
    GatesOption,
    HorizonOption,
    InputScaleOption,
    JsonOption,
    LayerOption,
    LearningRateOption,
    OneRhoOption,
    OutputOption,
    QuietOption,
    ReadoutOption,
    SpectraOption,
    WatchLimitOption,
    choose_format,
    emit,
    read_assumptions,
    write_file,
)

FORMATS = ("terminal", "json", "html")


def inspect(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Checkpoints: files, directories or URLs.")
    ],
    rho: OneRhoOption = None,
    autocorrelation: AutocorrelationOption = None,
    horizon: HorizonOption = None,
    readout: ReadoutOption = None,
    learning_rate: LearningRateOption = 1e-3,
    watch_limit: WatchLimitOption = 0.1,
    cursed_limit: CursedLimitOption = 1.0,
    family: FamilyOption = None,
    layer: LayerOption = None,
    assume: AssumeOption = None,
    device: DeviceOption = "auto",
    values: Annotated[
        bool, typer.Option("--values", help="Put every eigenvalue into the JSON.")
    ] = False,
    spectra: SpectraOption = False,
    gates: GatesOption = False,
    input_scale: InputScaleOption = None,
    rewrite_as: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Show the same eigenvalues as lru, polar, real-imaginary, optimal or s4 too; "
            "repeatable.",
        ),
    ] = None,
    normalize: Annotated[
        str | None,
        typer.Option(
            "--normalize",
            metavar="own|coupled",
            help="Show them with γ = √(1-|λ|²) too: its own parameter, or computed from λ.",
        ),
    ] = None,
    learning_rates: Annotated[
        bool,
        typer.Option(
            "--learning-rates", help="Derive rates for the recurrent groups, relative to --lr."
        ),
    ] = False,
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            metavar="FILE",
            help="Read Adam's state from here, where the checkpoint does not hold it.",
        ),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show every layer, also those that look alike.")
    ] = False,
    report_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="terminal|json|html",
            help="What to print; html is one file with charts, for a browser.",
        ),
    ] = None,
    as_json: JsonOption = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw spectrum and sensitivities into a .svg, .png or .pdf too.",
        ),
    ] = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Report on every recurrent layer of a checkpoint.

    Example: memcurse inspect model.safetensors --horizon 1024 --lr 3e-4
    """
    from memcurse_cli.checkpoints.untrusted.source import unchanged_while_read
    from memcurse_cli.commands.progress import layer_progress
    from memcurse_cli.diagnosis.inspection import inspect as inspect_checkpoint

    chosen = choose_format(report_format, FORMATS, as_json=as_json)
    figure_format = ""
    if plot is not None:
        from memcurse_cli.reports.plots.figures import check_figure

        figure_format = check_figure(plot)
    assumptions = read_assumptions(assume)
    reports = []
    pictures = []
    for path in paths:
        with unchanged_while_read(), layer_progress(path, quiet=quiet) as progress:
            reports.append(
                inspect_checkpoint(
                    path,
                    rho=rho,
                    autocorrelation=autocorrelation,
                    horizon=horizon,
                    readout=readout,
                    learning_rate=learning_rate,
                    watch_limit=watch_limit,
                    cursed_limit=cursed_limit,
                    family=family,
                    layers=layer or (),
                    assume=assumptions,
                    device=device,
                    values=values or plot is not None or chosen == "html",
                    spectra=spectra,
                    gates=gates,
                    input_scale=input_scale,
                    rewrite_as=rewrite_as or (),
                    normalize=normalize,
                    learning_rates=learning_rates,
                    optimizer=optimizer,
                    progress=progress,
                )
            )
            if chosen == "html":
                from memcurse_cli.diagnosis.hessian.inspection import hessian_pictures

                pictures.append(
                    hessian_pictures(
                        path,
                        reports[-1],
                        rho=rho,
                        autocorrelation=autocorrelation,
                        readout=readout,
                        assume=assumptions,
                        device=device,
                    )
                )
    if plot is not None:
        from memcurse_cli.reports.plots.spectrum_figure import spectrum_figure

        write_file(plot, spectrum_figure(reports, figure_format))
    if chosen == "json":
        from memcurse_cli.schema.json_codec import dumps

        emit(dumps(reports, values=values), output)
        return
    if chosen == "html":
        from memcurse_cli.reports.html.document import to_html

        emit(to_html(reports, pictures), output)
        return
    from memcurse_cli.reports.terminal.report import to_text

    pages = [to_text(report, all_layers=show_all, file=output) for report in reports]
    if len(reports) > 1:
        from memcurse_cli.reports.terminal.summary import summary_text

        pages.append(summary_text(reports, file=output))
    emit("\n".join(pages), output)
