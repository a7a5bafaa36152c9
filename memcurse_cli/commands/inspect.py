"""`memcurse inspect`: read checkpoints, report on every recurrent layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memcurse_cli.commands.options import (
    JsonOption,
    OutputOption,
    check_figure,
    choose_format,
    emit,
    write_file,
)
from memcurse_cli.commands.request import Request, with_request

FORMATS = ("terminal", "json", "html")


@with_request()
def inspect(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Checkpoints: files, directories or URLs.")
    ],
    request: Request,
    values: Annotated[
        bool, typer.Option("--values", help="Put every eigenvalue into the JSON.")
    ] = False,
    gates: Annotated[
        bool,
        typer.Option(
            "--gates", help="Read the weights of input-dependent gates: how far they move λ."
        ),
    ] = False,
    input_scale: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="The RMS of each component of what the gates see, 1 by default; implies --gates.",
        ),
    ] = None,
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
            metavar="FILE",
            help="Draw spectrum and sensitivities into a .svg, .png or .pdf too.",
        ),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Report on every recurrent layer of a checkpoint.

    Example: memcurse inspect model.safetensors --horizon 1024 --lr 3e-4
    """
    chosen = choose_format(report_format, FORMATS, as_json=as_json)
    figure_format = "" if plot is None else check_figure(plot)
    drawn = chosen == "html"
    reports = [
        request.inspect(
            path,
            values=values or plot is not None or drawn,
            gates=gates,
            input_scale=input_scale,
            rewrite_as=rewrite_as or (),
            normalize=normalize,
            learning_rates=learning_rates,
            optimizer=optimizer,
            pictures=drawn,
        )
        for path in paths
    ]
    if plot is not None:
        from memcurse_cli.reports.plots.spectrum_figure import spectrum_figure

        write_file(plot, spectrum_figure(reports, figure_format))
    if chosen == "json":
        from memcurse_cli.schema.json_codec import dumps

        emit(dumps(reports, values=values), output)
    elif drawn:
        from memcurse_cli.reports.html.report import to_html

        emit(to_html(reports), output)
    else:
        from memcurse_cli.reports.terminal.report import to_text
        from memcurse_cli.reports.terminal.summary import summary_text

        pages = [to_text(report, all_layers=show_all, file=output) for report in reports]
        if len(reports) > 1:
            pages.append(summary_text(reports, file=output))
        emit("\n".join(pages), output)
