"""`memcurse settings`: every default that is in force, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.commands.defaults import EVERYTHING
from memcurse_cli.commands.options import JsonOption, OutputOption, emit, emit_json

if TYPE_CHECKING:
    from memcurse_cli.diagnosis.settings import SettingsFile
    from memcurse_cli.schema.listings import SettingDocument

DEFAULT = "default"


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
    from memcurse_cli.commands.common import shown
    from memcurse_cli.reports.terminal.listing import Listing, to_text

    rows = [(one.name, shown(one.value), one.origin) for one in document.settings]
    emit(to_text(Listing(("setting", "value", "from"), rows), file=output), output)


def _options(
    file: SettingsFile | None, everything: Mapping[str, Mapping[str, Any]]
) -> Iterator[SettingDocument]:
    """Every option but the limits: one row for all commands in which it is the same."""
    from memcurse_cli.commands.defaults import OWN_TABLE, PER_COMMAND, Setting, in_force
    from memcurse_cli.diagnosis.policy import KEYS
    from memcurse_cli.schema.listings import SettingDocument

    rows: dict[tuple[str, str, str], tuple[Setting, list[str]]] = {}
    for command in everything:
        for name, setting in in_force(command, file, everything).items():
            if command == OWN_TABLE and name in KEYS and not setting.origin:
                continue  # a limit that no variable sets: the file says what it is
            shown_name = f"{command}.{name}" if name in PER_COMMAND else name
            key = shown_name, repr(setting.value), setting.origin
            rows.setdefault(key, (setting, []))[1].append(command)
    for (name, _, origin), (setting, commands) in sorted(rows.items()):
        value = setting.value
        yield SettingDocument(
            name=name,
            value=shown_place(value) if isinstance(value, str) else value,
            origin=origin or DEFAULT,
            variable=setting.variable,
            commands=tuple(commands),
        )


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
