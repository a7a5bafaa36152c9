"""`memcurse predict`: the theory without a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from memcurse_cli.commands.options import (
    AutocorrelationOption,
    HorizonOption,
    JsonOption,
    OutputOption,
    ReadoutOption,
    RhoOption,
    emit,
    emit_json,
)


def predict(
    rho: RhoOption = None,
    autocorrelation: AutocorrelationOption = None,
    modulus: Annotated[
        list[float] | None,
        typer.Option(
            metavar="|λ|",
            help="An eigenvalue's modulus; repeatable. From 0 to 1 - 1e-6 by default.",
        ),
    ] = None,
    time_constant: Annotated[
        list[float] | None,
        typer.Option(
            metavar="τ",
            help="Its time constant -1/log|λ| in steps instead, exact up to 1e15; repeatable.",
        ),
    ] = None,
    angle: Annotated[
        list[float] | None,
        typer.Option(metavar="θ", help="Its angle in radians; repeatable; 0 by default."),
    ] = None,
    parametrization: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How λ depends on its parameters: real-imaginary, polar, lru, optimal, s4 or "
            "sigmoid-gate.",
        ),
    ] = "real-imaginary",
    normalization: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The gain γ of the input: none, lru, coupled, gru or zoh (which needs s4).",
        ),
    ] = "none",
    step_size: Annotated[float, typer.Option(metavar="Δ", help="The step size of s4.")] = 0.01,
    ring: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX",
            help="Average over |λ| from MIN to MAX, uniform by area, as an LRU is initialised.",
        ),
    ] = None,
    horizon: HorizonOption = None,
    readout: ReadoutOption = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the sensitivities against the modulus.")
    ] = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """The theory alone: what memory costs under a parametrisation, no checkpoint needed.

    Example: memcurse predict --rho 0.5 --parametrization lru --normalization lru
    """
    from memcurse_cli.diagnosis.prediction import predict as predict_moments

    prediction = predict_moments(
        rho=rho,
        autocorrelation=autocorrelation,
        modulus=modulus,
        time_constant=time_constant,
        angle=angle or 0.0,
        parametrization=parametrization,
        normalization=normalization,
        horizon=horizon,
        readout=readout,
        step_size=step_size,
        ring=ring,
    )
    if as_json:
        emit_json(prediction.document, output)
        return
    from memcurse_cli.reports.terminal.prediction import to_text

    emit(to_text(prediction, with_plot=plot, file=output), output)
