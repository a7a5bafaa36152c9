"""`memcurse autocorrelation`: the statistics of an input, for --autocorrelation FILE."""

from __future__ import annotations

from typing import Annotated

import typer

from memcurse_cli.commands.options import JsonOption, OutputOption, emit, emit_json


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
        int | None,
        typer.Option(
            metavar="K", help="The largest lag; half the steps, at most 4096, by default."
        ),
    ] = None,
    centred: Annotated[
        bool,
        typer.Option("--centred", help="Subtract each feature's mean, which is else a part ρ = 1."),
    ] = False,
    padding: Annotated[
        float | None,
        typer.Option(
            metavar="VALUE",
            help="Leave out steps at either end of a sequence whose features all have this value; "
            "nan leaves out every NaN.",
        ),
    ] = None,
    estimator: Annotated[
        str,
        typer.Option(
            metavar="unbiased|biased",
            help="Divide by the number of products, or by that of samples.",
        ),
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
        emit_json(estimate.document, output)
        return
    from memcurse_cli.reports.terminal.autocorrelation import to_text

    emit(to_text(estimate, file=output), output)
