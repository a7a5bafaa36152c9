"""`memcurse schema`: the JSON Schema of what memcurse writes."""

from __future__ import annotations

from typing import Annotated

import typer

from memcurse_cli.commands.options import OutputOption, emit


def schema(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="report, check, prediction, hessian, autocorrelation, families, formats or rules.",
        ),
    ] = "report",
    output: OutputOption = None,
) -> None:
    """Print the JSON Schema of what memcurse writes with --json.

    Within a version of a schema, fields are added but never renamed.

    Example: memcurse schema report --output report.schema.json
    """
    import json

    from memcurse_cli.schema.documents import find_document
    from memcurse_cli.schema.json_codec import document_schema

    emit(json.dumps(document_schema(find_document(name)), indent=2), output)
