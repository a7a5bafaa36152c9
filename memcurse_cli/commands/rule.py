"""`memcurse rule`: what a finding means."""

from __future__ import annotations

from typing import Annotated

import typer

from memcurse_cli.commands.options import JsonOption, OutputOption, emit, emit_json


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
    from memcurse_cli.diagnosis.findings.rules import all_rules, find_rules

    rules = all_rules() if code is None else find_rules(code)
    if as_json:
        from memcurse_cli.schema.listings import RulesDocument

        emit_json(RulesDocument(rules), output)
        return
    if len(rules) == 1:
        from memcurse_cli.reports.terminal.rule import to_text as explain

        emit(explain(rules[0], file=output), output)
        return
    from memcurse_cli.reports.terminal.listing import Listing, to_text

    rows = [(one.code, one.title) for one in rules]
    emit(to_text(Listing(("code", "finding"), rows), file=output), output)
