"""`memcurse compare`: two checkpoints or reports, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from memcurse_cli.commands.options import (
    JsonOption,
    OutputOption,
    choose_format,
    emit,
    emit_json,
)
from memcurse_cli.commands.request import STDIN, Request, with_request
from memcurse_cli.errors import UsageError

if TYPE_CHECKING:
    from memcurse_cli.schema.report import Report

FORMATS = ("terminal", "json", "html")


@with_request("spectra")
def compare(
    context: typer.Context,
    before: Annotated[
        str, typer.Argument(metavar="A", help="A checkpoint, a report's JSON, or - for stdin.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The same, to compare with.")],
    request: Request,
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

    def read(path: str) -> Report:
        reports = request.reports(path, context, values=True)
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
    elif chosen == "json":
        emit_json(made, output)
    else:
        from memcurse_cli.reports.terminal.comparison import to_text

        emit(to_text(made, file=output), output)
