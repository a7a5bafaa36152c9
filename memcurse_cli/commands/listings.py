"""`memcurse families`, `formats`, `rule`, `schema` and `settings`: what memcurse knows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.commands.defaults import (
    EVERYTHING,
    OWN_TABLE,
    PER_COMMAND,
    entries,
    give_variables,
    shown,
    variable_set,
    variables,
)
from memcurse_cli.commands.options import JsonOption, OutputOption, emit, emit_json

if TYPE_CHECKING:
    from memcurse_cli.diagnosis.settings import SettingsFile
    from memcurse_cli.schema.listings import SettingDocument


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
    from memcurse_cli.reports.terminal.listing import family_list

    emit(family_list(listed, output), output)


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
    from memcurse_cli.reports.terminal.listing import listing

    rows = [(one.name, " ".join(one.extensions), one.recognised_by) for one in FORMATS]
    emit(listing(("format", "extensions", "recognised by"), rows, output), output)


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
        from memcurse_cli.reports.terminal.listing import rule_text

        emit(rule_text(rules[0], file=output), output)
    else:
        from memcurse_cli.reports.terminal.listing import listing

        rows = [(one.code, one.title) for one in rules]
        emit(listing(("code", "finding"), rows, output), output)


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
    from memcurse_cli.schema.documents import document_schema, find_document

    emit(json.dumps(document_schema(find_document(name)), indent=2), output)


def settings(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="This file instead of the nearest memcurse.toml or pyproject.toml.",
            envvar="MEMCURSE_CONFIG",
            show_envvar=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Show every default that is in force, and where it comes from.

    The command line comes first, then a variable such as MEMCURSE_LR, then
    memcurse.toml or the table tool.memcurse of pyproject.toml.

    Example: memcurse settings
    """
    from memcurse_cli.diagnosis.settings import find_settings, read_settings
    from memcurse_cli.schema.listings import SettingsDocument

    file = find_settings() if config is None else read_settings(config)
    document = SettingsDocument(
        None if file is None else file.path,
        (*_options(file, context.meta[EVERYTHING]()), *_limits(file)),
    )
    if as_json:
        emit_json(document, output)
        return
    from memcurse_cli.reports.terminal.listing import listing

    rows = [(one.name, shown(one.value), one.origin) for one in document.settings]
    emit(listing(("setting", "value", "from"), rows, output), output)


def _options(
    file: SettingsFile | None, everything: Mapping[str, Mapping[str, Any]]
) -> Iterator[SettingDocument]:
    """Every option but the limits: one row for all commands in which it is the same."""
    from memcurse_cli.diagnosis.policy import KEYS
    from memcurse_cli.schema.listings import SettingDocument

    rows: dict[tuple[str, str, str], SettingDocument] = {}
    for command, options in everything.items():
        give_variables(command, options)
        said = {}
        if file is not None:
            found = entries(file, command, options, lambda: everything)
            said = {name: (value, file.place(*keys)) for name, keys, value in found}
        for name, option in options.items():
            value, origin = said.get(name, (option.default, ""))
            if variable := variable_set(option):
                value, origin = os.environ[variable], variable
            if command == OWN_TABLE and name in KEYS and not origin:
                continue  # a limit that no variable sets: the file says what it is
            row = SettingDocument(
                name=f"{command}.{name}" if name in PER_COMMAND else name,
                value=shown_place(value) if isinstance(value, str) else value,
                origin=origin or "default",
                variable=variables(command, name)[-1],
                commands=(command,),
            )
            key = row.name, repr(value), origin
            others = rows[key].commands if key in rows else ()
            rows[key] = replace(rows.get(key, row), commands=(*others, command))
    yield from (row for _, row in sorted(rows.items()))


def _limits(file: SettingsFile | None) -> Iterator[SettingDocument]:
    """What the table of `memcurse check` and its overrides say, key by key."""
    from memcurse_cli.diagnosis.policy import CHECK, OVERRIDES, rule_sets, table
    from memcurse_cli.schema.listings import SettingDocument

    if file is None:
        return
    rule_sets(file)  # refuses what is wrong
    found = table(file)
    tables: list[tuple[tuple[str | int, ...], Mapping[str, Any]]] = [((CHECK,), found)]
    overrides = enumerate(found.get(OVERRIDES, ()))
    tables += [((CHECK, OVERRIDES, index), override) for index, override in overrides]
    for place, values in tables:
        for key, value in values.items():
            if key != OVERRIDES:
                yield SettingDocument(
                    name=_path((*place, key)),
                    value=value,
                    origin=file.place(*place, key),
                    variable="",
                    commands=(CHECK,),
                )


def _path(keys: tuple[str | int, ...]) -> str:
    """``check.overrides[0].layers``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)[1:]
