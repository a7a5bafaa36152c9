"""`memcurse inspect`: read checkpoints, report on every recurrent layer."""

from __future__ import annotations

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
)


def inspect(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Checkpoints: files, directories or URLs.")
    ],
    rho: OneRhoOption = None,
    autocorrelation: AutocorrelationOption = None,
    horizon: HorizonOption = None,
    readout: ReadoutOption = None,
    learning_rate: Annotated[
        float, typer.Option("--lr", metavar="RATE", help="The optimizer's learning rate.")
    ] = 1e-3,
    watch_limit: Annotated[
        float, typer.Option("--watch-limit", metavar="X", help="Step effect to watch from.")
    ] = 0.1,
    cursed_limit: Annotated[
        float, typer.Option("--cursed-limit", metavar="X", help="Step effect called cursed.")
    ] = 1.0,
    family: FamilyOption = None,
    layer: LayerOption = None,
    assume: AssumeOption = None,
    device: DeviceOption = "auto",
    values: Annotated[
        bool, typer.Option("--values", help="Put every eigenvalue into the JSON.")
    ] = False,
    spectra: Annotated[
        bool,
        typer.Option("--spectra", help="Take the spectra of gated layers' hidden weights."),
    ] = False,
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
    show_all: Annotated[
        bool, typer.Option("--all", help="Show every layer, also those that look alike.")
    ] = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Report on every recurrent layer of a checkpoint.

    Example: memcurse inspect model.safetensors --horizon 1024 --lr 3e-4
    """
    from memcurse_cli.commands.progress import layer_progress
    from memcurse_cli.diagnosis.inspection import inspect as inspect_checkpoint

    assumptions = read_assumptions(assume)
    reports = []
    for path in paths:
        with layer_progress(path, quiet=quiet) as progress:
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
                    values=values,
                    spectra=spectra,
                    rewrite_as=rewrite_as or (),
                    normalize=normalize,
                    progress=progress,
                )
            )
    if as_json:
        from memcurse_cli.reports.json_report import dumps

        emit(dumps(reports), output)
        return
    from memcurse_cli.reports.terminal import to_text

    pages = [to_text(report, all_layers=show_all, file=output) for report in reports]
    if len(reports) > 1:
        from memcurse_cli.reports.terminal_summary import summary_text

        pages.append(summary_text(reports, file=output))
    emit("\n".join(pages), output)
