"""`memcurse landscape`: how narrow the loss is around one eigenvalue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memcurse_cli.commands.options import (
    AutocorrelationOption,
    HorizonOption,
    JsonOption,
    LearningRateOption,
    OneRhoOption,
    OutputOption,
    ReadoutOption,
    check_figure,
    emit,
    emit_json,
    write_file,
)


def landscape(
    modulus: Annotated[
        float | None, typer.Option(metavar="|λ|", help="The target's modulus; 0.99 by default.")
    ] = None,
    time_constant: Annotated[
        float | None,
        typer.Option(metavar="τ", help="Its time constant -1/log|λ| in steps instead."),
    ] = None,
    angle: Annotated[
        float, typer.Option(metavar="θ", help="Its angle in radians, in [0, π].")
    ] = 0.0,
    start: Annotated[
        float | None,
        typer.Option(
            "--from", metavar="|λ|", help="A modulus where training starts: the way from there too."
        ),
    ] = None,
    start_angle: Annotated[
        float | None,
        typer.Option("--from-angle", metavar="θ", help="Its angle; that of the target by default."),
    ] = None,
    rho: OneRhoOption = None,
    autocorrelation: AutocorrelationOption = None,
    horizon: HorizonOption = None,
    readout: ReadoutOption = None,
    parametrization: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="real-imaginary, polar, lru, optimal or s4; repeatable, all of them by default.",
        ),
    ] = None,
    normalization: Annotated[
        str | None,
        typer.Option(
            metavar="none|own|coupled",
            help="γ = 1, or γ = √(1-|λ|²) as its own parameter or computed from λ; by default "
            "what is usual for each parametrisation.",
        ),
    ] = None,
    step_size: Annotated[float, typer.Option(metavar="Δ", help="The step size of s4.")] = 0.01,
    learning_rate: LearningRateOption = 1e-3,
    level: Annotated[
        float,
        typer.Option(metavar="SHARE", help="The loss at which a basin ends; 1 is that of silence."),
    ] = 0.1,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the losses into a .svg, .png or .pdf too."),
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """How narrow the loss is around an eigenvalue, and how parametrisations widen it.

    Example: memcurse landscape --modulus 0.999 --angle 0.3
    """
    from memcurse_cli.diagnosis.landscape import landscape as take_landscape

    figure_format = "" if plot is None else check_figure(plot)
    report = take_landscape(
        modulus=modulus,
        time_constant=time_constant,
        angle=angle,
        rho=rho,
        autocorrelation=autocorrelation,
        horizon=horizon,
        readout=readout,
        parametrizations=parametrization or (),
        normalization=normalization,
        step_size=step_size,
        learning_rate=learning_rate,
        level=level,
        start_modulus=start,
        start_angle=start_angle,
    )
    if plot is not None:
        from memcurse_cli.reports.plots.landscape_figure import landscape_figure

        write_file(plot, landscape_figure(report, figure_format))
    if as_json:
        emit_json(report, output)
        return
    from memcurse_cli.reports.terminal.landscape import to_text

    emit(to_text(report, file=output), output)
