"""`memcurse families`, `formats`, `rule` and `schema`: what memcurse knows."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from memcurse_cli.commands.options import JsonOption, OutputOption, emit, emit_json


def families(as_json: JsonOption = False, output: OutputOption = None) -> None:
    """List the recurrent families that are recognised, and by what.

    Names and shapes of tensors decide; the first family that recognises a
    layer has it, unless --family of memcurse inspect names another.

    Example: memcurse families --json
    """
    from memcurse_cli.families.registry import all_families
    from memcurse_cli.schema.listings import AssumptionDocument, FamiliesDocument, FamilyDocument

    listed = tuple(
        FamilyDocument(
            family.name,
            family.title,
            family.recognised_by,
            family.equation,
            family.source,
            tuple(
                AssumptionDocument(one.key, one.default, one.choices, one.meaning)
                for one in family.assumptions
            ),
        )
        for family in all_families()
    )
    if as_json:
        emit_json(FamiliesDocument(listed), output)
        return
    from memcurse_cli.reports.terminal.listing import FamilyList, to_text

    emit(to_text(FamilyList(listed), file=output), output)


def formats(as_json: JsonOption = False, output: OutputOption = None) -> None:
    """List the checkpoint formats that are read, and by what each is recognised.

    A file's content decides, never its extension. A directory is read through
    a conventional name such as model.safetensors, its index of shards, or the
    only checkpoint in it.

    Example: memcurse formats --json
    """
    from memcurse_cli.checkpoints.registry import FORMATS
    from memcurse_cli.schema.listings import FormatDocument, FormatsDocument

    if as_json:
        listed = (FormatDocument(one.name, one.extensions, one.recognised_by) for one in FORMATS)
        emit_json(FormatsDocument(tuple(listed)), output)
        return
    from memcurse_cli.reports.terminal.listing import Listing, to_text

    rows = [(one.name, " ".join(one.extensions), one.recognised_by) for one in FORMATS]
    emit(to_text(Listing(("format", "extensions", "recognised by"), rows), file=output), output)


def rule(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="A finding's code, as MC204, or its beginning."),
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Explain a finding by its code: what, why, the equation, what to change.

    Without a code, list every one. Example: memcurse rule MC204
    """
    from memcurse_cli.diagnosis.rules import RULES, find_rules
    from memcurse_cli.schema.listings import RulesDocument

    rules = tuple(RULES.values()) if code is None else find_rules(code)
    if as_json:
        emit_json(RulesDocument(rules), output)
    elif len(rules) == 1:
        from memcurse_cli.reports.terminal.rule import to_text as explain

        emit(explain(rules[0], file=output), output)
    else:
        from memcurse_cli.reports.terminal.listing import Listing, to_text

        rows = [(one.code, one.title) for one in rules]
        emit(to_text(Listing(("code", "finding"), rows), file=output), output)


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
    from memcurse_cli.schema.documents import find_document
    from memcurse_cli.schema.json_codec import document_schema

    emit(json.dumps(document_schema(find_document(name)), indent=2), output)
