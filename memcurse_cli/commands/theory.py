"""`memcurse predict`, `landscape` and `autocorrelation`: what needs no checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from memcurse_cli.commands.options import (
    AutocorrelationOption,
    HorizonOption,
    JsonOption,
    LearningRateOption,
    OneRhoOption,
    OutputOption,
    ReadoutOption,
    RhoOption,
    check_figure,
    emit,
    emit_json,
    write_file,
)


def _option(metavar: str, meaning: str) -> Any:
    return typer.Option(metavar=metavar, help=meaning)


StepSizeOption = Annotated[float, _option("Δ", "The step size of s4.")]


def predict(
    rho: RhoOption = None,
    autocorrelation: AutocorrelationOption = None,
    modulus: Annotated[
        list[float] | None,
        _option("|λ|", "An eigenvalue's modulus; repeatable. From 0 to 1 - 1e-6 by default."),
    ] = None,
    time_constant: Annotated[
        list[float] | None,
        _option("τ", "Its time constant -1/log|λ| in steps instead, exact up to 1e15; repeatable."),
    ] = None,
    angle: Annotated[
        list[float] | None, _option("θ", "Its angle in radians; repeatable; 0 by default.")
    ] = None,
    parametrization: Annotated[
        str,
        _option(
            "NAME",
            "How λ depends on its parameters: real-imaginary, polar, lru, optimal, s4 or "
            "sigmoid-gate.",
        ),
    ] = "real-imaginary",
    normalization: Annotated[
        str,
        _option(
            "NAME", "The gain γ of the input: none, lru, coupled, gru or zoh (which needs s4)."
        ),
    ] = "none",
    step_size: StepSizeOption = 0.01,
    ring: Annotated[
        str | None,
        _option(
            "MIN:MAX",
            "Average over |λ| from MIN to MAX, uniform by area, as an LRU is initialised.",
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


def landscape(
    modulus: Annotated[
        float | None, _option("|λ|", "The target's modulus; 0.99 by default.")
    ] = None,
    time_constant: Annotated[
        float | None, _option("τ", "Its time constant -1/log|λ| in steps instead.")
    ] = None,
    angle: Annotated[float, _option("θ", "Its angle in radians, in [0, π].")] = 0.0,
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
        _option(
            "NAME", "real-imaginary, polar, lru, optimal or s4; repeatable, all of them by default."
        ),
    ] = None,
    normalization: Annotated[
        str | None,
        _option(
            "none|own|coupled",
            "γ = 1, or γ = √(1-|λ|²) as its own parameter or computed from λ; by default what is "
            "usual for each parametrisation.",
        ),
    ] = None,
    step_size: StepSizeOption = 0.01,
    learning_rate: LearningRateOption = 1e-3,
    level: Annotated[
        float, _option("SHARE", "The loss at which a basin ends; 1 is that of silence.")
    ] = 0.1,
    plot: Annotated[
        Path | None, _option("FILE", "Draw the losses into a .svg, .png or .pdf too.")
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """How narrow the loss is around an eigenvalue, and how parametrisations widen it.

    Example: memcurse landscape --modulus 0.999 --angle 0.3
    """
    from memcurse_cli.diagnosis.prediction import landscape as take_landscape

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
        from memcurse_cli.reports.figures import landscape_figure

        write_file(plot, landscape_figure(report, figure_format))
    if as_json:
        emit_json(report, output)
        return
    from memcurse_cli.reports.terminal.landscape import to_text

    emit(to_text(report, file=output), output)


def autocorrelation(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Samples of shape (steps), (steps, features) or (sequences, steps, features): "
            ".npy, .csv, .txt, or one array of any checkpoint format.",
        ),
    ],
    array: Annotated[
        str | None,
        typer.Option(
            "--array", "--tensor", metavar="NAME", help="Which array, where a file holds several."
        ),
    ] = None,
    lags: Annotated[
        int | None, _option("K", "The largest lag; half the steps, at most 4096, by default.")
    ] = None,
    centred: Annotated[
        bool,
        typer.Option("--centred", help="Subtract each feature's mean, which is else a part ρ = 1."),
    ] = False,
    padding: Annotated[
        float | None,
        _option(
            "VALUE",
            "Leave out steps at either end of a sequence whose features all have this value; nan "
            "leaves out every NaN.",
        ),
    ] = None,
    estimator: Annotated[
        str,
        _option("unbiased|biased", "Divide by the number of products, or by that of samples."),
    ] = "unbiased",
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Estimate an input's autocorrelation and fit a mixture of decays to it.

    Example: memcurse autocorrelation embeddings.npy --json --output input.json
    then: memcurse inspect model.safetensors --autocorrelation input.json
    """
    from memcurse_cli.checkpoints.series import read_series
    from memcurse_cli.checkpoints.untrusted.names import shown_place
    from memcurse_cli.diagnosis.autocorrelation import check_estimator, estimate_autocorrelation

    estimate = estimate_autocorrelation(
        read_series(data, array),
        lags=lags,
        centred=centred,
        padding=padding,
        estimator=check_estimator(estimator),
        source=shown_place(data),
    )
    if as_json:
        emit_json(estimate, output)
        return
    from memcurse_cli.reports.terminal.autocorrelation import to_text

    emit(to_text(estimate, file=output), output)
