"""`memcurse compare`: two checkpoints or reports, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from memcurse_cli.commands.check_input import STDIN, given_options, read_reports
from memcurse_cli.commands.options import (
    AssumeOption,
    AutocorrelationOption,
    CursedLimitOption,
    DeviceOption,
    FamilyOption,
    HorizonOption,
    JsonOption,
    LayerOption,
    LearningRateOption,
    OneRhoOption,
    OutputOption,
    QuietOption,
    ReadoutOption,
    WatchLimitOption,
    choose_format,
    emit,
    read_assumptions,
)
from memcurse_cli.errors import UsageError

if TYPE_CHECKING:
    from memcurse_cli.schema.report import Report

FORMATS = ("terminal", "json", "html")


def compare(
    context: typer.Context,
    before: Annotated[
        str, typer.Argument(metavar="A", help="A checkpoint, a report's JSON, or - for stdin.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The same, to compare with.")],
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
        bool, typer.Option("--values", help="Put every pair of eigenvalues into the JSON.")
    ] = False,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="terminal|json|html",
            help="What to print; html is one file with charts, for a browser.",
        ),
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare two checkpoints layer by layer: what moved towards the unit circle.

    Example: memcurse compare step_1000.safetensors step_2000.safetensors
    """
    from memcurse_cli.diagnosis.comparison import compare as compare_reports

    chosen = choose_format(output_format, FORMATS, as_json=as_json)
    if before == after == STDIN:
        raise UsageError(
            "only one of the two can come from standard input",
            where=STDIN,
            remedy="write the other to a file: memcurse inspect … --json --values --output FILE",
        )
    assumptions = read_assumptions(assume)
    given = given_options(context)

    def inspect(path: str) -> Report:
        from memcurse_cli.commands.progress import layer_progress
        from memcurse_cli.diagnosis.inspection import inspect as inspect_checkpoint

        with layer_progress(path, quiet=quiet) as progress:
            return inspect_checkpoint(
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
                values=True,
                progress=progress,
            )

    def read(path: str) -> Report:
        reports = read_reports(path, inspect, given)
        if len(reports) != 1:
            raise UsageError(
                f"holds {len(reports)} reports",
                where="standard input" if path == STDIN else path,
                remedy="give two files of one report each",
            )
        return reports[0]

    drawn = chosen == "html"
    made = compare_reports(read(before), read(after), values=values or drawn)
    if drawn:
        from memcurse_cli.reports.html.comparison import to_html

        emit(to_html(made), output)
        return
    if chosen == "json":
        from memcurse_cli.schema.json_codec import to_text as as_text

        emit(as_text(made), output)
        return
    from memcurse_cli.reports.terminal.comparison import to_text

    emit(to_text(made, file=output), output)
